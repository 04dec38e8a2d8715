"""Objects of a synthetic street: cars, people, trees, poles and signs, each of a few polygons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from hpunet.data.cityscapes.classes import LABEL_IDS

_GREYS = ((32, 34, 38), (84, 88, 94), (150, 154, 158), (206, 208, 208))
_PAINTS = (*_GREYS, (128, 26, 30), (34, 58, 108), (58, 74, 62), (176, 160, 128))
_CLOTHES = ((40, 44, 70), (120, 40, 44), (60, 60, 62), (150, 140, 120), (30, 80, 90))
_TORSO = ((-0.17, 0.45), (-0.23, 0.8), (-0.08, 0.86), (0.08, 0.86), (0.23, 0.8), (0.17, 0.45))
"""Outline: metres from the middle, share of the person's height."""
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


class Street(NamedTuple):
    """Widths in metres of (left, right) half of the road and sidewalk, and the depth at which the street ends."""

    half_road: tuple[float, ...]
    sidewalk: tuple[float, ...]
    end: float


class Painter:
    """Paints shapes into both the image and the map of ids; later shapes hide earlier ones."""

    def __init__(self, *, colour: Image.Image, ids: Image.Image, camera: Camera) -> None:
        self.colour, self.ids, self.camera = colour, ids, camera
        self._draw_colour, self._draw_ids = ImageDraw.Draw(colour), ImageDraw.Draw(ids)

    def polygon(self, pixels: np.ndarray, colour: Colour, value: int | None = None) -> None:
        """Fill a polygon of pixels (n, 2); without `value` the ids stay unchanged (a shadow, a window)."""
        corners = [(float(x), float(y)) for x, y in pixels]
        self._draw_colour.polygon(corners, fill=colour)
        if value is not None:
            self._draw_ids.polygon(corners, fill=value)

    def shape(self, points: Sequence[Point], colour: Colour, value: int | None = None) -> None:
        """Fill a polygon of world points (X, Y, Z)."""
        self.polygon(self.camera.project(points), colour, value)


def paint_objects(rng: np.random.Generator, *, painter: Painter, street: Street) -> None:
    """Fill the street with objects, the farthest first."""
    group_from = rng.uniform(35, 60) if rng.random() < 0.4 else np.inf
    objects: list[tuple[float, str, float]] = []  # depth, what, lateral position
    others = (("tree", 4, 0.3, 0.9), ("pole", 3, 0.1, 0.2), ("person", 3, 0.15, 0.9), ("bicycle", 0.7, 0.1, 0.4))
    for sign, road, walk in zip((-1, 1), street.half_road, street.sidewalk, strict=True):
        parked = rng.uniform(0.2, 0.95)
        for z in np.arange(rng.uniform(7, 11), street.end - 8, 5.6):
            if rng.random() < parked:
                objects.append((z + rng.uniform(-0.3, 0.3), "car", sign * (road - rng.uniform(1.0, 1.2))))
        for what, mean, low, high in others:
            for _ in range(rng.poisson(mean)):
                objects.append(
                    (rng.uniform(9, 0.7 * street.end), what, sign * (road + walk * rng.uniform(low, high)))
                )
        for _ in range(rng.poisson(1.2)):
            what = "bus" if rng.random() < 0.12 else "car"
            objects.append((rng.uniform(16, 0.8 * street.end), what, sign * rng.uniform(0.3, 0.42) * road))
    for number, (z, what, x) in enumerate(sorted(objects, reverse=True)):
        if what in ("tree", "pole"):
            (_tree if what == "tree" else _pole)(rng, painter, x=x, z=z)
            continue
        label_id = LABEL_IDS[what]
        value = label_id if what == "car" and z >= group_from else label_id * 1000 + number
        if what in ("car", "bus"):
            _vehicle(rng, painter, x=x, z=z, value=value, large=what == "bus")
        else:
            (_person if what == "person" else _bicycle)(rng, painter, x=x, z=z, value=value)


def _vehicle(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int, large: bool) -> None:
    """A car or bus from behind (on the left: from the front), with the flank towards the camera's axis."""
    width, height, length = (2.5, 3.0, 11.0) if large else rng.uniform((1.7, 1.4, 3.9), (1.9, 1.75, 4.7))
    paint = np.asarray(_PAINTS[rng.integers(len(_PAINTS))]) * rng.uniform(0.8, 1.15)
    belt = height * (0.5 if large else 0.6)
    half, narrow = width / 2, width / 2 * (0.98 if large else 0.8)
    left, right, back = x - half, x + half, z + length
    shadow_x = (left - 0.2, right + 0.2, right + 0.2, left - 0.2)
    painter.shape(
        [(px, 0, pz) for px, pz in zip(shadow_x, (z - 0.3, z - 0.3, back, back), strict=True)], (52, 52, 56)
    )
    flank = left if x > 0 else right
    inner = x + (narrow if flank > x else -narrow)
    nose, tail = (0.0, 0.0) if large else (0.75, 0.1) if x > 0 else (0.3, 0.75)
    cabin = [(flank, belt, z), (inner, height, z + tail), (inner, height, back - nose - 0.6), (flank, belt, back)]
    painter.shape(cabin, _tone(paint, 0.75), value)
    glass = [(flank + (px - flank) * 0.85, belt + (py - belt) * 0.85, pz) for px, py, pz in cabin]
    glass = [(px, py, pz + (0.35 if i in (0, 1) else -0.35)) for i, (px, py, pz) in enumerate(glass)]
    painter.shape(glass, _GLASS)
    body = [(flank, 0.28, z), (flank, belt, z), (flank, belt, back), (flank, 0.28, back)]
    painter.shape(body, _tone(paint, 0.7), value)
    for hub in (z + 0.2 * length, z + 0.8 * length):
        wheel = [(flank, 0.31 + 0.31 * np.sin(t), hub + 0.31 * np.cos(t)) for t in np.linspace(0, 2 * np.pi, 14)]
        painter.shape(wheel, _TYRE, value)

    for wheel_x in (left + 0.12, right - 0.34):
        corners = [(wheel_x, 0.0, z), (wheel_x + 0.22, 0.0, z), (wheel_x + 0.22, 0.4, z), (wheel_x, 0.4, z)]
        painter.shape(corners, _TYRE, value)
    rear = [(left, 0.3, z), (left, belt, z), (x - narrow, height, z + tail)]
    rear += [(x + narrow, height, z + tail), (right, belt, z), (right, 0.3, z)]
    painter.shape(rear, _tone(paint, 1.0), value)
    pane, low, high = narrow * 0.88, belt + 0.04, height - 0.1
    window = [(x - pane * 1.08, low, z), (x - pane, high, z + tail)]
    painter.shape([*window, (x + pane, high, z + tail), (x + pane * 1.08, low, z)], _GLASS)
    lamp = (170, 28, 26) if x > 0 else (226, 224, 206)
    for lamp_x in (left + 0.08, right - 0.36):
        painter.shape(_upright(lamp_x, 0.28, low=belt - 0.26, high=belt - 0.08, z=z), lamp)
    painter.shape(_upright(x - 0.26, 0.52, low=0.45, high=0.57, z=z), (214, 214, 206))


def _person(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int) -> None:
    tall = rng.uniform(1.5, 1.9)
    clothes = _CLOTHES[rng.integers(len(_CLOTHES))]
    stride = rng.uniform(0.05, 0.25)
    for leg in (-stride, stride):
        thigh, foot = [(x - 0.1, 0.5 * tall, z), (x + 0.1, 0.5 * tall, z)], x + leg
        painter.shape([*thigh, (foot + 0.07, 0, z), (foot - 0.07, 0, z)], (46, 48, 58), value)
    painter.shape([(x + across, up * tall, z) for across, up in _TORSO], clothes, value)
    painter.shape(_disc(x, 0.92 * tall, radius=0.11, z=z), _SKIN, value)


def _tree(rng: np.random.Generator, painter: Painter, *, x: float, z: float) -> None:
    trunk, radius, value = rng.uniform(2.2, 3.4), rng.uniform(1.1, 2.2), LABEL_IDS["vegetation"]
    painter.shape(_upright(x - 0.13, 0.26, low=0.0, high=trunk + 0.5, z=z), (74, 62, 52), value)
    for _ in range(5):
        dx, dy = rng.uniform(-0.6, 0.6, 2) * radius
        blob = rng.uniform(0.5, 0.8) * radius
        wobble = 1 + 0.12 * rng.standard_normal(20)
        leaves = _tone(np.asarray((66, 92, 50)), rng.uniform(0.75, 1.2))
        painter.shape(_disc(x + dx, trunk + radius + dy, radius=blob * wobble, z=z), leaves, value)


def _bicycle(rng: np.random.Generator, painter: Painter, *, x: float, z: float, value: int) -> None:
    for hub in (-0.5, 0.5):
        painter.shape(_disc(x + hub * 0.5, 0.34, radius=0.33, z=z), (48, 48, 52), value)
    frame = _PAINTS[rng.integers(len(_PAINTS))]
    painter.shape([(x - 0.3, 0.4, z), (x - 0.2, 0.95, z), (x + 0.25, 1.0, z), (x + 0.2, 0.4, z)], frame, value)


def _pole(rng: np.random.Generator, painter: Painter, *, x: float, z: float) -> None:
    """A pole: bare, with a traffic sign, or with a traffic light."""
    kind = rng.choice(3, p=(0.4, 0.35, 0.25))
    tall = (rng.uniform(5, 8), 2.6, 3.2)[kind]
    painter.shape(_upright(x - 0.06, 0.12, low=0.0, high=tall, z=z), (104, 106, 108), LABEL_IDS["pole"])
    if kind == 1:
        edge = ((196, 40, 36), (40, 76, 160), (226, 196, 60))[rng.integers(3)]
        painter.shape(_disc(x, tall - 0.3, radius=0.34, z=z), edge, LABEL_IDS["traffic sign"])
        painter.shape(_disc(x, tall - 0.3, radius=0.22, z=z), (222, 222, 220))
    elif kind == 2:
        case = _upright(x - 0.17, 0.34, low=tall - 0.95, high=tall, z=z)
        painter.shape(case, (30, 32, 32), LABEL_IDS["traffic light"])
        lit = ((210, 50, 40), (70, 190, 100))[rng.integers(2)]
        painter.shape(_disc(x, tall - 0.2, radius=0.1, z=z), lit)


def _upright(left: float, width: float, *, low: float, high: float, z: float) -> list[Point]:
    return [(left, low, z), (left, high, z), (left + width, high, z), (left + width, low, z)]


def _disc(x: float, y: float, *, radius: float | np.ndarray, z: float) -> list[Point]:
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    return [(a, b, z) for a, b in zip(x + radius * np.cos(angles), y + radius * np.sin(angles), strict=True)]


def _tone(colour: np.ndarray, factor: float) -> Colour:
    red, green, blue = (int(v) for v in np.clip(colour * factor, 0, 255))
    return red, green, blue
