"""Volumes of a folder: NIfTI, stacks as TIFF or HDF5, and folders of DICOM files, with masks on the same grid.

Depth, the first axis of a sample, is the last axis of a NIfTI volume, the first of a stack, and the normal of the
slices of a DICOM series. Nothing is resampled: slanted grids, and masks on another grid than their image, are errors.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Shaped

from hpunet.data.folder.names import HDF5_ENDINGS, TIFF_ENDINGS, Item, ending
from hpunet.data.io.archives import FileTree
from hpunet.data.io.dicom import is_dicom
from hpunet.data.io.geometry import MAX_SPACING, RIGHT_ANGLE, Geometry
from hpunet.data.io.limits import ImageSize, check_memory, check_unpacked
from hpunet.data.io.series import read_scan, scan_geometry
from hpunet.data.io.volumes import (
    NIFTI_ENDINGS,
    NIFTI_HEAD_BYTES,
    decode_nifti,
    nifti_header,
    read_stack,
    stack_header,
)
from hpunet.errors import DataError
from hpunet.utils.pictures import spread

_NUM_MEASURED = 20  # volumes whose headers give the spacing of a set
_SAME_DIRECTION = math.cos(math.radians(45))
_COPIES = 12  # bytes per voxel and rater: as stored, as classes, in a sample
_IMAGE_COPIES = 4 + 4 + 1  # and of the image: in [0, 1], in a sample, validity


class StoredVolume(NamedTuple):
    """The voxels of an image as stored, and their place; stacks have none."""

    values: Shaped[np.ndarray, "z h w *c"]
    affine: Float64[np.ndarray, "4 4"] | None
    has_range: bool
    """Whether values have no fixed range, so that they are scaled by that of the file."""


def find_series(tree: FileTree, folder_of: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """The files of every folder that `folder_of` makes of the name of a file in it; none if it is empty."""
    found: dict[str, list[str]] = {}
    for name in tree.names:
        if folder := folder_of(name):
            found.setdefault(folder, []).append(name)
    return {folder: tuple(names) for folder, names in found.items()}


def read_volume(tree: FileTree, item: Item) -> StoredVolume:
    """The image of an item."""
    where = tree.where(item.image)
    if item.series:
        scan = read_scan(_paths(tree, item), name=where)
        if scan.values.shape[0] < 2 or scan.geometry.affine is None:
            raise DataError(f"{where}: expected a series of several slices with positions in the patient")
        return StoredVolume(scan.values, scan.geometry.affine, has_range=True)
    if ending(item.image).lower() in NIFTI_ENDINGS:
        return StoredVolume(*decode_nifti(tree.read(item.image), name=where), has_range=True)
    path = _path(tree, item.image)
    header, packed = stack_header(path), tree.size(item.image)
    num_voxels = math.prod(header.shape)
    check_unpacked(num_voxels * header.dtype.itemsize, packed=packed, name=where)
    check_memory(num_voxels * (header.dtype.itemsize + _IMAGE_COPIES), packed=packed, name=where)
    stack = read_stack(path)
    return StoredVolume(stack.astype(stack.dtype.newbyteorder("="), copy=False), None, has_range=False)


def read_geometry(tree: FileTree, item: Item) -> Geometry:
    """Spacing and affine of an image, from headers only."""
    where = tree.where(item.image)
    if item.series:
        return scan_geometry(_paths(tree, item), name=where)
    if ending(item.image).lower() not in NIFTI_ENDINGS:
        return Geometry("zyx")
    head = tree.head(item.image, NIFTI_HEAD_BYTES)
    found = Geometry.from_nifti(nifti_header(head, packed=tree.size(item.image), name=where))
    if found.spacing is None or not 0 < min(found.spacing) <= max(found.spacing) < MAX_SPACING:
        words = "not finite" if found.spacing is None else " x ".join(f"{side:g}" for side in found.spacing) + " mm"
        raise DataError(f"{where}: its affine or voxel sizes are impossible ({words}); write them again")
    return found


def median_spacing(tree: FileTree, items: Sequence[Item]) -> tuple[float, ...] | None:
    """That of volumes spread over the set; none if one of them has none."""
    found = [read_geometry(tree, items[place]).spacing for place in spread(_NUM_MEASURED, of=len(items))]
    known = [spacing for spacing in found if spacing is not None]
    if not known or len(known) < len(found):
        return None
    return tuple(round(float(side), 6) for side in np.median(known, axis=0))


def check_grid(
    affine: Float64[np.ndarray, "4 4"], *, like: Float64[np.ndarray, "4 4"], first: str, name: str
) -> None:
    """Refuse a slanted grid, and slices in another direction than those of the `first` volume of the set (`like`)."""
    sides = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or not np.isfinite(sides).all() or sides.min() <= 0:
        raise DataError(f"{name}: its affine has voxels without a size; write it again")
    axes = affine[:3, :3] / sides
    slant = float(np.abs(axes.T @ axes - np.eye(3)).max())
    if slant > RIGHT_ANGLE:
        degrees = math.degrees(math.asin(min(slant, 1.0)))
        words = f"its slices are shifted in their plane, by {degrees:.1f}° (a tilted gantry)"
        raise DataError(f"{name}: {words}; resample it to a grid of right angles")
    direction = like[:3, 2] / np.linalg.norm(like[:3, 2])
    if abs(float(axes[:, 2] @ direction)) < _SAME_DIRECTION:
        raise DataError(f"{name}: its slices lie in another direction than those of {first}; turn its axes")


def read_mask(tree: FileTree, name: str, size: ImageSize) -> tuple[np.ndarray, np.ndarray | None]:
    """The label map of a NIfTI volume or a stack, which must be of this `size`, and its affine."""
    where = tree.where(name)
    if ending(name).lower() in NIFTI_ENDINGS:
        return decode_nifti(tree.read(name), name=where, size=size)
    path = _path(tree, name)
    if (header := stack_header(path)).shape != size[:3]:
        raise DataError(f"{where}: shape {header.shape}, its image {size.name} has {size[:3]}")
    return read_stack(path), None


def read_mask_of_series(
    tree: FileTree, name: str, size: ImageSize, affine: Float64[np.ndarray, "4 4"], *, num_raters: int = 1
) -> tuple[Shaped[np.ndarray, "z h w *r"], Float64[np.ndarray, "4 4"]]:
    """The label map of a DICOM series on its grid: converters order and turn the axes of NIfTI differently.

    Axes are exchanged and turned as the affines say; voxels must lie at the same places.
    """
    where = tree.where(name)
    if ending(name).lower() not in NIFTI_ENDINGS:
        raise DataError(f"{where}: expected the masks of a DICOM series as NIfTI, whose affine says where they lie")
    content = tree.read(name)
    head = nifti_header(content[:NIFTI_HEAD_BYTES], packed=len(content), name=where, num_raters=None)
    height, width, depth = (*map(int, head.get_data_shape()), 1)[:3]
    if sorted((depth, height, width)) != sorted(size[:3]):
        raise DataError(f"{where}: shape {(depth, height, width)}, its series {size.name} has {size[:3]}")
    own = ImageSize(depth, height, width, size.name)
    found = decode_nifti(content, name=where, size=own, num_raters=num_raters)
    moved = onto_grid(np.moveaxis(found.slices, 0, 2), found.affine, grid=affine, shape=(*size[1:3], size[0]))
    if moved is None:
        raise DataError(f"{where}: has another position or orientation than its series {size.name}")
    return np.moveaxis(moved, 2, 0), affine


def onto_grid(
    voxels: Shaped[np.ndarray, "h w z *r"],
    affine: Float64[np.ndarray, "4 4"],
    *,
    grid: Float64[np.ndarray, "4 4"],
    shape: tuple[int, ...],
) -> Shaped[np.ndarray, "h2 w2 z2 *r"] | None:
    """Voxels with their axes exchanged and turned so that they lie at those of another grid; None if none do."""
    if not np.isfinite(affine).all():
        return None
    between = np.linalg.inv(grid) @ affine
    turns = np.rint(between[:3, :3])
    if not (np.abs(turns).sum(axis=0) == 1).all() or not (np.abs(turns).sum(axis=1) == 1).all():
        return None
    turns = turns.astype(int)
    order = np.abs(turns).argmax(axis=1)
    signs = turns[range(3), order]
    moved = voxels.transpose(*order.tolist(), *range(3, voxels.ndim))
    if moved.shape[:3] != shape:
        return None
    # The first voxel and those at the ends of the axes must fall onto their own places, but for a tenth of a voxel.
    ends = np.vstack([np.zeros(3), np.diag(np.array(shape) - 1.0)])
    indices = np.empty_like(ends)
    indices[:, order] = np.where(signs > 0, ends, np.array(shape) - 1 - ends)
    places = indices @ between[:3, :3].T + between[:3, 3]
    if np.abs(places - ends).max() > 0.1:
        return None
    return np.flip(moved, axis=tuple(np.flatnonzero(signs < 0).tolist()))


def check_samples(tree: FileTree, item: Item, size: ImageSize) -> None:
    """Refuse label maps that together would take too much memory for their files."""
    names = {name for name in (*(item.series or (item.image,)), *item.masks) if name is not None}
    packed = sum(tree.size(name) for name in names)
    per_voxel = _COPIES * len(item.masks) + _IMAGE_COPIES
    check_memory(per_voxel * math.prod(size[:3]), packed=packed, name=tree.where(item.image))


def refuse_images(tree: FileTree, items: Sequence[Item]) -> None:
    """Refuse an image that is no volume."""
    known = (*NIFTI_ENDINGS, *TIFF_ENDINGS, *HDF5_ENDINGS)
    for item in items:
        if not item.series and ending(item.image).lower() not in known:
            wanted = "NIfTI, a stack as TIFF or HDF5, or a folder of DICOM files"
            raise DataError(
                f"{tree.where(item.image)}: expected a volume ({wanted}) for volumes=true, as for model.ndim=3"
            )


def _paths(tree: FileTree, item: Item) -> list[Path]:
    """The DICOM files of a series; others may lie beside them, but none that is called one."""
    found = []
    for path in (_path(tree, name) for name in item.series):
        if is_dicom(path):
            found.append(path)
        elif path.suffix.lower() == ".dcm":
            raise DataError(f"{path}: not a readable DICOM file (no header)")
    return found


def _path(tree: FileTree, name: str) -> Path:
    file = tree.file(name)
    if not isinstance(file, Path):
        raise DataError(f"{tree.where(name)}: stacks and DICOM series are not read from archives; unpack it")
    return file
