"""Smooth random fields for synthetic images."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float32, UInt8


@lru_cache(maxsize=128)
def _spline(num_pixels: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """First knot (n,) of each pixel and the cubic B-spline weights (4, n) of four knots.

    The weights of a pixel have unit length, so white noise gives a field of unit variance.
    """
    position = np.arange(num_pixels) / scale
    first = position.astype(np.intp)
    t = position - first
    weights = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, 1 + 3 * t + 3 * t**2 - 3 * t**3, t**3])
    weights = (weights / np.sqrt((weights**2).sum(axis=0))).astype(np.float32)
    first.flags.writeable = weights.flags.writeable = False
    return first, weights


def smooth_noise(
    rng: np.random.Generator, *, size: tuple[int, ...], scale: float | tuple[float, ...]
) -> Float32[np.ndarray, "*s"]:
    """A Gaussian field of mean 0 and variance 1 with structures about `scale` pixels wide, or one scale per axis."""
    # No matrix products: their rounding depends on the machine.
    scales = scale if isinstance(scale, tuple) else (scale,) * len(size)
    splines = [_spline(side, along) for side, along in zip(size, scales, strict=True)]
    field = rng.standard_normal([first[-1] + 4 for first, _ in splines], dtype=np.float32)
    for axis, (first, weights) in enumerate(splines):
        spread = weights.reshape(4, -1, *[1] * (len(size) - 1 - axis))
        field = np.asarray(sum(spread[j] * field.take(first + j, axis) for j in range(4)))
    return field


def to_bytes(image: np.ndarray) -> UInt8[np.ndarray, "..."]:
    """Brightness in [0, 1] as 8 bit, clipped."""
    return np.asarray(np.rint(np.clip(image, 0, 1) * 255), dtype=np.uint8)
