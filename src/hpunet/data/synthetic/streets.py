"""Street scenes with Cityscapes' classes: a street in perspective between houses, with overlapping cars.

The world is in metres: lateral X (right), height Y, depth Z; the camera looks along Z. Ground, houses and sky are
computed per pixel; objects are painted over them, the farthest first (`street_objects.py`).
"""

from typing import Protocol

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image
from scipy import ndimage

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.street_objects import Camera, Painter, Street, paint_objects
from hpunet.data.synthetic.texture import smooth_noise, to_bytes

_COLOURS = {
    "road": np.asarray((96, 94, 98), np.float32),
    "sidewalk": np.asarray((142, 136, 132), np.float32),
    "sky": np.asarray((196, 210, 226), np.float32),
    "vegetation": np.asarray((62, 86, 48), np.float32),
    "wall": np.asarray((128, 120, 112), np.float32),
    "fence": np.asarray((90, 84, 80), np.float32),
}
_HOUSES = ((168, 148, 126), (186, 176, 160), (142, 98, 82), (198, 184, 150), (122, 118, 120), (160, 166, 172))


def make_street(
    rng: np.random.Generator, *, size: tuple[int, int]
) -> tuple[UInt8[np.ndarray, "3 h w"], Int32[np.ndarray, "h w"]]:
    """A scene and its ids, as in Cityscapes' `instanceIds`: label id, or label id · 1000 + i for instance i.

    Cars of a group (far away, where single ones are hard to tell) have the plain id 26.
    """
    h, w = size
    horizon, centre = h * rng.uniform(0.4, 0.46), w * rng.uniform(0.44, 0.56)
    camera = Camera(focal=1.1 * max(w, 1.5 * h), horizon=horizon, centre=centre, height=1.5)
    street = Street(tuple(rng.uniform(4.5, 7.5, 2)), tuple(rng.uniform(2.5, 5, 2)), rng.uniform(70, 140))
    colour, ids = _surroundings(rng, camera=camera, size=size, street=street)
    painter = Painter(colour=Image.fromarray(to_bytes(colour / 255)), ids=Image.fromarray(ids), camera=camera)
    paint_objects(rng, painter=painter, street=street)
    paint_own_car(rng, painter=painter, size=size)
    ids = renumber(np.array(painter.ids))
    return _photograph(rng, colour=np.array(painter.colour), ids=ids), ids


def _surroundings(
    rng: np.random.Generator, *, camera: Camera, size: tuple[int, int], street: Street
) -> tuple[np.ndarray, np.ndarray]:
    """Ground, house fronts and sky: colours (h, w, 3) and ids (h, w)."""
    (h, w), end = size, street.end
    y, x = np.arange(h, dtype=np.float32)[:, None], np.arange(w, dtype=np.float32)[None, :]
    on_right = (x >= camera.centre).astype(int)
    front = np.asarray(street.half_road)[on_right] + np.asarray(street.sidewalk)[on_right]
    depth = np.minimum(camera.focal * front / np.maximum(np.abs(x - camera.centre), 1e-3), end)
    height = camera.height - (y - camera.horizon) * depth / camera.focal  # in metres, of the ray at the front
    colour = _sky(rng, size=size)
    ids = np.full(size, LABEL_IDS["sky"], dtype=np.int32)

    front_ids, tops, front_colours = _fronts(rng, depth=depth[0], on_right=on_right[0], end=end)
    leafy = front_ids == LABEL_IDS["vegetation"]
    tops = tops + 0.6 * leafy * smooth_noise(rng, size=size, scale=max(h / 60, 1.5))
    is_front = (height < tops) & (height >= 0)
    in_storey, in_bay = np.abs(height % 3.2 - 1.75) < 0.8, np.abs(depth % 2.6 - 1.3) < 0.7
    is_house = (front_ids == LABEL_IDS["building"]) & (depth < end)
    window = is_house & in_storey & in_bay & (height < tops - 0.8)
    side_light = rng.permutation(rng.uniform((0.6, 0.85), (0.8, 1.0)))[on_right]
    light = np.where(depth < end, side_light, 0.8) * np.where(window, 0.45, 1) * np.where(height < 0.5, 0.75, 1)
    np.copyto(colour, front_colours * light[..., None].astype(np.float32), where=is_front[..., None])
    np.copyto(ids, front_ids, where=is_front)

    below = np.maximum(y - camera.horizon, 1e-3)
    ground_depth = camera.focal * camera.height / below
    lateral = (x - camera.centre) * camera.height / below
    ground_colour, ground_ids = _ground(lateral, depth=ground_depth, half_road=street.half_road)
    is_ground = (height < 0) & (y > camera.horizon)
    np.copyto(colour, ground_colour, where=is_ground[..., None])
    np.copyto(ids, ground_ids, where=is_ground)
    return colour, ids


def _sky(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Colours (h, w, 3), bluer towards the top, with clouds."""
    h = size[0]
    up = 1 - np.arange(h, dtype=np.float32)[:, None, None] / h
    wide, narrow = (smooth_noise(rng, size=size, scale=max(h / parts, 2.0)) for parts in (4, 14))
    clouds = 12 * np.clip(wide + 0.5 * narrow, -0.5, 1.5)[..., None]
    return np.asarray(_COLOURS["sky"] - up * np.asarray((30, 14, 0), np.float32) + clouds)


def _ground(lateral: np.ndarray, *, depth: np.ndarray, half_road: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Road with a broken centre line, kerbs and sidewalks: colours (h, w, 3) and ids (h, w)."""
    is_road = (lateral > -half_road[0]) & (lateral < half_road[1])
    kerb = np.minimum(np.abs(lateral + half_road[0]), np.abs(lateral - half_road[1])) < 0.12
    middle = (half_road[1] - half_road[0]) / 2
    line = (np.abs(lateral - middle) < 0.09) & (depth % 6 < 3) & (depth < 60)
    colour = np.where(is_road[..., None], _COLOURS["road"], _COLOURS["sidewalk"])
    colour += (70 * line + 35 * kerb)[..., None]
    return colour, np.where(is_road, LABEL_IDS["road"], LABEL_IDS["sidewalk"]).astype(np.int32)


def _fronts(
    rng: np.random.Generator, *, depth: np.ndarray, on_right: np.ndarray, end: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What stands along the street in each column: ids (w,), heights in metres (w,) and colours (w, 3)."""
    num_plots = 40
    kinds = ("building", "vegetation", "wall", "fence")
    plot_kind = rng.choice(4, (2, num_plots), p=(0.72, 0.18, 0.05, 0.05))
    plot_kind[:, -1] = rng.choice(2, p=(0.4, 0.6))  # the last plot closes the street, the same on both sides
    low, high = np.asarray([(7, 20), (5, 11), (1.8, 2.6), (1.4, 2)]).T
    heights = rng.uniform(low[plot_kind], high[plot_kind])
    heights[:, -1] = rng.uniform(6, 12)
    edges = np.cumsum(rng.uniform(9, 22, (2, num_plots - 1)), axis=1)
    house = np.asarray(_HOUSES)[rng.integers(len(_HOUSES), size=(2, num_plots))] * rng.uniform(
        0.85, 1.1, (2, num_plots, 1)
    )
    house[:, -1] = house[0, -1]
    plain = np.stack([_COLOURS.get(kind, np.zeros(3)) for kind in kinds])
    colours = np.where((plot_kind == 0)[..., None], house, plain[plot_kind])
    plot = np.where(on_right == 1, np.searchsorted(edges[1], depth), np.searchsorted(edges[0], depth))
    plot = np.where(depth >= end, num_plots - 1, plot)
    official = np.asarray([LABEL_IDS[kind] for kind in kinds], dtype=np.int32)
    return official[plot_kind[on_right, plot]], heights[on_right, plot], colours[on_right, plot].astype(np.float32)


def paint_own_car(rng: np.random.Generator, *, painter: "PixelPainter", size: tuple[int, int]) -> None:
    """The bonnet of the car that carries the camera, and the border left by rectification: both are ignored."""
    h, w = size
    rise, angle = h * rng.uniform(0.05, 0.11), np.linspace(np.pi, 2 * np.pi, 48)
    arc = np.stack([w / 2 + 0.62 * w * np.cos(angle), h + rise * np.sin(angle) * 1.3 + rise * 0.2], axis=1)
    painter.polygon(arc, (44, 46, 52), LABEL_IDS["ego vehicle"])
    side = max(1, h // 128)
    for left in (0, w - side):
        corners = np.asarray([(left, 0), (left + side - 1, 0), (left + side - 1, h), (left, h)])
        painter.polygon(corners, (8, 8, 8), LABEL_IDS["rectification border"])


class PixelPainter(Protocol):
    """Paints polygons of pixels into both the image and the map of ids."""

    def polygon(self, pixels: np.ndarray, colour: tuple[int, int, int], value: int | None = None) -> None:
        """Fill a polygon of pixels (n, 2); without `value` the ids stay unchanged."""


def renumber(ids: np.ndarray) -> np.ndarray:
    """Number the instances of each class that can be seen from 0 on: some are wholly hidden."""
    values = np.unique(ids)
    new = values.copy()
    for label_id in np.unique(values[values >= 1000] // 1000):
        of_class = values // 1000 == label_id
        new[of_class] = label_id * 1000 + np.arange(of_class.sum())
    return new[np.searchsorted(values, ids)].astype(np.int32)


def _photograph(rng: np.random.Generator, *, colour: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Texture, light, optics and noise: (h, w, 3) as (3, h, w)."""
    size, leafy = ids.shape, ids == LABEL_IDS["vegetation"]
    grain = smooth_noise(rng, size=size, scale=max(size[0] / 150, 1.2))
    patches = smooth_noise(rng, size=size, scale=max(size[0] / 20, 2.0))
    light = (1 + np.where(leafy, 0.22, 0.025) * grain + 0.025 * patches) * rng.uniform(0.85, 1.2)
    tint = rng.uniform(0.95, 1.05, 3)
    noise = 0.012 * rng.standard_normal((3, *size), dtype=np.float32)
    lit = (colour[..., i] / 255 * light * tint[i] for i in range(3))
    return to_bytes(np.stack([ndimage.gaussian_filter(plane, size[0] / 800, truncate=3) for plane in lit]) + noise)
