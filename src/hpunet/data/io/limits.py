"""What a file may cost: bounds that its header is held against before anything is unpacked.

A few bytes can claim to be gigabytes, truly (a packed run of zeros) or not. Label maps, which pack that well in
earnest, are not judged by their size on disk but must have the size of their image, which is.
"""

import importlib
from typing import Any, NamedTuple

from hpunet.errors import DataError

MAX_PIXELS = 2**26
"""Largest image that is opened, in pixels (64 megapixels)."""
MAX_EXPANSION = 100
"""So many times its size on disk may the content of a file have; images and scans hardly reach a tenth of it."""
_ALWAYS_TAKEN = 2**25
"""Bytes that any file may unpack to, however small it is."""


class ImageSize(NamedTuple):
    """The size that a label map must have, and the name of the image that has it; a picture is of depth 1."""

    depth: int
    height: int
    width: int
    name: str


def need(module: str) -> Any:
    """An optional module, or a `DataError` that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"reading this needs {module}: pip install hpunet[data]") from None


def max_unpacked_bytes(packed: int) -> int:
    """So much may a file of `packed` bytes hold."""
    return max(_ALWAYS_TAKEN, MAX_EXPANSION * packed)


def check_unpacked(num_bytes: int, *, packed: int, name: str) -> None:
    """Refuse content that is out of all proportion to its file."""
    if num_bytes > max_unpacked_bytes(packed):
        raise DataError(
            f"{name}: {packed} bytes that claim to hold {num_bytes}, more than {MAX_EXPANSION} times as many; "
            "damaged, or made to fill the memory"
        )


def check_picture(height: int, width: int, *, num_bytes: int, packed: int, size: ImageSize | None, name: str) -> None:
    """Refuse a picture that is too large, unpacked or for its file, or not of the `size` that it must have."""
    if size is not None:
        if (height, width) != (size.height, size.width):
            raise DataError(
                f"{name}: {height}x{width} pixels, but its image {size.name} has {size.height}x{size.width}"
            )
        return
    if height * width > MAX_PIXELS:
        raise DataError(f"{name}: {height}x{width} is more than {MAX_PIXELS} pixels")
    check_unpacked(max(num_bytes, height * width), packed=packed, name=name)
