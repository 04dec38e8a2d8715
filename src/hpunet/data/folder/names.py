"""File names in a folder of images: its parts, the endings that are read, stems, and the files of an image."""

from typing import NamedTuple

from hpunet.data.io.archives import FileTree
from hpunet.data.io.volumes import NIFTI_ENDINGS
from hpunet.errors import DataError

TABLE = "data.csv"
IMAGES, GRADERS, INSTANCES = "images", "graders", "instances"
TOPS = (IMAGES, GRADERS, "masks", INSTANCES, TABLE)
TIFF_ENDINGS, HDF5_ENDINGS = (".tif", ".tiff"), (".h5", ".hdf5")
ENDINGS = (".png", ".jpg", ".jpeg", *TIFF_ENDINGS, ".gif", *NIFTI_ENDINGS)


class Item(NamedTuple):
    """The files of one image or volume: its key, the image, the label map of each grader or None, the patient."""

    stem: str
    image: str
    masks: tuple[str | None, ...]
    patient: str
    are_stacked: bool = False
    """Whether all graders are in one file of four dimensions."""
    series: tuple[str, ...] = ()
    """The files of a DICOM series, whose folder is `image`."""


def ending(name: str) -> str:
    """The ending of a file that is read, else an empty string; '.nii.gz' is one ending."""
    return next((name[-len(known) :] for known in (*ENDINGS, *HDF5_ENDINGS) if name.lower().endswith(known)), "")


def stem_of(name: str) -> str:
    """The name of a file without folder and known ending."""
    return name.rsplit("/", 1)[-1].removesuffix(ending(name))


def by_stem(tree: FileTree, folder: str, *, with_folders: bool = False) -> dict[str, str]:
    """The files of a folder by their name without ending; of those in folders in it nothing if it may have some."""
    found: dict[str, str] = {}
    for name in tree.names:
        if not name.startswith(f"{folder}/") or (with_folders and "/" in name.removeprefix(f"{folder}/")):
            continue
        if not ending(name) or "/" in name.removeprefix(f"{folder}/"):
            raise DataError(f"{tree.where(name)}: expected only files in {folder}/, of {' '.join(ENDINGS)}")
        add_by_stem(found, name, tree=tree)
    return found


def add_by_stem(found: dict[str, str], name: str, *, tree: FileTree) -> None:
    """Add a file, or refuse a second one of the same stem."""
    if (other := found.setdefault(stem_of(name), name)) != name:
        raise DataError(f"{tree.where(name)}: {other} has the same name")
