"""Images to segment, without labels: an image or the slices of a volume, scaled like the training images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from hpunet.data.io.images import read_image
from hpunet.data.io.intensity import to_planes, unit_floats
from hpunet.data.io.limits import MAX_PIXELS, named_errors
from hpunet.data.io.volumes import NIFTI_ENDINGS, NIFTI_HEAD_BYTES, decode_nifti, nifti_header
from hpunet.data.types import SetInfo
from hpunet.errors import DataError
from hpunet.utils.files import check_file, read_file

ENDINGS = (*NIFTI_ENDINGS, ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy")


@dataclass(frozen=True)
class Input:
    """The content of one file: pixels in [0, 1] (an image is a single slice), and the header of a NIfTI volume."""

    name: str
    images: Float32[np.ndarray, "z c h w"]
    header: Any | None


def input_name(path: Path) -> str:
    """The name of a file without its ending; '.nii.gz' is one ending."""
    ending = next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), path.suffix)
    return path.name[: len(path.name) - len(ending)]


def read_input(path: Path, *, name: str, info: SetInfo, window: tuple[float, float] | None = None) -> Input:
    """A PNG, JPEG, TIFF, .npy array (h, w) or (h, w, c), or NIfTI volume, for a model trained on data like `info`.

    `name` names the results. Pixels are scaled as in training (`folder/source.py`). A file of another precision than
    the training images needs a `window`: the stored values that become 0 and 1.
    """
    header = None
    if not path.name.lower().endswith(ENDINGS):
        raise DataError(f"{path}: expected an image or a volume as one of {', '.join(ENDINGS)}")
    if path.name.lower().endswith(NIFTI_ENDINGS):
        content = read_file(path, error=DataError)
        values = decode_nifti(content, name=str(path)).slices
        header = nifti_header(content[:NIFTI_HEAD_BYTES], packed=len(content), name=str(path))
    elif path.suffix.lower() == ".npy":
        values = _read_npy(path)[None]
    else:
        values = read_image(path)[None]
    window = window or info.intensity_window
    by_range = header is not None and info.image_bits == 32
    planes = to_planes(values, by_range=by_range, window=window, name=str(path))
    if planes.shape[1] != info.in_channels:
        mode = {1: "L", 3: "RGB"}.get(info.in_channels)
        how = f"; convert it, for instance by Pillow: Image.open(FILE).convert({mode!r}).save(OTHER)" if mode else ""
        raise DataError(f"{path}: {planes.shape[1]} channel(s), the model was trained on {info.in_channels}{how}")
    if window is None and 8 * planes.itemsize != info.image_bits:
        raise DataError(
            f"{path}: {values.dtype} pixels, the model was trained on images of {info.image_bits} bits; give the "
            "stored values that are 0 and 1 in training with --window LOW HIGH"
        )
    return Input(name, unit_floats(planes), header)


def _read_npy(path: Path) -> np.ndarray:
    """An array, never a pickle; mapped first, so that no header can claim more than the file holds."""
    check_file(path, error=DataError)
    with named_errors("array", name=str(path)):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        shape: tuple[int, ...] = getattr(mapped, "shape", ())  # an .npz archive has none
        if len(shape) not in (2, 3) or 0 in shape:
            raise DataError(f"{path}: expected an image (h, w) or (h, w, c), got shape {shape}")
        if shape[0] * shape[1] > MAX_PIXELS:
            raise DataError(f"{path}: shape {shape} is more than {MAX_PIXELS} pixels")
        return np.array(mapped, dtype=mapped.dtype.newbyteorder("="))
