"""Images to segment, without labels: an image or the slices of a volume, scaled like the training images."""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from hpunet.data.io.dicom import HOUNSFIELD, Frame, is_dicom
from hpunet.data.io.geometry import Geometry
from hpunet.data.io.images import read_image
from hpunet.data.io.intensity import loses_negatives, range_of, to_planes, unit_floats
from hpunet.data.io.limits import check_unpacked, named_errors
from hpunet.data.io.series import dicom_files, read_scan
from hpunet.data.io.volumes import (
    HDF5_ENDINGS,
    NIFTI_ENDINGS,
    NIFTI_HEAD_BYTES,
    STACK_ENDINGS,
    decode_nifti,
    nifti_header,
    read_stack,
    stack_header,
)
from hpunet.data.io.windows import CHOICES, NAMED, UNIT_WINDOW, Window, in_numbers
from hpunet.data.types import SetInfo
from hpunet.errors import DataError
from hpunet.utils.files import check_file, read_file
from hpunet.utils.limits import MAX_PIXELS, MAX_VOLUME_BYTES
from hpunet.utils.text import as_utf8

_UID = re.compile(r"\d+(\.\d+){4}")
_WHOLE_UID = re.compile(r"\d{1,64}(\.\d{1,64}){4,64}")
ENDINGS = (*NIFTI_ENDINGS, ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".npy", ".dcm")


@dataclass(frozen=True)
class Stored:
    """Values as they are stored: one image is one slice."""

    values: Shaped[np.ndarray, "z h w *c"]
    geometry: Geometry = field(default_factory=Geometry)
    header: Any | None = None
    """Of a volume, whose values have no fixed range: the NIfTI header that results are written with."""
    notes: tuple[str, ...] = ()
    window: tuple[float, float] | None = None
    """The values that a DICOM file shows as black and white."""
    unit: str = ""
    """The RescaleType of a DICOM file."""
    frames: tuple[Frame, ...] = field(default=(), repr=False)
    """Of a DICOM input: the file and frame of each slice."""


@dataclass(frozen=True)
class Input:
    """An image or volume as a model takes it: pixels in [0, 1] (an image is a single slice)."""

    name: str
    images: Float32[np.ndarray, "z c h w"]
    header: Any | None
    """The NIfTI header that results are written with; None for images."""
    geometry: Geometry = field(default_factory=Geometry)
    notes: tuple[str, ...] = ()
    """What was done to values and axes, in plain sentences without names."""


def input_name(path: Path) -> str:
    """The name of a file without its ending, of which '.nii.gz' is one, or of a folder.

    A DICOM UID, which leads to a patient, becomes "image-" and a hash of it.
    """
    return plain_name(path.name, endings=() if path.is_dir() else (*ENDINGS, *HDF5_ENDINGS))


def plain_name(name: str, *, endings: Sequence[str] = ENDINGS) -> str:
    """`input_name` of a name, without a look at the disk."""
    ending = next((ending for ending in endings if name.lower().endswith(ending)), "")
    name = name[: len(name) - len(ending)]
    return f"image-{hashlib.sha256(as_utf8(name)).hexdigest()[:8]}" if _UID.search(name) else name


def without_uids(name: str) -> str:
    """A name in which each DICOM UID is replaced by "image-" and a hash of it; its other parts stay."""
    return _WHOLE_UID.sub(lambda found: f"image-{hashlib.sha256(as_utf8(found[0])).hexdigest()[:12]}", name)


def read_stored(path: Path | Sequence[Path], *, volumes: bool = False) -> Stored:
    """A PNG, JPEG, TIFF, GIF, .npy array (h, w) or (h, w, c), NIfTI volume, or DICOM file.

    A DICOM series is a folder, or a sequence of its files. With `volumes`, as models of volumes need them, a TIFF
    and an HDF5 file are stacks of slices, and an array is (d, h, w) or (d, h, w, c).
    """
    if not isinstance(path, Path):
        return _read_dicom(path, name=str(path[0].parent) if path else "image")
    if path.is_dir():
        return _read_dicom(dicom_files(path), name=str(path))
    if volumes and path.name.lower().endswith(STACK_ENDINGS):
        return _read_stack(path)
    if not path.name.lower().endswith(ENDINGS) or path.suffix.lower() == ".dcm":
        if path.suffix.lower() != ".dcm" and not is_dicom(path):
            endings = ", ".join(ENDINGS)
            raise DataError(f"{path}: expected an image or a volume as one of {endings}, or a folder of DICOM files")
        return _read_dicom([path], name=str(path))
    if path.name.lower().endswith(NIFTI_ENDINGS):
        content = read_file(path, error=DataError)
        header = nifti_header(content[:NIFTI_HEAD_BYTES], packed=len(content), name=str(path))
        return Stored(decode_nifti(content, name=str(path)).slices, Geometry.from_nifti(header), header)
    if path.suffix.lower() == ".npy":
        return Stored(_read_npy(path, num_axes=3), Geometry("zyx")) if volumes else Stored(_read_npy(path)[None])
    notes: list[str] = []
    return Stored(read_image(path, notes=notes)[None], notes=tuple(notes))


def to_input(stored: Stored, *, name: str, where: str, info: SetInfo, window: Window | None = None) -> Input:
    """Stored values as a model trained on data like `info` takes them; `where` names them in errors.

    They are scaled as in training (`folder/source.py`), or by a `window` (`windows.py`), which values of another
    precision than the training images need.
    """
    values = stored.values
    if window in NAMED and stored.unit not in HOUNSFIELD:
        raise DataError(f"{where}: its values are {stored.unit}, not Hounsfield units; give LOW HIGH, or auto")
    chosen = in_numbers(window, of_file=stored.window, bits=8 * values.dtype.itemsize, name=where)
    if chosen is None and not (info.intensity_window == UNIT_WINDOW and values.dtype.kind in "iu"):
        chosen = info.intensity_window
    by_range = stored.header is not None and info.image_bits == 32
    if chosen == "auto" and info.ndim == 3:  # not of each slice
        chosen = range_of(values)
    planes = to_planes(values, by_range=by_range, window=chosen, name=where)
    if chosen is None and 8 * planes.itemsize != info.image_bits:
        low, high = range_of(values)
        raise DataError(
            f"{where}: {values.dtype} pixels from {low:g} to {high:g}, the model was trained on images of "
            f"{info.image_bits} bits; say which stored values are 0 and 1 in training by window (--window): {CHOICES}"
        )
    notes = (*stored.notes, *_range_notes(values, planes, window=chosen))
    if values.ndim == 4 and values.shape[3] in (2, 4):
        notes = (*notes, "The alpha channel, opaque everywhere, is dropped.")
    planes, changes = _in_channels(planes, info.in_channels, name=where)
    return Input(name, unit_floats(planes), stored.header, stored.geometry, (*notes, *changes))


def _in_channels(planes: np.ndarray, num_channels: int, *, name: str) -> tuple[np.ndarray, list[str]]:
    """As many channels as the model has, where grey is not guessed."""
    found = planes.shape[1]
    if found == num_channels:
        return planes, []
    if (found, num_channels) == (1, 3):
        words = "Warning: The image is grey, training images have colours; it is used as red, green and blue."
        return np.repeat(planes, 3, axis=1), [words]
    if (found, num_channels) == (3, 1) and (planes == planes[:, :1]).all():
        return planes[:, :1], ["Red, green and blue are the same and are used as grey."]
    how = (
        "; convert it, for instance by Pillow: Image.open(FILE).convert('L').save(OTHER)" if num_channels == 1 else ""
    )
    raise DataError(f"{name}: {found} channel(s), the model was trained on {num_channels}{how}")


def _range_notes(values: np.ndarray, planes: np.ndarray, *, window: Window | None) -> list[str]:
    """What becomes 0 and 1, if it is not the range of the type."""
    if isinstance(window, tuple):
        words = f"Stored values from {window[0]:g} to {window[1]:g} become 0 to 1; those outside are clipped."
        warning = "Warning: Stored values go from -1 to 1, and negative ones become 0; use the window -1 1."
        return [words, warning] if loses_negatives(values, window) else [words]
    if planes.dtype != np.float32:
        return []
    low, high = range_of(values)
    each = "each slice" if window == "auto" and len(values) > 1 else "the image" if len(values) == 1 else "the file"
    return [f"The range of {each} becomes 0 to 1 (values from {low:g} to {high:g})."]


def _read_dicom(paths: Sequence[Path], *, name: str) -> Stored:
    scan = read_scan(paths, name=name)
    z, h, w = scan.values.shape[:3]
    header = None if scan.geometry.affine is None else scan.geometry.nifti_header((z, h, w))
    return Stored(scan.values, scan.geometry, header, scan.notes, scan.window, scan.unit, scan.frames)


def _read_stack(path: Path) -> Stored:
    """A stack of slices; a single one is an image."""
    header, packed = stack_header(path), check_file(path, error=DataError)
    num_bytes = math.prod(header.shape) * header.dtype.itemsize
    check_unpacked(num_bytes, packed=packed, name=str(path))
    stack = read_stack(path)
    return Stored(
        stack.astype(stack.dtype.newbyteorder("="), copy=False), Geometry("zyx" if len(stack) > 1 else "yx")
    )


def _read_npy(path: Path, *, num_axes: int = 2) -> np.ndarray:
    """An array, never a pickle; mapped first, so that no header can claim more than the file holds."""
    what, dims = ("a volume", "d, h, w") if num_axes == 3 else ("an image", "h, w")
    check_file(path, error=DataError)
    with named_errors("array", name=str(path)):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        shape: tuple[int, ...] = getattr(mapped, "shape", ())  # an .npz archive has none
        if len(shape) not in (num_axes, num_axes + 1) or 0 in shape:
            raise DataError(f"{path}: expected {what} ({dims}) or ({dims}, c), got shape {shape}")
        if path.stat().st_size != mapped.offset + mapped.nbytes:
            raise DataError(f"{path}: holds more than its one array of shape {shape}; save that alone")
        if num_axes == 2 and shape[0] * shape[1] > MAX_PIXELS:
            raise DataError(f"{path}: shape {shape} is more than {MAX_PIXELS} pixels")
        if num_axes == 3 and mapped.nbytes > MAX_VOLUME_BYTES:
            raise DataError(f"{path}: shape {shape} is more than {MAX_VOLUME_BYTES} bytes")
        return np.array(mapped, dtype=mapped.dtype.newbyteorder("="))
