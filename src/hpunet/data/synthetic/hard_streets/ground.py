"""Road, sidewalks and what lies on them, as strips along the street."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.canvas import Canvas

_DEPTHS = np.geomspace(0.75, 400, 46)


@dataclass(frozen=True)
class Layout:
    """Metres: halves of the road and sidewalks (left, right), where the street ends, and a street that crosses it."""

    half_road: tuple[float, float]
    sidewalk: tuple[float, float]
    end: float
    crossing: tuple[float, float] | None  # from, to; depths

    def front(self, side: int) -> float:
        """Where houses stand on a side, 0 (left) or 1, as a distance from the street's axis."""
        return self.half_road[side] + self.sidewalk[side]

    def crosses(self, z: float) -> bool:
        """Whether the crossing street is at this depth."""
        return self.crossing is not None and bool(self.crossing[0] < z < self.crossing[1])


def paint_ground(rng: np.random.Generator, canvas: Canvas, layout: Layout) -> None:
    """Ground of several kinds with its marks, dirt and rails."""
    road = rng.uniform(70, 125) * np.asarray((1, 0.985, 1.01)) + rng.normal(0, 4, 3)
    walk = np.clip(road + rng.uniform(-8, 50) + rng.normal(0, 6, 3), 30, 200)
    left, right = -layout.half_road[0], layout.half_road[1]
    for side, (a, b) in enumerate(((-90.0, left), (right, 90.0))):
        _strip(canvas, (a, b), walk, LABEL_IDS["sidewalk"])
        if rng.random() < 0.25:  # grass between road and sidewalk
            wide = rng.uniform(0.3, 0.8) * layout.sidewalk[side]
            grass = np.asarray((84, 96, 58)) * rng.uniform(0.6, 1.2)
            edges = (left - wide, left) if side == 0 else (right, right + wide)
            _strip(canvas, edges, grass, LABEL_IDS["terrain"])
    _strip(canvas, (left, right), road, LABEL_IDS["road"])
    kerb = np.clip(walk * rng.uniform(0.8, 1.35), 0, 230)
    for x in (left, right):
        _strip(canvas, (x - 0.08, x + 0.08), kerb, None)
    if layout.crossing is not None:
        near, far = layout.crossing
        columns = np.linspace(-90, 90, 31)
        quads = np.asarray([((a, 0, near), (b, 0, near), (b, 0, far), (a, 0, far)) for a, b in pairwise(columns)])
        canvas.fill(quads, road, LABEL_IDS["road"])
    _patches(rng, canvas, layout, road=road, walk=walk)
    _marks(rng, canvas, layout)


def _strip(canvas: Canvas, edges: tuple[float, float], colour: np.ndarray, value: int | None) -> None:
    a, b = edges
    near, far = _DEPTHS[:-1], _DEPTHS[1:]
    # Bands of shadow are finer than the depths.
    quads = np.stack(
        [
            np.stack([np.full_like(near, x), np.zeros_like(near), z], axis=1)
            for x, z in ((a, near), (b, near), (b, far), (a, far))
        ],
        axis=1,
    )
    canvas.fill(quads, colour, value)


def _patches(rng: np.random.Generator, canvas: Canvas, layout: Layout, *, road: np.ndarray, walk: np.ndarray) -> None:
    """Repairs, slabs, puddles, drain covers and leaves."""
    number = int(rng.integers(10, 60))
    z = 2.5 + rng.exponential(14, number)
    x = rng.uniform(-layout.front(0), layout.front(1), number)
    on_road = (x > -layout.half_road[0]) & (x < layout.half_road[1])
    wide, deep = rng.uniform(0.1, 1.6, number), rng.uniform(0.2, 5, number)
    corners = ((0, 0), (wide, 0), (wide, deep), (0, deep))
    quads = np.stack([np.stack([x + dx, 0 * x, z + dz], axis=1) for dx, dz in corners], axis=1)
    tone = np.where(on_road[:, None], road, walk) * rng.uniform(0.72, 1.25, (number, 1))
    canvas.fill(quads, tone)


def _marks(rng: np.random.Generator, canvas: Canvas, layout: Layout) -> None:
    """Lane lines, a zebra crossing, arrows, tram rails."""
    white = np.asarray((205, 205, 200)) * rng.uniform(0.6, 1.1)
    left, right = -layout.half_road[0], layout.half_road[1]
    lines: list[tuple[float, float, float]] = []  # x, half width, share painted
    if rng.random() < 0.7:
        lines.append(((left + right) / 2, 0.07, rng.choice((0.5, 1.0))))
    for x in (left + 2.2, right - 2.2):
        if rng.random() < 0.35:
            lines.append((x, 0.06, rng.choice((0.3, 1.0))))
    if rng.random() < 0.2:
        track = rng.uniform(left / 2, right / 2)
        for x in (track - 0.72, track + 0.72):
            _strip(canvas, (x - 0.05, x + 0.05), np.asarray((62, 60, 62.0)), None)
    for x, half, share in lines:
        for z in np.arange(1.5, min(90, layout.end), 6.0):
            if not layout.crosses(z):
                far = z + 6 * share
                canvas.fill(
                    np.asarray(((x - half, 0, z), (x + half, 0, z), (x + half, 0, far), (x - half, 0, far))), white
                )
    if rng.random() < 0.3:
        z = layout.crossing[0] - 4 if layout.crossing else rng.uniform(7, 40)
        for x in np.arange(left + 0.4, right - 0.5, 1.0):
            canvas.fill(np.asarray(((x, 0, z), (x + 0.5, 0, z), (x + 0.5, 0, z + 3), (x, 0, z + 3))), white)
