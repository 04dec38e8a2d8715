"""Where the images of a folder and the label maps of their graders lie."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hpunet.data.folder.names import GRADERS, HDF5_ENDINGS, IMAGES, TABLE, TOPS, Item, by_stem, ending
from hpunet.data.folder.patterns import grader_names, match_patterns, propose_patterns
from hpunet.data.folder.raters import DERIVATIVES, find_bids, find_cases, is_subject, split_raters
from hpunet.data.folder.volumes import find_series
from hpunet.data.io.archives import FileTree, is_archive
from hpunet.data.io.inputs import without_uids
from hpunet.errors import DataError


class Layout(NamedTuple):
    """The items of a folder and the names of its graders, if they have names."""

    tree: FileTree
    items: list[Item]
    graders: tuple[str, ...]
    has_instances: bool


def is_folder_of_images(path: Path) -> bool:
    """Whether `path` may be a folder or an archive of images of one's own."""
    return is_archive(path) or (path.is_dir() and any(top != TABLE for top in _tops(path, ()) or ()))


def find_items(path: Path, *, graders: Sequence[str] = (), volumes: bool = False) -> Layout:
    """The images of a folder, with the masks that `graders` name, one pattern each, or else by the layout.

    Only `volumes` are HDF5 stacks, or folders of DICOM files in the place of an image.
    """
    tree = FileTree(path, tops=_tops(path, graders))
    if not volumes:
        tree.names = [name for name in tree.names if not _is_stack(tree, name)]
    if graders:
        found = match_patterns(tree, graders)
        items = [Item(stem, image, masks, patient=stem) for stem, (image, masks) in found.items()]
        return _layout(tree, items, grader_names(graders))
    if not any(name.split("/")[0] in TOPS[:-1] for name in tree.names):
        for find in (find_bids, partial(find_cases, volumes=volumes)):
            items, names = find(tree)
            if items:
                return _layout(tree, items, names)
    try:
        folders = _mask_folders(tree)
        items = _pair(tree, folders, volumes=volumes)
    except DataError as error:
        proposal = propose_patterns(tree.names)
        raise DataError(f"{error}; {proposal}" if proposal else str(error)) from None
    names = tuple(folder.removeprefix(f"{GRADERS}/") for folder in folders) if len(folders) > 1 else ()
    return _layout(tree, items, names, has_instances=folders == ["instances"])


def _is_stack(tree: FileTree, name: str) -> bool:
    """Whether a file is an HDF5 stack, which is no image; in a folder of images that is an error."""
    if not name.lower().endswith(HDF5_ENDINGS):
        return False
    if name.split("/")[0] in TOPS:
        raise DataError(f"{tree.where(name)}: HDF5 stacks are read as volumes only; set volumes=true")
    return True


def _layout(tree: FileTree, items: list[Item], graders: tuple[str, ...], *, has_instances: bool = False) -> Layout:
    if len(items[0].masks) == 1:
        items = split_raters(tree, items)
    return Layout(tree, items, graders if len(graders) == len(items[0].masks) else (), has_instances)


def _tops(path: Path, graders: Sequence[str]) -> Sequence[str] | None:
    """The files and folders of the root that are searched; None for all, as an archive is read whole."""
    if is_archive(path) or not path.is_dir():
        return None
    shown = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    files = [entry.name for entry in shown if entry.is_file() and _is_shown(entry.name)]
    folders = [entry.name for entry in shown if entry.is_dir()]
    named = {pattern.split("/")[0] for pattern in graders if "/" in pattern}
    if any("{" in name for name in named):
        named.update(folders)
    if not {*TOPS, *named}.intersection(folders):
        named.update(folder for folder in folders if folder == DERIVATIVES or is_subject(folder))
        cases = {file.parent.name for kind in ("image.nii*", "annotation*.nii*") for file in path.glob(f"*/{kind}")}
        named.update(cases)
    return [*files, *(folder for folder in folders if folder in {*TOPS, *named})]


def _is_shown(name: str) -> bool:
    """Whether a file at the root may be an image, mask or table."""
    return name == TABLE or (bool(ending(name)) and not name.lower().endswith(HDF5_ENDINGS))


def _mask_folders(tree: FileTree) -> list[str]:
    """The folders of the graders in order, or the one of masks or instances."""
    graders = sorted({name.rsplit("/", 1)[0] for name in tree.names if name.startswith(f"{GRADERS}/")})
    found = [graders] if graders else []
    found += [[top] for top in ("masks", "instances") if any(name.startswith(f"{top}/") for name in tree.names)]
    if len(found) != 1:
        wanted = "files in one of graders/<name>/, masks/ or instances/"
        raise DataError(
            f"{tree.path}: expected {wanted}, or --graders that name masks; found {found or 'no such folder'}"
        )
    if GRADERS in graders:
        raise DataError(f"{tree.path}: expected graders/<name>/ folders, found files in graders/ itself")
    return found[0]


def _pair(tree: FileTree, mask_folders: list[str], *, volumes: bool) -> list[Item]:
    images = by_stem(tree, IMAGES, with_folders=volumes)
    masks = [by_stem(tree, folder) for folder in mask_folders]
    series: dict[str, tuple[str, ...]] = {}
    if volumes:
        series = find_series(tree, _folder_of_images)
        for folder in series:
            if images.setdefault(stem := folder.rsplit("/", 1)[1], folder) != folder:
                raise DataError(f"{tree.where(folder)}: {images[stem]} has the same name")
        images, *masks = ({without_uids(stem): name for stem, name in found.items()} for found in (images, *masks))
    for found in masks:
        for stem, name in found.items():
            if stem not in images:
                raise DataError(f"{tree.where(name)}: there is no image of this name")
    items = [
        Item(stem, name, tuple(found.get(stem) for found in masks), stem, series=series.get(name, ()))
        for stem, name in images.items()
    ]
    for item in items:
        if not any(item.masks):
            raise DataError(f"{tree.where(item.image)}: has no label map in {' or '.join(mask_folders)}")
    return items


def _folder_of_images(name: str) -> str:
    """images/NAME of a file in images/NAME/."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == IMAGES and len(parts) > 2 else ""
