"""Images as people have them: files, Pillow images, numpy arrays and torch tensors, as a model takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Shaped
from PIL import Image

from hpunet.data.field_of_view import differences
from hpunet.data.io.geometry import Geometry
from hpunet.data.io.images import turn_upright
from hpunet.data.io.inputs import Stored, input_name, read_stored, to_input
from hpunet.data.io.windows import Window
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.predict.crop import Region, cut
from hpunet.predict.place import Place

ImageLike = str | Path | Sequence[str | Path] | Image.Image | np.ndarray | torch.Tensor
WARNING = "Warning: "
"""How notes begin that say how an image differs from those of training."""
_CHANNELS = (1, 2, 3, 4)
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16", "F")


@dataclass(frozen=True)
class OpenedImage:
    """An image or volume as a model takes it: slices in [0, 1], and where they lie in the whole."""

    name: str
    images: Float32[np.ndarray, "z c h w"]
    place: Place
    notes: tuple[str, ...] = ()
    cond: Float32[np.ndarray, "z e h w"] | None = None
    """What the prior of an extrapolating model sees besides (`visible.py`)."""

    def volume(
        self, numbers: Sequence[int]
    ) -> tuple[Float32[np.ndarray, "c d h w"], Float32[np.ndarray, "e d h w"] | None]:
        """Neighbouring slices as a model of volumes takes them, and the same of `cond`."""
        part = slice(numbers[0], numbers[-1] + 1)
        return self.images[part].swapaxes(0, 1), None if self.cond is None else self.cond[part].swapaxes(0, 1)


def open_image(
    image: ImageLike,
    *,
    name: str | None,
    info: SetInfo,
    crop: Sequence[int],
    window: Window | None = None,
    region: Region | None = None,
) -> OpenedImage:
    """The image for a model trained on data like `info`; `name` names the results, by default the file's.

    A part around a point or box is cut as the training images were (their size, else the `crop` of training). Where
    each of those spans the whole range of values, so does the part.
    """
    volumes = info.ndim == 3
    if isinstance(image, (str, Path)):
        path = Path(image)
        stored, where = read_stored(path, volumes=volumes), str(path)
        name = input_name(path) if name is None else name
    elif isinstance(image, (list, tuple)) and all(isinstance(file, (str, Path)) for file in image):
        files = [Path(file) for file in image]
        stored, where = read_stored(files), "image"
        name = input_name(files[0].absolute().parent) if name is None else name
    else:
        notes: list[str] = []
        values, where = _array(image, notes=notes, volumes=volumes), "image"
        is_volume = volumes and not isinstance(image, Image.Image)
        stored = Stored(values, Geometry("zyx")) if is_volume else Stored(values[None], notes=tuple(notes))
    how: dict[str, Any] = {"info": info, "crop": crop, "window": window, "region": region}
    return open_stored(stored, name=name or "image", where=where, **how)


def open_stored(
    stored: Stored,
    *,
    name: str,
    where: str,
    info: SetInfo,
    crop: Sequence[int],
    window: Window | None = None,
    region: Region | None = None,
) -> OpenedImage:
    """`open_image` of values that were read before; `where` names them in errors."""
    depth, h, w = stored.values.shape[:3]
    if info.ndim == 3 and stored.geometry.axes == "yx":
        raise DataError(
            f"{where}: is an image, the model was trained on volumes; give a NIfTI volume, the folder of a DICOM "
            "series, a TIFF or HDF5 stack, or in Python an array (d, h, w)"
        )
    place = Place((depth, h, w), (0, 0, 0), stored.geometry, stored.header, stored.frames)
    if region is not None and region != Region():
        if info.ndim == 3 and region.spacing is not None:
            raise ConfigError(f"{where}: spacing resamples images only; resample the volume in its file")
        stored, place = cut(stored, region, side=(info.image_size or tuple(crop))[-2:], where=where)
        if region.is_crop and window is None and info.value_range == (0.0, 1.0):
            window = "auto"
    found = to_input(stored, name=name, where=where, info=info, window=window)
    how: dict[str, Any] = {"info": info, "crop": crop, "spacing": place.geometry.spacing}
    shown = found.images.swapaxes(0, 1) if info.ndim == 3 else found.images[depth // 2]
    warnings = [f"{WARNING}{words}" for words in differences(shown, **how)]
    return OpenedImage(found.name, found.images, place, (*found.notes, *warnings))


def _array(image: Any, *, notes: list[str], volumes: bool = False) -> Shaped[np.ndarray, "..."]:
    """Stored values (h, w) or (h, w, c), of `volumes` with the depth before them; appends what was done to them."""
    if isinstance(image, Image.Image):
        return _pillow_array(image, notes=notes)
    if isinstance(image, torch.Tensor):
        image = image.detach().cpu()
        image = (image.float() if image.dtype == torch.bfloat16 else image).numpy()
    if not isinstance(image, np.ndarray):
        kinds = "a path, the paths of a DICOM series, a Pillow image, a numpy array or a torch tensor"
        raise DataError(f"image: expected {kinds}, got {type(image).__name__}")
    if image.dtype.kind not in "biuf":
        raise DataError(f"image: expected numbers as pixels, got {image.dtype}")
    return _volume_channels_last(image) if volumes else _channels_last(image)


def _pillow_array(image: Image.Image, *, notes: list[str]) -> np.ndarray:
    """The values that a file of this image has; appends what was done to them."""
    if image.mode not in _MODES:
        raise DataError(f"image: Pillow mode {image.mode}; convert it, for instance by image.convert('RGB')")
    return turn_upright(image, notes=notes)


def _channels_last(array: np.ndarray) -> np.ndarray:
    """(h, w) or (h, w, c), from any order of axes that can be told apart."""
    shape = array.shape
    if array.ndim == 4 and shape[0] == 1:
        array = array[0]
    elif array.ndim == 4:
        raise DataError(f"image: shape {shape} is a batch or volume; give one image at a time: predictor.map(images)")
    if array.ndim not in (2, 3) or 0 in shape:
        raise DataError(f"image: expected (h, w), (h, w, c), (c, h, w) or (1, c, h, w), got shape {shape}")
    if array.ndim == 2:
        return array
    first, last = array.shape[0] in _CHANNELS, array.shape[-1] in _CHANNELS
    if first and last:
        raise DataError(f"image: in shape {shape} the channels may be first or last; give (h, w) or a larger image")
    if not (first or last):
        raise DataError(f"image: shape {shape} has no axis of 1 to 4 channels; give slices one by one, as (h, w)")
    return np.moveaxis(array, 0, -1) if first else array


def _volume_channels_last(array: np.ndarray) -> np.ndarray:
    """(d, h, w) or (d, h, w, c), from any order of axes that can be told apart."""
    shape = array.shape
    if array.ndim == 5 and shape[0] == 1:
        return np.moveaxis(array[0], 0, -1)
    if array.ndim not in (3, 4) or 0 in shape:
        what = "is an image; the model was trained on volumes: " if array.ndim == 2 else ""
        raise DataError(
            f"image: {what}expected (d, h, w), (d, h, w, c), (c, d, h, w) or (1, c, d, h, w), got {shape}"
        )
    if array.ndim == 3:
        return array
    first, last = array.shape[0] in _CHANNELS, array.shape[-1] in _CHANNELS
    if first == last:
        raise DataError(f"image: in shape {shape} channels cannot be told from positions; give (1, c, d, h, w)")
    return np.moveaxis(array, 0, -1) if first else array
