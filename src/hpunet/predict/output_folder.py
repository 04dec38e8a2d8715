"""Where results go: one folder per image, and NIfTI volumes of all slices."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.volumes import encode_nifti
from hpunet.errors import DataError
from hpunet.predict.place import Place, slice_name
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


def folder_below(out: Path, name: str) -> Path:
    """The folder of this name in `out`; refuses names that lead out of it."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise DataError(f"{name!r}: cannot be the name of a folder below {out}")
    return out / name


def slice_folder(folder: Path, place: Place) -> Path:
    """Folder of the results of a slice; an image has only one."""
    return folder / slice_name("", z=place.offset[0], depth=place.shape[0])


class VolumeWriter:
    """Collects maps of slices on disk and writes NIfTI files of the size of the whole volume or image.

    Where nothing was sampled, labels are 0 and floats NaN.
    """

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder, self.place = folder, place
        self.maps: dict[str, np.ndarray] = {}

    def put(self, place: Place, maps: Mapping[str, Shaped[np.ndarray, "h w"]]) -> None:
        """Store the maps of one slice by name."""
        z, y, x = place.offset
        for name, values in maps.items():
            if name not in self.maps:
                how: dict[str, Any] = {"dtype": values.dtype, "mode": "w+", "shape": self.place.shape}
                self.maps[name] = np.memmap(self.folder / f".{name}.voxels", **how)
                if values.dtype.kind == "f":
                    self.maps[name][:] = np.nan
            self.maps[name][z, y : y + values.shape[0], x : x + values.shape[1]] = values

    def write(self) -> None:
        """Write all volumes as .nii.gz."""
        for name in list(self.maps):
            content = encode_nifti(np.asarray(self.maps.pop(name)), header=self.place.header)
            (self.folder / f"{name}.nii.gz").write_bytes(content)
            (self.folder / f".{name}.voxels").unlink()
