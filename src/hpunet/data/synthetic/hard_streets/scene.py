"""Hard street scenes: background looks like cars, so only context tells them apart.

Points are (x, y, z) in metres: right of the street's axis, up, along the street. Everything is a polygon of the
world, painted on a canvas twice as large as the scene, the farthest first, into colours and ids alike. What is hard
about it has numbers in `difficulty.py`.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image

from hpunet.data.synthetic.hard_streets.canvas import Canvas, Light, View
from hpunet.data.synthetic.hard_streets.difficulty import HARD, Difficulty
from hpunet.data.synthetic.hard_streets.ground import Layout, paint_ground
from hpunet.data.synthetic.hard_streets.photograph import photograph
from hpunet.data.synthetic.hard_streets.roadside import roadside
from hpunet.data.synthetic.hard_streets.traffic import traffic
from hpunet.data.synthetic.streets import paint_own_car, renumber
from hpunet.data.synthetic.texture import smooth_noise

_OVERSAMPLING = 2
Thing = tuple[float, Callable[[], None]]  # the depth that orders it, and what paints it


def make_hard_street(
    rng: np.random.Generator, *, size: tuple[int, int], hard: Difficulty = HARD
) -> tuple[UInt8[np.ndarray, "3 h w"], Int32[np.ndarray, "h w"]]:
    """A scene and its ids, as `make_street`."""
    h, w = (_OVERSAMPLING * side for side in size)
    horizon = h * np.clip(rng.normal(0.42, 0.05), 0.3, 0.55)
    focal = 1.1 * max(w, 1.5 * h) * rng.uniform(0.85, 1.15)
    bend = rng.normal(0, 0.0016) * (rng.random() < 0.6)
    view = View(
        focal=focal,
        centre=w * rng.uniform(0.4, 0.6),
        horizon=horizon,
        height=rng.uniform(1.15, 1.75),
        roll=rng.normal(0, 0.012),
        yaw=rng.normal(0, 0.04),
        bend=bend,
    )
    layout = _layout(rng)
    canvas = Canvas(sky=_sky(rng, size=(h, w)), view=view, light=_light(rng, hard))
    paint_ground(rng, canvas, layout)
    things: list[Thing] = [*roadside(rng, canvas, layout, hard), *traffic(rng, canvas, layout, hard)]
    for _, paint in sorted(things, key=lambda thing: -thing[0]):
        paint()
    paint_own_car(rng, painter=canvas, size=(h, w))
    start = _OVERSAMPLING // 2
    ids = renumber(np.array(canvas.ids)[start::_OVERSAMPLING, start::_OVERSAMPLING])
    colour = np.asarray(canvas.colour.resize((size[1], size[0]), Image.Resampling.BOX))
    return photograph(rng, colour=colour, ids=ids, horizon=horizon / _OVERSAMPLING, hard=hard), ids


def _layout(rng: np.random.Generator) -> Layout:
    wide = rng.random() < 0.25
    half = rng.uniform(6.5, 12, 2) if wide else rng.uniform(3.6, 7, 2)
    walk = rng.uniform(1.8, 8, 2)
    end = rng.uniform(45, 160)
    crossing = None
    if rng.random() < 0.45:
        near = rng.uniform(9, 0.6 * end)
        crossing = (near, near + rng.uniform(7, 18))
    return Layout((half[0], half[1]), (walk[0], walk[1]), end, crossing)


def _light(rng: np.random.Generator, hard: Difficulty) -> Light:
    """An overcast or sunny day, clear or hazy."""
    sun = np.asarray((rng.normal(), rng.uniform(0.4, 2.0), rng.normal()))
    sunny = rng.random() < 0.45
    edges = np.cumsum(rng.uniform(3, 16, 24)) if sunny else np.empty(0)
    haze = np.asarray((176, 182, 186)) * rng.uniform(0.75, 1.25) + rng.normal(0, 5, 3)
    return Light(
        sun=sun / np.linalg.norm(sun),
        direct=rng.uniform(0.35, 0.6) if sunny else rng.uniform(0.1, 0.3),
        haze=np.clip(haze, 0, 250),
        haze_range=min(2000.0, 60 + rng.exponential(350) / max(hard.weather, 0.05)),
        shadow_edges=edges,
        shadow=rng.uniform(0.4, 0.7),
        split=rng.uniform(-3, 3),
    )


def _sky(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Overcast, white or blue, with clouds."""
    h = size[0]
    up = 1 - np.arange(h, dtype=np.float32)[:, None, None] / h
    base = np.asarray(((214, 218, 220), (190, 206, 226), (236, 236, 232), (160, 168, 176)), np.float32)[
        rng.integers(4)
    ]
    clouds = smooth_noise(rng, size=size, scale=h / 4) + 0.5 * smooth_noise(rng, size=size, scale=h / 14)
    sky = base - up * np.asarray((40, 20, 2), np.float32) * rng.uniform(0, 1.3) + 11 * clouds[..., None]
    return np.asarray(np.clip(sky, 0, 255), dtype=np.uint8)
