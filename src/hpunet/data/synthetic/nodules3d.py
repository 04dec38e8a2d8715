"""Nodules in lung-like CT volumes, with the exact distribution of the graders' label volumes.

Slices are 2.5 times as far apart as pixels. Graders differ in whether they mark a nodule at all, and in its optional
parts: one side of a ground-glass rim, the stub of a vessel, a satellite. They mark a part in all of its slices or in
none, so a model that samples slices one by one does not get volumes right. The image shows every probability: its
contrast that of marking anything, the brightness of a core and of each part that of including it.

Lengths are in pixels of a slice.
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
from hpunet.data.synthetic.lesions import pick_cells
from hpunet.data.synthetic.texture import smooth_noise, to_bytes

SPACING = (2.0, 0.8, 0.8)  # of slices, rows and columns in mm
NUM_NODULES = (1, 2)  # least and most per volume
_ASPECT = SPACING[0] / SPACING[1]
_CORE = 0.65  # radius of the core relative to the rim's
_REACH = 1.8  # of all parts, relative to the rim's radius

Axes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Positions along z, y and x, of shapes (d, 1, 1), (1, h, 1) and (1, 1, w)."""


def make_nodules(
    rng: np.random.Generator, *, size: tuple[int, int, int], num_lesions: tuple[int, int] = NUM_NODULES
) -> tuple[UInt8[np.ndarray, "d h w"], KnownDistribution]:
    """A volume of at least and at most `num_lesions` nodules, and the distribution of its label volumes.

    Seen along z, at most one nodule has its centre in each cell of a grid (`pick_cells`).
    """
    d = size[0]
    tissue, solid = _lung(rng, size=size)
    corners, (tall, wide) = pick_cells(rng, size=size[1:], num_lesions=num_lesions)
    p_call = rng.uniform(0.75, 1.0)
    p_state = np.empty((len(corners), NUM_STATES))
    regions = np.zeros(size, dtype=np.int32)
    for nodule, (top, left) in enumerate(corners):
        corner, sides = (0, top, left), (d, tall, wide)
        centre = [int(start + side * rng.uniform(0.42, 0.58)) for start, side in zip(corner, sides, strict=True)]
        radius = min(tall, wide, _ASPECT * d) * rng.uniform(0.28, 0.36)
        half = int(_REACH * radius) + 2
        reach = (int(half / _ASPECT), half, half)
        box = tuple(slice(max(0, at - by), at + by + 1) for at, by in zip(centre, reach, strict=True))
        depths, tail = _parts(rng, axes=_axes(regions[box].shape, box=box, centre=centre), radius=radius)
        new = np.where(depths.max(axis=0) > 0, 1 + NUM_PARTS * nodule + (depths > 0).argmax(axis=0), 0)
        regions[box] = np.where(regions[box] > 0, regions[box], new)
        marked, p_optional = rng.uniform(0.35, 1.0), rng.uniform(0.1, 0.9, NUM_OPTIONAL)
        p_state[nodule] = p_of_states(marked, p_optional)
        brightness = (0.12 + 0.38 * marked) * np.array([1, *(0.25 + 0.55 * p_optional)], dtype=np.float32)
        shown = (brightness[:, None, None, None] * _soft(depths)).max(axis=0)
        shown = np.maximum(shown, min(0.12, brightness[2]) * tail)
        np.maximum(solid[box], shown, out=solid[box])  # a vessel does not shine through a nodule
    image = 0.35 + (tissue + solid - 0.35) * np.float32(p_call)
    image += 0.025 * rng.standard_normal(size, dtype=np.float32)
    return to_bytes(image), KnownDistribution(regions=regions, p_call=float(p_call), p_state=p_state)


def _axes(
    shape: tuple[int, ...], *, box: tuple[slice, ...] | None = None, centre: list[int] | tuple[int, ...] = (0, 0, 0)
) -> Axes:
    """Positions relative to the `centre`, of a volume or of a box in it."""
    starts = [part.start for part in box] if box else [0, 0, 0]
    steps = zip(shape, starts, centre, (_ASPECT, 1.0, 1.0), strict=True)
    z, y, x = (((np.arange(n) + start - at) * step).astype(np.float32) for n, start, at, step in steps)
    return z[:, None, None], y[None, :, None], x[None, None, :]


def _soft(depth: np.ndarray) -> np.ndarray:
    """From 0 outside to 1 inside, for depths below a surface."""
    return np.clip(depth / np.float32(1.6) + np.float32(0.5), 0, 1)


def _parts(rng: np.random.Generator, *, axes: Axes, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """How deep positions lie in each part of a nodule around 0 (4, d, h, w), and how the stub goes on (d, h, w).

    The parts are the core, which holds the position 0, the rim's side, the stub and the satellite.
    """
    (z, y, x), size = axes, np.broadcast_shapes(*(axis.shape for axis in axes))
    scale = max(radius / 1.5, 2.0)
    wobble = 1 + 0.12 * np.clip(smooth_noise(rng, size=size, scale=(scale / _ASPECT, scale, scale)), -2, 2)
    turn, flat, narrow = rng.uniform((0, 0.75, 1), (np.pi, 1, 1.25))
    along, across = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    distance = np.sqrt((z * flat) ** 2 + along**2 + (across * narrow) ** 2) * wobble  # on the rim's surface `radius`

    first = rng.uniform(0, 2 * np.pi)
    azimuths = first + np.array([0, 2, 4]) * np.pi / 3 + rng.uniform(-0.3, 0.3, 3)
    towards = []
    for azimuth, elevation in zip(azimuths, rng.uniform(-0.5, 0.5, 3), strict=True):
        level = np.cos(elevation)
        towards.append([np.float32(n) for n in (np.sin(elevation), level * np.sin(azimuth), level * np.cos(azimuth))])
    to_rim, to_stub, to_satellite = (z * n[0] + y * n[1] + x * n[2] for n in towards)
    squared = z**2 + y**2 + x**2
    side = np.minimum(radius - distance, to_rim - 0.15 * np.sqrt(squared))
    vessel = max(0.25 * radius, 1.3) - np.sqrt(np.maximum(squared - to_stub**2, 0))
    stub = np.minimum(np.minimum(vessel, to_stub), 1.35 * radius - to_stub)
    away, small = 1.15 * radius, max(0.38 * radius, 1.3)
    satellite = small - np.sqrt(np.maximum(squared - 2 * away * to_satellite + away**2, 0)) * wobble
    tail = _soft(vessel) * np.interp(to_stub, (0, _CORE * radius, 1.35 * radius, _REACH * radius), (0, 1, 1, 0))
    return np.stack([_CORE * radius - distance, side, stub, satellite]).astype(np.float32), tail.astype(np.float32)


def _lung(rng: np.random.Generator, *, size: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Dark, mottled tissue (d, h, w) with the chest wall along one side of most volumes, and vessels (d, h, w)."""
    axes, side = _axes(size), min(size[1:])
    fine = max(side / 24, 2.0)
    tissue, grain = (
        smooth_noise(rng, size=size, scale=(max(scale / _ASPECT, 1.0), scale, scale)) for scale in (side / 3, fine)
    )
    tissue = 0.17 + 0.03 * tissue + 0.012 * grain
    vessels = np.zeros(size, dtype=np.float32)
    for _ in range(rng.integers(5, 9)):
        _add_vessel(rng, vessels, axes=axes)

    angle, tilt = rng.uniform(0, 2 * np.pi), rng.uniform(-0.3, 0.3)
    z, y, x = (2 * axis / max(float(axis.max()), 1) - 1 for axis in axes)
    beyond = np.cos(angle) * x + np.sin(angle) * y + tilt * z - rng.uniform(0.8, 1.3)
    beyond = beyond + 0.08 * smooth_noise(rng, size=size, scale=(side / 2 / _ASPECT, side / 2, side / 2))
    wall = 0.35 * np.clip(beyond * side / 6, 0, 1)
    return np.asarray(tissue + wall, dtype=np.float32), vessels


def _add_vessel(rng: np.random.Generator, vessels: np.ndarray, *, axes: Axes) -> None:
    """Draw a crooked, tapering tube from one face of the volume to the opposite one, more often through slices."""
    main = rng.choice(3, p=(0.5, 0.25, 0.25))
    t = axes[main] / max(float(axes[main].max()), 1)
    length, squared, slopes = float(axes[main].max()), np.float32(0), 0.0
    for axis in (axes[i] for i in range(3) if i != main):
        extent = float(axis.max())
        start, end, phase, bends = rng.uniform((-0.1, -0.1, 0, 0.5), (1.1, 1.1, 2 * np.pi, 1.2))
        middle = extent * (start + (end - start) * t + 0.04 * np.sin(2 * np.pi * bends * t + phase))
        squared = squared + (axis - middle) ** 2
        slopes += (extent * (end - start) / max(length, 1)) ** 2
    radius, taper, brightness = rng.uniform((1.0, 0.4, 0.15), (2.6, 1.0, 0.4))
    wide = radius * (1 + (taper - 1) * t)
    depth = wide - np.sqrt(squared / (1 + slopes))  # across an oblique tube, not across its slice
    np.maximum(vessels, (brightness * _soft(depth)).astype(np.float32), out=vessels)
