"""The one door through which image files come in: bounded in size, and every failure a `DataError` with a name.

Nothing is read silently in another way than it was written: what would lose precision, turn the image or guess at
its colours is an error that says so. Stacks and volumes have their own file, `volumes.py`.
"""

import importlib
import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hpunet.errors import DataError

MAX_PIXELS = 2**26
"""Largest image that is opened, in pixels (64 megapixels); a file that claims more is refused unread."""
MAX_FILE_BYTES = 2**30
"""Largest single file that is read."""
_EXIF_ORIENTATION = 0x0112
_WITH_TRANSPARENCY = {"P": "RGBA", "L": "LA", "RGB": "RGBA"}
_TIFF_COLOURS_TAKEN = ("MINISBLACK", "RGB")


def need(module: str) -> Any:
    """An optional module, or a `DataError` that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"reading this needs {module}: pip install hpunet[data]") from None


def read_bytes(path: Path) -> bytes:
    """A file's content, or a `DataError` that says why not."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"{path}: {size} bytes, more than the {MAX_FILE_BYTES} this reader takes")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _check_size(width: int, height: int, *, name: str) -> None:
    if width * height > MAX_PIXELS:
        raise DataError(f"{name}: {width}x{height} is more than {MAX_PIXELS} pixels")


def decode_png(content: bytes, *, name: str, labels: bool = False) -> np.ndarray:
    """A PNG as (h, w) or (h, w, channels), uint8 or uint16 or, for 32 bit modes, int32.

    With `labels` the stored numbers come back: palette images give their indices, and grey ones of less than 8 bits
    are not stretched to 0...255 as they are for display.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            _check_size(image.width, image.height, name=name)
            if getattr(image, "n_frames", 1) != 1:
                raise DataError(f"{name}: an animation, expected one image")
            array = np.asarray(image if labels else _colours(image))
    except DataError:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, EOFError, zlib and struct errors
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    bits, colour_type = content[24], content[25]  # of the header chunk, which comes first
    if bits == 16 and array.dtype == np.uint8:
        raise DataError(f"{name}: Pillow reads colour of 16 bits as 8 bits only; save it as TIFF or with 8 bits")
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    if labels and colour_type == 0 and bits < 8:
        array = array // (255 // (2**bits - 1))
    return array


def _colours(image: Image.Image) -> Image.Image:
    """The image with its palette applied, and with an alpha channel when it marks a colour as transparent."""
    if "transparency" in image.info and image.mode in _WITH_TRANSPARENCY:
        return image.convert(_WITH_TRANSPARENCY[image.mode])
    return image.convert("RGB") if image.mode == "P" else image


def decode_jpeg(content: bytes, *, name: str) -> np.ndarray:
    """A JPEG as (h, w) or (h, w, 3), uint8. One that asks to be turned for display is an error."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            _check_size(image.width, image.height, name=name)
            if image.mode not in ("L", "RGB"):
                raise DataError(f"{name}: expected a grey or RGB JPEG, got {image.mode}")
            if image.getexif().get(_EXIF_ORIENTATION, 1) != 1:
                raise DataError(f"{name}: is stored turned (EXIF orientation); save it upright, as its masks are")
            return np.asarray(image)
    except DataError:
        raise
    except Exception as error:  # as for PNG
        raise DataError(f"{name}: not a readable JPEG ({error})") from None


@contextmanager
def open_tiff(file: Path | io.BytesIO, *, name: str) -> Iterator[Any]:
    """An open `tifffile.TiffFile`. Damage, which it only logs, is an error here."""
    thread = threading.get_ident()
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread and record.levelno >= logging.ERROR:
                complaints.append(record.getMessage())

    listener, logger = Listener(), logging.getLogger("tifffile")
    logger.addHandler(listener)
    try:
        with need("tifffile").TiffFile(file) as tiff:
            yield tiff
    finally:
        logger.removeHandler(listener)
    if complaints:
        raise DataError(f"{name}: damaged ({complaints[0]})")


def check_tiff_page(page: Any, *, name: str) -> None:
    """Refuse images, and tiles, which a small image may have larger than itself, of too many pixels."""
    _check_size(page.imagewidth, page.imagelength, name=name)
    _check_size(page.tilewidth, page.tilelength, name=name)


def decode_tiff(content: bytes, *, name: str, labels: bool = False) -> np.ndarray:
    """A TIFF of a single image as (h, w) or (h, w, channels), in the type it is stored in.

    With `labels` palette images give their indices; otherwise they, and those where 0 is white, are errors.
    """
    try:
        with open_tiff(io.BytesIO(content), name=name) as tiff:
            if len(tiff.series) != 1:
                raise DataError(f"{name}: holds {len(tiff.series)} images, expected one")
            series = tiff.series[0]
            page = series.keyframe
            if series.axes not in ("YX", "YXS", "SYX"):
                raise DataError(f"{name}: expected one grey or colour image, got shape {series.shape}")
            check_tiff_page(page, name=name)
            if series.size > 4 * MAX_PIXELS:
                raise DataError(f"{name}: shape {series.shape} is more than {MAX_PIXELS} pixels of four channels")
            if not labels and page.photometric.name not in _TIFF_COLOURS_TAKEN:
                raise DataError(f"{name}: expected colours {_TIFF_COLOURS_TAKEN}, got {page.photometric.name}")
            array = np.asarray(series.asarray())
            array = np.moveaxis(array, 0, -1) if series.axes == "SYX" else array
    except DataError:
        raise
    except Exception as error:  # tifffile and its codecs raise errors of their own, and struct and index errors
        raise DataError(f"{name}: not a readable TIFF ({error})") from None
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * (1 if labels else 255)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def decode_image(content: bytes, *, name: str, labels: bool = False) -> np.ndarray:
    """A PNG, JPEG or TIFF, told apart by the ending of `name`, as (h, w) or (h, w, channels).

    `labels` reads a label map: the stored numbers, and never a JPEG, whose compression changes them.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".png":
        return decode_png(content, name=name, labels=labels)
    if suffix in (".tif", ".tiff"):
        return decode_tiff(content, name=name, labels=labels)
    if suffix in (".jpg", ".jpeg"):
        if labels:
            raise DataError(f"{name}: JPEG changes label values; save label maps as PNG or TIFF")
        return decode_jpeg(content, name=name)
    raise DataError(f"{name}: expected an image as .png, .jpg or .tif")


def read_image(path: Path, *, labels: bool = False) -> np.ndarray:
    """The image in a file, see `decode_image`."""
    return decode_image(read_bytes(path), name=str(path), labels=labels)
