"""The one door through which image files come in: bounded in size, and every failure a `DataError` with a name."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from hpunet.errors import DataError

MAX_PIXELS = 2**26
"""Largest image that is opened, in pixels (64 megapixels); a file that claims more is refused unread."""
MAX_FILE_BYTES = 2**30
"""Largest single file that is read."""


def read_bytes(path: Path) -> bytes:
    """A file's content, or a `DataError` that says why not."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"{path}: {size} bytes, more than the {MAX_FILE_BYTES} this reader takes")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def decode_png(content: bytes, *, name: str) -> np.ndarray:
    """A PNG as (h, w) or (h, w, channels), uint8 or uint16 or, for 32 bit modes, int32."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{name}: {image.width}x{image.height} is more than {MAX_PIXELS} pixels")
            array = np.asarray(image.convert("RGB") if image.mode == "P" else image)
    except DataError:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, EOFError, zlib and struct errors
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    return array.astype(np.uint8) * 255 if array.dtype == np.bool_ else array
