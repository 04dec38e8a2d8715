"""DICOM files: bounded reads, checked elements, pixels as stored; every failure is a `DataError` naming the file.

Names, patient IDs and UIDs of patients, studies and series never get into a message.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.limits import check_image_size, check_unpacked, named_errors, need, parse_decimal
from hpunet.errors import DataError
from hpunet.utils.files import check_file
from hpunet.utils.limits import MAX_FILE_BYTES, MAX_SLICES

_MAGIC_PLACE, _MAGIC = 128, b"DICM"
_UNCOMPRESSED = tuple(f"1.2.840.10008.1.2{version}" for version in ("", ".1", ".2"))  # transfer syntaxes
_DEFLATED = "1.2.840.10008.1.2.1.99"
_OPENJPEG, _LIBJPEG = "pip install pylibjpeg pylibjpeg-openjpeg", "pip install pylibjpeg pylibjpeg-libjpeg"
_NO_IMAGES = ("SEG", "RTDOSE", "RTSTRUCT", "RTPLAN", "SR", "PR", "KO")


class Plane(NamedTuple):
    """Place and values of one frame; lengths in mm, directions in patient coordinates (LPS, as in DICOM)."""

    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    """Distance of rows and of columns."""
    thickness: float | None
    slope: float
    intercept: float
    window: tuple[float, float] | None
    """The values that the file shows as black and white."""


class ImageFile(NamedTuple):
    """The header of a file with an image of one or several frames."""

    path: Path
    series: str
    """Its UID, to compare and never to show."""
    shape: tuple[int, ...]
    """(h, w), or (h, w, 3) of colour."""
    planes: tuple[Plane, ...]
    is_inverted: bool
    """Small values are bright (MONOCHROME1), other than in CT, whose values have a unit."""


def is_dicom(path: Path) -> bool:
    """Whether the file begins as DICOM files do, whatever its name."""
    try:
        if not path.is_file():  # opening a pipe may never end
            return False
        with path.open("rb") as file:
            return file.read(_MAGIC_PLACE + 4)[_MAGIC_PLACE:] == _MAGIC
    except OSError:
        return False


def read_dataset(path: Path, *, pixels: bool, max_bytes: int = MAX_FILE_BYTES, compressed: bool = False) -> Any:
    """The pydicom dataset of a file; its pixels may be `compressed`, the rest may not."""
    pydicom = need("pydicom")
    check_file(path, max_bytes=max_bytes, error=DataError)
    with named_errors("DICOM file", name=str(path)):
        # Checked first: the next call would inflate a deflated file without limit.
        syntax = str(pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID", "none"))
        if syntax not in _UNCOMPRESSED and (not compressed or syntax == _DEFLATED):
            raise DataError(f"{path}: transfer syntax {syntax[:64]}; save it uncompressed")
        return pydicom.dcmread(path, stop_before_pixels=not pixels)


def optional(dataset: Any, name: str, *, path: Path) -> Any:
    """The value of an element; None if absent or empty."""
    with named_errors(name, name=str(path)):
        value = dataset.get(name)  # decodes the element
        is_empty = value is None or value == "" or (not isinstance(value, (str, int, float)) and len(value) == 0)
    return None if is_empty else value


def required(dataset: Any, name: str, *, path: Path) -> Any:
    """The value of an element that must be there."""
    value = optional(dataset, name, path=path)
    if value is None:
        raise DataError(f"{path}: has no {name}")
    return value


def text(dataset: Any, name: str, *, path: Path) -> str:
    """A required text without blanks around it."""
    return str(required(dataset, name, path=path)).strip()


def integer(dataset: Any, name: str, *, path: Path) -> int:
    """A required integer."""
    value = required(dataset, name, path=path)
    if not isinstance(value, int):
        raise DataError(f"{path}: {name} must be an integer, found {str(value)[:40]!r}")
    return int(value)


def decimals(dataset: Any, name: str, *, count: int, limit: float, path: Path) -> tuple[float, ...]:
    """`count` required finite numbers of at most `limit` in size."""
    value = required(dataset, name, path=path)
    parts = [value] if isinstance(value, (str, float, int)) else list(value)
    if len(parts) != count:
        raise DataError(f"{path}: {name} must have {count} values, found {len(parts)}")
    return tuple(parse_decimal(str(part).strip(), limit=limit, where=f"{path}: {name}") for part in parts)


def read_image_file(path: Path) -> ImageFile | None:
    """The header of a file; None if it holds no image, as a directory or report."""
    dataset = read_dataset(path, pixels=False, compressed=True)
    modality = str(optional(dataset, "Modality", path=path) or "")
    if modality in _NO_IMAGES or optional(dataset, "Rows", path=path) is None:
        return None
    shape = tuple(integer(dataset, name, path=path) for name in ("Rows", "Columns"))
    samples = integer(dataset, "SamplesPerPixel", path=path)
    colours = text(dataset, "PhotometricInterpretation", path=path)
    is_grey = samples == 1 and colours in ("MONOCHROME1", "MONOCHROME2")
    if not is_grey and not (samples == 3 and (colours == "RGB" or colours.startswith("YBR_"))):
        raise DataError(f"{path}: expected grey or RGB pixels, got {colours[:16]} of {samples} samples")
    bits, frames = integer(dataset, "BitsAllocated", path=path), optional(dataset, "NumberOfFrames", path=path) or 1
    if bits not in (8, 16, 32) or "ModalityLUTSequence" in dataset:
        raise DataError(f"{path}: expected pixels of 8, 16 or 32 bits with a RescaleSlope, not a lookup table")
    if not isinstance(frames, int) or not 1 <= frames <= MAX_SLICES or min(shape) < 1:
        raise DataError(f"{path}: expected 1...{MAX_SLICES} frames of at least a pixel, found {shape}")
    packed, frame_bytes = path.stat().st_size, math.prod(shape) * samples * bits // 8
    check_image_size(*shape, num_bytes=frame_bytes, packed=packed, size=None, name=str(path))
    check_unpacked(frames * frame_bytes, packed=packed, name=str(path))
    planes = tuple(_plane(dataset, number, path=path) for number in range(frames))
    series = str(optional(dataset, "SeriesInstanceUID", path=path) or "")
    is_inverted = colours == "MONOCHROME1" and modality != "CT"
    return ImageFile(path, series, shape if is_grey else (*shape, 3), planes, is_inverted)


def _plane(dataset: Any, number: int, *, path: Path) -> Plane:
    """Of one frame; files of several frames say it frame by frame, or once for all."""

    def of(sequence: str) -> Any:
        for groups, index in (("PerFrameFunctionalGroupsSequence", number), ("SharedFunctionalGroupsSequence", 0)):
            found = optional(dataset, groups, path=path)
            if found is not None and len(found) > index and (inner := optional(found[index], sequence, path=path)):
                return inner[0]
        return dataset

    def numbers(place: Any, name: str, count: int, limit: float) -> tuple[float, ...] | None:
        has_value = optional(place, name, path=path) is not None
        return decimals(place, name, count=count, limit=limit, path=path) if has_value else None

    with named_errors("DICOM file", name=str(path)):
        measures, values = of("PixelMeasuresSequence"), of("PixelValueTransformationSequence")
        spacing = numbers(measures, "PixelSpacing", 2, 1e4)
        thickness = numbers(measures, "SpacingBetweenSlices", 1, 1e4) or numbers(measures, "SliceThickness", 1, 1e4)
        slope = numbers(values, "RescaleSlope", 1, 1e6) or (1.0,)
        intercept = numbers(values, "RescaleIntercept", 1, 1e6) or (0.0,)
        plane = Plane(
            position=numbers(of("PlanePositionSequence"), "ImagePositionPatient", 3, 1e5),
            orientation=numbers(of("PlaneOrientationSequence"), "ImageOrientationPatient", 6, 1.001),
            spacing=spacing,
            thickness=abs(thickness[0]) or None if thickness else None,
            slope=slope[0],
            intercept=intercept[0],
            window=_window(of("FrameVOILUTSequence"), path=path),
        )
    if plane.slope == 0 or (plane.spacing is not None and min(plane.spacing) <= 0):
        raise DataError(f"{path}: RescaleSlope {plane.slope:g} or PixelSpacing {plane.spacing} is impossible")
    return plane


def _window(place: Any, *, path: Path) -> tuple[float, float] | None:
    """The first window (PS3.3 C.11.2.1.2), in rescaled values."""
    found = [optional(place, name, path=path) for name in ("WindowCenter", "WindowWidth")]
    if None in found:
        return None
    first = [value if isinstance(value, (str, int, float)) else value[0] for value in found]
    centre, width = (parse_decimal(str(value).strip(), limit=1e6, where=f"{path}: window") for value in first)
    is_exact = str(optional(place, "VOILUTFunction", path=path) or "LINEAR") != "LINEAR" or width <= 1
    low, high = centre - width / 2, centre + width / 2
    return None if width <= 0 else (low, high) if is_exact else (low, high - 1)


def read_frames(file: ImageFile) -> Shaped[np.ndarray, "z h w *c"]:
    """The pixels of all frames as stored, large values bright and colours as RGB."""
    path = file.path
    dataset = read_dataset(path, pixels=True, compressed=True)
    if (content := optional(dataset, "PixelData", path=path)) is None:
        raise DataError(f"{path}: has no PixelData")
    pixels = need("pydicom.pixels")
    with named_errors("DICOM image", name=str(path)):
        syntax = dataset.file_meta.TransferSyntaxUID
        if not syntax.is_compressed:
            length = math.prod((len(file.planes), *file.shape)) * dataset.BitsAllocated // 8
            length = length * 2 // 3 if dataset.PhotometricInterpretation == "YBR_FULL_422" else length
            if len(content) < length:
                raise DataError(f"{path}: {len(content)} bytes of pixels, expected {length}")
        elif not pixels.get_decoder(syntax).is_available:
            raise DataError(f"{path}: reading {syntax.name} needs another package: {_plugin(syntax)}")
        try:
            frames = np.asarray(pixels.pixel_array(dataset))
        except RuntimeError:
            if not syntax.is_compressed:
                raise
            words = f"{path}: {syntax.name} is not readable; it is damaged or needs another package"
            raise DataError(f"{words}: {_plugin(syntax)}") from None
        frames = frames.reshape((len(file.planes), *file.shape))
        if file.is_inverted:
            frames = (-1 if frames.dtype.kind == "i" else 2 ** int(dataset.BitsStored) - 1) - frames
    return frames.astype(frames.dtype.newbyteorder("="), copy=False)


def _plugin(syntax: str) -> str:
    """What decodes JPEG 2000, or else the older forms of JPEG and JPEG-LS."""
    return _OPENJPEG if syntax.startswith(("1.2.840.10008.1.2.4.9", "1.2.840.10008.1.2.4.20")) else _LIBJPEG
