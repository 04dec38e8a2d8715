"""DICOM files of a CT series: bounded, uncompressed, all numbers checked; every failure is a `DataError`."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from hpunet.data.io.dicom import (
    HOUNSFIELD,
    check_bits,
    decimals,
    integer,
    optional,
    read_dataset,
    required,
    rescale_type,
    text,
)
from hpunet.data.io.limits import named_errors
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_DICOM_BYTES, MAX_SIDE


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
    position: tuple[float, ...] = field(compare=False)  # of the first pixel, mm: x to the left, y to the back, z


def read_header(path: Path) -> SliceHeader | None:
    """The header of a CT slice, or None if the file is of another modality."""
    dataset = read_dataset(path, pixels=False, max_bytes=MAX_DICOM_BYTES)
    if text(dataset, "Modality", path=path) != "CT":
        return None
    shape = tuple(integer(dataset, name, path=path) for name in ("Rows", "Columns"))
    if not all(2 <= side <= MAX_SIDE for side in shape):
        raise DataError(f"{path}: expected 2...{MAX_SIDE} rows and columns, found {shape}")
    spacing = decimals(dataset, "PixelSpacing", count=2, limit=10.0, path=path)
    if min(spacing) < 0.01:
        raise DataError(f"{path}: PixelSpacing must lie in 0.01...10 mm, found {spacing}")
    location = optional(dataset, "SliceLocation", path=path)
    position = decimals(dataset, "ImagePositionPatient", count=3, limit=1e5, path=path)
    return SliceHeader(
        path=path,
        patient=text(dataset, "PatientID", path=path),
        series_uid=text(dataset, "SeriesInstanceUID", path=path),
        sop_uid=text(dataset, "SOPInstanceUID", path=path),
        z=position[2],
        location=None if location is None else decimals(dataset, "SliceLocation", count=1, limit=1e5, path=path)[0],
        orientation=decimals(dataset, "ImageOrientationPatient", count=6, limit=1.001, path=path),
        shape=(shape[0], shape[1]),
        spacing=(spacing[0], spacing[1]),
        position=position,
    )


def read_hounsfield(header: SliceHeader) -> Float32[np.ndarray, "h w"]:
    """A slice in Hounsfield units, stored · RescaleSlope + RescaleIntercept; MONOCHROME1 changes only its display."""
    path = header.path
    dataset = read_dataset(path, pixels=True, max_bytes=MAX_DICOM_BYTES)
    if text(dataset, "PhotometricInterpretation", path=path) not in ("MONOCHROME1", "MONOCHROME2"):
        raise DataError(f"{path}: expected MONOCHROME1 or MONOCHROME2 pixels")
    bits = integer(dataset, "BitsAllocated", path=path)
    if bits not in (8, 16) or "ModalityLUTSequence" in dataset:
        raise DataError(f"{path}: expected 8 or 16 bit pixels with a RescaleSlope, not a lookup table")
    check_bits(dataset, path=path)
    if (unit := rescale_type(dataset, path=path)) not in HOUNSFIELD:
        raise DataError(f"{path}: expected Hounsfield units, its RescaleType is {unit}")
    slope = decimals(dataset, "RescaleSlope", count=1, limit=1e4, path=path)[0]
    intercept = decimals(dataset, "RescaleIntercept", count=1, limit=1e6, path=path)[0]
    if slope == 0:
        raise DataError(f"{path}: RescaleSlope is 0")
    expected = math.prod(header.shape) * bits // 8
    found = len(required(dataset, "PixelData", path=path))
    if not expected <= found <= expected + expected % 2:  # pydicom would ignore surplus bytes
        raise DataError(f"{path}: {found} bytes of pixels, expected {expected}")
    with named_errors("image", name=str(path)):
        stored: np.ndarray = dataset.pixel_array
    if stored.shape != header.shape:
        raise DataError(f"{path}: its pixels have shape {stored.shape}, expected {header.shape}")
    hounsfield: np.ndarray = stored.astype(np.float64) * slope + intercept
    return hounsfield.astype(np.float32)
