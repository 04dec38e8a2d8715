"""DICOM files of a CT series: bounded, uncompressed, all numbers checked; every failure is a `DataError`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from hpunet.data.io.limits import named_errors, need
from hpunet.data.lidc.annotations import MAX_SIDE, parse_decimal
from hpunet.errors import DataError
from hpunet.utils.files import check_file

MAX_DICOM_BYTES = 2**26
_UNCOMPRESSED = tuple(f"1.2.840.10008.1.2{version}" for version in ("", ".1", ".2"))  # transfer syntaxes


@dataclass(frozen=True)
class SliceHeader:
    """Header of a CT slice; `spacing` is the distance between rows and between columns, mm."""

    path: Path
    patient: str
    series_uid: str
    sop_uid: str
    z: float
    location: float | None
    orientation: tuple[float, ...]
    shape: tuple[int, int]
    spacing: tuple[float, float]


def read_header(path: Path) -> SliceHeader | None:
    """The header of a CT slice, or None if the file is of another modality."""
    dataset = _read_dicom(path, pixels=False)
    if _text(dataset, "Modality", path=path) != "CT":
        return None
    shape = tuple(_integer(dataset, name, path=path) for name in ("Rows", "Columns"))
    if not all(2 <= side <= MAX_SIDE for side in shape):
        raise DataError(f"{path}: expected 2...{MAX_SIDE} rows and columns, found {shape}")
    spacing = _decimals(dataset, "PixelSpacing", count=2, limit=10.0, path=path)
    if min(spacing) < 0.01:
        raise DataError(f"{path}: PixelSpacing must lie in 0.01...10 mm, found {spacing}")
    location = _optional(dataset, "SliceLocation", path=path)
    return SliceHeader(
        path=path,
        patient=_text(dataset, "PatientID", path=path),
        series_uid=_text(dataset, "SeriesInstanceUID", path=path),
        sop_uid=_text(dataset, "SOPInstanceUID", path=path),
        z=_decimals(dataset, "ImagePositionPatient", count=3, limit=1e5, path=path)[2],
        location=None if location is None else _decimals(dataset, "SliceLocation", count=1, limit=1e5, path=path)[0],
        orientation=_decimals(dataset, "ImageOrientationPatient", count=6, limit=1.001, path=path),
        shape=(shape[0], shape[1]),
        spacing=(spacing[0], spacing[1]),
    )


def read_hounsfield(header: SliceHeader) -> Float32[np.ndarray, "h w"]:
    """A slice in Hounsfield units, stored · RescaleSlope + RescaleIntercept; MONOCHROME1 changes only its display."""
    path = header.path
    dataset = _read_dicom(path, pixels=True)
    if _text(dataset, "PhotometricInterpretation", path=path) not in ("MONOCHROME1", "MONOCHROME2"):
        raise DataError(f"{path}: expected MONOCHROME1 or MONOCHROME2 pixels")
    bits = _integer(dataset, "BitsAllocated", path=path)
    if bits not in (8, 16) or "ModalityLUTSequence" in dataset:
        raise DataError(f"{path}: expected 8 or 16 bit pixels with a RescaleSlope, not a lookup table")
    slope = _decimals(dataset, "RescaleSlope", count=1, limit=1e4, path=path)[0]
    intercept = _decimals(dataset, "RescaleIntercept", count=1, limit=1e6, path=path)[0]
    if slope == 0:
        raise DataError(f"{path}: RescaleSlope is 0")
    expected = math.prod(header.shape) * bits // 8
    found = len(_value(dataset, "PixelData", path=path))
    if not expected <= found <= expected + expected % 2:  # pydicom would ignore surplus bytes
        raise DataError(f"{path}: {found} bytes of pixels, expected {expected}")
    with named_errors("image", name=str(path)):
        stored: np.ndarray = dataset.pixel_array
    if stored.shape != header.shape:
        raise DataError(f"{path}: its pixels have shape {stored.shape}, expected {header.shape}")
    hounsfield: np.ndarray = stored.astype(np.float64) * slope + intercept
    return hounsfield.astype(np.float32)


def _read_dicom(path: Path, *, pixels: bool) -> Any:
    pydicom = need("pydicom")
    check_file(path, max_bytes=MAX_DICOM_BYTES, error=DataError)
    with named_errors("DICOM file", name=str(path)):
        # Checked first: the next call would inflate a deflated file without limit.
        syntax = str(pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID", "none"))
        if syntax not in _UNCOMPRESSED:
            raise DataError(f"{path}: transfer syntax {syntax[:64]}; LIDC-IDRI is published uncompressed")
        return pydicom.dcmread(path, stop_before_pixels=not pixels)


def _optional(dataset: Any, name: str, *, path: Path) -> Any:
    """The value of an element; None if absent or empty."""
    with named_errors(name, name=str(path)):
        value = dataset.get(name)  # decodes the element
    return None if value == "" else value


def _value(dataset: Any, name: str, *, path: Path) -> Any:
    value = _optional(dataset, name, path=path)
    if value is None:
        raise DataError(f"{path}: has no {name}")
    return value


def _text(dataset: Any, name: str, *, path: Path) -> str:
    return str(_value(dataset, name, path=path)).strip()


def _integer(dataset: Any, name: str, *, path: Path) -> int:
    value = _value(dataset, name, path=path)
    if not isinstance(value, int):
        raise DataError(f"{path}: {name} must be an integer, found {str(value)[:40]!r}")
    return int(value)


def _decimals(dataset: Any, name: str, *, count: int, limit: float, path: Path) -> tuple[float, ...]:
    value = _value(dataset, name, path=path)
    parts = [value] if isinstance(value, (str, float, int)) else list(value)
    if len(parts) != count:
        raise DataError(f"{path}: {name} must have {count} values, found {len(parts)}")
    return tuple(parse_decimal(str(part).strip(), limit=limit, where=f"{path}: {name}") for part in parts)
