"""SNEMI3D (App. C), and any other stack of slices with an instance map: patches of single slices.

`train-input` holds 8 bit slices, `train-labels` one number per cell and 0 elsewhere, both as .tif or .h5.
The paper splits the one volume by slice, so the `patient` of a sample is its slice: bootstraps draw whole slices.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.data.io.label_maps import check_num_random_ids, number_instances
from hpunet.data.io.limits import check_unpacked
from hpunet.data.io.volumes import read_stack, stack_header
from hpunet.data.types import SPLITS, Identity, NoSuchSplitError, Sample, SetInfo, check_split, make_sample
from hpunet.errors import ConfigError, DataError

_ENDINGS = (".tif", ".tiff", ".h5", ".hdf5")
Corner = tuple[int, int, int]


def open_snemi3d(
    path: Path,
    *,
    split: str,
    slices: Mapping[str, tuple[int, int]] | None = None,
    patch: int = 256,
    num_random_ids: int = 15,
    allow_remainder: bool = False,
    reduce: int = 1,
) -> "StackSource":
    """The non-overlapping patches of a split's slices, from a folder with `train-input` and `train-labels`.

    `slices` gives (first, end) per split, the end exclusive. Slices whose size is not a multiple of `patch` stored
    pixels are an error, unless `allow_remainder` drops the rest. `reduce` r downscales by r: the mean of each r×r
    block, and the label of its middle (below and right of it for even r).
    """
    check_split(split)
    if patch < 1:
        raise ConfigError(f"patch: expected 1 or more pixels, got {patch}")
    if reduce < 1 or patch % reduce:
        raise ConfigError(f"reduce: expected a whole number that divides the patch of {patch} pixels, got {reduce}")
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
    if (height % patch or width % patch) and not (allow_remainder and min(height, width) >= patch):
        raise DataError(
            f"{input_path}: slices of {height}x{width} do not divide into patches of {patch}x{patch}; "
            "choose another patch, or set allow_remainder to drop the rest"
        )
    ranges = default_slices(depth) if slices is None else slices
    _check_slices(ranges, depth=depth, where=str(input_path))
    first, end = ranges.get(split, (0, 0))
    if first == end:
        raise NoSuchSplitError(f"{input_path}: no slices for {split!r} in {dict(ranges)}; give others as slices")
    rows, columns = range(0, height - patch + 1, patch), range(0, width - patch + 1, patch)
    ids = tuple(range(1, 1 + num_random_ids))
    info = SetInfo("snemi3d", 1, 1, ("background",), num_random_ids, stochastic_classes=ids)
    corners = list(product(range(first, end), rows, columns))
    return StackSource((input_path, labels_path), corners, info=info, split=split, patch=patch, reduce=reduce)


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
        self, paths: tuple[Path, Path], corners: list[Corner], *, info: SetInfo, split: str, patch: int, reduce: int
    ) -> None:
        self.info, self.split = info, split
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
            blocks = image.reshape(self._patch // r, r, self._patch // r, r)
            image = np.rint(blocks.mean(axis=(1, 3), dtype=np.float32)).astype(image.dtype)
            labels = labels[r // 2 :: r, r // 2 :: r]
        where, info = f"{self._paths[1]}, slice {z}", self.info
        labels = number_instances(labels, num_fixed_classes=info.num_fixed_classes, name=where)[None]
        identity = self.identities[index]
        return make_sample(image=np.asarray(image)[None], labels=labels, identity=identity, info=info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The two stacks, whatever the patch."""
        return {path.name: path for path in self._paths}
