"""Lesions in lung-like images, with the exact distribution of the graders' label maps.

Graders differ in whether they mark a lesion, and on which sides of it they include the halo. The image shows every
probability: its contrast that of marking anything, the brightness of a core and of each side of a halo that of
including it.
"""

import numpy as np
from jaxtyping import UInt8

from hpunet.data.synthetic.known_distribution import (
    NUM_OPTIONAL,
    NUM_PARTS,
    NUM_STATES,
    KnownDistribution,
    p_of_states,
)
from hpunet.data.synthetic.texture import smooth_noise, to_bytes

NUM_SIDES = NUM_OPTIONAL  # of a halo, 120 degrees each; a grader includes each independently
NUM_LESIONS = (1, 3)  # least and most per image
_CORE = 0.65  # radius of the core relative to the lesion


def pick_cells(
    rng: np.random.Generator, *, size: tuple[int, int], num_lesions: tuple[int, int]
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Corners (top, left) of random cells of a grid, at least and at most `num_lesions` of them, and a cell's size.

    The grid has 2 cells along the shorter side and 2 along the longer, or as many as the most lesions need.
    """
    (h, w), (least, most) = size, num_lesions
    long = max(2, -(-most // 2))
    down, across = (long, 2) if h >= w else (2, long)
    tall, wide = h // down, w // across
    cells = rng.permutation(down * across)[: rng.integers(least, most + 1)]
    return [(cell // across * tall, cell % across * wide) for cell in cells.tolist()], (tall, wide)


def make_lesions(
    rng: np.random.Generator, *, size: tuple[int, int], num_lesions: tuple[int, int] = NUM_LESIONS
) -> tuple[UInt8[np.ndarray, "h w"], KnownDistribution]:
    """An image of at least and at most `num_lesions`, and the distribution of its label maps.

    At most one lesion lies in each cell of a grid (`pick_cells`).
    """
    image = _lung(rng, size=size)
    corners, (tall, wide) = pick_cells(rng, size=size, num_lesions=num_lesions)
    p_call = rng.uniform(0.75, 1.0)
    p_state = np.empty((len(corners), NUM_STATES))
    regions = np.zeros(size, dtype=np.int32)
    for lesion, (top, left) in enumerate(corners):
        window = np.s_[top : top + tall, left : left + wide]
        distance, side = _polar(rng, size=(tall, wide))
        regions[window] = np.where(distance < 1, 1 + NUM_PARTS * lesion + np.where(distance < _CORE, 0, 1 + side), 0)
        marked, p_sides = rng.uniform(0.35, 1.0), rng.uniform(0.1, 0.9, NUM_SIDES)
        p_state[lesion] = p_of_states(marked, p_sides)
        halo = (0.1 + 0.75 * p_sides)[side]
        fading = np.interp(distance, (_CORE - 0.15, _CORE + 0.05), (1, 0))  # from the core to the halo
        profile = (fading + (1 - fading) * halo) * np.interp(distance, (0.9, 1.15), (1, 0))
        image[window] += (0.05 + 0.45 * marked) * profile.astype(np.float32)
    image = 0.35 + (image - 0.35) * np.float32(p_call)
    image += 0.025 * rng.standard_normal(size, dtype=np.float32)
    return to_bytes(image), KnownDistribution(regions=regions, p_call=float(p_call), p_state=p_state)


def _polar(rng: np.random.Generator, *, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Distance (h, w) from the centre of a wobbly ellipse, 1 on its outline, exactly 0 at one pixel; side (h, w)."""
    (h, w), shorter = size, min(size)
    y = np.arange(h)[:, None] - int(h * rng.uniform(0.42, 0.58))
    x = np.arange(w)[None, :] - int(w * rng.uniform(0.42, 0.58))
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.3)
    radius = shorter * rng.uniform(0.28, 0.4)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    wobble = np.clip(smooth_noise(rng, size=size, scale=shorter / 5), -2, 2)
    distance = np.asarray(np.hypot(along, across * stretch) / radius * (1 + 0.13 * wobble))
    turn = (np.arctan2(across, along) / (2 * np.pi) + rng.uniform()) % 1
    return distance, np.minimum((turn * NUM_SIDES).astype(np.int64), NUM_SIDES - 1)


def _lung(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Dark, mottled tissue (h, w) with a few vessels, and the chest wall along one side of most images."""
    side = min(size)
    tissue = 0.17 + 0.03 * smooth_noise(rng, size=size, scale=side / 3)
    tissue += 0.012 * smooth_noise(rng, size=size, scale=side / 24)
    vessel, wide = (
        np.abs(smooth_noise(rng, size=size, scale=side / 3.5)),
        smooth_noise(rng, size=size, scale=side / 4),
    )
    tissue += 0.3 * np.clip(1 - vessel / (0.04 + 0.08 * np.clip(wide, 0, 2)), 0, 1) * (wide > 0.2)

    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.linspace(-1, 1, size[0])[:, None], np.linspace(-1, 1, size[1])[None, :]
    depth = np.cos(angle) * x + np.sin(angle) * y - rng.uniform(0.65, 1.15)
    depth = depth + 0.08 * smooth_noise(rng, size=size, scale=side / 2)
    wall = np.clip(depth * side / 6, 0, 1).astype(np.float32)
    return np.asarray(tissue + (0.52 - tissue) * wall, dtype=np.float32)
