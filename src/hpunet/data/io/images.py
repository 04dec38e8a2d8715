"""PNG, JPEG, TIFF and GIF images. Reading that would lose precision or guess colours is an error."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from hpunet.data.io.gif import read_gif_header
from hpunet.data.io.jpeg import open_whole_jpeg, read_jpeg_header
from hpunet.data.io.limits import ImageSize, check_image_size, named_errors, need
from hpunet.data.io.png import check_png_pixels, num_pixel_bytes, read_png_header
from hpunet.data.io.tiff import check_tiff_series, open_tiff, tiff_orientation
from hpunet.errors import DataError
from hpunet.utils.files import read_file
from hpunet.utils.limits import MAX_PIXELS

_EXIF_ORIENTATION = 0x0112
_WITH_ORIENTATION = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}  # what Pillow parses
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {  # by orientation; others than these mean upright
    2: np.fliplr,
    3: lambda array: np.rot90(array, 2),
    4: np.flipud,
    5: lambda array: np.swapaxes(array, 0, 1),
    6: lambda array: np.rot90(array, -1),
    7: lambda array: np.swapaxes(np.rot90(array, 2), 0, 1),
    8: np.rot90,
}
_WITH_TRANSPARENCY = {"P": "RGBA", "L": "LA", "RGB": "RGBA"}


def decode_png(
    content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None, notes: list[str] | None = None
) -> np.ndarray:
    """A PNG as (h, w) or (h, w, channels), uint8 or uint16 or, for 32 bit modes, int32.

    With `labels` values are as stored: indices of a palette (0 and 255 where it shows black and white only), and grey
    of less than 8 bits not stretched to 0...255.
    """
    header = read_png_header(content, name=name)
    num_bytes, packed = num_pixel_bytes(header), len(content)
    check_image_size(header.height, header.width, num_bytes=num_bytes, packed=packed, size=size, name=name)
    check_png_pixels(content, header, name=name)
    with named_errors("PNG", name=name), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if getattr(image, "n_frames", 1) != 1:
            raise DataError(f"{name}: an animation, expected one image")
        array = _indices(image) if labels else np.asarray(in_colours(image))
        if header.bits == 16 and array.dtype == np.uint8:  # Pillow reads colours as 8 bits only
            array = np.asarray(need("imagecodecs").png_decode(content))
        array = upright(array, _orientation(image), name=name, notes=notes)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    if labels and header.colour_type == 0 and header.bits < 8:
        array = array // (255 // (2**header.bits - 1))
    return array


def in_colours(image: Image.Image) -> Image.Image:
    """The image with its palette applied, grey if all its colours are, and with alpha if a colour is transparent."""
    is_grey = False
    if image.mode == "P":
        palette = np.reshape(image.getpalette("RGB") or [], (-1, 3))
        is_grey = bool((palette == palette[:, :1]).all())
    if "transparency" in image.info and image.mode in _WITH_TRANSPARENCY:
        image = image.convert(_WITH_TRANSPARENCY[image.mode])
        return image.convert("LA") if is_grey else image
    return image.convert("L" if is_grey else "RGB") if image.mode == "P" else image


def _indices(image: Image.Image) -> np.ndarray:
    """Stored values; black and white as 0 and 255, because either of them may come first in a palette."""
    stored = np.asarray(image)
    if image.mode != "P":
        return stored
    palette = np.reshape(image.getpalette("RGB") or [], (-1, 3))
    found = np.unique(stored)
    if found[-1] >= len(palette) or not np.isin(palette[found].sum(axis=1), (0, 3 * 255)).all():
        return stored
    shown: np.ndarray = palette[:, 0].astype(np.uint8)[stored]
    return shown


def decode_gif(
    content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None, notes: list[str] | None = None
) -> np.ndarray:
    """A GIF of one image as (h, w) or (h, w, channels), uint8; `labels` as in `decode_png`."""
    width, height = read_gif_header(content, name=name)
    check_image_size(height, width, num_bytes=height * width, packed=len(content), size=size, name=name)
    with named_errors("GIF", name=name), Image.open(io.BytesIO(content), formats=["GIF"]) as image:
        array = _indices(image) if labels else np.asarray(in_colours(image))
        return upright(array, _orientation(image), name=name, notes=notes)


def decode_jpeg(content: bytes, *, name: str, notes: list[str] | None = None) -> np.ndarray:
    """A JPEG as (h, w) or (h, w, 3), uint8."""
    header = read_jpeg_header(content, name=name)
    if not header.is_common:
        raise DataError(f"{name}: neither a baseline nor a progressive JPEG; save it as one of them")
    num_bytes = header.height * header.width * header.num_channels
    check_image_size(header.height, header.width, num_bytes=num_bytes, packed=len(content), size=None, name=name)
    with named_errors("JPEG", name=name), open_whole_jpeg(content, header, name=name) as image:
        if image.mode not in ("L", "RGB"):
            how = "convert it, for instance by Pillow: Image.open(FILE).convert('RGB').save(OTHER)"
            raise DataError(f"{name}: expected a grey or RGB JPEG, got {image.mode}; {how}")
        return upright(np.asarray(image), _orientation(image), name=name, notes=notes)


def _orientation(image: Image.Image) -> Any:
    """Of an image from a file; parsed only if there is some, for that takes a tenth of reading a small image."""
    return image.getexif().get(_EXIF_ORIENTATION) if _WITH_ORIENTATION & image.info.keys() else None


def upright(
    array: Shaped[np.ndarray, "h w *c"], orientation: Any, *, name: str, notes: list[str] | None
) -> Shaped[np.ndarray, "h2 w2 *c"]:
    """The image turned as its EXIF or TIFF orientation says, if there are `notes` to say so.

    Otherwise it is an error: in training data image and label map may have been drawn on either.
    """
    if orientation not in _TURNS:
        return array
    if notes is None:
        raise DataError(
            f"{name}: is stored turned (EXIF orientation {orientation}); save it upright, as its masks are"
        )
    notes.append("The image is turned upright, as its EXIF orientation says.")
    return _TURNS[orientation](array)


def turn_upright(image: Image.Image, *, notes: list[str]) -> Shaped[np.ndarray, "h w *c"]:
    """The values of a Pillow image, upright; see `upright`."""
    return upright(np.asarray(in_colours(image)), image.getexif().get(_EXIF_ORIENTATION), name="image", notes=notes)


def decode_tiff(
    content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None, notes: list[str] | None = None
) -> np.ndarray:
    """A TIFF of a single image as (h, w) or (h, w, channels), in its stored type.

    With `labels` palette images give indices; otherwise they are errors. Images where 0 is white are inverted, as are
    label maps of one bit.
    """
    with named_errors("TIFF", name=name), open_tiff(io.BytesIO(content), name=name) as tiff:
        if len(tiff.series) != 1:
            raise DataError(f"{name}: holds {len(tiff.series)} images, expected one")
        series = tiff.series[0]
        if series.axes not in (("YX",) if labels else ("YX", "YXS", "SYX")):
            raise DataError(
                f"{name}: expected one {'label map' if labels else 'grey or colour image'}, got shape {series.shape}"
            )
        if series.size > 4 * MAX_PIXELS:
            raise DataError(f"{name}: shape {series.shape} is more than {MAX_PIXELS} pixels of four channels")
        check_tiff_series(series, name=name, size=size)
        colours, bits = series.keyframe.photometric.name, series.keyframe.bitspersample
        orientation = tiff_orientation(series, name=name)
        if not labels and colours not in ("MINISBLACK", "MINISWHITE", "RGB"):
            raise DataError(f"{name}: expected colours MINISBLACK, MINISWHITE or RGB, got {colours}")
        array = np.asarray(series.asarray())
    if colours == "MINISWHITE":
        array = _inverted(array, bits=bits, labels=labels, name=name)
        if notes is not None:
            notes.append("Dark and bright are exchanged: in the file 0 is white (MINISWHITE).")
    array = np.moveaxis(array, 0, -1) if series.axes == "SYX" else array
    array = upright(array, orientation, name=name, notes=notes)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    if not labels and bits < 8:  # the largest value is white, as in PNG
        if 255 % (2**bits - 1):
            raise DataError(f"{name}: expected grey of 1, 2, 4, 8 or 16 bits, got {bits}")
        array = array * np.uint8(255 // (2**bits - 1))
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _inverted(array: np.ndarray, *, bits: int, labels: bool, name: str) -> np.ndarray:
    """Large values bright."""
    if array.dtype == np.bool_:
        return ~array
    if labels or array.dtype.kind != "u":
        raise DataError(
            f"{name}: in it 0 is white (MINISWHITE), which needs pixels without sign, or labels of one bit"
        )
    inverted: np.ndarray = array.dtype.type(2**bits - 1) - array
    return inverted


def decode_image(
    content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None, notes: list[str] | None = None
) -> np.ndarray:
    """A PNG, JPEG, TIFF or GIF, by the ending of `name`, as (h, w) or (h, w, channels).

    `labels` reads a label map: values as stored, of the `size` of its image, and no JPEG, which changes values. What
    was done to an image is appended to `notes`.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".png":
        return decode_png(content, name=name, labels=labels, size=size, notes=notes)
    if suffix in (".tif", ".tiff"):
        return decode_tiff(content, name=name, labels=labels, size=size, notes=notes)
    if suffix == ".gif":
        return decode_gif(content, name=name, labels=labels, size=size, notes=notes)
    if suffix in (".jpg", ".jpeg"):
        if labels:
            raise DataError(f"{name}: JPEG changes label values; save label maps as PNG or TIFF")
        return decode_jpeg(content, name=name, notes=notes)
    raise DataError(f"{name}: expected an image as .png, .jpg, .tif or .gif")


def read_image(path: Path, *, labels: bool = False, notes: list[str] | None = None) -> np.ndarray:
    """The image in a file; see `decode_image`."""
    return decode_image(read_file(path, error=DataError), name=str(path), labels=labels, notes=notes)
