"""Inputs of the metrics: arrays or tensors in, checked numpy arrays inside, the caller's type out.

Positions are the last axes: (h, w) of images, (d, h, w) of volumes; `*s` stands for either.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Required, TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Float64, Integer
from torch import Tensor

from hpunet.errors import ConfigError, DataError

Array = Tensor | np.ndarray
"""Every metric takes torch tensors or numpy arrays and returns the same type."""
SampleMaps = Integer[Array, "b n *s"] | Bool[Array, "b n *s"]
GraderMaps = Integer[Array, "b r *s"] | Bool[Array, "b r *s"]
Maps = Integer[Array, " b *s"] | Bool[Array, " b *s"]
Valid = Bool[Array, " b *s"]
Graders = Bool[Array, "b r"]
PerImage = Float64[Array, " b"]
Absent = Literal["skip", "one"]
_SMALL_LABEL = 2**16  # counting up to here is always cheap


class MapOptions(TypedDict, total=False):
    """Options besides the label maps."""

    num_classes: Required[int]
    classes: Sequence[int] | None  # the stochastic classes, which count; default: all but 0
    valid: Valid | None  # pixels that count; default: all


class GraderOptions(MapOptions, total=False):
    """Options of metrics that use the graders' maps."""

    graders: Graders | None  # which graders exist; default: all. An empty map counts, a missing grader does not


class PairOptions(GraderOptions, total=False):
    """Options of metrics that compare pairs of maps."""

    absent: Absent  # how a class that neither map shows counts: see `overlap.py`


class CheckedMaps(NamedTuple):
    """Checked label maps as numpy arrays, with valid (b, *s) and graders (b, r)."""

    maps: list[np.ndarray]
    valid: np.ndarray
    graders: np.ndarray
    classes: list[int]


def as_numpy(array: Array) -> np.ndarray:
    """The array as numpy, without a copy if possible."""
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else array


def same_type(result: np.ndarray, *, like: Array) -> Array:
    """`result` as an array of the type of `like`, on its device."""
    return torch.from_numpy(result).to(like.device) if isinstance(like, Tensor) else result


def check_maps(
    maps: Mapping[str, Array],
    *,
    dims: str,
    num_classes: int | None,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
) -> CheckedMaps:
    """Check label maps by name, or raise a `DataError`; `num_classes` None allows any label from 0 on.

    `dims` names the dimensions of each map, for instance "b n *s, b r *s". Pixels that are not valid and maps of
    missing graders may hold any value.
    """
    arrays: list[np.ndarray] = []
    sizes: dict[str, tuple[int, ...]] = {}
    letters = [each.split() for each in dims.split(", ")]
    for (name, given), own in zip(maps.items(), letters, strict=True):
        array, lead = as_numpy(given), len(own) - 1
        if array.dtype.kind not in "iub" or array.ndim < lead + 2 or 0 in array.shape:
            wanted = " or ".join(" ".join([*own[:lead], size]) for size in ("h w", "d h w"))
            got = f"{given.dtype} of shape {tuple(given.shape)}"
            raise DataError(f"{name}: expected integer maps ({wanted}), got {got}")
        by_letter = zip(own, [*((side,) for side in array.shape[:lead]), array.shape[lead:]], strict=True)
        if any(sizes.setdefault(letter, size) != size for letter, size in by_letter):
            shapes = " and ".join(str(tuple(each.shape)) for each in maps.values())
            raise DataError(f"{' and '.join(maps)}: expected the same sizes ({dims}), got {shapes}")
        arrays.append(array.view(np.uint8) if array.dtype == np.bool_ else array)
    where = check_flags(valid, name="valid", shape=sizes["b"] + sizes["*s"])
    exist = check_flags(graders, name="graders", shape=sizes["b"] + sizes.get("r", (1,)))
    if not exist.any(axis=1).all():
        missing = np.flatnonzero(~exist.any(axis=1)).tolist()
        raise DataError(f"graders: images {missing} of the batch have none, expected at least one grader per image")
    for name, array, own in zip(maps, arrays, letters, strict=True):
        if array.min() >= 0 and (num_classes is None or array.max() < num_classes):
            continue
        counts = where if array.ndim == where.ndim else where[:, None]
        counts = counts & over_positions(exist, like=array) if "r" in own else counts
        found = array[np.broadcast_to(counts, array.shape)]
        if found.size and found.min() < 0 and num_classes is None:
            raise DataError(f"{name}: labels must be 0 or more, found negative ones")
        if found.size and num_classes is not None and (found.min() < 0 or found.max() >= num_classes):
            raise DataError(f"{name}: values must lie in 0...{num_classes - 1}, found {found.min()}...{found.max()}")
    chosen: list[int] = []
    if num_classes is not None:
        chosen = list(range(1, num_classes) if classes is None else classes)
        if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= num_classes:
            expected = f"one or more distinct classes in 0...{num_classes - 1}"
            raise ConfigError(f"classes: expected {expected}, got {chosen}")
    return CheckedMaps(maps=arrays, valid=where, graders=exist, classes=chosen)


def check_flags(flags: Array | None, *, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bools of this shape, or a `DataError`; all true if `flags` is None."""
    if flags is None:
        return np.ones(shape, dtype=np.bool_)
    checked = as_numpy(flags)
    if checked.shape != shape or checked.dtype != np.bool_:
        raise DataError(f"{name}: expected bools of shape {shape}, got {flags.dtype} of shape {tuple(flags.shape)}")
    return checked


def over_positions(values: np.ndarray, *, like: np.ndarray) -> np.ndarray:
    """Values (b, r) of maps (b, r, *s), or (b,) of (b, *s), so that they broadcast."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def positions(maps: np.ndarray, *, lead: int = 1) -> tuple[int, ...]:
    """All axes but the first `lead`."""
    return tuple(range(lead, maps.ndim))


def numbered(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct labels in ascending order, the number of each pixel's label among them, and their pixels.

    Like `np.unique`, with numbers in one dimension, but without sorting, unless labels are negative or many times as
    large as there are pixels.
    """
    flat = labels.ravel()
    if not flat.size or flat.min() < 0 or flat.max() > 2 * flat.size + _SMALL_LABEL:
        return np.unique(flat, return_inverse=True, return_counts=True)
    flat = flat.astype(np.int64, copy=False)
    counts = np.bincount(flat)
    values = np.flatnonzero(counts)
    return values, ((counts > 0).cumsum() - 1)[flat], counts[values]
