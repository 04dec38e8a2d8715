"""House fronts, hoardings and fences: much of what they show has the colours, edges and shapes of cars."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets import bodies
from hpunet.data.synthetic.hard_streets.canvas import Canvas, disc
from hpunet.data.synthetic.hard_streets.difficulty import Difficulty
from hpunet.data.synthetic.hard_streets.paints import car_paint, glass, wall_paint
from hpunet.data.synthetic.hard_streets.vehicles import VehiclePainter, pictured

_PIECE = 4.0  # metres; walls are painted in pieces, for the bend of the street and its shadows
_DETAILS_FROM = 1.6  # pixels of the canvas per metre


@dataclass(frozen=True)
class Wall:
    """A vertical rectangle: low corner (3,), horizontal unit direction (3,), length and height in metres."""

    corner: np.ndarray
    along: np.ndarray
    length: float
    height: float

    def boxes(self, boxes: ArrayLike) -> np.ndarray:
        """Rectangles (m, 4) as (left, right, low, high) in metres of the wall: polygons (m, 4, 3)."""
        each = np.atleast_2d(np.asarray(boxes, dtype=np.float64))
        u, v = each[:, [0, 1, 1, 0]], each[:, [2, 2, 3, 3]]
        points = self.corner + u[..., None] * self.along
        points[..., 1] += v
        return np.asarray(points)

    @property
    def plane(self) -> np.ndarray:
        """Origin, and the unit directions along and up, for pictures on the wall."""
        return np.stack([self.corner, self.along, np.asarray((0.0, 1.0, 0.0))])

    @property
    def normal(self) -> np.ndarray:
        """Towards the camera, about."""
        normal = np.asarray((self.along[2], 0.0, -self.along[0]))
        return np.asarray(normal * (1 if normal @ -self.corner > 0 else -1))


def paint_plain(canvas: Canvas, wall: Wall, colour: np.ndarray, value: int) -> None:
    """The wall in one colour."""
    edges = np.linspace(0, wall.length, max(2, int(wall.length / _PIECE) + 1))
    pieces = np.stack([edges[:-1], edges[1:], 0 * edges[1:], 0 * edges[1:] + wall.height], axis=1)
    canvas.fill(wall.boxes(pieces), colour * canvas.light.facing(wall.normal), value)


def paint_house(rng: np.random.Generator, canvas: Canvas, wall: Wall, hard: Difficulty, paint: np.ndarray) -> None:
    """A house front: windows by storey, shops or doors below, pictures of cars."""
    value = LABEL_IDS["building"]
    paint_plain(canvas, wall, paint, value)
    nearest = max(1.0, min(wall.corner[2], wall.corner[2] + wall.along[2] * wall.length))
    if canvas.pixels_per_metre(nearest) < _DETAILS_FROM:
        return
    light = canvas.light.facing(wall.normal)
    ground_floor = min(wall.height, rng.uniform(2.8, 4.2))
    _stains(rng, canvas, wall, paint * light)
    _storeys(rng, canvas, wall, paint * light, low=ground_floor)
    _ground_floor(rng, canvas, wall, hard, light=light, high=ground_floor)
    paint_fragments(rng, canvas, wall, hard, rate=0.2)
    _pictures(rng, canvas, wall, hard, rate=0.1)


def paint_hoarding(rng: np.random.Generator, canvas: Canvas, wall: Wall, hard: Difficulty, *, what: str) -> None:
    """A wall or fence: plain, of bars, of panels in the colours of cars, or with pictures on it."""
    value = LABEL_IDS[what]
    kind = rng.choice(3, p=(0.35, 0.25, 0.4))
    paint = car_paint(rng, camouflage=0.0) if rng.random() < hard.car_colours else wall_paint(rng)
    light = canvas.light.facing(wall.normal)
    paint_plain(canvas, wall, paint * rng.uniform(0.6, 1.0), value)
    number = max(2, int(wall.length / (0.5, 0.3, 2.0)[kind]))
    edges = np.linspace(0, wall.length, number + 1)
    if kind == 1:  # bars, and what is seen between them
        bars = np.stack([edges[:-1], edges[:-1] + 0.1, 0 * edges[1:], 0 * edges[1:] + wall.height], axis=1)
        canvas.fill(wall.boxes(bars), rng.uniform(20, 200) * np.ones(3) * light)
    elif kind == 2:
        for left, right in pairwise(edges):
            panel = (
                car_paint(rng, camouflage=0.0) if rng.random() < hard.car_colours else paint * rng.uniform(0.7, 1.2)
            )
            canvas.fill(wall.boxes([left, right, 0.1, wall.height * rng.uniform(0.85, 1.0)]), panel * light)
    paint_fragments(rng, canvas, wall, hard, rate=0.25)
    _pictures(rng, canvas, wall, hard, rate=0.15)


def paint_fragments(
    rng: np.random.Generator,
    canvas: Canvas,
    wall: Wall,
    hard: Difficulty,
    *,
    rate: float,
    value: int | None = None,
) -> None:
    """Parts of cars without the car: panels, panes, lamps and wheels, in any order; `rate` per metre of wall."""
    for _ in range(rng.poisson(rate * hard.decoys * wall.length)):
        size = rng.uniform(0.4, 1.3)
        u, v = rng.uniform(0, wall.length), rng.uniform(-0.2, min(2.6, wall.height))
        paint, pane = car_paint(rng, camouflage=hard.camouflage), glass(rng)
        for part in rng.permutation(5)[: rng.integers(2, 6)]:
            left, low = u + size * rng.normal(0, 0.5), v + size * rng.normal(0, 0.3)
            wide, tall = size * rng.uniform((0.4, 0.15), (1.6, 0.6))
            if part == 4:  # a wheel
                hub = wall.boxes([left, left, low, low])[0, 0]
                radius, up = 0.32 * size, np.asarray((0, 0.32 * size, 0))
                for share, tone in ((1.0, np.full(3, 24.0)), (0.6, np.full(3, rng.uniform(60, 190)))):
                    canvas.fill(disc(hub, right=wall.along * radius * share, up=up * share), tone, value)
                continue
            if part == 3:  # a lamp
                wide, tall = 0.25 * size, 0.16 * size
            tone = (
                paint,
                paint * rng.uniform(0.6, 1.2),
                pane,
                np.asarray(((165, 28, 26), (225, 224, 212)), float)[rng.integers(2)],
            )[part]
            (quad,) = wall.boxes([left, left + wide, low, low + tall])
            quad[2:] += wall.along * size * rng.uniform(-0.3, 0.3)  # slanted, as windows of cars are
            canvas.fill(quad, tone, value)


def _stains(rng: np.random.Generator, canvas: Canvas, wall: Wall, colour: np.ndarray) -> None:
    number = int(rng.integers(2, 9))
    left, low = rng.uniform(0, wall.length, number), rng.uniform(0, 0.9 * wall.height, number)
    right = np.minimum(left + rng.uniform(0.5, 5, number), wall.length)
    high = np.minimum(low + rng.uniform(0.3, 4, number), wall.height)
    tones = colour * rng.uniform(0.75, 1.15, (number, 1))
    canvas.fill(wall.boxes(np.stack([left, right, low, high], axis=1)), tones)


def _storeys(rng: np.random.Generator, canvas: Canvas, wall: Wall, colour: np.ndarray, *, low: float) -> None:
    """Windows with frames and sills, or bands of glass, and balconies."""
    storey, bay = rng.uniform(2.7, 3.8), rng.uniform(1.5, 4.0)
    wide, tall = bay * rng.uniform(0.35, 0.92), storey * rng.uniform(0.4, 0.8)
    u = np.arange((bay - wide) / 2, wall.length - wide, bay)
    v = np.arange(low + (storey - tall) / 2, wall.height - tall - 0.3, storey)
    if not (len(u) and len(v)):
        return
    left, bottom = (each.ravel() for each in np.meshgrid(u, v))
    boxes = np.stack([left, left + wide, bottom, bottom + tall], axis=1)
    frame, sill = rng.uniform(0.06, 0.2), rng.uniform(0.5, 1.4)
    canvas.fill(wall.boxes(boxes + np.asarray((-frame, frame, -frame, frame))), np.clip(colour * sill, 0, 240))
    panes = np.stack([glass(rng) for _ in range(4)])[rng.integers(4, size=len(boxes))]
    canvas.fill(wall.boxes(boxes), panes * rng.uniform(0.7, 1.2, (len(boxes), 1)))
    if rng.random() < 0.5:  # bars across
        middle = (boxes[:, 0] + boxes[:, 1]) / 2
        bars = np.stack([middle - 0.05, middle + 0.05, boxes[:, 2], boxes[:, 3]], axis=1)
        canvas.fill(wall.boxes(bars), np.clip(colour * sill, 0, 240))
    if rng.random() < 0.35:
        chosen = boxes[rng.random(len(boxes)) < 0.4]
        rails = np.stack([chosen[:, 0] - 0.3, chosen[:, 1] + 0.3, chosen[:, 2] - 0.2, chosen[:, 2] + 0.8], axis=1)
        if len(rails):
            canvas.fill(wall.boxes(rails), car_paint(rng, camouflage=0.5))


def _ground_floor(
    rng: np.random.Generator, canvas: Canvas, wall: Wall, hard: Difficulty, *, light: float, high: float
) -> None:
    """Shop windows with signs and awnings, garage doors, doors; each bay for itself."""
    left = rng.uniform(0, 1.0)
    style = rng.random()  # of the house: shops, or doors and garages
    while left < wall.length - 1.2:
        right = min(left + rng.uniform(1.0, 5.5), wall.length - 0.2)
        paint = car_paint(rng, camouflage=0.0) if rng.random() < hard.car_colours else wall_paint(rng)
        paint = paint * light
        if rng.random() < 0.25 + 0.6 * style:  # a shop: a low panel, glass above, lamps in it, a sign
            panel, top = rng.uniform(0.2, 1.1), high * rng.uniform(0.65, 0.8)
            canvas.fill(wall.boxes([left, right, 0, top]), paint)
            pane = glass(rng)
            canvas.fill(wall.boxes([left + 0.12, right - 0.12, panel, top - 0.1]), pane)
            inside = rng.integers(0, 6)
            u, v = rng.uniform(left + 0.1, right - 0.5, inside), rng.uniform(panel, top - 0.5, inside)
            things = np.stack([u, u + rng.uniform(0.1, 0.9, inside), v, v + rng.uniform(0.1, 0.5, inside)], axis=1)
            things[:, 1] = np.minimum(things[:, 1], right - 0.12)
            if inside:
                colours = np.stack([car_paint(rng, camouflage=0.0) for _ in range(inside)])
                canvas.fill(wall.boxes(things), colours * 0.7 + pane * 0.3)
            sign = car_paint(rng, camouflage=0.0) * 1.1
            canvas.fill(wall.boxes([left, right, top, min(top + rng.uniform(0.3, 0.8), high)]), sign)
            letters = np.arange(left + 0.3, right - 0.4, 0.35)
            if len(letters):
                text = np.stack([letters, letters + 0.2, 0 * letters + top + 0.1, 0 * letters + top + 0.35], axis=1)
                canvas.fill(wall.boxes(text), 255 - sign)
        elif rng.random() < 0.5:  # a garage or a gate
            top = rng.uniform(2.0, 2.6)
            canvas.fill(wall.boxes([left, right, 0, top]), paint)
            slats = np.arange(0.3, top, rng.uniform(0.25, 0.6))
            lines = np.stack([0 * slats + left, 0 * slats + right, slats, slats + 0.06], axis=1)
            canvas.fill(wall.boxes(lines), paint * 0.75)
            if rng.random() < 0.5:
                canvas.fill(wall.boxes([left + 0.2, right - 0.2, top * 0.6, top * 0.85]), glass(rng))
        else:
            middle = (left + right) / 2
            canvas.fill(wall.boxes([middle - 0.6, middle + 0.6, 0, 2.3]), paint)
            canvas.fill(wall.boxes([middle - 0.4, middle + 0.4, 1.2, 2.1]), glass(rng))
        left = right + rng.uniform(0, 1.5) * (1.2 - style)


def _pictures(rng: np.random.Generator, canvas: Canvas, wall: Wall, hard: Difficulty, *, rate: float) -> None:
    """Cars that are only seen in glass or on posters: `rate` per metre of wall."""
    for _ in range(rng.poisson(rate * hard.decoys * wall.length)):
        body, angle = bodies.car(rng), rng.choice((-1, 1)) * rng.uniform(0.2, np.pi / 2)
        scale = rng.uniform(0.45, 1.05)
        half = scale * 0.5 * (body.length * abs(np.sin(angle)) + body.width * abs(np.cos(angle)))
        tall = scale * (body.height + 1.0)
        if wall.length < 2 * half or wall.height < tall * 0.8:
            continue
        middle = rng.uniform(half, wall.length - half)
        low = rng.choice((0.1, max(0.1, rng.uniform(0, max(0.2, min(wall.height, 7) - tall)))))
        tone, share = glass(rng), rng.uniform(0.0, 0.45)
        backing = [middle - half - 0.1, middle + half + 0.1, max(0.0, low - 0.1), min(low + tall, wall.height)]
        if rng.random() < 0.7:
            canvas.fill(wall.boxes(backing), tone if rng.random() < 0.6 else rng.uniform(60, 230, 3))
        place = pictured(wall.plane, left=middle, low=low, scale=scale, angle=angle, length=body.length)
        paint = car_paint(rng, camouflage=hard.camouflage)
        VehiclePainter(
            rng, canvas, body=body, place=place, paint=paint, value=None, veil=(tone, share), scale=scale
        ).paint_all()
