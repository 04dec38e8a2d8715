"""Objects of a synthetic street: cars, people, trees, poles and signs, each of a few polygons."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from hpunet.data.cityscapes.classes import LABEL_IDS

_POLE, _LIGHT, _SIGN, _VEGETATION, _PERSON, _CAR, _BUS, _BICYCLE = (
    LABEL_IDS[name]
    for name in ("pole", "traffic light", "traffic sign", "vegetation", "person", "car", "bus", "bicycle")
)
_PAINTS = (
    (32, 34, 38),
    (84, 88, 94),
    (150, 154, 158),
    (206, 208, 208),
    (128, 26, 30),
    (34, 58, 108),
    (58, 74, 62),
    (176, 160, 128),
)
_CLOTHES = ((40, 44, 70), (120, 40, 44), (60, 60, 62), (150, 140, 120), (30, 80, 90))
_GLASS, _TYRE, _SKIN = (38, 44, 52), (20, 20, 22), (196, 156, 130)
Colour = tuple[int, int, int]
Point = tuple[float | int, float | int, float | int]


@dataclass(frozen=True)
class Camera:
    """A pinhole `height` metres above the ground; focal length, horizon (row) and centre (column) in pixels."""

    focal: float
    horizon: float
    centre: float
    height: float

    def project(self, points: Sequence[Point]) -> np.ndarray:
        """Pixels (n, 2) as (column, row) of points (X, Y, Z) in metres."""
        x, y, z = np.asarray(points, dtype=np.float64).T
        scale = self.focal / z
        return np.stack([self.centre + x * scale, self.horizon + (self.height - y) * scale], axis=1)


@dataclass
class Painter:
    """Paints shapes into both the image and the map of ids; later shapes hide earlier ones."""

    colour: Image.Image
    ids: Image.Image
    camera: Camera
    _draw_colour: ImageDraw.ImageDraw = field(init=False)
    _draw_ids: ImageDraw.ImageDraw = field(init=False)

    def __post_init__(self) -> None:
        self._draw_colour = ImageDraw.Draw(self.colour)
        self._draw_ids = ImageDraw.Draw(self.ids)

    def polygon(self, pixels: np.ndarray, *, colour: Colour, value: int | None) -> None:
        """Fill a polygon of pixels (n, 2); `value` None leaves the ids unchanged (a shadow, a window)."""
        corners = [(float(x), float(y)) for x, y in pixels]
        self._draw_colour.polygon(corners, fill=colour)
        if value is not None:
            self._draw_ids.polygon(corners, fill=value)

    def shape(self, points: Sequence[Point], *, colour: Colour, value: int | None) -> None:
        """Fill a polygon of world points (X, Y, Z)."""
        self.polygon(self.camera.project(points), colour=colour, value=value)


def paint_objects(
    rng: np.random.Generator,
    *,
    painter: Painter,
    half_road: tuple[float, ...],
    sidewalk: tuple[float, ...],
    end: float,
) -> None:
    """Fill the street with objects, the farthest first."""
    group_from = rng.uniform(35, 60) if rng.random() < 0.4 else np.inf
    objects: list[tuple[float, str, float]] = []  # depth, what, lateral position
    for side, (road, walk) in enumerate(zip(half_road, sidewalk, strict=True)):
        sign = 2 * side - 1
        parked = rng.uniform(0.2, 0.95)
        for z in np.arange(rng.uniform(7, 11), end - 8, 5.6):
            if rng.random() < parked:
                objects.append((z + rng.uniform(-0.3, 0.3), "car", sign * (road - rng.uniform(1.0, 1.2))))
        for what, mean, low, high in (
            ("tree", 4, 0.3, 0.9),
            ("pole", 3, 0.1, 0.2),
            ("person", 3, 0.15, 0.9),
            ("bicycle", 0.7, 0.1, 0.4),
        ):
            for _ in range(rng.poisson(mean)):
                objects.append((rng.uniform(9, 0.7 * end), what, sign * (road + walk * rng.uniform(low, high))))
        for _ in range(rng.poisson(1.2)):
            what = "bus" if rng.random() < 0.12 else "car"
            objects.append((rng.uniform(16, 0.8 * end), what, sign * rng.uniform(0.3, 0.42) * road))
    for number, (z, what, x) in enumerate(sorted(objects, reverse=True)):
        if what in ("car", "bus"):
            label_id = _CAR if what == "car" else _BUS
            alone = z < group_from or what == "bus"
            _vehicle(
                rng, painter, x=x, z=z, value=label_id * 1000 + number if alone else label_id, large=what == "bus"
            )
        elif what == "person":
            _person(rng, painter, x=x, z=z, value=_PERSON * 1000 + number)
        elif what == "tree":
            _tree(rng, painter, x=x, z=z)
        elif what == "bicycle":
            _bicycle(rng, painter, x=x, z=z, value=_BICYCLE * 1000 + number)
        else:
            _pole(rng, painter, x=x, z=z)


def _vehicle(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int, large: bool) -> None:
    """A car or bus from behind (on the left: from the front), with the flank towards the camera's axis."""
    width, height, length = (2.5, 3.0, 11.0) if large else rng.uniform((1.7, 1.4, 3.9), (1.9, 1.75, 4.7))
    paint = np.asarray(_PAINTS[rng.integers(len(_PAINTS))]) * rng.uniform(0.8, 1.15)
    belt = height * (0.5 if large else 0.6)
    half, narrow = width / 2, width / 2 * (0.98 if large else 0.8)
    left, right, back = x - half, x + half, z + length
    painter.shape(
        [(left - 0.2, 0, z - 0.3), (right + 0.2, 0, z - 0.3), (right + 0.2, 0, back), (left - 0.2, 0, back)],
        colour=(52, 52, 56),
        value=None,
    )
    flank = left if x > 0 else right
    inner = x + (narrow if flank > x else -narrow)
    nose = 0.0 if large else 0.75 if x > 0 else 0.3
    tail = 0.0 if large else 0.1 if x > 0 else 0.75
    body = [(flank, 0.28, z), (flank, belt, z), (flank, belt, back), (flank, 0.28, back)]
    cabin = [(flank, belt, z), (inner, height, z + tail), (inner, height, back - nose - 0.6), (flank, belt, back)]
    painter.shape(cabin, colour=_tone(paint, 0.75), value=value)
    glass = [(flank + (px - flank) * 0.85, belt + (py - belt) * 0.85, pz) for px, py, pz in cabin]
    glass = [(px, py, pz + (0.35 if i in (0, 1) else -0.35)) for i, (px, py, pz) in enumerate(glass)]
    painter.shape(glass, colour=_GLASS, value=None)
    painter.shape(body, colour=_tone(paint, 0.7), value=value)
    for hub in (z + 0.2 * length, z + 0.8 * length):
        wheel = [(flank, 0.31 + 0.31 * np.sin(t), hub + 0.31 * np.cos(t)) for t in np.linspace(0, 2 * np.pi, 14)]
        painter.shape(wheel, colour=_TYRE, value=value)

    for wheel_x in (left + 0.12, right - 0.34):
        corners = [(wheel_x, 0.0, z), (wheel_x + 0.22, 0.0, z), (wheel_x + 0.22, 0.4, z), (wheel_x, 0.4, z)]
        painter.shape(corners, colour=_TYRE, value=value)
    painter.shape(
        [
            (left, 0.3, z),
            (left, belt, z),
            (x - narrow, height, z + tail),
            (x + narrow, height, z + tail),
            (right, belt, z),
            (right, 0.3, z),
        ],
        colour=_tone(paint, 1.0),
        value=value,
    )
    pane, low, high = narrow * 0.88, belt + 0.04, height - 0.1
    painter.shape(
        [
            (x - pane * 1.08, low, z),
            (x - pane, high, z + tail),
            (x + pane, high, z + tail),
            (x + pane * 1.08, low, z),
        ],
        colour=_GLASS,
        value=None,
    )
    lamp = (170, 28, 26) if x > 0 else (226, 224, 206)
    for lamp_x in (left + 0.08, right - 0.36):
        painter.shape(_upright(lamp_x, 0.28, low=belt - 0.26, high=belt - 0.08, z=z), colour=lamp, value=None)
    painter.shape(_upright(x - 0.26, 0.52, low=0.45, high=0.57, z=z), colour=(214, 214, 206), value=None)


def _person(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int) -> None:
    tall = rng.uniform(1.5, 1.9)
    clothes = _CLOTHES[rng.integers(len(_CLOTHES))]
    stride = rng.uniform(0.05, 0.25)
    for leg in (-stride, stride):
        painter.shape(
            [(x - 0.1, 0.5 * tall, z), (x + 0.1, 0.5 * tall, z), (x + leg + 0.07, 0, z), (x + leg - 0.07, 0, z)],
            colour=(46, 48, 58),
            value=value,
        )
    painter.shape(
        [
            (x - 0.17, 0.45 * tall, z),
            (x - 0.23, 0.8 * tall, z),
            (x - 0.08, 0.86 * tall, z),
            (x + 0.08, 0.86 * tall, z),
            (x + 0.23, 0.8 * tall, z),
            (x + 0.17, 0.45 * tall, z),
        ],
        colour=clothes,
        value=value,
    )
    painter.shape(_disc(x, 0.92 * tall, radius=0.11, z=z), colour=_SKIN, value=value)


def _tree(rng: np.random.Generator, painter: Painter, *, x: float, z: float) -> None:
    trunk, radius = rng.uniform(2.2, 3.4), rng.uniform(1.1, 2.2)
    painter.shape(_upright(x - 0.13, 0.26, low=0.0, high=trunk + 0.5, z=z), colour=(74, 62, 52), value=_VEGETATION)
    for _ in range(5):
        dx, dy = rng.uniform(-0.6, 0.6, 2) * radius
        blob = rng.uniform(0.5, 0.8) * radius
        wobble = 1 + 0.12 * rng.standard_normal(20)
        leaves = _tone(np.asarray((66, 92, 50)), rng.uniform(0.75, 1.2))
        outline = _disc(x + dx, trunk + radius + dy, radius=blob * wobble, z=z)
        painter.shape(outline, colour=leaves, value=_VEGETATION)


def _bicycle(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int) -> None:
    for hub in (-0.5, 0.5):
        painter.shape(_disc(x + hub * 0.5, 0.34, radius=0.33, z=z), colour=(48, 48, 52), value=value)
    frame = _tone(np.asarray(_PAINTS[rng.integers(len(_PAINTS))]), 1.0)
    painter.shape(
        [(x - 0.3, 0.4, z), (x - 0.2, 0.95, z), (x + 0.25, 1.0, z), (x + 0.2, 0.4, z)], colour=frame, value=value
    )


def _pole(rng: np.random.Generator, painter: Painter, *, x: float, z: float) -> None:
    """A pole: bare, with a traffic sign, or with a traffic light."""
    kind = rng.choice(3, p=(0.4, 0.35, 0.25))
    tall = (rng.uniform(5, 8), 2.6, 3.2)[kind]
    painter.shape(_upright(x - 0.06, 0.12, low=0.0, high=tall, z=z), colour=(104, 106, 108), value=_POLE)
    if kind == 1:
        edge = ((196, 40, 36), (40, 76, 160), (226, 196, 60))[rng.integers(3)]
        painter.shape(_disc(x, tall - 0.3, radius=0.34, z=z), colour=edge, value=_SIGN)
        painter.shape(_disc(x, tall - 0.3, radius=0.22, z=z), colour=(222, 222, 220), value=None)
    elif kind == 2:
        painter.shape(_upright(x - 0.17, 0.34, low=tall - 0.95, high=tall, z=z), colour=(30, 32, 32), value=_LIGHT)
        lit = ((210, 50, 40), (70, 190, 100))[rng.integers(2)]
        painter.shape(_disc(x, tall - 0.2, radius=0.1, z=z), colour=lit, value=None)


def _upright(left: float, width: float, *, low: float, high: float, z: float) -> list[Point]:
    return [(left, low, z), (left, high, z), (left + width, high, z), (left + width, low, z)]


def _disc(x: float, y: float, *, radius: float | np.ndarray, z: float) -> list[Point]:
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    return [(a, b, z) for a, b in zip(x + radius * np.cos(angles), y + radius * np.sin(angles), strict=True)]


def _tone(colour: np.ndarray, factor: float) -> Colour:
    red, green, blue = (int(v) for v in np.clip(colour * factor, 0, 255))
    return red, green, blue
