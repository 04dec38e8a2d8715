"""What all readers share: named errors, and checks of a header against `utils/limits.py` before unpacking.

Label maps compress so well that instead of a limit by their size on disk they must have the size of their image.
"""

import importlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hpunet.errors import DataError
from hpunet.utils.limits import MAX_PIXELS, allowed

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", flags=re.ASCII)
# Of memory per pixel: Pillow takes 4 for a colour, twice if it converts, and arrays as many; so do labels.
_PIXEL_BYTES = 18


class ImageSize(NamedTuple):
    """The required size of a label map, and the name of its image; a 2D image has depth 1."""

    depth: int
    height: int
    width: int
    name: str


def need(module: str) -> Any:
    """An optional module, or a `DataError` that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"reading this needs {module}: pip install {module.partition('.')[0]}") from None


def parse_decimal(text: str, *, limit: float, where: str) -> float:
    """A finite decimal number of at most `limit` in size, or a `DataError` that begins with `where`."""
    if not _DECIMAL.fullmatch(text) or not abs(value := float(text)) <= limit:
        raise DataError(f"{where}: expected a number within ±{limit:g}, found {text[:40]!r}")
    return value


@contextmanager
def named_errors(kind: str, *, name: str) -> Iterator[None]:
    """Turn whatever a decoder raises into a `DataError` that names the file; hide its warnings."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except DataError:
        raise
    except Exception as error:  # OSError, SyntaxError, ValueError, struct, codec and other errors of many libraries
        raise DataError(f"{name}: not a readable {kind} ({str(error).partition(chr(10))[0]})") from None


def check_unpacked(num_bytes: int, *, packed: int, name: str) -> None:
    """Refuse content out of proportion to its file."""
    if num_bytes > allowed(packed).unpacked:
        raise DataError(f"{name}: {packed} bytes that claim to hold {num_bytes}; damaged or malicious")


def check_memory(num_bytes: int, *, packed: int, name: str) -> None:
    """Refuse content of which all copies together would take more memory than its file may."""
    if num_bytes > allowed(packed).memory:
        raise DataError(f"{name}: {packed} bytes that would take {num_bytes} bytes of memory; damaged or malicious")


def check_image_size(
    height: int, width: int, *, num_bytes: int, packed: int, size: ImageSize | None, name: str
) -> None:
    """Refuse an image that is too large, out of proportion to its file, or not of the required `size`."""
    if size is not None:
        if (height, width) != size[1:3]:
            raise DataError(f"{name}: {height}x{width} pixels, its image {size.name} has {size.height}x{size.width}")
        return
    if height * width > MAX_PIXELS:
        raise DataError(f"{name}: {height}x{width} is more than {MAX_PIXELS} pixels")
    check_unpacked(num_bytes, packed=packed, name=name)
    check_memory(_PIXEL_BYTES * height * width, packed=packed, name=name)
