"""The cases of a work list: what was named on the command line, or uploaded; only these files are ever read."""

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from hpunet.data.folder.layouts import Layout, find_items, is_folder_of_images
from hpunet.data.folder.names import GRADERS, IMAGES, TABLE, Item, ending
from hpunet.data.folder.patients import patients_by_pattern
from hpunet.data.folder.table import read_table
from hpunet.data.io.archives import is_archive
from hpunet.data.io.images import decode_image
from hpunet.data.io.inputs import ENDINGS, Stored, input_name, plain_name, read_stored
from hpunet.data.io.label_maps import as_integers
from hpunet.data.io.limits import ImageSize
from hpunet.data.io.series import dicom_files
from hpunet.data.io.volumes import NIFTI_ENDINGS, decode_nifti
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.utils.limits import MAX_TABLE_BYTES
from hpunet.viewer.bounded import Bounded

_UNSAFE = re.compile(r"[^\w.() +=,@-]")
_UID = re.compile(r"\d+(\.\d+){3,}")
_MAX_NAME = 50  # characters of up to 4 bytes; file systems allow 255 bytes
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", flags=re.IGNORECASE)  # by Windows


@dataclass(frozen=True)
class Grader:
    """What one grader drew on one image: reads its labels (z, h, w)."""

    name: str
    read: Callable[[ImageSize], UInt8[np.ndarray, "z h w"]]


@dataclass(frozen=True)
class Case:
    """One image or volume to decide on."""

    name: str
    """Safe as a file name, unique in a work list, without identifiers of patients."""
    path: Path
    """A file, or the folder of a DICOM series."""
    graders: tuple[Grader | None, ...] = ()
    """None: this grader did not look."""
    grader_names: tuple[str, ...] = ()
    patient: str | None = None
    """As a data folder's table names it; never shown."""

    def read(self) -> Stored:
        """The stored values, in one of the four types that the page knows, without an alpha channel."""
        with without_paths(self):
            stored = read_stored(self.path)
            how: dict[str, Any] = {"notes": stored.notes, "window": stored.window, "frames": stored.frames}
            return Stored(_plain(stored.values), stored.geometry, stored.header, **how)

    def labels(self, number: int, size: tuple[int, int, int]) -> UInt8[np.ndarray, "z h w"] | None:
        """The labels of a grader, for an image of this size; None if this grader did not look."""
        grader = self.graders[number]
        if grader is None:
            return None
        with without_paths(self):
            return grader.read(ImageSize(*size, self.name))


@contextmanager
def without_paths(case: Case) -> Iterator[None]:
    """Errors name the case, never a file or folder, whose name may be that of a patient."""
    try:
        yield
    except HPUNetError as error:
        words = str(error).replace(f"{case.path}/", "").replace(str(case.path), case.name)
        if case.path.is_dir():
            for file in sorted((entry.name for entry in case.path.iterdir()), key=len, reverse=True):
                words = words.replace(file, "a file")
        words = re.sub(r"(?<!\w)(?:[A-Za-z]:)?[/\\][^:;,]*[/\\]", "", words)
        raise DataError(_UID.sub("…", words)) from None
    except OSError as error:
        raise DataError(f"{case.name}: cannot be read: {error.strerror or 'I/O error'}") from None


def _plain(values: Shaped[np.ndarray, "z h w *c"]) -> Shaped[np.ndarray, "z h w *_"]:
    """Values as uint8, uint16, int16 or float32."""
    if values.ndim == 4 and values.shape[3] in (2, 4) and _is_opaque(values[..., -1]):
        values = values[..., :-1]
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype in (np.uint8, np.uint16, np.int16, np.float32):
        return values
    if values.dtype == np.int8:
        return values.astype(np.int16)
    return values.astype(np.float32)


def _is_opaque(alpha: np.ndarray) -> bool:
    opaque = np.iinfo(alpha.dtype).max if alpha.dtype.kind == "u" else 1
    return bool((alpha == opaque).all())


def find_cases(paths: Sequence[Path], *, graders: Sequence[str] = (), patient: str | None = None) -> list[Case]:
    """The images, volumes and series at these paths; folders give all that they hold.

    `graders` and `patient` are patterns of names, as for `hpunet data`.
    """
    found = [case for path in paths for case in _cases_at(path, graders, patient)]
    return unique_names(found)


def unique_names(cases: Sequence[Case], *, taken: Sequence[str] = ()) -> list[Case]:
    """The cases with a number behind names that repeat, whatever their case."""
    used = {name.casefold() for name in taken}
    renamed = []
    for case in cases:
        name, number = case.name, 1
        while name.casefold() in used:
            number += 1
            name = f"{case.name}-{number}"
        used.add(name.casefold())
        renamed.append(Case(name, case.path, case.graders, case.grader_names, case.patient))
    return renamed


def safe_name(name: str) -> str:
    """A name, of a file with or without its ending, fit for a file on any system; UIDs become hashes."""
    name = _UNSAFE.sub("_", plain_name(name)).strip(" .")[:_MAX_NAME].strip(" .")
    known = ending(f"_{name}")
    name = name[: len(name) - len(known)].strip(" .") if known else name
    return f"_{name}" if not name or name[0] in "-+=@" or _RESERVED.fullmatch(name) else name


def _cases_at(path: Path, graders: Sequence[str], patient: str | None) -> list[Case]:
    if is_archive(path):
        raise ConfigError(f"{path}: is an archive, not an image; unpack it and name its folder")
    if not path.is_dir():
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder")
        return [Case(safe_name(input_name(path)), path)]
    if dicom_files(path):
        return [Case(safe_name(input_name(path)), path)]
    if is_folder_of_images(path) and (cases := _cases_of_data(path, graders, patient)):
        return cases
    folder = path / IMAGES if (path / IMAGES).is_dir() else path
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    files = [entry for entry in entries if entry.is_file() and entry.name.lower().endswith(ENDINGS)]
    series = [entry for entry in entries if entry.is_dir() and dicom_files(entry)]
    if not files + series:
        endings = ", ".join(ENDINGS)
        raise ConfigError(f"{path}: holds no image ({endings}), no DICOM series, and no data set with graders")
    return [Case(safe_name(input_name(each)), each) for each in files + series]


def _cases_of_data(path: Path, graders: Sequence[str], patient: str | None) -> list[Case]:
    """The images of a data set with their graders; none if nothing but images is there."""
    try:
        layout = find_items(path, graders=graders)
    except DataError:
        if graders or any((path / top).is_dir() for top in (GRADERS, "masks", "instances")):
            raise
        return []
    patients: dict[str, str] = {}
    if TABLE in layout.tree.names:
        table = read_table(layout.tree.read(TABLE, max_bytes=MAX_TABLE_BYTES), name=layout.tree.where(TABLE))
        patients = {file.removesuffix(ending(file)): entry.patient for file, entry in table.items()}
    elif patient not in (None, "none"):
        patients = patients_by_pattern([item.stem for item in layout.items], pattern=str(patient), where=str(path))
    cases = []
    for item in layout.items:
        file = layout.tree.path / item.image
        names = layout.graders or tuple(f"grader {number + 1}" for number in range(len(item.masks)))
        found = tuple(_grader(layout, item, number, names[number]) for number in range(len(names)))
        own = patients.get(item.stem, item.patient)
        cases.append(Case(safe_name(Path(item.stem).name), file, found, names, None if own == item.stem else own))
    return cases


def _grader(layout: Layout, item: Item, number: int, name: str) -> Grader | None:
    mask = item.masks[number]
    if mask is None:
        return None

    def read(size: ImageSize) -> UInt8[np.ndarray, "z h w"]:
        content, where = layout.tree.read(mask), layout.tree.where(mask)
        if ending(mask) in NIFTI_ENDINGS and item.are_stacked:
            values = decode_nifti(content, name=where, size=size, num_raters=len(item.masks)).slices[..., number]
        elif ending(mask) in NIFTI_ENDINGS:
            values = decode_nifti(content, name=where, size=size).slices
        else:
            values = decode_image(content, name=where, labels=True, size=size)[None]
        if values.shape != size[:3]:
            raise DataError(f"{where}: shape {values.shape}, its image has {size[:3]}")
        labels = as_integers(values, name=where)
        if layout.has_instances:
            return np.where(labels == 0, 0, (labels - 1) % 255 + 1).astype(np.uint8)
        if np.isin(np.unique(labels), (0, 255)).all():
            return (labels > 0).astype(np.uint8)
        if labels.max() > 255:
            raise DataError(f"{where}: label {int(labels.max())}, expected at most 255")
        return labels.astype(np.uint8)

    return Grader(name, read)


class Images:
    """Opened images, bounded in bytes; each is read by one thread while others wait for it."""

    def __init__(self, max_bytes: int) -> None:
        self._kept: Bounded[Stored] = Bounded(max_bytes)
        self._locks: dict[str, threading.Lock] = {}

    def read(self, case: Case) -> Stored:
        """The stored values of a case."""
        with self._locks.setdefault(case.name, threading.Lock()):
            return self._kept.get_or(case.name, case.read, lambda stored: stored.values.nbytes)


def describe(stored: Stored) -> dict[str, Any]:
    """What the page must know to show an image; lengths in mm."""
    values, spacing = stored.values, stored.geometry.spacing
    low, high = float(values[0].min()), float(values[0].max())
    for plane in values[1:]:
        low, high = min(low, float(plane.min())), max(high, float(plane.max()))
    if not math.isfinite(high - low):
        raise DataError("some pixels are NaN or infinite")
    shown = stored.window
    if shown is None and values.dtype == np.uint8:
        shown = 0.0, 255.0
    if shown is None:
        darkest, brightest = np.percentile(values[len(values) // 2], (0.2, 99.8)).tolist()
        shown = (darkest, brightest) if darkest < brightest else (low, high)
    return {
        "slices": values.shape[0],
        "height": values.shape[1],
        "width": values.shape[2],
        "channels": values.shape[3] if values.ndim == 4 else 1,
        "dtype": values.dtype.name,
        "spacing": None if spacing is None else list(spacing[-2:]),
        "spacing_z": spacing[0] if spacing is not None and len(spacing) == 3 else None,
        "ascends": stored.geometry.affine is not None and bool(stored.geometry.affine[2, 2] > 0),
        "range": [low, high if low < high else low + 1],
        "window": [shown[0], shown[1] if shown[0] < shown[1] else shown[0] + 1],
    }
