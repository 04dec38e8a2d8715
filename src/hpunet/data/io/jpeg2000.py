"""Check a JPEG 2000 codestream before it is decoded: its size and parts, and that no part of it is cut off."""

import struct

from hpunet.errors import DataError
from hpunet.utils.limits import MAX_LAYERS, MAX_PARTS, MAX_TILES

_START, _SIZE = b"\xff\x4f", b"\xff\x51"
_STYLES = {0xFF52: 0, 0xFF53: 1}  # of all channels; of one, whose number comes first
_TILE, _PIXELS, _END = 0xFF90, 0xFF93, 0xFFD9
_MIN_PRECINCT = 5  # binary logarithm of its side


def check_jpeg2000(content: bytes, *, height: int, width: int, num_channels: int, name: str) -> None:
    """Refuse a codestream of another size, of too many parts, or that ends before all of its tiles."""
    place = content.find(_START + _SIZE) + 2
    if place < 2 or len(content) < place + 40:
        raise DataError(f"{name}: not a readable JPEG 2000 (no header)")
    right, bottom, left, top, *tile = struct.unpack_from(">8I", content, place + 6)
    found = (bottom - top, right - left, *struct.unpack_from(">H", content, place + 38))
    if found != (height, width, num_channels):
        raise DataError(f"{name}: {(height, width, num_channels)} pixels and channels, its JPEG 2000 has {found}")
    num_tiles = -(-(right - tile[2]) // max(1, tile[0])) * -(-(bottom - tile[3]) // max(1, tile[1]))
    if not 1 <= num_tiles <= MAX_TILES:
        raise DataError(f"{name}: {num_tiles} tiles in its JPEG 2000, expected at most {MAX_TILES}")
    next_tile, seen = 0, set[int]()
    for _ in range(MAX_PARTS):
        marker, length = struct.unpack(">HH", content[place : place + 4].ljust(4, b"\0"))
        if marker == _END and len(seen) == num_tiles:
            return
        if marker == _PIXELS and next_tile:
            place = next_tile
            continue
        segment = content[place + 4 : place + 2 + length]
        if marker < 0xFF00 or length < 2 or len(segment) < length - 2:
            break
        if marker in _STYLES:
            _check_style(segment, is_of_one=marker != 0xFF52, name=name)
        if marker == _TILE and length == 10:
            number, size = struct.unpack_from(">HI", segment)
            seen.add(number)
            # A last tile may be of unknown length; the end of the codestream is its end.
            next_tile = place + size if size else content.rstrip(b"\0").rfind(struct.pack(">H", _END))
            if next_tile <= place:
                break
        place += 2 + length
    raise DataError(f"{name}: damaged or truncated at byte {min(place, len(content))} of its JPEG 2000")


def _check_style(segment: bytes, *, is_of_one: bool, name: str) -> None:
    """Many layers and small precincts are packets without number."""
    style = segment[1] if is_of_one else segment[0]
    layers = 1 if is_of_one else int.from_bytes(segment[2:4])
    sides = segment[7 if is_of_one else 10 :] if style & 1 else b""
    if layers > MAX_LAYERS or any(min(side & 15, side >> 4) < _MIN_PRECINCT for side in sides):
        raise DataError(f"{name}: JPEG 2000 of {layers} layers or tiny precincts; damaged or malicious")
