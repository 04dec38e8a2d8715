"""Samples of any method in files, in one of two layouts below a folder or in a tar archive of it.

    {name}.npz                  one file per image with all its samples: an array (s, h, w) of classes, called
                                `samples` or the only one; also .npy, or .nii.gz with samples in the fourth dimension
    {name}/sample-{number}.png  one file per sample; also TIFF, GIF or .nii.gz, also {name}_s{number}.png and the like

`{name}` is the key of an image in `rows.csv`; it may hold folders. For a NIfTI volume, which holds all slices, it is
the key without /z-012. Of data opened as volumes, arrays are (s, d, h, w), and one file per sample is NIfTI. Files
that do not fit the pattern are not read. `hpunet evaluate --save-samples` writes the first layout, `hpunet sample`
the second.
"""

import io
import math
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped, UInt8

from hpunet.config.settings import MAX_SAMPLES
from hpunet.data.folder.names import ENDINGS
from hpunet.data.io.archives import FileTree
from hpunet.data.io.images import decode_image
from hpunet.data.io.inputs import without_uids
from hpunet.data.io.label_maps import class_map
from hpunet.data.io.limits import ImageSize, named_errors
from hpunet.data.io.volumes import NIFTI_ENDINGS, NIFTI_HEAD_BYTES, decode_nifti, nifti_raters
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.summary import plural
from hpunet.utils.files import atomic_write, below
from hpunet.utils.limits import MAX_VOLUME_BYTES

USUAL_PATTERNS = ("{name}.npz", "{name}/sample-{number}.png")
_ARRAY = "samples"
_ARRAY_ENDINGS = (".npz", ".npy")
_SLICE = re.compile(r"(.+)/z-(\d{1,9})")
_PIECE = 2**22  # bytes
Size = tuple[int, ...]
"""Height and width; of volumes, depth, height and width."""


def sample_path(folder: Path, key: str) -> Path:
    """Where `write_samples` puts the samples of an image."""
    below(folder, key)  # refuses others
    return folder / f"{key}.npz"


def write_samples(folder: Path, key: str, samples: UInt8[np.ndarray, " n *s"]) -> None:
    """Write all samples of an image in one step; the same bytes every time."""
    array, content = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(array, np.ascontiguousarray(samples), allow_pickle=False)
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{_ARRAY}.npy"), array.getvalue(), zipfile.ZIP_DEFLATED)
    atomic_write(sample_path(folder, key), content.getvalue())


class SampleFiles:
    """The samples of the images `keys`; without `pattern`, the first of `USUAL_PATTERNS` that fits a file."""

    def __init__(self, path: Path, *, keys: Sequence[str], pattern: str | None = None) -> None:
        patterns = USUAL_PATTERNS if pattern is None else (_checked(pattern),)
        places = (each.replace("{name}", key) for each in patterns for key in keys)
        self.tree = FileTree(path, kept={place.split("/")[0] for place in places if "/" in place})
        self.pattern = _usual_pattern(self.tree) if pattern is None else pattern
        self._files = _matched(self.tree, self.pattern)
        self._are_volumes = self.pattern.lower().endswith(NIFTI_ENDINGS)
        self._places: dict[str, tuple[str, int]] = {}  # of each image that has samples: name and slice
        self._depths: dict[str, int] = {}
        for key in keys:
            place = (without_uids(key), 0)
            if place[0] not in self._files and self._are_volumes and (match := _SLICE.fullmatch(key)):
                place = (without_uids(match[1]), int(match[2]))
            if place[0] in self._files:
                self._places[key] = place
                self._depths[place[0]] = max(self._depths.get(place[0], 0), place[1] + 1)
        self._volume_name, self._volumes = "", dict[Any, np.ndarray]()  # read once for all slices of an image
        self._refuse_extra(keys)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The images without samples."""
        return [key for key in keys if key not in self._places]

    def expected(self, key: str) -> str:
        """Where samples of an image would be."""
        return self.tree.where(self.pattern.replace("{name}", key).replace("{number}", "1"))

    def files(self, keys: Iterable[str]) -> dict[str, Path | bytes]:
        """The files of those of these images that have samples, by name."""
        found = {self._places[key][0] for key in keys if key in self._places}
        return {file: self.tree.file(file) for name in sorted(found) for file in self._files[name].values()}

    def read(
        self, key: str, *, sizes: Sequence[Size], count: int, num_classes: int
    ) -> Integer[np.ndarray, " {count} *s"]:
        """The first `count` samples of an image or volume as classes; their size must be one of `sizes`."""
        name, z = self._places[key]
        files = self._files[name]
        if 0 in files:
            return self._read_all(files[0], key, z, sizes=sizes, count=count, num_classes=num_classes)
        numbers = sorted(files)[:count]
        where = self.tree.where(files[numbers[-1]])
        if len(numbers) < count:
            raise DataError(f"{where}: is the last of {len(numbers)} samples of {key}, {count} are scored")
        if numbers != list(range(numbers[0], numbers[0] + count)):
            lost = next(number for number in range(numbers[0], numbers[-1]) if number not in files)
            raise DataError(f"{where}: sample {lost - 1} of {key} is missing; expected numbers without gaps")
        return np.concatenate(
            [self._read_one(files[n], key, z, sizes=sizes, num_classes=num_classes) for n in numbers]
        )

    def _read_all(
        self, file: str, key: str, z: int, *, sizes: Sequence[Size], count: int, num_classes: int
    ) -> Integer[np.ndarray, " n *s"]:
        where = self.tree.where(file)
        if self._are_volumes:
            volume = self._volume(file, key, sizes=sizes, num_classes=num_classes)
            found = np.moveaxis(volume if len(sizes[0]) == 3 else volume[z], -1, 0)
            _check_shape(found.shape, sizes=sizes, count=count, key=key, name=where)
            return np.asarray(found[:count])
        content = self.tree.read(file)
        with named_errors(f"{self.pattern[-4:]} file", name=where):
            read = _from_npz if file.lower().endswith(".npz") else _from_npy
            values = read(content, sizes=sizes, count=count, key=key, name=where)
        return _as_classes(values, num_classes=num_classes, name=where)

    def _read_one(
        self, file: str, key: str, z: int, *, sizes: Sequence[Size], num_classes: int
    ) -> Integer[np.ndarray, " 1 *s"]:
        where = self.tree.where(file)
        if self._are_volumes:
            volume = self._volume(file, key, sizes=sizes, num_classes=num_classes)
            if volume.shape[3] != 1:
                words = f"{where}: holds {volume.shape[3]} samples, {self.pattern!r} expects one per file"
                raise DataError(f"{words}; name them by a pattern without {{number}}, one file per image")
            return np.asarray((volume if len(sizes[0]) == 3 else volume[z])[..., 0][None])
        if len(sizes[0]) == 3:
            words = f"a picture is no sample of a volume; write .nii.gz, or all samples of {key} as .npz"
            raise DataError(f"{where}: {words}")
        content = self.tree.read(file)
        values = _of_one_size(
            lambda size: decode_image(content, name=where, labels=True, size=size), sizes=sizes, depth=1, key=key
        )
        if values.ndim != 2:
            raise DataError(f"{where}: expected a label map, got shape {values.shape}")
        return _as_classes(values[None], num_classes=num_classes, name=where)

    def _volume(
        self, file: str, key: str, *, sizes: Sequence[Size], num_classes: int
    ) -> Integer[np.ndarray, "z h w s"]:
        name, place = self._places[key][0], (file, tuple(sizes))
        depth = sizes[0][0] if len(sizes[0]) == 3 else self._depths[name]
        if place not in self._volumes:
            content, where = self.tree.read(file), self.tree.where(file)
            number = nifti_raters(content[:NIFTI_HEAD_BYTES], packed=len(content), name=where)
            if number > MAX_SAMPLES or number * max(map(math.prod, _volumes(sizes, depth=depth))) > MAX_VOLUME_BYTES:
                raise DataError(f"{where}: {number} samples of {depth} slices are too many")
            values = _of_one_size(
                lambda size: decode_nifti(content, name=where, size=size, num_raters=number).slices,
                sizes=sizes, depth=depth, key=key,
            )  # fmt: skip
            values = values if number > 1 else values[..., None]
            values = _as_classes(values, num_classes=num_classes, name=where)
            there = sum(each.nbytes for each in self._volumes.values())
            if name != self._volume_name or there + values.nbytes > MAX_VOLUME_BYTES:
                self._volumes.clear()
            self._volume_name, self._volumes[place] = name, values
        return self._volumes[place]

    def _refuse_extra(self, keys: Sequence[str]) -> None:
        used = {name for name, _ in self._places.values()}
        if extra := [files for name, files in self._files.items() if name not in used]:
            file = min(extra[0].values())
            more = f" and {plural(len(extra) - 1, 'other')}" if len(extra) > 1 else ""
            words = f"{self.tree.where(file)}: fits {self.pattern!r}, but this split has no image for it{more}"
            raise DataError(f"{words}; its first image is {keys[0]}")


def _checked(pattern: str) -> str:
    in_one = "{number}" not in pattern
    endings = (*_ARRAY_ENDINGS, *NIFTI_ENDINGS) if in_one else ENDINGS
    is_fine = pattern.count("{name}") == 1 and pattern.count("{number}") <= 1 and "{name}{number}" not in pattern
    if not is_fine or not pattern.lower().endswith(endings) or pattern.startswith("/"):
        raise ConfigError(
            f"--pattern {pattern!r}: expected {{name}} for the image and, for one file per sample, {{number}}, "
            f"such as {' or '.join(map(repr, USUAL_PATTERNS))}; it ends with {' '.join(endings)}"
            f"{'' if in_one else ' if it has {number}'}"
        )
    return pattern


def _usual_pattern(tree: FileTree) -> str:
    for pattern in USUAL_PATTERNS:
        if any(map(_regex(pattern).fullmatch, tree.names)):
            return pattern
    there = ", ".join(tree.names[:4]) or "no file"
    raise DataError(f"{tree.path}: no file fits {' or '.join(USUAL_PATTERNS)}; give --pattern; found {there}")


def _regex(pattern: str) -> re.Pattern[str]:
    parts = {"{name}": "(?P<name>.+)", "{number}": r"(?P<number>\d{1,9})"}
    return re.compile(
        "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\{name\}|\{number\})", pattern))
    )


def _matched(tree: FileTree, pattern: str) -> dict[str, dict[int, str]]:
    """The files of each image by the number of the sample, from 1; 0 is a file with all samples."""
    found: dict[str, dict[int, str]] = {}
    for match in filter(None, map(_regex(pattern).fullmatch, tree.names)):
        number = 1 + int(match["number"]) if "number" in match.groupdict() else 0
        files = found.setdefault(without_uids(match["name"]), {})
        if (other := files.setdefault(number, match.string)) != match.string:
            raise DataError(f"{tree.where(match.string)}: {other} is the same sample of the same image")
    if not found:
        raise DataError(f"{tree.path}: no file fits {pattern!r}; found {', '.join(tree.names[:4]) or 'no file'}")
    return found


def _from_npz(content: bytes, *, sizes: Sequence[Size], count: int, key: str, name: str) -> np.ndarray:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        chosen = [entry for entry in entries if entry.filename == f"{_ARRAY}.npy"] or entries
        if len(chosen) != 1:
            raise DataError(f"{name}: expected one array, or one that is called {_ARRAY}, found {len(entries)}")
        if chosen[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{name}: packed in an unusual way; write it by numpy.savez_compressed")
        with archive.open(chosen[0]) as file:
            how: dict[str, Any] = {"size": chosen[0].file_size, "sizes": sizes, "count": count}
            return _from_stream(file, **how, key=key, name=name)


def _from_npy(content: bytes, *, sizes: Sequence[Size], count: int, key: str, name: str) -> np.ndarray:
    return _from_stream(io.BytesIO(content), size=len(content), sizes=sizes, count=count, key=key, name=name)


def _from_stream(
    file: Any, *, size: int, sizes: Sequence[Size], count: int, key: str, name: str
) -> Shaped[np.ndarray, " n *s"]:
    """The first samples of an array of `size` bytes; the rest is read, for its checksum, and not kept."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise DataError(f"{name}: an array of version {version}")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(f"{name}: expected whole numbers, got {dtype}")
    if is_fortran:
        raise DataError(f"{name}: is in Fortran's order; save numpy.ascontiguousarray of it")
    _check_shape(shape, sizes=sizes, count=count, key=key, name=name)
    each = math.prod(shape[1:])
    if file.tell() + shape[0] * each * dtype.itemsize != size:
        raise DataError(f"{name}: {size} bytes do not hold {shape} of {dtype}")
    wanted = file.read(count * each * dtype.itemsize)
    while file.read(_PIECE):
        pass
    return np.frombuffer(wanted, dtype).reshape(count, *shape[1:]).astype(dtype.newbyteorder("="), copy=False)


def _check_shape(shape: Sequence[int], *, sizes: Sequence[Size], count: int, key: str, name: str) -> None:
    if tuple(shape[1:]) not in sizes or not 0 < shape[0] <= MAX_SAMPLES:
        wanted = " or ".join("×".join(map(str, size)) for size in sizes)
        axes = f"(samples, {'depth, ' if len(sizes[0]) == 3 else ''}height, width)"
        raise DataError(f"{name}: shape {tuple(shape)}; expected {axes}, {wanted} as {key} has")
    if shape[0] < count:
        raise DataError(f"{name}: holds {shape[0]} samples of {key}, {count} are scored")


def _of_one_size(read: Any, *, sizes: Sequence[Size], depth: int, key: str) -> np.ndarray:
    """What the first size gives that is right."""
    volumes = _volumes(sizes, depth=depth)
    for size in volumes[:-1]:
        try:
            return np.asarray(read(ImageSize(*size, key)))
        except DataError:
            continue
    return np.asarray(read(ImageSize(*volumes[-1], key)))


def _volumes(sizes: Sequence[Size], *, depth: int) -> list[tuple[int, int, int]]:
    """Depth, height and width; of images the given depth."""
    return [(d, h, w) for d, h, w in ((depth, *size)[-3:] for size in sizes)]


def _as_classes(values: np.ndarray, *, num_classes: int, name: str) -> Integer[np.ndarray, "*shape"]:
    if values.dtype.kind == "c":
        raise DataError(f"{name}: expected whole numbers, got {values.dtype}")
    return class_map(values, num_classes=num_classes, name=name).astype(np.min_scalar_type(num_classes - 1))
