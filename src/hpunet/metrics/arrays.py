"""The door of the metrics: arrays or tensors in, checked tensors inside, the caller's kind out."""

from collections.abc import Sequence

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


def as_tensor(array: Array) -> Tensor:
    """The array as a tensor, sharing memory where torch can; types torch hardly knows become int64."""
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        array = np.ascontiguousarray(array)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def in_kind(result: Tensor, *, like: Array) -> Array:
    """`result` as what `like` is."""
    return result if isinstance(like, Tensor) else result.cpu().numpy()


def label_maps(array: Array, *, name: str, dims: str) -> Tensor:
    """Integer maps, with as many dimensions as `dims` has words, or a `DataError`."""
    maps = as_tensor(array)
    if maps.is_floating_point() or maps.is_complex() or maps.ndim != len(dims.split()) or 0 in maps.shape:
        raise DataError(f"{name}: expected integer maps ({dims}), got {array.dtype} of shape {tuple(array.shape)}")
    return maps


def flags(array: Array | None, *, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A bool tensor of this shape; all true where the caller gave none."""
    if array is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    if tuple(array.shape) != shape or str(array.dtype).removeprefix("torch.") != "bool":
        raise DataError(f"{name}: expected bools of shape {shape}, got {array.dtype} of shape {tuple(array.shape)}")
    return as_tensor(array).bool().to(device)


def existing_graders(graders: Array | None, *, labels: Tensor) -> Tensor:
    """Which graders exist (b, r); an image without any is a `DataError`."""
    checked = flags(graders, name="graders", shape=tuple(labels.shape[:2]), device=labels.device)
    if not bool(checked.any(dim=1).all()):
        missing = (~checked.any(dim=1)).nonzero().flatten().tolist()
        raise DataError(f"graders: images {missing} of the batch have none, expected at least one each")
    return checked


def same_size(one: Tensor, other: Tensor, *, names: str) -> None:
    """Raise a `DataError` unless both are maps of the same images: batch, height and width agree."""
    if (one.shape[0], *one.shape[-2:]) != (other.shape[0], *other.shape[-2:]):
        raise DataError(f"{names}: images and sizes differ, {tuple(one.shape)} against {tuple(other.shape)}")


def check_values(maps: Tensor, *, name: str, num_classes: int, counted: Tensor) -> None:
    """Raise a `DataError` for a value outside the classes where it counts.

    Where nothing counts any value may stand, 255 for instance.
    """
    low, high = (int(value) for value in maps.aminmax())
    if low >= 0 and high < num_classes:
        return
    found = maps[counted.expand_as(maps)]
    if found.numel() and (int(found.min()) < 0 or int(found.max()) >= num_classes):
        raise DataError(
            f"{name}: values must lie in 0...{num_classes - 1}, found {int(found.min())}...{int(found.max())}"
        )


def looked_at(classes: Sequence[int] | None, *, num_classes: int) -> list[int]:
    """The classes a metric looks at: those given, else all but 0."""
    chosen = list(range(1, num_classes)) if classes is None else list(classes)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= num_classes:
        raise ConfigError(
            f"classes: expected different classes within 0...{num_classes - 1}, at least one, got {chosen}"
        )
    return chosen


def checked_sets(
    *, samples: Array, labels: Array, num_classes: int, valid: Array | None, graders: Array | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Samples (b, s, h, w), labels (b, r, h, w), validity (b, h, w) and graders (b, r) as tensors on one device."""
    hypotheses = label_maps(samples, name="samples", dims="b s h w")
    truths = label_maps(labels, name="labels", dims="b r h w").to(hypotheses.device)
    same_size(hypotheses, truths, names="samples and labels")
    b, _, h, w = hypotheses.shape
    where = flags(valid, name="valid", shape=(b, h, w), device=hypotheses.device)
    exist = existing_graders(graders, labels=truths)
    check_values(hypotheses, name="samples", num_classes=num_classes, counted=where[:, None])
    check_values(truths, name="labels", num_classes=num_classes, counted=where[:, None] & exist[:, :, None, None])
    return hypotheses, truths, where, exist
