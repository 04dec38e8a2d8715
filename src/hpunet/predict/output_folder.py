"""Where results go: one folder per image."""

from contextlib import AbstractContextManager
from pathlib import Path

from hpunet.errors import DataError
from hpunet.predict.place import Place, slice_name
from hpunet.utils.files import atomic_folder


def result_folder(target: Path, *, replace: bool = False) -> AbstractContextManager[Path]:
    """An `atomic_folder` for the results of one image; with `replace`, earlier results are replaced, nothing else."""
    if target.exists():
        if not replace:
            raise DataError(f"{target}: exists already; replace it with --replace, or choose another --out")
        ours = ("hypotheses.json", "instances.json")
        if not any((place / name).is_file() for place in [target, *target.glob("z-*")] for name in ours):
            raise DataError(f"{target}: holds no results of hpunet, so --replace leaves it; choose another --out")
    return atomic_folder(target, replace=replace, error=DataError)


def slice_folder(folder: Path, place: Place) -> Path:
    """Folder of the results of a slice; an image has only one."""
    return folder / slice_name("", z=place.offset[0], depth=place.shape[0])
