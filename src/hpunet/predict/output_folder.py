"""Where results go: one folder per image, and NIfTI volumes of all slices."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.inputs import Input
from hpunet.data.io.volumes import encode_nifti
from hpunet.errors import DataError
from hpunet.utils.files import atomic_folder


def result_folder(target: Path, *, replace: bool = False) -> AbstractContextManager[Path]:
    """An `atomic_folder` for the results of one image; with `replace`, earlier results are replaced, nothing else."""
    if target.exists():
        if not replace:
            raise DataError(f"{target}: exists already; replace it with --replace, or choose another --out")
        ours = ("hypotheses.json", "instances.png")
        if not any((place / name).is_file() for place in [target, *target.glob("z-*")] for name in ours):
            raise DataError(f"{target}: holds no results of hpunet, so --replace leaves it; choose another --out")
    return atomic_folder(target, replace=replace, error=DataError)


def slice_folder(folder: Path, source: Input, z: int) -> tuple[str, Path]:
    """Name and folder of the results of slice `z`; an image has only one."""
    part = f"z-{z:03d}" if len(source.images) > 1 else ""
    return "/".join(filter(None, [source.name, part])), folder / part


class VolumeWriter:
    """Collects maps of slices on disk and writes NIfTI files; missing slices are 0 (labels) or NaN (floats)."""

    def __init__(self, folder: Path, source: Input, *, types: Mapping[str, np.dtype[Any]]) -> None:
        self.folder, self.header = folder, source.header
        z, _, h, w = source.images.shape
        self.maps: dict[str, np.ndarray] = {}
        for name, dtype in types.items():
            self.maps[name] = np.memmap(folder / f".{name}.voxels", dtype=dtype, mode="w+", shape=(z, h, w))
            if dtype.kind == "f":
                self.maps[name][:] = np.nan

    def put(self, z: int, maps: Sequence[Shaped[np.ndarray, "h w"]]) -> None:
        """Store the maps of one slice, in the order of `types`."""
        for volume, values in zip(self.maps.values(), maps, strict=True):
            volume[z] = values

    def write(self) -> None:
        """Write all volumes as .nii.gz."""
        for name in list(self.maps):
            content = encode_nifti(np.asarray(self.maps.pop(name)), header=self.header)
            (self.folder / f"{name}.nii.gz").write_bytes(content)
            (self.folder / f".{name}.voxels").unlink()
