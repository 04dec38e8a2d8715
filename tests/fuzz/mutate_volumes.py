"""Changes to volumes: affines that are no numbers, slanted, turned or elsewhere, and series with odd slices."""

import gzip
import io
import struct
import warnings
from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random

import numpy as np
import pydicom
from corpus import Files
from mutate import Change, Mutation
from mutate_lidc import _written, scan_mutations
from mutate_others import nifti_mutations
from pydicom.dataset import FileDataset

_SROWS, _CODES = 280, 252
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e38, 0.0)


def _changed(name: str, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    return gzip.compress(change(gzip.decompress(data)), mtime=0) if name.endswith(".gz") else change(data)


def _with_affine(data: bytes, matrix: np.ndarray) -> bytes:
    """With other axes of the sform."""
    rows = np.frombuffer(data, "<f4", 12, _SROWS).reshape(3, 4)
    with np.errstate(all="ignore"):
        moved = (np.vstack([rows, [0, 0, 0, 1]]) @ matrix)[:3].astype("<f4")
    return data[:_SROWS] + moved.tobytes() + data[_SROWS + 48 :]


def _case(files: Files, rng: Random) -> list[str]:
    """The names of the files of one case, the image first."""
    image = rng.choice([name for name in sorted(files) if name.endswith(".nii")])
    path = PurePosixPath(image)
    case = path.parent.name if path.stem == "image" else path.stem
    return [image, *(name for name in sorted(files) if case in name and name != image)]


def odd_affine(files: Files, rng: Random) -> Change:
    """A number of the affine that is none, or too large, in all files of a case or in one of them."""
    names = _case(files, rng)
    chosen = names if rng.random() < 0.5 else [rng.choice(names)]
    place = _SROWS + 4 * rng.choice([i for i in range(12) if i % 4 < 3])  # the position may be any number
    packed = struct.pack("<f", rng.choice(_FLOATS))

    def change(data: bytes) -> bytes:
        return data[:place] + packed + data[place + 4 :]

    return Change(files | {name: _changed(name, files[name], change) for name in chosen}, tuple(names))


def no_number(files: Files, rng: Random) -> Change:
    """An affine with a NaN in all files of a case, so that they are alike."""
    names = _case(files, rng)
    place = _SROWS + 4 * rng.randrange(12)

    def change(data: bytes) -> bytes:
        return data[:place] + struct.pack("<f", float("nan")) + data[place + 4 :]

    return Change(files | {name: _changed(name, files[name], change) for name in names}, tuple(names), refused=True)


def mixed_orientation(files: Files, rng: Random) -> Change:
    """One file of a case lies turned, mirrored, slanted or elsewhere."""
    names = _case(files, rng)
    name = rng.choice(names)
    matrices = [np.diag((*signs, 1)) for signs in ((-1, 1, 1), (1, -1, 1), (1, 1, -1), (-1, -1, 1))]
    matrices += [np.eye(4)[order] for order in ([1, 0, 2, 3], [2, 1, 0, 3], [0, 2, 1, 3])]
    slant, elsewhere = np.eye(4), np.eye(4)
    slant[0, 2], elsewhere[2, 3] = 0.3, 1
    matrix = rng.choice([*matrices, slant, elsewhere])
    content = _changed(name, files[name], lambda data: _with_affine(data, matrix))
    return Change(files | {name: content}, tuple(names), refused=True)


def slanted_or_sideways(files: Files, rng: Random) -> Change:
    """All files of one case have slices in another direction than the other cases, or slanted ones."""
    names = _case(files, rng)
    slant = np.eye(4)
    slant[rng.randrange(2), 2] = 0.3
    # Its own direction is that of the set if the case is the first one.
    matrix = slant if "case0" in names[0] else rng.choice([slant, np.eye(4)[[2, 1, 0, 3]], np.eye(4)[[0, 2, 1, 3]]])
    new = {name: _changed(name, files[name], lambda data: _with_affine(data, matrix)) for name in names}
    return Change(files | new, tuple(names), refused=True)


def odd_codes(files: Files, rng: Random) -> Change:
    """Codes, units and voxel sizes that lie."""
    name = rng.choice([name for name in sorted(files) if ".nii" in name])
    place, packed = rng.choice(
        (
            (_CODES, struct.pack("<hh", rng.choice((-1, 0, 1, 4, 99)), rng.choice((-1, 0, 1, 99)))),
            (76 + 4 * rng.randrange(4), struct.pack("<f", rng.choice((*_FLOATS, -1.0, 1e30)))),
            (123, bytes([rng.randrange(256)])),
            (256 + 4 * rng.randrange(6), struct.pack("<f", rng.choice(_FLOATS))),
        )
    )

    def change(data: bytes) -> bytes:
        return data[:place] + packed + data[place + len(packed) :]

    return Change(files | {name: _changed(name, files[name], change)}, tuple(_case_of(files, name)))


def _case_of(files: Files, name: str) -> list[str]:
    case = next(f"case{number}" for number in range(4) if f"case{number}" in name)
    return [other for other in sorted(files) if case in other]


def volume_mutations() -> list[Mutation]:
    own = [odd_affine, no_number, mixed_orientation, slanted_or_sideways, odd_codes]
    return [*nifti_mutations(), *own, *own]


def _series(files: Files, rng: Random) -> list[str]:
    """The slices of one series by their positions."""
    folder = rng.choice(sorted({name.rsplit("/", 1)[0] for name in files if name.endswith(".dcm")}))
    return sorted((name for name in files if name.startswith(f"{folder}/")), reverse=True)


def _rewritten(files: Files, names: list[str], change: Callable[[int, FileDataset], None]) -> Files:
    new = {}
    for number, name in enumerate(names):
        with warnings.catch_warnings(action="ignore"):
            data = pydicom.dcmread(io.BytesIO(files[name]))
            change(number, data)
            new[name] = _written(data)
    return files | new


def gantry(files: Files, rng: Random) -> Change:
    """Every slice is shifted further in its plane."""
    names, shift = _series(files, rng), rng.choice((0.1, 0.5, 2.0, -1.0, 100.0))

    def change(number: int, data: FileDataset) -> None:
        data.ImagePositionPatient[1] = f"{-90 + shift * number:.3f}"

    return Change(_rewritten(files, names, change), tuple(names), refused=True)


def lost_slice(files: Files, rng: Random) -> Change:
    names = _series(files, rng)
    lost = rng.choice(names)
    return Change({name: content for name, content in files.items() if name != lost}, tuple(names), refused=True)


def slices_at_one_place(files: Files, rng: Random) -> Change:
    names = _series(files, rng)

    def change(number: int, data: FileDataset) -> None:
        data.ImagePositionPatient[2] = f"{-10 + 2.5 * (number // 2):.3f}"

    return Change(_rewritten(files, names, change), tuple(names), refused=True)


def other_direction(files: Files, rng: Random) -> Change:
    """One slice, or all of them, of another orientation."""
    names = _series(files, rng)
    values = rng.choice((["0", "1", "0", "0", "0", "-1"], ["1", "0", "0", "0", "0", "-1"], ["0"] * 6, ["NaN"] * 6))
    one = rng.choice((None, rng.randrange(len(names))))

    def change(number: int, data: FileDataset) -> None:
        if one in (None, number):
            data.ImageOrientationPatient = values

    return Change(_rewritten(files, names, change), tuple(names), refused=True)


def moved_mask(files: Files, rng: Random) -> Change:
    """The mask of a series lies somewhere else, has other voxels, or an affine that is none."""
    name = rng.choice([name for name in sorted(files) if name.endswith(".nii.gz")])
    matrix = np.eye(4)
    matrix[rng.randrange(3), rng.choice((0, 1, 2, 3))] += rng.choice(
        (0.4, 3.0, float("nan"), float("inf"), -1.0, 1e30)
    )
    content = _changed(name, files[name], lambda data: _with_affine(data, matrix))
    return Change(files | {name: content}, (name,))


def series_mutations() -> list[Mutation]:
    own = [gantry, lost_slice, slices_at_one_place, other_direction, moved_mask]
    masks = [mutation for mutation in nifti_mutations() if "swap" not in mutation.__name__]
    packed = [mutation for mutation in masks if "copy" not in mutation.__name__][9:18]  # of bytes of .nii.gz
    return [*scan_mutations(ending=".dcm"), *packed, *own, *own]
