"""Stacks and volumes: TIFF and HDF5 stacks (z, h, w) from disk, NIfTI volumes from and to bytes."""

import gzip
import io
import logging
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Shaped

from hpunet.data.io.hdf5 import hdf5_header, read_hdf5
from hpunet.data.io.limits import ImageSize, check_memory, check_unpacked, named_errors, need
from hpunet.data.io.tiff import check_tiff_series, open_tiff, tiff_orientation
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_SLICES, MAX_VOLUME_BYTES

NIFTI_HEAD_BYTES = 4096  # of a file, gzipped or not, hold its header
NIFTI_ENDINGS = (".nii", ".nii.gz")
HDF5_ENDINGS = (".h5", ".hdf5")
STACK_ENDINGS = (".tif", ".tiff", *HDF5_ENDINGS)
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 2**22  # bytes of voxels that are unpacked at once
_COPIES = 4 + 8 + 4  # bytes per voxel beside the stored ones: in [0, 1], label as stored and as int32
_SILENT = logging.Logger("hpunet.nifti", level=logging.CRITICAL + 1)


class StackHeader(NamedTuple):
    """Shape and type of a stack."""

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]


def _checked(shape: tuple[int, ...], dtype: np.dtype[Any], *, name: str) -> StackHeader:
    """The header of a stack; a 2D image is a stack of depth 1."""
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or 0 in shape:
        raise DataError(f"{name}: expected a stack of slices (depth, height, width), got shape {shape}")
    if math.prod(shape) * dtype.itemsize > MAX_VOLUME_BYTES:
        raise DataError(f"{name}: shape {shape} of {dtype} is more than {MAX_VOLUME_BYTES} bytes")
    return StackHeader((shape[0], shape[1], shape[2]), dtype)


@contextmanager
def _open_tiff_stack(path: Path) -> Iterator[tuple[StackHeader, Any]]:
    """The header, and the TIFF series that holds the voxels."""
    if path.suffix.lower() not in (".tif", ".tiff"):
        raise DataError(f"{path}: expected a stack as .tif or .h5")
    with named_errors("stack", name=str(path)), open_tiff(path, name=str(path)) as tiff:
        if len(tiff.series) != 1 or "S" in tiff.series[0].axes:
            found = [series.shape for series in tiff.series]
            raise DataError(f"{path}: expected one stack of grey slices of one size, found {found}")
        series = tiff.series[0]
        yield _checked(series.shape, series.dtype, name=str(path)), series


def stack_header(path: Path) -> StackHeader:
    """Shape and type of a TIFF or HDF5 stack, without reading its voxels."""
    if path.suffix.lower() in HDF5_ENDINGS:
        return _checked(*hdf5_header(path), name=str(path))
    with _open_tiff_stack(path) as (header, _):
        return header


def read_stack(path: Path) -> Shaped[np.ndarray, "z h w"]:
    """A TIFF or HDF5 stack as stored; an uncompressed TIFF is mapped from disk."""
    if path.suffix.lower() in HDF5_ENDINGS:
        header = stack_header(path)
        return read_hdf5(path, shape=header.shape, dtype=header.dtype)
    with _open_tiff_stack(path) as (header, series):
        check_tiff_series(series, name=str(path), size=ImageSize(*header.shape, str(path)))
        colours, orientation = series.keyframe.photometric.name, tiff_orientation(series, name=str(path))
        if colours == "MINISWHITE" or orientation not in (None, 1):
            raise DataError(f"{path}: expected upright slices where 0 is black, got {colours}, {orientation}")
        if series.dataoffset is not None and series.dtype != np.bool_:
            stored = series.dtype.newbyteorder(series.parent.byteorder)
            array = np.memmap(path, dtype=stored, mode="r", offset=series.dataoffset, shape=header.shape)
        else:
            array = series.asarray()
        stack: np.ndarray = np.asanyarray(array).reshape(header.shape)
        return stack


def nifti_header(
    head: bytes, *, packed: int, name: str, size: ImageSize | None = None, num_raters: int | None = 1
) -> Any:
    """The checked nibabel header, from the first `NIFTI_HEAD_BYTES` of a file of `packed` bytes.

    `size` is the required size of its volume, `num_raters` that of its fourth dimension (None: any, of label maps).
    """
    nibabel = need("nibabel")
    with named_errors("NIfTI", name=name):
        is_packed = head[:2] == _GZIP_MAGIC
        if is_packed:
            head = zlib.decompressobj(31).decompress(head, NIFTI_HEAD_BYTES)
        starts = {int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")}
        for header_class in (nibabel.Nifti1Header, nibabel.Nifti2Header):
            if header_class.sizeof_hdr in starts and len(head) >= header_class.sizeof_hdr:
                break
        else:
            raise DataError(f"{name}: not a readable NIfTI (no header)")
        # Without extensions, which can be longer than `head`.
        header = header_class.from_fileobj(io.BytesIO(head[: header_class.sizeof_hdr]), check=False)
        header.check_fix(logger=_SILENT)  # by itself nibabel prints its fixes
        shape, end = _nifti_shape(header, name=name, num_raters=num_raters), _nifti_end(header)
        _nifti_scaling(header)  # must be finite
    if end > MAX_VOLUME_BYTES or shape[2] > MAX_SLICES:
        raise DataError(f"{name}: shape {shape} is more than {MAX_VOLUME_BYTES} bytes or {MAX_SLICES} slices")
    if not is_packed and packed > end:  # slices would be lost where only headers are read; of others when they are
        raise DataError(f"{name}: holds more than the {end} bytes that its header says")
    if not is_packed and packed < end:  # once, and not again for each of the slices that are missing
        raise DataError(f"{name}: truncated, {packed} bytes of {end}")
    check_unpacked(int(header.get_data_offset()), packed=packed, name=name)
    if size is None and num_raters is not None:
        check_unpacked(end, packed=packed, name=name)
        check_memory(_nifti_memory(header), packed=packed, name=name)
    elif size is not None and shape != (size.height, size.width, size.depth):
        raise DataError(f"{name}: shape {shape}, its image {size.name} has {(*size[1:3], size.depth)}")
    return header


def _nifti_shape(header: Any, *, name: str, num_raters: int | None = 1) -> tuple[int, int, int]:
    shape = tuple(int(side) for side in header.get_data_shape())
    if header.get_data_dtype().kind not in "iuf":
        raise DataError(f"{name}: expected numbers as voxels, got {header.get_data_dtype()}")
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) < 3 or num_raters not in (None, math.prod(shape[3:])) or min(shape) < 1:
        wanted = "three dimensions" if num_raters in (None, 1) else f"{num_raters} raters in the fourth dimension"
        raise DataError(f"{name}: expected a volume of {wanted}, got shape {shape}")
    return shape[0], shape[1], shape[2]


def _nifti_end(header: Any) -> int:
    """The unpacked size that the file must have."""
    voxels = math.prod(int(side) for side in header.get_data_shape())
    return int(header.get_data_offset()) + voxels * int(header.get_data_dtype().itemsize)


def _nifti_memory(header: Any) -> int:
    """Bytes of all copies: stored, scaled, in [0, 1], and a label map with its classes."""
    stored = header.get_data_dtype()
    scaled = 0 if _nifti_scaling(header) == (1.0, 0.0) else _scaled_type(stored).itemsize
    return math.prod(map(int, header.get_data_shape())) * int(max(stored.itemsize, scaled) + _COPIES)


def nifti_depth(head: bytes, *, packed: int, name: str) -> int:
    """Slices along the last axis; arguments as in `nifti_header`."""
    return _nifti_shape(nifti_header(head, packed=packed, name=name), name=name)[2]


def nifti_raters(head: bytes, *, packed: int, name: str) -> int:
    """Volumes along the fourth axis, the label maps of one rater each; arguments as in `nifti_header`."""
    header = nifti_header(head, packed=packed, name=name, num_raters=None)
    return math.prod(int(side) for side in header.get_data_shape()[3:])


class Volume(NamedTuple):
    """A NIfTI volume: its slices along the third axis as stored, and the affine to scanner coordinates."""

    slices: Shaped[np.ndarray, "z h w *r"]
    affine: Float64[np.ndarray, "4 4"]


def decode_nifti(content: bytes, *, name: str, size: ImageSize | None = None, num_raters: int = 1) -> Volume:
    """A .nii or .nii.gz volume, scaled as its header says, of the required `size`; slice z is stored[:, :, z].

    With several raters in the fourth dimension, slices are (z, h, w, r).
    """
    head, packed = content[:NIFTI_HEAD_BYTES], len(content)
    header = nifti_header(head, packed=packed, name=name, size=size, num_raters=num_raters)
    end = _nifti_end(header)
    height, width, depth = _nifti_shape(header, name=name, num_raters=num_raters)
    stored, (slope, intercept) = header.get_data_dtype(), _nifti_scaling(header)
    is_scaled = (slope, intercept) != (1.0, 0.0)
    kind = _scaled_type(stored) if is_scaled else stored.newbyteorder("=")
    voxels = np.empty((num_raters * depth, width, height), kind)
    at_once = max(1, _PIECE // (width * height * stored.itemsize))
    with named_errors("NIfTI", name=name), _unpacked(content) as file, np.errstate(all="ignore"):
        file.seek(int(header.get_data_offset()))
        for z in range(0, len(voxels), at_once):
            wanted = voxels[z : z + at_once]
            piece = file.read(wanted.size * stored.itemsize)
            if len(piece) < wanted.size * stored.itemsize:
                raise DataError(f"{name}: truncated, {file.tell()} bytes of {end}")
            found = np.frombuffer(piece, stored).reshape(wanted.shape)
            wanted[:] = found * np.float64(slope) + intercept if is_scaled else found
        if file.read(1):  # at the end of a gzip file its checksum is verified, too
            raise DataError(f"{name}: holds more than the {end} bytes that its header says")
        affine = np.asarray(header.get_best_affine(), dtype=np.float64)
    slices = voxels.reshape(num_raters, depth, width, height).transpose(1, 3, 2, 0)
    return Volume(slices[..., 0] if num_raters == 1 else slices, affine)


def _unpacked(content: bytes) -> io.BufferedIOBase:
    file = io.BytesIO(content)
    return gzip.GzipFile(fileobj=file) if content[:2] == _GZIP_MAGIC else file


def _nifti_scaling(header: Any) -> tuple[float, float]:
    """Slope and intercept; a slope that is 0 or no number means that there is none."""
    slope, intercept = header.get_slope_inter()
    return (1.0, 0.0) if slope is None else (float(slope), float(intercept))


def _scaled_type(stored: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32 if stored.itemsize < 4 else np.float64)


def encode_nifti(slices: Shaped[np.ndarray, "z h w"], *, header: Any | None) -> bytes:
    """A .nii.gz volume of these slices without scaling; the same bytes every time.

    With the `header` of another volume of this size, affines, voxel sizes, units and their codes are copied.
    Extensions and texts, which may hold patient data, are not.
    """
    nibabel = need("nibabel")
    voxels = np.moveaxis(slices, 0, 2)
    if header is None:
        image = nibabel.Nifti1Image(voxels, np.eye(4))
    else:
        header = header.copy()
        header.set_data_dtype(slices.dtype)
        header["cal_min"] = header["cal_max"] = 0  # the grey range of the other volume
        for name in {"descrip", "aux_file", "db_name", "data_type", "intent_name"} & set(header.keys()):
            header[name] = b""
        image_class = nibabel.Nifti2Image if isinstance(header, nibabel.Nifti2Header) else nibabel.Nifti1Image
        image = image_class(voxels.reshape(header.get_data_shape()), None, header)  # its own affines
    image.header.set_slope_inter(1, 0)
    return gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)
