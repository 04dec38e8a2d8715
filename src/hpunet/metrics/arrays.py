"""The door of the metrics: arrays or tensors in, checked numpy arrays inside, the caller's kind out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Integer
from torch import Tensor

from hpunet.errors import ConfigError, DataError

Array = Tensor | np.ndarray
"""Every metric takes torch tensors or numpy arrays, and answers in kind."""
SampleMaps = Integer[Array, "b s h w"] | Bool[Array, "b s h w"]
GraderMaps = Integer[Array, "b r h w"] | Bool[Array, "b r h w"]
Maps = Integer[Array, "b h w"] | Bool[Array, "b h w"]
Valid = Bool[Array, "b h w"]
Graders = Bool[Array, "b r"]
PerImage = Float64[Array, " b"]


def as_numpy(array: Array) -> np.ndarray:
    """The array in numpy, with the memory it has where that is possible."""
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else array


def in_kind(result: np.ndarray, *, like: Array) -> Array:
    """`result` as what `like` is."""
    return torch.from_numpy(result).to(like.device) if isinstance(like, Tensor) else result


def label_maps(array: Array, *, name: str, dims: str) -> np.ndarray:
    """Integer maps, with as many dimensions as `dims` has words, or a `DataError`."""
    maps = as_numpy(array)
    if maps.dtype.kind not in "iub" or maps.ndim != len(dims.split()) or 0 in maps.shape:
        raise DataError(f"{name}: expected integer maps ({dims}), got {array.dtype} of shape {tuple(array.shape)}")
    return maps.view(np.uint8) if maps.dtype == np.bool_ else maps


def flags(array: Array | None, *, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bools of this shape; all true where the caller gave none."""
    if array is None:
        return np.ones(shape, dtype=np.bool_)
    checked = as_numpy(array)
    if checked.shape != shape or checked.dtype != np.bool_:
        raise DataError(f"{name}: expected bools of shape {shape}, got {array.dtype} of shape {tuple(array.shape)}")
    return checked


def valid_pixels(valid: Array | None, *, maps: np.ndarray) -> np.ndarray:
    """Where the pixels of maps (b, ..., h, w) count (b, h, w)."""
    return flags(valid, name="valid", shape=(maps.shape[0], *maps.shape[-2:]))


def existing_graders(graders: Array | None, *, labels: np.ndarray) -> np.ndarray:
    """Which graders exist (b, r); an image without any is a `DataError`."""
    checked = flags(graders, name="graders", shape=labels.shape[:2])
    if not checked.any(axis=1).all():
        missing = np.flatnonzero(~checked.any(axis=1)).tolist()
        raise DataError(f"graders: images {missing} of the batch have none, expected at least one each")
    return checked


def same_size(one: np.ndarray, other: np.ndarray, *, names: str) -> None:
    """Raise a `DataError` unless both are maps of the same images: batch, height and width agree."""
    if (one.shape[0], *one.shape[-2:]) != (other.shape[0], *other.shape[-2:]):
        raise DataError(f"{names}: images and sizes differ, {one.shape} against {other.shape}")


def check_values(
    maps: np.ndarray, *, name: str, num_classes: int, valid: np.ndarray, graders: np.ndarray | None = None
) -> None:
    """Raise a `DataError` for a value outside the classes in a map (b, n, h, w), where it counts.

    At invalid pixels (b, h, w) and for missing graders (b, n) any value may stand, 255 for instance.
    """
    if maps.min() >= 0 and maps.max() < num_classes:
        return
    counts = valid[:, None] if graders is None else valid[:, None] & graders[:, :, None, None]
    found = maps[np.broadcast_to(counts, maps.shape)]
    if found.size and (found.min() < 0 or found.max() >= num_classes):
        raise DataError(f"{name}: values must lie in 0...{num_classes - 1}, found {found.min()}...{found.max()}")


def looked_at(classes: Sequence[int] | None, *, num_classes: int) -> list[int]:
    """The classes a metric looks at: those given, else all but 0."""
    chosen = list(range(1, num_classes)) if classes is None else list(classes)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= num_classes:
        raise ConfigError(
            f"classes: expected different classes within 0...{num_classes - 1}, at least one, got {chosen}"
        )
    return chosen


class Sets(NamedTuple):
    """The maps that a metric compares, checked."""

    samples: np.ndarray
    """(b, s, h, w)"""
    labels: np.ndarray
    """(b, r, h, w)"""
    valid: np.ndarray
    """(b, h, w)"""
    graders: np.ndarray
    """(b, r)"""


def checked_sets(
    *, samples: Array, labels: Array, num_classes: int, valid: Array | None, graders: Array | None
) -> Sets:
    """Everything that comes with a set of samples and one of graders' maps."""
    hypotheses = label_maps(samples, name="samples", dims="b s h w")
    truths = label_maps(labels, name="labels", dims="b r h w")
    same_size(hypotheses, truths, names="samples and labels")
    where = valid_pixels(valid, maps=hypotheses)
    exist = existing_graders(graders, labels=truths)
    check_values(hypotheses, name="samples", num_classes=num_classes, valid=where)
    check_values(truths, name="labels", num_classes=num_classes, valid=where, graders=exist)
    return Sets(samples=hypotheses, labels=truths, valid=where, graders=exist)
