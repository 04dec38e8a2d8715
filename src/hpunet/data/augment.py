"""Random warps of whole batches: image, labels and validity in one pass, on the batch's device (App. C).

A warp (`warps.py`) maps each pixel of the crop to a position p in the source.

* Labels and validity come from the nearest source pixel, floor(p + 1/2). Where it does not exist or is invalid, the
  crop pixel is invalid and its labels are 0.
* The image is interpolated linearly along each axis, with positions up to half a pixel beyond the outermost pixel
  centres clamped to them; further out it is 0. Invalid source pixels keep their content. Then its colours change,
  pixel by pixel: gamma, saturation, contrast, gain.

A batch may hold only a window of each source: if that has all pixels that the warp needs, the result is the same to
the bit.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float, Float32, Int, Int64, Shaped
from torch import Tensor

from hpunet.config.settings import AugmentationSettings
from hpunet.data.batch import Batch
from hpunet.data.warps import Sides, Size, Step, Warp, draw_warp, source_positions
from hpunet.errors import DataError

_SLAB_CPU, _SLAB_GPU = 2**17, 2**24  # voxels that are warped at once; on a CPU, they stay in the cache
_SMALL = 2**20  # bytes


@torch.no_grad()
def apply_warp(batch: Batch, warp: Warp, *, crop_size: Size) -> Batch:
    """Warp a batch into crops of (depth,) height and width. The identity leaves every bit unchanged."""
    b, stored = len(batch.image), batch.image.shape[2:]
    if warp.affine.shape[0] != b:
        raise DataError(f"warp: made for {warp.affine.shape[0]} images, the batch has {b}")
    for name, planes in (("labels", batch.labels), ("valid", batch.valid)):
        if planes.shape[0] != b or planes.shape[-len(stored) :] != stored:
            shapes = f"{tuple(planes.shape)} do not fit the image of {tuple(batch.image.shape)}"
            raise DataError(f"batch: {name} of shape {shapes}")
    rows = crop_size[0]
    if len(crop_size) == 3:
        rows = max(
            1, (_SLAB_CPU if batch.image.device.type == "cpu" else _SLAB_GPU) // (b * math.prod(crop_size[1:]))
        )
    parts = [slice(first, first + rows) for first in range(0, crop_size[0], rows)]
    slabs = [_apply_to_slab(batch, warp, crop_size=crop_size, rows=part) for part in parts]
    return slabs[0] if len(slabs) == 1 else _stacked(slabs)


def augment(
    batch: Batch,
    *,
    settings: AugmentationSettings,
    crop_size: Size,
    seed: int,
    step: Step,
    index: Int[Tensor, " b"],
    spacing: Sequence[float] | None = None,
) -> Batch:
    """A random warp of each image of the batch; `index` are the numbers of the images in their set (`draw_warp`)."""
    index, window = index.to(batch.image.device), batch.window
    size: Sides = batch.image.shape[2:] if window is None else window.size.unbind(1)
    how: dict[str, Any] = {"crop_size": crop_size, "channels": batch.image.shape[1], "spacing": spacing}
    warp = draw_warp(settings, seed=seed, step=step, index=index, source_size=size, **how)
    return apply_warp(batch, warp, crop_size=crop_size)


def _apply_to_slab(batch: Batch, warp: Warp, *, crop_size: Size, rows: slice) -> Batch:
    """Some rows of the crop; of volumes, some slices."""
    bounds = _bounds(batch)
    positions = source_positions(warp, crop_size=crop_size, rows=rows)
    image = _interpolated(batch.image, positions, bounds=bounds, keeps_slices=warp.keeps_slices)
    nearest = [position.add_(0.5).floor_().int() for position in positions]
    inside = [each.clamp(low, high) for each, (low, high) in zip(nearest, bounds, strict=True)]
    exists = reduce(torch.Tensor.logical_and_, (a == b for a, b in zip(nearest, inside, strict=True)))
    pixel = _flat_index(inside, bounds=bounds, sides=batch.image.shape[2:])
    valid = _gather(batch.valid.unsqueeze(1), pixel).squeeze(1).logical_and_(exists)
    labels = _gather(batch.labels, pixel).mul_(valid.unsqueeze(1))
    image = _recolour(image, warp).mul_(exists.unsqueeze(1))
    return replace(batch, image=image.to(batch.image.dtype), labels=labels, valid=valid, window=None)


def _bounds(batch: Batch) -> list[tuple[Any, Any]]:
    """The first and the last source position along each axis that the batch has; of a window, per image."""
    sides, window = batch.image.shape[2:], batch.window
    if window is None:
        return [(0, side - 1) for side in sides]
    shape, bounds = (-1, *[1] * len(sides)), []
    for side, corner, size in zip(sides, window.corner.int().unbind(1), window.size.int().unbind(1), strict=True):
        bounds.append((corner.view(shape), (torch.minimum(corner + side, size) - 1).view(shape)))
    return bounds


def _recolour(image: Float[Tensor, "b c *s"], warp: Warp) -> Float[Tensor, "b c *s"]:
    """The image with its colours changed; factors of 1 change no bit."""
    gamma, saturation, contrast, gain = (
        None if factor is None else factor.view(len(image), -1, *[1] * (image.ndim - 2)).to(image.dtype)
        for factor in (warp.gamma, warp.saturation, warp.contrast, warp.gain)
    )
    if gamma is not None:
        image = torch.where(gamma == 1, image, image.pow(gamma))
    if saturation is not None:
        image = image.mean(dim=1, keepdim=True).lerp(image, saturation)
    if contrast is not None:
        image = image.new_full((), 0.5).lerp(image, contrast)
    if gain is not None:
        image = image * gain
    return image if saturation is contrast is gain is None else image.clamp(0, 1)


def _flat_index(
    place: Sequence[Int[Tensor, " b *s"]], *, bounds: Sequence[tuple[Any, Any]], sides: Size
) -> Int64[Tensor, " b *s"]:
    """The numbers of pixels in a plane; overwrites `place`."""
    kind = torch.int32 if math.prod(sides) < 2**31 else torch.int64
    number: Tensor | int = 0
    for each, side, (low, _) in zip(place, sides, bounds, strict=True):
        inside = (each if isinstance(low, int) else each.sub_(low)).to(kind)
        number = inside if isinstance(number, int) else number.mul_(side).add_(inside)
    assert isinstance(number, Tensor)
    return number.long()


def _gather(
    planes: Shaped[Tensor, "b m *s"], pixel: Int64[Tensor, " b *q"], *, offset: int = 0
) -> Shaped[Tensor, "b m *q"]:
    """The pixels with these flat indices, plus `offset`, of each plane."""
    flat = planes.flatten(2)[:, :, offset:]
    numbers = pixel.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
    if flat.is_cuda:
        out = flat.gather(2, numbers)
    else:
        # Image by image; a small one from a copy, which then lies in the cache: faster than gathering from memory.
        out, is_small = flat.new_empty(numbers.shape), flat[0].nbytes <= _SMALL
        for source, picked, target in zip(flat, numbers, out, strict=True):
            torch.gather(source.clone() if is_small else source, 1, picked, out=target)
    return out.view(*flat.shape[:2], *pixel.shape[1:])


def _interpolated(
    image: Float[Tensor, "b c *s"],
    positions: Sequence[Float32[Tensor, " b *q"]],
    *,
    bounds: Sequence[tuple[Any, Any]],
    keeps_slices: bool,
) -> Float[Tensor, "b c *q"]:
    """The image at positions, clamped to its outermost pixel centres; at least float32."""
    # grid_sample is faster, but its normalised coordinates miss whole pixels: the identity would change the image.
    work, sides = torch.promote_types(image.dtype, torch.float32), image.shape[2:]
    first, shares, strides = [], [], []
    for axis, (position, (low, high)) in enumerate(zip(positions, bounds, strict=True)):
        between = not (keeps_slices and axis == 0)
        # The first of two taps; on the last row (column, slice) the one before, at weight 1, where lerp is exact.
        last_but_one = max(high - 1, low) if isinstance(high, int) else torch.maximum(high - 1, low)
        position = position.clamp(low, high)
        tap = position.floor().clamp_(max=last_but_one if between else high)
        first.append(tap.int())
        shares.append(position.sub_(tap).unsqueeze(1).to(work) if between else None)
        strides.append(math.prod(sides[axis + 1 :]) if sides[axis] > 1 else 0)
    pixel = _flat_index(first, bounds=bounds, sides=sides)

    def along(axis: int, offset: int) -> Tensor:
        """Interpolated along this and all later axes."""
        if axis == len(sides):
            return _gather(image, pixel, offset=offset).to(work)
        near, share = along(axis + 1, offset), shares[axis]
        return near if share is None else near.lerp_(along(axis + 1, offset + strides[axis]), share)

    return along(0, 0)


def _stacked(slabs: Sequence[Batch]) -> Batch:
    """Slabs of crops as crops."""
    image, labels = (torch.cat([getattr(slab, name) for slab in slabs], dim=2) for name in ("image", "labels"))
    valid = torch.cat([slab.valid for slab in slabs], dim=1)
    return replace(slabs[0], image=image, labels=labels, valid=valid)
