"""SNEMI3D (App. C), and any other stack of slices with an instance map: patches of single slices, or volumes.

`train-input` holds 8 bit slices, `train-labels` one number per cell and 0 elsewhere, both as .tif or .h5.
The paper splits the one volume by slice, so the `patient` of a sample is its slice: bootstraps draw whole slices.
As volumes, the slices of a split are one sample, whose depth is the first axis of the stack.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.geometry import check_spacing
from hpunet.data.io.label_maps import check_num_random_ids, number_instances
from hpunet.data.io.limits import check_memory, check_unpacked
from hpunet.data.io.volumes import read_stack, stack_header
from hpunet.data.types import SPLITS, Identity, NoSuchSplitError, Sample, SetInfo, check_split, make_sample
from hpunet.errors import ConfigError, DataError

_ENDINGS = (".tif", ".tiff", ".h5", ".hdf5")
_PATCH = 256
_COPIES = 1 + 4 + 4 + 4 + 1  # bytes per voxel of a volume: image, ids as stored, renumbered and checked, validity
Corner = tuple[int, int, int]


def open_snemi3d(
    path: Path,
    *,
    split: str,
    slices: Mapping[str, tuple[int, int]] | None = None,
    patch: int = _PATCH,
    num_random_ids: int = 15,
    allow_remainder: bool = False,
    reduce: int = 1,
    volumes: bool = False,
    spacing: tuple[float, float, float] | None = None,
    background: int | None = None,
) -> "StackSource | StackVolume":
    """The non-overlapping patches of a split's slices, from a folder with `train-input` and `train-labels`.

    `slices` gives (first, end) per split, the end exclusive. Slices whose size is not a multiple of `patch` stored
    pixels are an error, unless `allow_remainder` drops the rest. `reduce` r downscales by r: the mean of each r×r
    block, and the label of its middle (below and right of it for even r).
    With `volumes`, a split is one volume of its whole slices, whose cells keep one number over all of them. `spacing`
    is that of stored voxels, (d, h, w) in mm. `background` is a number of the labels that is no cell, beside 0.
    """
    check_split(split)
    if patch < 1:
        raise ConfigError(f"patch: expected 1 or more pixels, got {patch}")
    if reduce < 1 or patch % reduce:
        raise ConfigError(f"reduce: expected a whole number that divides the patch of {patch} pixels, got {reduce}")
    if volumes and patch != _PATCH:
        raise ConfigError(
            "patch: only of slices; a volume is a whole split, and data.crop says what a model sees of it"
        )
    check_spacing(spacing, volumes=volumes)
    check_num_random_ids(num_random_ids, num_fixed_classes=1)
    input_path, labels_path = _find(path, "train-input"), _find(path, "train-labels")
    header, labels_header = stack_header(input_path), stack_header(labels_path)
    check_unpacked(math.prod(header.shape), packed=input_path.stat().st_size, name=str(input_path))
    if header.dtype != np.uint8:
        raise DataError(f"{input_path}: expected slices of 8 bits (uint8), got {header.dtype}")
    if labels_header.dtype.kind not in "iu":
        raise DataError(f"{labels_path}: expected integer labels, got {labels_header.dtype}")
    if labels_header.shape != header.shape:
        raise DataError(f"{labels_path}: shape {labels_header.shape}, but {input_path.name} has {header.shape}")
    depth, height, width = header.shape
    side, what = (reduce, "blocks") if volumes else (patch, "patches")
    if (height % side or width % side) and not (allow_remainder and min(height, width) >= side):
        raise DataError(
            f"{input_path}: slices of {height}x{width} do not divide into {what} of {side}x{side}; "
            f"choose another {'reduce' if volumes else 'patch'}, or set allow_remainder to drop the rest"
        )
    ranges = default_slices(depth) if slices is None else slices
    _check_slices(ranges, depth=depth, where=str(input_path))
    first, end = ranges.get(split, (0, 0))
    if first == end:
        raise NoSuchSplitError(f"{input_path}: no slices for {split!r} in {dict(ranges)}; give others as slices")
    ids = tuple(range(1, 1 + num_random_ids))
    info = SetInfo("snemi3d", 1, 1, ("background",), num_random_ids, stochastic_classes=ids)
    if volumes:
        packed = sum(path.stat().st_size for path in (input_path, labels_path))
        check_memory(_COPIES * (end - first) * height * width, packed=packed, name=str(input_path))
        reduced = None if spacing is None else (spacing[0], reduce * spacing[1], reduce * spacing[2])
        info = replace(info, ndim=3, spacing=reduced)
        return StackVolume(
            (input_path, labels_path), (first, end), info=info, split=split, reduce=reduce, background=background
        )
    rows, columns = range(0, height - patch + 1, patch), range(0, width - patch + 1, patch)
    corners = list(product(range(first, end), rows, columns))
    return StackSource(
        (input_path, labels_path), corners, info=info, split=split, patch=patch, reduce=reduce, background=background
    )


def default_slices(depth: int) -> dict[str, tuple[int, int]]:
    """The paper's split of 100 slices, 0–79 / 80–89 / 90–99; the same shares of other depths, rounded half up."""
    first, second = (8 * depth + 5) // 10, (9 * depth + 5) // 10
    return {"train": (0, first), "val": (first, second), "test": (second, depth)}


def _check_slices(ranges: Mapping[str, tuple[int, int]], *, depth: int, where: str) -> None:
    if unknown := set(ranges) - set(SPLITS):
        raise ConfigError(f"slices: {sorted(unknown)} are not among {SPLITS}")
    last = 0
    for split, (first, end) in sorted(ranges.items(), key=lambda item: item[1]):
        if not 0 <= first <= end <= depth:
            raise ConfigError(f"slices: {split} = ({first}, {end}) is outside the {depth} slices of {where}")
        if first < last:
            raise ConfigError(f"slices: {split} = ({first}, {end}) overlaps another split")
        last = end


def _find(folder: Path, stem: str) -> Path:
    found = [folder / (stem + ending) for ending in _ENDINGS if (folder / (stem + ending)).is_file()]
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise DataError(f"{folder}: expected one of {stem}{{{','.join(_ENDINGS)}}}, found {names}")
    return found[0]


class StackSource:
    """Patches of a stack of slices; see `open_snemi3d`. Each process reads the voxels at its first sample."""

    def __init__(
        self,
        paths: tuple[Path, Path],
        corners: list[Corner],
        *,
        info: SetInfo,
        split: str,
        patch: int,
        reduce: int,
        background: int | None,
    ) -> None:
        self.info, self.split, self._background = info, split, background
        self.identities = [Identity(f"z-{z:03d}", f"z-{z:03d}/y-{y:04d}_x-{x:04d}") for z, y, x in corners]
        self._paths, self._corners, self._patch, self._reduce = paths, corners, patch, reduce

    @cached_property
    def _stacks(self) -> list[np.ndarray]:
        return [read_stack(path) for path in self._paths]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_stacks"}

    def __len__(self) -> int:
        return len(self._corners)

    def __getitem__(self, index: int) -> Sample:
        """One patch; its cells are renumbered in the order of their numbers in the volume."""
        z, y, x = self._corners[index]
        image, labels = (stack[z, y : y + self._patch, x : x + self._patch] for stack in self._stacks)
        if (r := self._reduce) > 1:
            image, labels = _reduced(image, r), labels[r // 2 :: r, r // 2 :: r]
        where, info = f"{self._paths[1]}, slice {z}", self.info
        labels = _without(labels, self._background)
        labels = number_instances(labels, num_fixed_classes=info.num_fixed_classes, name=where)[None]
        identity = self.identities[index]
        return make_sample(image=np.asarray(image)[None], labels=labels, identity=identity, info=info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The two stacks, whatever the patch."""
        return {path.name: path for path in self._paths}


class StackVolume:
    """The slices of a split as one volume; see `open_snemi3d`. Stacks are read with the sample, and not kept."""

    def __init__(
        self,
        paths: tuple[Path, Path],
        slices: tuple[int, int],
        *,
        info: SetInfo,
        split: str,
        reduce: int,
        background: int | None,
    ) -> None:
        self.info, self.split, self._background = info, split, background
        name = f"z-{slices[0]:03d}-{slices[1] - 1:03d}"
        self.identities = [Identity(patient=name, key=name)]
        self._paths, self._slices, self._reduce = paths, slice(*slices), reduce

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Sample:
        """The volume; its cells are renumbered in the order of their numbers, each the same in all slices."""
        identity, info, r = self.identities[index], self.info, self._reduce
        image, labels = (read_stack(path)[self._slices] for path in self._paths)
        rows, columns = (side - side % r for side in image.shape[1:])
        if r > 1:
            image = np.stack([_reduced(plane[:rows, :columns], r) for plane in image])
            labels = labels[:, r // 2 : rows : r, r // 2 : columns : r]
        where = f"{self._paths[1]}, slices {self._slices.start} to {self._slices.stop - 1}"
        labels = _without(labels, self._background)
        numbers = number_instances(labels, num_fixed_classes=info.num_fixed_classes, name=where)[None]
        return make_sample(image=np.asarray(image)[None], labels=numbers, identity=identity, info=info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The two stacks."""
        return {path.name: path for path in self._paths}


def _without(labels: Shaped[np.ndarray, "*s"], number: int | None) -> Shaped[np.ndarray, "*s"]:
    """Labels with 0 in place of a number."""
    return labels if number is None else np.where(labels == number, labels.dtype.type(0), labels)


def _reduced(image: Shaped[np.ndarray, "h w"], r: int) -> Shaped[np.ndarray, "h2 w2"]:
    """The mean of each r×r block."""
    blocks = image.reshape(image.shape[0] // r, r, image.shape[1] // r, r)
    reduced: np.ndarray = np.rint(blocks.mean(axis=(1, 3), dtype=np.float32)).astype(image.dtype)
    return reduced
