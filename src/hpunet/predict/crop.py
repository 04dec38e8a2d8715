"""Cuts the crop around an object that a model was trained on: native pixels, or resampled to a spacing."""

from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Shaped

from hpunet.data.io.geometry import Geometry
from hpunet.data.io.inputs import Stored
from hpunet.errors import ConfigError, DataError
from hpunet.predict.place import Place

Number = int | float
Point = tuple[Number, Number]
Box = tuple[Number, Number, Number, Number]


@dataclass(frozen=True)
class Region:
    """The part of an image to sample: around a point (x, y) or a box (x0, y0, x1, y1), in pixels from 0."""

    at: Point | None = None
    box: Box | None = None
    spacing: float | None = None
    """Distance of pixels in mm to resample to."""

    @property
    def is_crop(self) -> bool:
        """Whether a part of the image is cut out."""
        return self.at is not None or self.box is not None


def check_region(region: Region) -> None:
    """Refuse what is impossible for any image."""
    if region.at is not None and region.box is not None:
        raise ConfigError("at, box: give a point or a box, not both")
    check_numbers("at", region.at, expected="x, y")
    check_numbers("box", region.box, expected="x0, y0, x1, y1")
    if region.box is not None and not (region.box[0] < region.box[2] and region.box[1] < region.box[3]):
        raise ConfigError(f"box: expected x0 < x1 and y0 < y1, got {','.join(f'{each:g}' for each in region.box)}")
    if region.spacing is not None and not 0 < region.spacing < float("inf"):
        raise ConfigError(f"spacing: expected a number above 0, in mm, got {region.spacing:g}")


def check_numbers(name: str, given: object, *, expected: str) -> None:
    """Refuse what is neither None nor as many numbers as are `expected`."""
    numbers = given if isinstance(given, (tuple, list)) else ()
    is_complete = len(numbers) == expected.count(",") + 1
    if given is not None and not (is_complete and all(isinstance(each, Real) for each in numbers)):
        raise ConfigError(f"{name}: expected the numbers {expected}, got {given!r}")


def cut(stored: Stored, region: Region, *, side: tuple[int, ...], where: str) -> tuple[Stored, Place]:
    """The crop of this height and width, with a note of what was done; a larger box gives a larger crop.

    The crop is moved inside the image where it would stick out, and is the whole image along sides that are shorter.
    """
    depth, h, w = stored.values.shape[:3]
    factors = _factors(stored, region, where=where)
    bounds = []
    for axis, size in enumerate((h, w)):
        centre, least = _centre(region, axis=axis, size=size, where=where)
        extent = min(size, max(round(side[axis] * factors[axis]), least)) if region.is_crop else size
        start = int(np.floor(centre - extent / 2 + 0.5))
        bounds.append((min(max(0, start), size - extent), extent))
    (top, height), (left, width) = bounds
    values = stored.values[:, top : top + height, left : left + width]
    notes = list(stored.notes)
    if region.is_crop:
        notes.append(f"Cut {height}×{width} pixels from row {top}, column {left} of {h}×{w}.")
    place = Place((depth, h, w), (0, top, left), stored.geometry, stored.header, stored.frames)
    if region.spacing is not None:
        shape = max(1, round(height / factors[0])), max(1, round(width / factors[1]))
        values = _resized(values, shape)
        place = _resampled_place(place, size=(height, width), shape=shape)
        notes.append(f"Resampled from {height}×{width} to {shape[0]}×{shape[1]} pixels of {region.spacing:g} mm.")
    return replace(stored, values=values, notes=tuple(notes)), place


def _factors(stored: Stored, region: Region, *, where: str) -> tuple[float, float]:
    """Stored pixels along a pixel of the model, vertically and horizontally."""
    if region.spacing is None:
        return 1.0, 1.0
    if stored.geometry.spacing is None:
        raise DataError(f"{where}: its file does not say the spacing of pixels; omit spacing")
    y, x = stored.geometry.spacing[-2:]
    return region.spacing / y, region.spacing / x


def _centre(region: Region, *, axis: int, size: int, where: str) -> tuple[float, int]:
    """The centre along an axis (0: rows), and the extent that the crop must have."""
    if region.at is not None:
        ends = (region.at[1 - axis],) * 2
    elif region.box is not None:
        ends = region.box[1 - axis], region.box[3 - axis]
    else:
        return size / 2, size
    if not 0 <= ends[0] <= ends[1] <= size:
        named = f"{'xy'[1 - axis]} from {ends[0]:g} to {ends[1]:g}" if region.box else f"{'xy'[1 - axis]} {ends[0]:g}"
        raise DataError(f"{where}: {named} is outside of the image, which has {size} {('rows', 'columns')[axis]}")
    return sum(ends) / 2, int(np.ceil(ends[1] - ends[0]))


def _resized(values: Shaped[np.ndarray, "z h w *c"], shape: tuple[int, int]) -> np.ndarray:
    planes = torch.from_numpy(values.reshape(*values.shape[:3], -1).astype(np.float64)).permute(0, 3, 1, 2)
    resized = F.interpolate(planes, size=shape, mode="bilinear", antialias=True).permute(0, 2, 3, 1).numpy()
    resized = resized.reshape(len(values), *shape, *values.shape[3:])
    return (np.rint(resized) if values.dtype.kind in "iu" else resized).astype(values.dtype)


def _resampled_place(place: Place, *, size: tuple[int, ...], shape: tuple[int, int]) -> Place:
    """A grid of its own: of this shape, where a crop of this size was."""
    z, y, x = place.offset
    geometry = place.geometry.crop(z=z, y=y, x=x)
    ratios = [old / new for old, new in zip(size, shape, strict=True)]
    affine = geometry.affine
    if affine is not None:
        affine = affine.copy()
        affine[:3, 3] += sum(affine[:3, axis] * (ratio - 1) / 2 for axis, ratio in enumerate(ratios))
        affine[:3, 0] *= ratios[0]
        affine[:3, 1] *= ratios[1]
    old = place.geometry.spacing or (1.0, 1.0)
    spacing = (*old[:-2], old[-2] * ratios[0], old[-1] * ratios[1])
    geometry = Geometry(geometry.axes, spacing, affine)
    whole = (place.shape[0], *shape)
    return Place(whole, (0, 0, 0), geometry, None if place.header is None else geometry.nifti_header(whole))
