"""Check that a JPEG is complete: decoders show what is missing as grey, and read as many scans as there are."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image

from hpunet.errors import DataError
from hpunet.utils.limits import MAX_PARTS, MAX_SCANS

_START, _END, _SCAN, _PROGRESSIVE = 0xD8, 0xD9, 0xDA, 0xC2
_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a segment
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # in the data of a scan
_PADDING = (
    b"\xff\x00" * 8
)  # bits 1, which are no code: libjpeg reads ahead by 8 bytes, and these make two blocks at most


class JpegHeader(NamedTuple):
    """Size, scans, and where the marker of the end is."""

    width: int
    height: int
    num_channels: int
    is_common: bool
    """Baseline or progressive; of other kinds only the size is known."""
    is_of_one_scan: bool = True
    """Otherwise pixels are known after the last scan."""
    end: int = 0


def read_jpeg_header(content: bytes, *, name: str) -> JpegHeader:
    """The header; refuses files without an end, with missing or repeated scans, or with too many."""
    if content[:3] != b"\xff\xd8\xff":
        raise DataError(f"{name}: not a readable JPEG (no header)")
    components: list[int] = []
    position, header, num_scans, known = 2, None, 0, np.empty((0, 64))
    for _ in range(MAX_PARTS):
        while content[position : position + 2] == b"\xff\xff":
            position += 1
        marker = content[position + 1] if content[position : position + 1] == b"\xff" else None
        if marker in _ALONE:
            position += 2
            continue
        if marker == _END and header is not None and num_scans:
            if known.any():
                raise DataError(f"{name}: truncated, its scans are not all there")
            return header._replace(end=position, is_of_one_scan=header.is_of_one_scan and num_scans == 1)
        length = int.from_bytes(content[position + 2 : position + 4])
        segment = content[position + 4 : position + 2 + length]
        if marker is None or marker == _START or length < 2 or len(segment) != length - 2:
            raise DataError(f"{name}: damaged or truncated at byte {min(position, len(content))}")
        position += 2 + length
        if marker in _FRAMES:
            if header is not None or len(segment) < 6 or len(segment) != 6 + 3 * segment[5] or not segment[5]:
                raise DataError(f"{name}: damaged, its frame is not one")
            height, width = int.from_bytes(segment[1:3]), int.from_bytes(segment[3:5])
            header = JpegHeader(width, height, segment[5], marker <= _PROGRESSIVE, marker != _PROGRESSIVE)
            if not header.is_common:
                return header
            components, known = list(segment[6::3]), np.full((segment[5], 64), -1)
        elif marker == _SCAN:
            num_scans += 1
            if header is None or num_scans > MAX_SCANS:
                raise DataError(f"{name}: damaged or malicious, scan {num_scans} of at most {MAX_SCANS}")
            _enter_scan(segment, known, components, name=name)
            found = _MARKER.search(content, position)
            if found is None:
                raise DataError(f"{name}: truncated, has no end")
            position = found.start()
    raise DataError(f"{name}: more than {MAX_PARTS} parts")


def _enter_scan(segment: bytes, known: np.ndarray, components: list[int], *, name: str) -> None:
    """Note in `known` from which bit on the coefficients are known; each bit must come once, high ones first."""
    count = segment[0] if segment else 0
    if not count or len(segment) != 4 + 2 * count or not set(segment[1:-3:2]) <= set(components):
        raise DataError(f"{name}: damaged, one of its scans is not one")
    first, last, bits = segment[-3:]
    before, after = bits >> 4, bits & 15
    for component in segment[1:-3:2]:
        part = known[components.index(component), first : last + 1]
        if not part.size or (part != (before or -1)).any() or (before and after != before - 1):
            raise DataError(f"{name}: damaged or malicious, its scans repeat or skip what others hold")
        part[:] = after


@contextmanager
def open_whole_jpeg(content: bytes, header: JpegHeader, *, name: str) -> Iterator[Image.Image]:
    """A Pillow image, which must be loaded inside; it is an error if its scans end too early.

    At the marker of the end decoders fill up the image, so that it comes last, behind bits that are no code: what is
    missing would have to be read from those. A file of one scan that asks for more is truncated, which Pillow says. A
    file of several scans always asks; if its last one is complete, all bytes have been used by then.
    """
    stream = _Stream(content[: header.end] + _PADDING, is_of_one_scan=header.is_of_one_scan)
    with Image.open(stream, formats=["JPEG"]) as image:
        yield image
    if stream.has_unused:
        raise DataError(f"{name}: truncated, its last scan ends too early")


class _Stream(io.BytesIO):
    """The bytes of a JPEG, then more padding and the marker of the end."""

    def __init__(self, content: bytes, *, is_of_one_scan: bool) -> None:
        super().__init__(content)
        self.has_unused = False
        self._rest = [] if is_of_one_scan else [_Noticing(b"\xff\xd9", self), _Noticing(_PADDING[:2], self)]

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        return super().read(size) or (self._rest.pop() if self._rest and size else b"")


class _Noticing(bytes):
    """Bytes that notice, when a reader appends them to those it could not use yet, whether there are any."""

    stream: _Stream

    def __new__(cls, content: bytes, stream: _Stream) -> "_Noticing":
        made = super().__new__(cls, content)
        made.stream = stream
        return made

    def __radd__(self, unused: bytes) -> bytes:
        self.stream.has_unused |= bool(unused)
        return unused + bytes(self)
