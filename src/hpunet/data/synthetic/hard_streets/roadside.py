"""What stands along a street and at its end: houses, woods, walls, lawns, trees, poles, boxes."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.canvas import Canvas
from hpunet.data.synthetic.hard_streets.difficulty import Difficulty
from hpunet.data.synthetic.hard_streets.fronts import Wall, paint_fragments, paint_hoarding, paint_house
from hpunet.data.synthetic.hard_streets.greenery import paint_hedge, paint_leaves, paint_tree, paint_wood
from hpunet.data.synthetic.hard_streets.ground import Layout
from hpunet.data.synthetic.hard_streets.paints import wall_paint
from hpunet.data.synthetic.hard_streets.people import paint_box, paint_pole

Thing = tuple[float, Callable[[], None]]
_RIGHT, _AWAY = np.asarray((1.0, 0, 0)), np.asarray((0, 0, 1.0))


def roadside(rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty) -> Iterator[Thing]:
    """Things by depth, each with what paints it."""
    yield from _end(rng, canvas, layout, hard)
    for side in (0, 1):
        yield from _plots(rng, canvas, layout, hard, side=side)
        yield from _street_furniture(rng, canvas, layout, hard, side=side)


def _end(rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty) -> Iterator[Thing]:
    """Houses and trees across the end of the street, in two rows."""
    for z, rise in ((layout.end + 30, 1.4), (layout.end, 1.0)):
        x = -75.0
        while x < 75:
            wide = rng.uniform(5, 22)
            if rng.random() < 0.7:
                wall = Wall(np.asarray((x, 0, z)), _RIGHT, wide, rng.uniform(4, 15) * rise)
                yield z, partial(paint_house, rng, canvas, wall, hard, wall_paint(rng))
            elif rng.random() < 0.8:
                middle = np.asarray((x + wide / 2, 3.0, z))
                radii = np.asarray((wide / 1.8, rng.uniform(3, 6), 2))
                yield z, partial(paint_leaves, rng, canvas, middle=middle, radii=radii, density=1.5)
            x += wide


def _plots(
    rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty, *, side: int
) -> Iterator[Thing]:
    """One after another along a side; each has its distance from the road."""
    sign, z = (-1, 1)[side], rng.uniform(-8, 1.5)
    green = rng.beta(0.8, 2.0)  # how leafy this side is
    while z < layout.end:
        far = min(z + rng.uniform(6, 26), layout.end)
        if layout.crossing is not None and z < layout.crossing[1] and far > layout.crossing[0]:
            if z < layout.crossing[0] - 3:
                far = layout.crossing[0]
            else:
                z = layout.crossing[1]
                continue
        x = sign * (layout.front(side) + max(0.0, rng.normal(0, 1.2)))
        near = max(z, 1.0)
        if far > near + 0.5:
            kind = rng.choice(4, p=_shares(green))
            yield from _plot(rng, canvas, hard, kind=int(kind), x=x, near=near, far=far, layout=layout, side=side)
        z = far + (rng.uniform(0, 5) if rng.random() < 0.25 else 0)


def _glimpses(
    rng: np.random.Generator, canvas: Canvas, hard: Difficulty, *, x: float, near: float, far: float
) -> Iterator[Thing]:
    """Things among leaves, some of them like parts of cars."""
    for _ in range(rng.poisson(0.12 * (far - near))):
        z = rng.uniform(max(near, 5.0), max(far, 5.1))
        wall = Wall(np.asarray((x + rng.normal(0, 0.5) - 1, rng.uniform(0.0, 0.6), z)), _RIGHT, 2.5, 2.0)
        value = LABEL_IDS["vegetation"]
        yield z, partial(paint_fragments, rng, canvas, wall, hard, rate=0.6, value=value)
        at = np.asarray((x, rng.uniform(0.3, 1.8), z - 0.1))
        yield z - 0.1, partial(paint_leaves, rng, canvas, middle=at, radii=np.full(3, 1.3), density=0.15)


def _shares(green: float) -> np.ndarray:
    """Of houses, woods, walls and fences, and open places."""
    shares = np.asarray((0.8 * (1 - green), 0.6 * green + 0.02, 0.13, 0.08 + 0.15 * green))
    return np.asarray(shares / shares.sum())


def _plot(
    rng: np.random.Generator,
    canvas: Canvas,
    hard: Difficulty,
    *,
    kind: int,
    x: float,
    near: float,
    far: float,
    layout: Layout,
    side: int,
) -> Iterator[Thing]:
    sign = float(np.sign(x))
    if kind == 0:
        height, paint = rng.uniform(3.5, 19), wall_paint(rng)
        across = Wall(np.asarray((x if sign > 0 else x - 18, 0, near)), _RIGHT, 18.0, height)
        along = Wall(np.asarray((x, 0, near)), _AWAY, far - near, height)
        yield far - 1e-3, partial(paint_house, rng, canvas, along, hard, paint)
        if near > 1:
            yield near, partial(paint_house, rng, canvas, across, hard, paint)
    elif kind == 1:
        yield far, partial(paint_wood, rng, canvas, x=x + sign, near=near, far=far)
        yield from _glimpses(rng, canvas, hard, x=x, near=near, far=far)
    elif kind == 2:
        behind = x + sign * rng.uniform(3, 9)
        if rng.random() < 0.6:
            yield far, partial(paint_wood, rng, canvas, x=behind, near=near, far=far)
        else:
            wall = Wall(np.asarray((behind, 0, near)), _AWAY, far - near, rng.uniform(4, 14))
            yield far, partial(paint_house, rng, canvas, wall, hard, wall_paint(rng))
        low = Wall(np.asarray((x, 0, near)), _AWAY, far - near, rng.uniform(0.8, 2.8))
        what = "fence" if rng.random() < 0.5 else "wall"
        yield far - 1e-2, partial(paint_hoarding, rng, canvas, low, hard, what=what)
    else:

        def lawn() -> None:
            points = np.asarray(((x, 0, near), (x + sign * 40, 0, near), (x + sign * 40, 0, far), (x, 0, far)))
            canvas.fill(points, np.asarray((86, 98, 60)) * rng.uniform(0.6, 1.2), LABEL_IDS["terrain"])

        if rng.random() < 0.6:
            yield 1e6, lawn
        back = Wall(np.asarray((x + sign * rng.uniform(10, 25), 0, near)), _AWAY, far - near, rng.uniform(4, 14))
        yield far, partial(paint_house, rng, canvas, back, hard, wall_paint(rng))
        if rng.random() < 0.5:
            yield far - 1e-2, partial(paint_hedge, rng, canvas, x=x, near=near, far=far)
            yield from _glimpses(rng, canvas, hard, x=x, near=near, far=far)


def _street_furniture(
    rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty, *, side: int
) -> Iterator[Thing]:
    """Trees, poles, boxes, hedges and railings between road and houses."""
    sign, road, walk = (-1, 1)[side], layout.half_road[side], layout.sidewalk[side]

    def somewhere(low: float, high: float) -> tuple[float, float]:
        z = 4.5 + rng.exponential(22)
        return sign * (road + walk * rng.uniform(low, high)), min(z, layout.end - 1)

    if rng.random() < 0.4:  # an avenue
        at = sign * (road + rng.uniform(0.4, 0.9))
        for z in np.arange(rng.uniform(5, 12), layout.end, rng.uniform(6, 14)):
            if not layout.crosses(z):
                yield z, partial(paint_tree, rng, canvas, x=at + rng.normal(0, 0.15), z=z)
    for _ in range(rng.poisson(1.5)):
        x, z = somewhere(0.2, 1.0)
        yield z, partial(paint_tree, rng, canvas, x=x, z=z)
    for _ in range(rng.poisson(4 * hard.occluders)):
        x, z = somewhere(0.03, 0.3)
        yield z, partial(paint_pole, rng, canvas, x=x, z=z)
    for _ in range(rng.poisson(1.6 * hard.decoys)):
        x, z = somewhere(0.3, 1.2)
        yield z, partial(paint_box, rng, canvas, x=x, z=z, hard=hard)
    if rng.random() < 0.2:
        near = rng.uniform(5, 25)
        far = near + rng.uniform(3, 15)
        yield far, partial(paint_hedge, rng, canvas, x=sign * (road + 0.5 * walk), near=near, far=far)
    for _ in range(rng.poisson(0.35 * hard.decoys)):  # a hoarding or a stall that faces the camera
        x, z = somewhere(0.4, 1.4)
        wide = rng.uniform(1.5, 4.5)
        stall = Wall(np.asarray((x - wide / 2, 0, max(z, 8.0))), _RIGHT, wide, rng.uniform(1.5, 2.8))
        yield stall.corner[2], partial(paint_hoarding, rng, canvas, stall, hard, what="wall")
    if rng.random() < 0.15:
        near = rng.uniform(4, 25)
        rail = Wall(np.asarray((sign * (road + 0.3), 0, near)), _AWAY, rng.uniform(4, 16), rng.uniform(0.7, 1.1))
        yield near + rail.length, partial(paint_hoarding, rng, canvas, rail, hard, what="fence")
