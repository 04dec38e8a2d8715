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
from hpunet.data.io.limits import ImageSize, check_unpacked, named_errors, need
from hpunet.data.io.tiff import check_tiff_series, open_tiff
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_SLICES, MAX_VOLUME_BYTES

NIFTI_HEAD_BYTES = 4096  # of a file, gzipped or not, hold its header
NIFTI_ENDINGS = (".nii", ".nii.gz")
_GZIP_MAGIC = b"\x1f\x8b"
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


_HDF5_ENDINGS = (".h5", ".hdf5")


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
    if path.suffix.lower() in _HDF5_ENDINGS:
        return _checked(*hdf5_header(path), name=str(path))
    with _open_tiff_stack(path) as (header, _):
        return header


def read_stack(path: Path) -> Shaped[np.ndarray, "z h w"]:
    """A TIFF or HDF5 stack as stored; an uncompressed TIFF is mapped from disk."""
    if path.suffix.lower() in _HDF5_ENDINGS:
        header = stack_header(path)
        return read_hdf5(path, shape=header.shape, dtype=header.dtype)
    with _open_tiff_stack(path) as (header, series):
        check_tiff_series(series, name=str(path), size=ImageSize(*header.shape, str(path)))
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

    `size` is the required size of its volume, `num_raters` that of its fourth dimension (None: any).
    """
    nibabel = need("nibabel")
    with named_errors("NIfTI", name=name):
        if head[:2] == _GZIP_MAGIC:
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
    if end > MAX_VOLUME_BYTES or shape[2] > MAX_SLICES:
        raise DataError(f"{name}: shape {shape} is more than {MAX_VOLUME_BYTES} bytes or {MAX_SLICES} slices")
    if size is None:
        check_unpacked(end, packed=packed, name=name)
    elif shape != (size.height, size.width, size.depth):
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
    with named_errors("NIfTI", name=name):
        if content[:2] == _GZIP_MAGIC:  # may be of several gzip members
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                content = unpacked.read(end)
                unpacked.read(1)  # at the end, where the checksum is
        if len(content) < end:
            raise DataError(f"{name}: truncated, {len(content)} bytes of {end}")
        with np.errstate(all="ignore"):  # a scaling may lead to infinity; callers check the voxels
            array = np.asarray(header.data_from_fileobj(io.BytesIO(content)))
        shape = _nifti_shape(header, name=name, num_raters=num_raters)
        array = array.reshape(shape if num_raters == 1 else (*shape, num_raters))
        affine = np.asarray(header.get_best_affine(), dtype=np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Volume(np.moveaxis(array, 2, 0), affine)


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
        image = image_class(voxels.reshape(header.get_data_shape()), header.get_best_affine(), header)
    image.header.set_slope_inter(1, 0)
    return gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)
