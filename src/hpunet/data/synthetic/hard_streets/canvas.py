"""A camera in a bent street, and a canvas on which polygons of the world are painted with their ids."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw

from hpunet.data.cityscapes.classes import LABEL_IDS

NEAR = 0.7  # metres; what is nearer is moved there
_SMALLEST = 0.35  # pixels; what is smaller is not painted


@dataclass(frozen=True)
class View:
    """A pinhole camera `height` metres above a street that turns away from it.

    Points are (x, y, z): metres to the right of the street's axis, above the ground, along the street.
    `centre` and `horizon` are the pixel of the vanishing point, `roll` turns the image (radians), `yaw` and `bend`
    shift what is z metres away by yaw·z + bend·z² metres.
    """

    focal: float
    centre: float
    horizon: float
    height: float
    roll: float = 0.0
    yaw: float = 0.0
    bend: float = 0.0

    def project(self, points: np.ndarray) -> np.ndarray:
        """Pixels (..., 2) as (column, row) of points (..., 3)."""
        z = np.maximum(points[..., 2], NEAR)
        scale = self.focal / z
        right = (points[..., 0] + self.yaw * z + self.bend * z * z) * scale
        down = (self.height - points[..., 1]) * scale
        cos, sin = np.cos(self.roll), np.sin(self.roll)
        return np.stack([self.centre + right * cos - down * sin, self.horizon + right * sin + down * cos], axis=-1)

    def seen_from(self, z: float) -> np.ndarray:
        """Where the camera stands, as seen from z metres away: the bend moved into the camera."""
        return np.asarray((-self.yaw * z - self.bend * z * z, self.height, 0.0))


@dataclass(frozen=True)
class Light:
    """Sun, shadows of houses across the street, and haze."""

    sun: np.ndarray  # direction towards it, of length 1
    direct: float  # its share of the light
    haze: np.ndarray  # colour
    haze_range: float  # metres
    shadow_edges: np.ndarray  # (n,) rising depths between which light and shadow alternate
    shadow: float  # light in the shadow
    split: float  # x (metres); beyond it the other side of the street has the opposite

    def at(self, points: np.ndarray) -> np.ndarray:
        """Light (m,) at the middles of polygons (m, n, 3)."""
        middle = points.mean(axis=1)
        band = np.searchsorted(self.shadow_edges, middle[:, 2]) + (middle[:, 0] > self.split)
        high = np.clip(middle[:, 1] / 9, 0, 1)  # shadows are low
        return np.where(band % 2 == 0, 1.0, self.shadow + (1 - self.shadow) * high)

    def facing(self, normal: np.ndarray) -> float:
        """Light on a surface with this outward normal (3,)."""
        return float(1 - self.direct + self.direct * max(0.0, float(normal @ self.sun)) * 1.5)


class Canvas:
    """Paints polygons into an image and a map of ids, both larger than in the end; later ones hide earlier ones."""

    def __init__(self, *, sky: np.ndarray, view: View, light: Light) -> None:
        """`sky` (h, w, 3) is the image to begin with."""
        self.view, self.light = view, light
        self.colour = Image.fromarray(sky)
        self.ids = Image.new("I", self.colour.size, LABEL_IDS["sky"])

    @cached_property
    def _draw(self) -> tuple[ImageDraw.ImageDraw, ImageDraw.ImageDraw]:
        return ImageDraw.Draw(self.colour), ImageDraw.Draw(self.ids)

    def fill(self, points: np.ndarray, colour: np.ndarray, value: int | None = None, *, lit: bool = True) -> None:
        """Fill polygons (n, 3) or (m, n, 3) with a colour (3,) or (m, 3); without `value` the ids stay unchanged."""
        points = points if points.ndim == 3 else points[None]
        behind = points[..., 2].max(axis=1) < NEAR
        pixels = self.view.project(points)
        z = np.maximum(points[..., 2].mean(axis=1), 0)
        tone = np.broadcast_to(np.asarray(colour, dtype=np.float64), (len(points), 3))
        if lit:
            tone = tone * self.light.at(points)[:, None]
        clear = np.exp(-z / self.light.haze_range)[:, None]
        tone = np.rint(np.clip(tone * clear + self.light.haze * (1 - clear), 0, 255)).astype(int)
        low, high = pixels.min(axis=1), pixels.max(axis=1)
        seen = ((high - low).max(axis=1) > _SMALLEST) & ~behind
        seen &= (high > 0).all(axis=1) & (low < self.colour.size).all(axis=1)
        draw, draw_ids = self._draw
        for i in np.flatnonzero(seen).tolist():
            corners = pixels[i].ravel().tolist()
            draw.polygon(corners, fill=tuple(tone[i].tolist()))
            if value is not None:
                draw_ids.polygon(corners, fill=value)

    def polygon(self, pixels: np.ndarray, colour: tuple[int, int, int], value: int | None = None) -> None:
        """Fill a polygon of pixels (n, 2), without light or haze."""
        for draw, fill in zip(self._draw, (colour, value), strict=True):
            if fill is not None:
                draw.polygon(pixels.ravel().tolist(), fill=fill)

    def pixels_per_metre(self, z: float) -> float:
        """How large a metre is z metres away, in pixels of the canvas."""
        return self.view.focal / max(z, NEAR)


def disc(middle: np.ndarray, *, right: np.ndarray, up: np.ndarray, sides: int = 14) -> np.ndarray:
    """An ellipse (sides, 3) around `middle` with the half axes `right` and `up`, each (3,)."""
    angles = np.linspace(0, 2 * np.pi, sides, endpoint=False)[:, None]
    return np.asarray(middle + np.cos(angles) * right + np.sin(angles) * up)


def on_quad(quad: np.ndarray, boxes: ArrayLike) -> np.ndarray:
    """Rectangles (m, 4) as (left, right, low, high) in 0...1 of a quad (4, 3): polygons (m, 4, 3).

    The quad's corners are low left, low right, high right, high left.
    """
    each = np.atleast_2d(np.asarray(boxes, dtype=np.float64))
    u, v = each[:, [0, 1, 1, 0], None], each[:, [2, 2, 3, 3], None]
    a, b, c, d = quad
    return np.asarray((1 - u) * (1 - v) * a + u * (1 - v) * b + u * v * c + (1 - u) * v * d)
