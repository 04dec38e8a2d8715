"""Limits that the header of a file is checked against before its content is unpacked.

A few bytes can claim to be gigabytes. Label maps do compress that well, so they are not limited by their size on
disk; they must have the size of their image.
"""

import importlib
from typing import Any, NamedTuple

from hpunet.errors import DataError

MAX_PIXELS = 2**26
"""Largest image that is opened, in pixels (64 megapixels)."""
MAX_EXPANSION = 100
"""Largest ratio of unpacked size to size on disk; images and scans hardly reach a tenth of it."""
_ALWAYS_ALLOWED = 2**25
"""Bytes that any file may unpack to."""


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
        raise DataError(f"reading this needs {module}: pip install hpunet[data]") from None


def max_unpacked_bytes(packed: int) -> int:
    """Largest unpacked size of a file of `packed` bytes."""
    return max(_ALWAYS_ALLOWED, MAX_EXPANSION * packed)


def check_unpacked(num_bytes: int, *, packed: int, name: str) -> None:
    """Refuse content out of proportion to its file."""
    if num_bytes > max_unpacked_bytes(packed):
        raise DataError(
            f"{name}: {packed} bytes that claim to hold {num_bytes}, more than {MAX_EXPANSION} times as many; "
            "damaged or malicious"
        )


def check_image_size(
    height: int, width: int, *, num_bytes: int, packed: int, size: ImageSize | None, name: str
) -> None:
    """Refuse an image that is too large, out of proportion to its file, or not of the required `size`."""
    if size is not None:
        if (height, width) != (size.height, size.width):
            raise DataError(
                f"{name}: {height}x{width} pixels, but its image {size.name} has {size.height}x{size.width}"
            )
        return
    if height * width > MAX_PIXELS:
        raise DataError(f"{name}: {height}x{width} is more than {MAX_PIXELS} pixels")
    check_unpacked(max(num_bytes, height * width), packed=packed, name=name)
