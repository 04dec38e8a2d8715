"""Check that a GIF is complete and one image: Pillow shows missing blocks and further images in its own ways."""

from typing import NamedTuple

from hpunet.errors import DataError

_IMAGE, _EXTENSION, _END = 0x2C, 0x21, 0x3B
_MAX_BLOCKS = 2**20


class GifHeader(NamedTuple):
    """The size of the image."""

    width: int
    height: int


def read_gif_header(content: bytes, *, name: str) -> GifHeader:
    """The size of a GIF of one image that fills it and has all its blocks."""
    if content[:6] not in (b"GIF87a", b"GIF89a") or len(content) < 13:
        raise DataError(f"{name}: not a readable GIF (no header)")
    size = GifHeader(*_two_numbers(content, 6))
    place, images = 13 + _palette_bytes(content[10]), 0
    for _ in range(_MAX_BLOCKS):
        kind = content[place] if place < len(content) else None
        if kind == _IMAGE and place + 10 < len(content):
            corner, shape = _two_numbers(content, place + 1), _two_numbers(content, place + 5)
            if corner != (0, 0) or shape != size or 0 in size:
                raise DataError(
                    f"{name}: holds an image of {shape} at {corner} in {tuple(size)}, expected a whole one"
                )
            place = _after_blocks(content, place + 11 + _palette_bytes(content[place + 9]))
            images += 1
        elif kind == _EXTENSION:
            place = _after_blocks(content, place + 2)
        elif kind == _END and images == 1:
            return size
        elif kind == _END:
            raise DataError(f"{name}: holds {images} images, expected one")
        else:
            raise DataError(f"{name}: damaged or cut off at byte {min(place, len(content))}")
    raise DataError(f"{name}: more than {_MAX_BLOCKS} parts")


def _two_numbers(content: bytes, place: int) -> tuple[int, int]:
    return int.from_bytes(content[place : place + 2], "little"), int.from_bytes(
        content[place + 2 : place + 4], "little"
    )


def _palette_bytes(flags: int) -> int:
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(content: bytes, place: int) -> int:
    """The place behind a chain of blocks, each of which begins with its length; the last has none."""
    while place < len(content) and content[place]:
        place += content[place] + 1
    return place + 1
