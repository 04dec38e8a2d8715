"""The files to segment, the names of their results, and slices of volumes."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from hpunet.data.io.archives import is_archive
from hpunet.data.io.inputs import ENDINGS, input_name
from hpunet.data.io.series import dicom_files
from hpunet.errors import ConfigError


def check_image_files(images: Sequence[Path], *, data_option: bool = False) -> None:
    """Refuse archives and folders without DICOM files; the error says what to name instead.

    `data_option`: the command has --data.
    """
    for path in images:
        if not path.is_dir() and not is_archive(path):
            continue
        if path.is_dir() and dicom_files(path):
            continue
        folder = path / "images" if (path / "images").is_dir() else path
        files = sorted(folder.iterdir()) if path.is_dir() else []
        ending = next((end for file in files for end in ENDINGS if file.name.lower().endswith(end)), ".png")
        what = f"name its images, {folder}/*{ending}" if path.is_dir() else "unpack it and name its images"
        kind = "a folder" if path.is_dir() else "an archive"
        data = f"for data with instances use --data {path}, else " if data_option else ""
        raise ConfigError(f"{path}: is {kind}, not an image; {data}{what}")


def name_images(images: Sequence[Path]) -> list[tuple[str, Path]]:
    """Name each image's results: the file's name, or, if names repeat, its path below the common folder.

    A `ConfigError` if two results would still share a folder, or one would be inside another.
    """
    names = [input_name(path) for path in images]
    if len(set(names)) < len(names):
        folders = [os.path.abspath(path.parent) for path in images]
        shared = os.path.commonpath(folders)
        pairs = zip(folders, names, strict=True)
        names = [(Path(folder).relative_to(shared) / name).as_posix() for folder, name in pairs]
    for name, count in Counter(names).items():
        if not name or count > 1:
            raise ConfigError(f"images: {count} called {name!r}; results are named after images; use several --out")
        if inside := {str(parent) for parent in PurePosixPath(name).parents} & set(names):
            raise ConfigError(f"images: {name!r} would be inside the results of {inside.pop()!r}; use several --out")
    return list(zip(names, images, strict=True))


def parse_slices(text: str | None) -> tuple[int, int] | None:
    """Parse "first:end"; None selects all slices."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise ConfigError(f"slices: expected first:end such as 10:20, got {text!r}")
    return int(first), int(end)


def select_slices(depth: int, slices: tuple[int, int] | None, *, where: str) -> list[int]:
    """Numbers of the selected slices, of so many."""
    first, end = slices or (0, depth)
    if not 0 <= first < end <= depth:
        raise ConfigError(f"{where}: slices {first}:{end} are not within its {depth} slices")
    return list(range(first, end))
