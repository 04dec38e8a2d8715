"""Graders by pattern: '{name}_1stHO.png' is the mask of an image beside it, 'masks/{name}_1.png' one in a folder."""

import re
import shlex
from collections import Counter
from collections.abc import Container, Sequence

from hpunet.data.folder.names import ENDINGS, IMAGES, TABLE, add_by_stem, ending, stem_of
from hpunet.data.io.archives import FileTree
from hpunet.errors import ConfigError, DataError

NAME = "{name}"
_SEPARATORS = "_-. "


def match_patterns(tree: FileTree, patterns: Sequence[str]) -> dict[str, tuple[str, tuple[str | None, ...]]]:
    """By stem, the image and its mask of each pattern. Images lie in images/, or else among others in the folder.

    A file that fits a pattern is a mask, never an image.
    """
    _check_patterns(patterns)
    folder = _image_folder(tree.names)
    full = [pattern if "/" in pattern else folder + pattern for pattern in patterns]
    masks = [{m["name"]: m.string for m in map(_regex(one).fullmatch, tree.names) if m} for one in full]
    are_masks = {file for found in masks for file in found.values()}
    images: dict[str, str] = {}
    for name in tree.names:
        if _is_in(name, folder) and name not in are_masks and name != TABLE:
            if ending(name):
                add_by_stem(images, name, tree=tree)
            elif folder:
                raise DataError(f"{tree.where(name)}: expected only files of {' '.join(ENDINGS)}")
    images = _without_suffix(images, names={stem for found in masks for stem in found})
    for pattern, found in zip(patterns, masks, strict=True):
        if not found:
            raise DataError(f"{tree.path}: no file fits --graders {pattern!r}; found {_some(tree.names)}")
        for stem, file in found.items():
            if stem not in images:
                wanted = f"there is no image {folder}{stem}"
                raise DataError(f"{tree.where(file)}: fits --graders {pattern!r}, but {wanted} ({_endings()})")
    for stem, image in images.items():
        if not any(stem in found for found in masks):
            wanted = " or ".join(one.replace(NAME, stem) for one in full)
            hint = "; if it is a mask itself, give --graders for it, too" if _cuts(stem, images) else ""
            raise DataError(f"{tree.where(image)}: has no label map; by --graders it is {wanted}{hint}")
    return {stem_of(image): (image, tuple(found.get(name) for found in masks)) for name, image in images.items()}


def _without_suffix(images: dict[str, str], *, names: set[str]) -> dict[str, str]:
    """Images by name: their stem, or what masks call them if all images share a suffix (21 of 21_training.tif)."""
    if names.isdisjoint(images):
        first = min(names, default="")
        for suffix in (stem.removeprefix(first) for stem in images if first and stem.startswith(first)):
            shorter = {stem.removesuffix(suffix): image for stem, image in images.items() if stem.endswith(suffix)}
            if len(shorter) == len(images) and names <= shorter.keys():
                return shorter
    return images


def grader_names(patterns: Sequence[str]) -> tuple[str, ...]:
    """What tells the graders apart: 1stHO and 2ndHO of '{name}_1stHO.png' and '{name}_2ndHO.png'."""
    names = []
    for pattern in patterns:
        parts = [
            part.replace(NAME, "").strip(_SEPARATORS) for part in pattern.removesuffix(ending(pattern)).split("/")
        ]
        names.append(parts[-1] or "/".join(part for part in parts if part) or pattern)
    return tuple(names) if len(set(names)) == len(names) else tuple(patterns)


def propose_patterns(names: Sequence[str]) -> str | None:
    """The --graders that fit files named after images: with Image_1.jpg and Image_1_a.png, '{name}_a.png'."""
    folder = _image_folder(names)
    stems = {stem_of(name) for name in names if _is_in(name, folder) and ending(name)}
    found: Counter[str] = Counter()
    suffixed: set[str] = set()
    for name in names:
        stem, beside = stem_of(name), _is_in(name, folder)
        cuts = _cuts(stem, stems)
        if ending(name) and cuts:
            place = "" if beside else name.rsplit("/", 1)[0] + "/"
            found[f"{place}{NAME}{stem[cuts[0] :]}{ending(name)}"] += 1
            suffixed.update({stem} if beside else ())
    num_images = len(stems - suffixed)
    patterns = sorted(pattern for pattern, count in found.items() if count > 1 or count == num_images)
    if not patterns:
        return None
    return f"masks seem to be named after their images; give --graders {' '.join(map(shlex.quote, patterns))}"


def _cuts(stem: str, stems: Container[str]) -> list[int]:
    """Where the suffix of a name begins that is otherwise another one's."""
    return [i for i in range(len(stem) - 1, 0, -1) if stem[i] in _SEPARATORS and stem[:i] in stems]


def _check_patterns(patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if NAME not in pattern or not ending(pattern) or pattern.startswith("/") or ".." in pattern.split("/"):
            raise ConfigError(
                f"--graders {pattern!r}: expected a file with {NAME} for the name of the image, such as "
                "'{name}_1.png' beside the images or 'masks/{name}_1.png'"
            )
    if len(set(patterns)) < len(patterns):
        raise ConfigError(f"--graders: a pattern is given twice: {' '.join(patterns)}")


def _regex(pattern: str) -> re.Pattern[str]:
    first, *others = map(re.escape, pattern.split(NAME))
    return re.compile(first + "(?P<name>[^/]+)" + "(?P=name)".join(others))


def _image_folder(names: Sequence[str]) -> str:
    return f"{IMAGES}/" if any(name.startswith(f"{IMAGES}/") for name in names) else ""


def _is_in(name: str, folder: str) -> bool:
    return name.startswith(folder) and "/" not in name.removeprefix(folder)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "no file"


def _endings() -> str:
    return "with one of the endings " + " ".join(ENDINGS)
