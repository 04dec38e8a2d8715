"""Colours that cars share with much of what stands beside them."""

import numpy as np

_CARS = np.asarray(
    (
        *((18, 19, 22), (32, 34, 38), (58, 60, 64), (84, 88, 94), (120, 124, 128), (150, 154, 158), (186, 190, 192)),
        *((206, 208, 208), (228, 228, 224), (128, 26, 30), (96, 30, 30), (176, 40, 34), (34, 58, 108), (60, 92, 140)),
        *((24, 36, 62), (58, 74, 62), (44, 84, 70), (176, 160, 128), (140, 122, 92), (92, 70, 52), (206, 170, 50)),
        *((196, 110, 40), (120, 150, 170), (90, 40, 80)),
    ),
    dtype=np.float64,
)
_LIKELY = np.asarray((6, 7, 7, 7, 7, 8, 7, 7, 7, 3, 2, 3, 4, 3, 4, 2, 1, 3, 2, 1, 1, 1, 2, 0.5))
_WALLS = np.asarray(
    (
        *((168, 148, 126), (186, 176, 160), (142, 98, 82), (198, 184, 150), (122, 118, 120), (160, 166, 172)),
        *((204, 200, 190), (110, 84, 72), (150, 142, 110), (90, 88, 86), (176, 130, 96), (132, 144, 130)),
    ),
    dtype=np.float64,
)


def car_paint(rng: np.random.Generator, *, camouflage: float) -> np.ndarray:
    """The colour (3,) of a car, drawn towards the greys of the street by `camouflage` of 0 to 1."""
    paint = _CARS[rng.choice(len(_CARS), p=_LIKELY / _LIKELY.sum())] * rng.uniform(0.75, 1.2) + rng.normal(0, 6, 3)
    grey = rng.uniform(60, 130)
    pull = camouflage * rng.random()
    return np.asarray(np.clip(paint * (1 - pull) + grey * pull, 8, 240))


def wall_paint(rng: np.random.Generator) -> np.ndarray:
    """The colour (3,) of a house front."""
    paint = _WALLS[rng.integers(len(_WALLS))] * rng.uniform(0.55, 1.15)
    return np.asarray(np.clip(paint + rng.normal(0, 7, 3), 15, 240))


def glass(rng: np.random.Generator) -> np.ndarray:
    """The colour (3,) of a pane, of a car or a house: dark inside, or a reflection of the sky."""
    reflected = rng.beta(0.8, 1.6)
    return np.asarray((26, 30, 36)) * (1 - reflected) + np.asarray((150, 164, 176)) * reflected + rng.normal(0, 5)
