"""The DICOM files that results refer to: headers of patient, study and slices, which only DICOM outputs carry on."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hpunet.data.io.dicom import Frame, ImageFile, Plane, optional, read_dataset, read_image_file, required
from hpunet.errors import DataError
from hpunet.predict.export.results import Results

DISCLAIMER = "research software, not a medical device"
_MAY_BE_EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"),
    *("AccessionNumber", "ReferringPhysicianName"),
)
_COLOURS = ((230, 75, 0), (0, 120, 255), (0, 170, 90), (200, 60, 200), (240, 190, 0), (0, 190, 200))
_MAX_TEXT = 64  # characters of a DICOM LO


class Slices(NamedTuple):
    """The files of some slices."""

    numbers: list[int]
    """The slices (z), in the order in which the source has them."""
    datasets: list[Any]
    """The header of each, or one for all frames of its file."""
    planes: list[Plane]
    frames: list[Frame]

    def dataset(self, number: int) -> Any:
        """The header of one of the slices, counted as they are listed."""
        return self.datasets[number if len(self.datasets) > 1 else 0]


def read_slices(results: Results, numbers: Sequence[int]) -> Slices:
    """The files of these slices; of a file of several frames, all of them."""
    frames, depth = results.place.frames, results.place.shape[0]
    paths = list(dict.fromkeys(frame.path for frame in frames))
    if len(paths) not in (1, depth):
        raise DataError(f"{paths[0].parent}: slices in several files of several frames; convert it to one file")
    if len(paths) == 1:
        numbers = sorted(range(depth), key=lambda z: frames[z].number)
    datasets: list[Any] = []
    planes: list[Plane] = []
    for path in dict.fromkeys(frames[z].path for z in numbers):
        header, dataset = read_image_file(path), read_dataset(path, pixels=False, compressed=True)
        if header is None or header.shape[:2] != results.place.shape[1:] or len(paths) * len(header.planes) != depth:
            raise DataError(f"{path}: has changed since it was read; sample it again")
        for name in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID"):
            required(dataset, name, path=path)
        _complete(dataset, header, results)
        datasets.append(dataset)
        planes += header.planes
    return Slices(list(numbers), datasets, planes, [frames[z] for z in numbers])


def _complete(dataset: Any, header: ImageFile, results: Results) -> None:
    """Add what a file may leave out, and outputs may not."""
    for name in _MAY_BE_EMPTY:
        if name not in dataset:
            setattr(dataset, name, "")
    if header.planes[0].position is not None:
        required(dataset, "FrameOfReferenceUID", path=header.path)
        spacing = results.place.geometry.spacing or ()
        if len(header.planes) == 1 and optional(dataset, "SliceThickness", path=header.path) is None:
            dataset.SliceThickness = f"{spacing[0]:.6f}" if len(spacing) == 3 else None
    elif not dataset.get("FrameOfReferenceUID", ""):
        dataset.pop("FrameOfReferenceUID", None)


@contextmanager
def silent_errors(results: Results, *, what: str) -> Iterator[None]:
    """Hide warnings and words of libraries, which may quote names, IDs and UIDs of patients."""
    log = logging.getLogger("highdicom")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except DataError:
        raise
    except Exception as error:
        where = f"{results.place.frames[0].path.parent}: its headers do not make a valid {what}"
        raise DataError(f"{where} ({type(error).__name__}); export it as nifti") from None
    finally:
        log.setLevel(level)


def plain(text: str, *, length: int = _MAX_TEXT) -> str:
    """A text for any character set of DICOM, no longer than this."""
    words = text.replace("\\", "/").encode("ascii", errors="replace").decode()
    return "".join(each for each in words if each.isprintable())[:length].strip()


def colour(number: int) -> tuple[int, int, int]:
    """Red, green and blue of a region, counted from 1."""
    return _COLOURS[(number - 1) % len(_COLOURS)]
