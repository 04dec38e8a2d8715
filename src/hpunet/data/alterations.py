"""Images as a model should not get them, made from good ones: other grey values, noise, blur, wrong crops.

The review statistic (`sampling/review.py`) learns from them what to look for.
"""

from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy import ndimage

from hpunet.errors import ConfigError, DataError

KINDS = ("inverted", "noise", "blur", "off centre", "elsewhere", "too close", "too far")
_FILLS = ("symmetric", "edge", "wrap")
_NOISE, _BLUR = (0.1, 0.4), (2.0, 5.0)  # in units of the range of values; in pixels of a side of 128
_SHIFT, _CLOSER, _FURTHER = (0.2, 0.5), (1.8, 4.0), (0.3, 0.6)  # of a side; factors


def altered(
    image: Float32[np.ndarray, " c *s"], *, kind: str, rng: np.random.Generator
) -> Float32[np.ndarray, " c *s"]:
    """An altered image of the same size, its values stretched to the range that they had before; not for volumes."""
    if image.ndim != 3:
        raise DataError(f"image: only images (c, h, w) are altered, not a volume of shape {image.shape}")
    _, h, w = image.shape
    low, high = float(image.min()), float(image.max())
    if kind == "inverted":
        return low + (high - image)
    if kind == "noise":
        found = image + rng.uniform(*_NOISE) * (high - low) * rng.standard_normal(image.shape)
    elif kind == "blur":
        sigma = rng.uniform(*_BLUR) * min(h, w) / 128
        found = ndimage.gaussian_filter(image, (0, sigma, sigma))
    elif kind == "off centre":
        angle, share = rng.uniform(0, 2 * np.pi), rng.uniform(*_SHIFT)
        found = _moved(image, round(share * h * np.sin(angle)), round(share * w * np.cos(angle)), rng)
    elif kind == "elsewhere":  # a corner, without the object: at its size, the rest mirrored, or enlarged
        top, left = rng.integers(2, size=2)
        corner = image[:, top * (h - h // 2) :, left * (w - w // 2) :][:, : h // 2, : w // 2]
        if rng.integers(2):
            found = _resized(corner, (h, w))
        else:
            found = _padded(corner, (h - h // 2) // 2, (w - w // 2) // 2, size=(h, w), fill="symmetric")
    elif kind == "too close":
        found = _centre(image, rng.uniform(*_CLOSER))
    elif kind == "too far":
        factor = rng.uniform(*_FURTHER)
        down, right = (round(side * (1 / factor - 1) / 2) for side in (h, w))
        found = _resized(_padded(image, down, right, size=(h + 2 * down, w + 2 * right), fill=_fill(rng)), (h, w))
    else:
        raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    return _stretched(found, low, high)


def _fill(rng: np.random.Generator) -> str:
    return _FILLS[rng.integers(len(_FILLS))]


def _padded(image: np.ndarray, down: int, right: int, *, size: tuple[int, int], fill: Any) -> np.ndarray:
    """The image in a larger one, that far from its upper left corner."""
    _, h, w = image.shape
    below, beyond = size[0] - h - down, size[1] - w - right
    return np.pad(image, ((0, 0), (down, below), (right, beyond)), mode=fill)


def _moved(image: np.ndarray, down: int, right: int, rng: np.random.Generator) -> np.ndarray:
    _, h, w = image.shape
    padded = _padded(image, h, w, size=(3 * h, 3 * w), fill=_fill(rng))
    return padded[:, h + down : 2 * h + down, w + right : 2 * w + right]


def _centre(image: np.ndarray, factor: float) -> np.ndarray:
    _, h, w = image.shape
    sides = [max(2, round(side / factor)) for side in (h, w)]
    top, left = (h - sides[0]) // 2, (w - sides[1]) // 2
    return _resized(image[:, top : top + sides[0], left : left + sides[1]], (h, w))


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Linear interpolation, after a blur where it gets smaller."""
    factors = [new / old for new, old in zip(size, image.shape[1:], strict=True)]
    sigmas = (0, *(max(0, (1 / factor - 1) / 2) for factor in factors))
    smooth = ndimage.gaussian_filter(image, sigmas) if max(sigmas) else image
    return np.asarray(ndimage.zoom(smooth, (1, *factors), order=1, grid_mode=True, mode="nearest"))


def _stretched(image: np.ndarray, low: float, high: float) -> np.ndarray:
    least, most = float(image.min()), float(image.max())
    scaled = (image - least) / max(most - least, 1e-12) * (high - low) + low
    return np.clip(scaled, low, high).astype(np.float32)
