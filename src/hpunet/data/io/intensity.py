"""From stored pixel values to channel planes in one of three precisions, for training and sampling."""

import numpy as np
from jaxtyping import Float32, Shaped

from hpunet.errors import DataError


def to_planes(
    values: Shaped[np.ndarray, "z h w *c"], *, by_range: bool, window: tuple[float, float] | str | None, name: str
) -> Shaped[np.ndarray, "z c h w"]:
    """Images or slices as uint8, uint16, or float32 in [0, 1].

    A `window` of stored values becomes [0, 1]; "auto" is the range of each slice. Without one, 8 and 16 bit values
    stay as stored, unless `by_range`; then, and for all other types, the minimum and maximum of the file become 0 and
    1 (a constant file: 0).
    """
    if values.dtype == np.bool_:
        values = values.astype(np.uint8) * np.uint8(255)
    planes = np.moveaxis(_without_alpha(values, name=name), -1, 1)
    if window is None and not by_range and planes.dtype in (np.uint8, np.uint16):
        return planes
    if planes.dtype.kind not in "iuf":
        raise DataError(f"{name}: expected numbers as pixels, got {planes.dtype}")
    if not np.isfinite(planes).all():
        raise DataError(f"{name}: {int((~np.isfinite(planes)).sum())} pixels are NaN or infinite")
    scaled = np.empty(planes.shape, dtype=np.float32)
    fixed = window if isinstance(window, tuple) else None if window == "auto" else range_of(planes)
    for z, stored in enumerate(planes):  # slice by slice: float64 takes much memory
        low, high = fixed or range_of(stored)
        if not np.isfinite(high - low):
            raise DataError(f"{name}: pixels from {low:g} to {high:g} cannot be scaled")
        scaled[z] = np.clip((stored.astype(np.float64) - low) / ((high - low) or 1.0), 0, 1)
    return scaled


def loses_negatives(values: Shaped[np.ndarray, "*shape"], window: tuple[float, float]) -> bool:
    """Whether floats that were scaled to -1 to 1 get a window for 0 to 1, which makes half of them 0."""
    if values.dtype.kind != "f" or window[0] < 0 or window[1] > 1:
        return False
    low, high = range_of(values)
    return -1.01 <= low <= -0.5 and high <= 1.01


def range_of(values: Shaped[np.ndarray, "*shape"]) -> tuple[float, float]:
    """Smallest and largest value."""
    return float(values.min()), float(values.max())


def unit_floats(planes: Shaped[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Planes in [0, 1]; 8 and 16 bit ones are divided by the maximum of their type."""
    if planes.dtype in (np.uint8, np.uint16):
        return planes.astype(np.float32) / np.float32(np.iinfo(planes.dtype).max)
    return planes.astype(np.float32, copy=False)


def _without_alpha(picture: np.ndarray, *, name: str) -> np.ndarray:
    """Grey or RGB as (z, h, w, c); an alpha channel is dropped if it is opaque everywhere."""
    if picture.ndim == 3:
        return picture[..., None]
    channels = picture.shape[-1]
    if channels not in (1, 2, 3, 4):
        raise DataError(f"{name}: expected grey or RGB, got {channels} channels")
    if channels in (1, 3):
        return picture
    opaque = np.iinfo(picture.dtype).max if picture.dtype.kind == "u" else 1
    if (picture[..., -1] != opaque).any():
        raise DataError(f"{name}: is partly transparent; save it as grey or RGB without an alpha channel")
    return picture[..., :-1]
