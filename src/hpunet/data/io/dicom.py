"""DICOM files: bounded reads, checked elements, pixels as stored; every failure is a `DataError` naming the file.

Names, patient IDs and UIDs of patients, studies and series never get into a message.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.jpeg import open_whole_jpeg, read_jpeg_header
from hpunet.data.io.jpeg2000 import check_jpeg2000
from hpunet.data.io.limits import check_image_size, check_memory, check_unpacked, named_errors, need, parse_decimal
from hpunet.errors import DataError
from hpunet.utils.files import check_file
from hpunet.utils.limits import MAX_FILE_BYTES, MAX_SLICES

_MAGIC_PLACE, _MAGIC = 128, b"DICM"
_UNCOMPRESSED = tuple(f"1.2.840.10008.1.2{version}" for version in ("", ".1", ".2"))  # transfer syntaxes
_DEFLATED = "1.2.840.10008.1.2.1.99"
_OPENJPEG, _LIBJPEG = "pip install pylibjpeg pylibjpeg-openjpeg", "pip install pylibjpeg pylibjpeg-libjpeg"
_LONGEST_JP2_HEAD = 1000  # before the codestream, in files that should not have one
HOUNSFIELD = ("", "HU", "US")
"""RescaleTypes of CT in Hounsfield units: it need not be said, and "US" is unspecified."""
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
    unit: str
    """The RescaleType, if the file says one: "HU" are Hounsfield units, "US" is unspecified."""


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


class Frame(NamedTuple):
    """Where a slice is stored."""

    path: Path
    number: int
    """Of the frame in its file, from 0."""


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
    check_bits(dataset, path=path)
    packed, frame_bytes = path.stat().st_size, math.prod(shape) * samples * bits // 8
    check_image_size(*shape, num_bytes=frame_bytes, packed=packed, size=None, name=str(path))
    check_unpacked(frames * frame_bytes, packed=packed, name=str(path))
    planes = _planes(dataset, frames, path=path)
    is_scaled = any((plane.slope, plane.intercept) != (1.0, 0.0) for plane in planes)
    check_memory(frames * (3 * frame_bytes + 4 * is_scaled * math.prod(shape)), packed=packed, name=str(path))
    series = str(optional(dataset, "SeriesInstanceUID", path=path) or "")
    is_inverted = colours == "MONOCHROME1" and modality != "CT"
    return ImageFile(path, series, shape if is_grey else (*shape, 3), planes, is_inverted)


def check_bits(dataset: Any, *, path: Path) -> None:
    """Refuse pixels that are not in the low bits."""
    stored, high = (optional(dataset, name, path=path) for name in ("BitsStored", "HighBit"))
    if stored is not None and high is not None and high != stored - 1:
        raise DataError(f"{path}: HighBit {high} is not BitsStored {stored} − 1; save it with pixels in the low bits")


def _planes(dataset: Any, frames: int, *, path: Path) -> tuple[Plane, ...]:
    """Of all frames; files of several frames say it once for all, and frame by frame what differs."""

    def numbers(place: Any, name: str, count: int, limit: float) -> tuple[float, ...] | None:
        has_value = optional(place, name, path=path) is not None
        return decimals(place, name, count=count, limit=limit, path=path) if has_value else None

    def measures(place: Any) -> dict[str, Any]:
        thickness = numbers(place, "SpacingBetweenSlices", 1, 1e4) or numbers(place, "SliceThickness", 1, 1e4)
        spacing = numbers(place, "PixelSpacing", 2, 1e4)
        if spacing is not None and min(spacing) <= 0:
            raise DataError(f"{path}: PixelSpacing {spacing} is impossible")
        return {"spacing": spacing, "thickness": abs(thickness[0]) or None if thickness else None}

    def scaling(place: Any) -> dict[str, Any]:
        slope = (numbers(place, "RescaleSlope", 1, 1e6) or (1.0,))[0]
        if slope == 0:
            raise DataError(f"{path}: RescaleSlope 0 is impossible")
        intercept = (numbers(place, "RescaleIntercept", 1, 1e6) or (0.0,))[0]
        return {"slope": slope, "intercept": intercept, "unit": rescale_type(place, path=path)}

    readers: dict[str, Callable[[Any], dict[str, Any]]] = {
        "PixelMeasuresSequence": measures,
        "PixelValueTransformationSequence": scaling,
        "PlanePositionSequence": lambda place: {"position": numbers(place, "ImagePositionPatient", 3, 1e5)},
        "PlaneOrientationSequence": lambda place: {
            "orientation": numbers(place, "ImageOrientationPatient", 6, 1.001)
        },
        "FrameVOILUTSequence": lambda place: {"window": _window(place, path=path)},
    }

    def values(groups: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for sequence, read in readers.items() if len(groups) else ():
            if sequence in groups and (inner := optional(groups, sequence, path=path)):
                found |= read(inner[0])
        return found

    with named_errors("DICOM file", name=str(path)):
        everywhere = {key: value for read in readers.values() for key, value in read(dataset).items()}
        for groups in list(optional(dataset, "SharedFunctionalGroupsSequence", path=path) or [])[:1]:
            everywhere |= values(groups)
        of_each = list(optional(dataset, "PerFrameFunctionalGroupsSequence", path=path) or [])[:frames]
        usual = Plane(**everywhere)
        planes = [usual._replace(**own) if (own := values(groups)) else usual for groups in of_each]
        return (*planes, *[usual] * (frames - len(planes)))


def rescale_type(place: Any, *, path: Path) -> str:
    """The unit of rescaled values, in capitals; empty if the file does not say it."""
    unit = str(optional(place, "RescaleType", path=path) or "").strip().upper()
    return unit if re.fullmatch(r"[A-Z0-9_]{0,16}", unit) else "OTHER"


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
            if not length <= len(content) < length + max(2, length // len(file.planes)):  # it may be padded
                raise DataError(f"{path}: {len(content)} bytes of pixels, expected {length}")
        elif not pixels.get_decoder(syntax).is_available:
            raise DataError(f"{path}: reading {syntax.name} needs another package: {_plugin(syntax)}")
        else:
            _check_frames(content, file)
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


def _check_frames(content: bytes, file: ImageFile) -> None:
    """Refuse compressed frames that are of another size than the file says, or cut off."""
    height, width, num_channels = (*file.shape, 1)[:3]
    name = str(file.path)
    for frame in need("pydicom.encaps").generate_frames(content, number_of_frames=len(file.planes)):
        if frame[:2] == b"\xff\xd8":
            header = read_jpeg_header(frame, name=name)
            if header[:3] != (width, height, num_channels):
                raise DataError(f"{name}: {height}x{width} pixels, its JPEG has {header.height}x{header.width}")
            if header.is_common:
                with open_whole_jpeg(frame, header, name=name) as image:
                    image.draft(None, (1, 1))  # decodes all, but computes few pixels
                    image.load()
        elif b"\xff\x4f\xff\x51" in frame[:_LONGEST_JP2_HEAD]:
            check_jpeg2000(frame, height=height, width=width, num_channels=num_channels, name=name)


def _plugin(syntax: str) -> str:
    """What decodes JPEG 2000, or else the older forms of JPEG and JPEG-LS."""
    return _OPENJPEG if syntax.startswith(("1.2.840.10008.1.2.4.9", "1.2.840.10008.1.2.4.20")) else _LIBJPEG
