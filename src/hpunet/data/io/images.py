"""PNG, JPEG and TIFF images. Reading that would lose precision, rotate the image or guess colours is an error."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from hpunet.data.io.limits import MAX_PIXELS, ImageSize, check_image_size, named_errors
from hpunet.data.io.png import check_png_pixels, num_pixel_bytes, read_png_header
from hpunet.data.io.tiff import check_tiff_series, open_tiff
from hpunet.errors import DataError
from hpunet.utils.files import read_file

_EXIF_ORIENTATION = 0x0112
_WITH_TRANSPARENCY = {"P": "RGBA", "L": "LA", "RGB": "RGBA"}


def decode_png(content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None) -> np.ndarray:
    """A PNG as (h, w) or (h, w, channels), uint8 or uint16 or, for 32 bit modes, int32.

    With `labels` values are as stored: indices of a palette, grey of less than 8 bits not stretched to 0...255.
    """
    header = read_png_header(content, name=name)
    num_bytes, packed = num_pixel_bytes(header), len(content)
    check_image_size(header.height, header.width, num_bytes=num_bytes, packed=packed, size=size, name=name)
    check_png_pixels(content, header, name=name)
    with named_errors("PNG", name=name), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if getattr(image, "n_frames", 1) != 1:
            raise DataError(f"{name}: an animation, expected one image")
        array = np.asarray(image if labels else _colours(image))
    if header.bits == 16 and array.dtype == np.uint8:
        raise DataError(f"{name}: Pillow reads colour of 16 bits as 8 bits only; save it as TIFF or with 8 bits")
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    if labels and header.colour_type == 0 and header.bits < 8:
        array = array // (255 // (2**header.bits - 1))
    return array


def _colours(image: Image.Image) -> Image.Image:
    """The image with its palette applied, and with an alpha channel if a colour is transparent."""
    if "transparency" in image.info and image.mode in _WITH_TRANSPARENCY:
        return image.convert(_WITH_TRANSPARENCY[image.mode])
    return image.convert("RGB") if image.mode == "P" else image


def decode_jpeg(content: bytes, *, name: str) -> np.ndarray:
    """A JPEG as (h, w) or (h, w, 3), uint8. One with an EXIF rotation is an error."""
    with named_errors("JPEG", name=name), Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        num_bytes = image.height * image.width * len(image.getbands())
        check_image_size(image.height, image.width, num_bytes=num_bytes, packed=len(content), size=None, name=name)
        if image.mode not in ("L", "RGB"):
            raise DataError(f"{name}: expected a grey or RGB JPEG, got {image.mode}")
        if image.getexif().get(_EXIF_ORIENTATION, 1) != 1:
            raise DataError(f"{name}: is stored rotated (EXIF orientation); save it upright, as its masks are")
        return np.asarray(image)


def decode_tiff(content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None) -> np.ndarray:
    """A TIFF of a single image as (h, w) or (h, w, channels), in its stored type.

    With `labels` palette images give indices; otherwise they are errors, as are images where 0 is white.
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
        if not labels and (found := series.keyframe.photometric.name) not in ("MINISBLACK", "RGB"):
            raise DataError(f"{name}: expected colours MINISBLACK or RGB, got {found}")
        array = np.asarray(series.asarray())
    array = np.moveaxis(array, 0, -1) if series.axes == "SYX" else array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def decode_image(content: bytes, *, name: str, labels: bool = False, size: ImageSize | None = None) -> np.ndarray:
    """A PNG, JPEG or TIFF, by the ending of `name`, as (h, w) or (h, w, channels).

    `labels` reads a label map: values as stored, of the `size` of its image, and no JPEG, which changes values.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".png":
        return decode_png(content, name=name, labels=labels, size=size)
    if suffix in (".tif", ".tiff"):
        return decode_tiff(content, name=name, labels=labels, size=size)
    if suffix in (".jpg", ".jpeg"):
        if labels:
            raise DataError(f"{name}: JPEG changes label values; save label maps as PNG or TIFF")
        return decode_jpeg(content, name=name)
    raise DataError(f"{name}: expected an image as .png, .jpg or .tif")


def read_image(path: Path, *, labels: bool = False) -> np.ndarray:
    """The image in a file; see `decode_image`."""
    return decode_image(read_file(path, error=DataError), name=str(path), labels=labels)
