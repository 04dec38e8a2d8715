"""Check that a PNG is complete: Pillow shows missing pixels as black and ignores surplus ones and checksums."""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from hpunet.errors import DataError
from hpunet.utils.limits import MAX_PARTS

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIECE = 2**14  # bytes unpacked at once, to at most about 16 MiB
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# First column, first row and their steps, for each pass of an interlaced image.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


class PngHeader(NamedTuple):
    """The content of the first chunk."""

    width: int
    height: int
    bits: int
    colour_type: int
    interlaced: bool


def read_png_header(content: bytes, *, name: str) -> PngHeader:
    """The header; `check_png_pixels` verifies its checksum."""
    if content[:8] != _SIGNATURE or content[8:16] != b"\0\0\0\x0dIHDR" or len(content) < 33:
        raise DataError(f"{name}: not a readable PNG (no header)")
    width, height, bits, colour_type, _, _, interlace = struct.unpack(">IIBBBBB", content[16:29])
    if not width or not height or colour_type not in _CHANNELS or bits not in (1, 2, 4, 8, 16):
        raise DataError(f"{name}: not a readable PNG ({width}x{height}, {bits} bits of colour type {colour_type})")
    return PngHeader(width, height, bits, colour_type, bool(interlace))


def check_png_pixels(content: bytes, header: PngHeader, *, name: str) -> None:
    """Refuse wrong checksums, a missing end, and a number of pixels other than in the header."""
    unpacker = zlib.decompressobj()
    expected, found = num_pixel_bytes(header), 0
    try:
        for data in _pixel_chunks(content, name=name):
            for start in range(0, len(data), _PIECE):
                found += len(unpacker.decompress(data[start : start + _PIECE]))
                if found > expected:
                    raise DataError(f"{name}: damaged, holds more pixels than its {header.height}x{header.width}")
    except zlib.error as error:
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    if found < expected or not unpacker.eof:
        raise DataError(f"{name}: truncated, {found} bytes of pixels where {expected} are expected")


def _pixel_chunks(content: bytes, *, name: str) -> Iterator[memoryview]:
    view, position, profiles = memoryview(content), len(_SIGNATURE), 0
    for _ in range(MAX_PARTS):
        if position + 12 > len(view):
            raise DataError(f"{name}: truncated, has no end")
        end = position + 8 + int.from_bytes(view[position : position + 4])
        kind = bytes(view[position + 4 : position + 8])
        if view[end : end + 4] != struct.pack(">I", zlib.crc32(view[position + 4 : end])):
            raise DataError(f"{name}: damaged, the checksum of its part {repr(kind)[2:-1]} is wrong")
        profiles += kind == b"iCCP"
        if profiles > 1:
            raise DataError(f"{name}: damaged or malicious, has more than one colour profile")
        if kind == b"IDAT":
            yield view[position + 8 : end]
        if kind == b"IEND":
            return
        position = end + 4
    raise DataError(f"{name}: more than {MAX_PARTS} parts")


def num_pixel_bytes(header: PngHeader) -> int:
    """Bytes of all rows, each with its filter byte."""
    bits, total = header.bits * _CHANNELS[header.colour_type], 0
    for x, y, step_x, step_y in _PASSES if header.interlaced else ((0, 0, 1, 1),):
        columns, rows = (header.width - x + step_x - 1) // step_x, (header.height - y + step_y - 1) // step_y
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total
