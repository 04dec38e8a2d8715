"""Volumes with several raters: CURVAS-like cases, BIDS derivatives, and raters stacked in a fourth dimension.

<case>/image.nii.gz, <case>/annotation_*.nii.gz                  one case per patient; image/ may be a DICOM series
sub-*/…/<name>.nii.gz, derivatives/…/sub-*/…_rater*….nii.gz      BIDS; what names no rater is left out
masks/<name>.nii.gz of shape (x, y, z, raters)                   as any mask
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from hpunet.data.folder.names import Item, add_by_stem, ending, stem_of
from hpunet.data.folder.volumes import find_series
from hpunet.data.io.archives import FileTree
from hpunet.data.io.inputs import without_uids
from hpunet.data.io.volumes import NIFTI_ENDINGS, NIFTI_HEAD_BYTES, nifti_raters
from hpunet.errors import DataError

DERIVATIVES = "derivatives"
_RATER = re.compile(r"(?<![A-Za-z0-9])rater-?[A-Za-z0-9]+")
_SUBJECT = re.compile(r"sub-[A-Za-z0-9]+")


def is_subject(folder: str) -> bool:
    """Whether a folder is a subject of BIDS."""
    return _SUBJECT.fullmatch(folder) is not None


def find_cases(tree: FileTree, *, volumes: bool = False) -> tuple[list[Item], tuple[str, ...]]:
    """Items and names of graders of folders that hold a volume called image and annotation_*; [] without any.

    With `volumes`, the image may be a folder of DICOM files.
    """
    images: dict[str, str] = {}
    masks: dict[str, dict[str, str]] = {}
    for name in _volumes(tree):
        case, _, file = name.rpartition("/")
        if case and stem_of(file) == "image":
            if images.setdefault(case, name) != name:
                raise DataError(f"{tree.where(name)}: {images[case]} has the same name")
        elif case and stem_of(file).startswith("annotation"):
            masks.setdefault(case, {})[stem_of(file)] = name
    series = find_series(tree, _folder_of_case) if volumes else {}
    for folder in series:
        case = folder.rpartition("/")[0]
        if images.setdefault(case, folder) != folder:
            raise DataError(f"{tree.where(folder)}: {images[case]} has the same name")
    for case in masks if images else ():
        if case not in images:
            raise DataError(f"{tree.where(case)}: has annotations but no image.nii or image.nii.gz")
    patients = {case: case for case in images}
    items, graders = _items(tree, images, masks, patients, wanted="annotation_*.nii.gz")
    if series:
        names = [without_uids(item.stem) for item in items]
        found = [series.get(item.image, ()) for item in items]
        items = [
            item._replace(stem=name, patient=name, series=files)
            for item, name, files in zip(items, names, found, strict=True)
        ]
    return items, graders


def _folder_of_case(name: str) -> str:
    """CASE/image of a file in CASE/image/."""
    folder = name.rpartition("/")[0]
    return folder if folder.endswith("/image") else ""


def find_bids(tree: FileTree) -> tuple[list[Item], tuple[str, ...]]:
    """Items and names of graders of a BIDS set: the images that the raters in derivatives refer to."""
    images: dict[str, str] = {}
    for name in _volumes(tree):
        if is_subject(name.split("/")[0]):
            add_by_stem(images, name, tree=tree)
    rated: dict[str, dict[str, str]] = {}
    for name in _volumes(tree):
        rater = _RATER.search(stem_of(name))
        if name.startswith(f"{DERIVATIVES}/") and rater:
            masks = rated.setdefault(_image_of(name, images, tree=tree), {})
            if (other := masks.setdefault(rater[0], name)) != name:
                raise DataError(f"{tree.where(name)}: {other} is of the same rater and image")
    subjects = {stem: _subject(name) for stem, name in images.items()}
    done = {subjects[stem] for stem in rated}
    chosen = {stem: name for stem, name in images.items() if stem in rated or subjects[stem] not in done}
    return _items(tree, chosen, rated, subjects, wanted="a file with _rater in its name in derivatives/")


def split_raters(tree: FileTree, items: list[Item]) -> list[Item]:
    """The items with one mask per rater, if their masks are volumes of four dimensions."""
    counts: dict[str, int] = {}
    for item in items:
        (mask,) = item.masks
        if mask is not None and ending(mask).lower() in NIFTI_ENDINGS:
            head = tree.head(mask, NIFTI_HEAD_BYTES)
            counts[mask] = nifti_raters(head, packed=tree.size(mask), name=tree.where(mask))
    first, number = next(iter(counts.items()), ("", 1))
    for mask, count in counts.items():
        if count != number:
            raise DataError(f"{tree.where(mask)}: {count} raters in the fourth dimension, {first} has {number}")
    return [item._replace(masks=number * item.masks, are_stacked=True) for item in items] if number > 1 else items


def _items(
    tree: FileTree,
    images: Mapping[str, str],
    masks: Mapping[str, Mapping[str, str]],
    patients: Mapping[str, str],
    *,
    wanted: str,
) -> tuple[list[Item], tuple[str, ...]]:
    graders = sorted({grader for found in masks.values() for grader in found})
    for stem, image in images.items():
        if stem not in masks:
            raise DataError(f"{tree.where(image)}: has no label map; expected {wanted}")
    items = [
        Item(stem, image, tuple(masks[stem].get(grader) for grader in graders), patient=patients[stem])
        for stem, image in images.items()
    ]
    return items, tuple(graders)


def _image_of(mask: str, images: Mapping[str, str], *, tree: FileTree) -> str:
    """The image whose parts, such as ses-1 and T1w, are all in the name of the mask, or all but its suffix."""
    parts = set(stem_of(mask).split("_"))
    own = [stem for stem, name in images.items() if _subject(name) == _subject(mask)]
    whole = [stem for stem in own if parts.issuperset(stem.split("_"))]
    near = whole or [stem for stem in own if parts.issuperset(part for part in stem.split("_") if "-" in part)]
    most = max((len(stem.split("_")) for stem in near), default=0)
    found = [stem for stem in near if len(stem.split("_")) == most]
    if len(found) != 1:
        fitting = f"{', '.join(found)} all fit" if found else "there is none"
        raise DataError(f"{tree.where(mask)}: must name its image among those of {_subject(mask)}; {fitting}")
    return found[0]


def _subject(name: str) -> str:
    found = _SUBJECT.search(name)
    return found[0] if found else "sub-?"


def _volumes(tree: FileTree) -> Iterable[str]:
    return (name for name in tree.names if PurePosixPath(name).name.lower().endswith(NIFTI_ENDINGS))
