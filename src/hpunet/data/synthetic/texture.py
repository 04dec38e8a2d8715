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


def smooth_noise(rng: np.random.Generator, *, size: tuple[int, int], scale: float) -> Float32[np.ndarray, "h w"]:
    """A Gaussian field of mean 0 and variance 1 with structures about `scale` pixels wide."""
    # No matrix products: their rounding depends on the machine.
    (row, row_weights), (column, column_weights) = (_spline(side, scale) for side in size)
    knots = rng.standard_normal((row[-1] + 4, column[-1] + 4), dtype=np.float32)
    tall = sum(row_weights[j, :, None] * knots[row + j] for j in range(4))
    return np.asarray(sum(column_weights[j] * tall[:, column + j] for j in range(4)))


def to_bytes(image: np.ndarray) -> UInt8[np.ndarray, "..."]:
    """Brightness in [0, 1] as 8 bit, clipped."""
    return np.asarray(np.rint(np.clip(image, 0, 1) * 255), dtype=np.uint8)
