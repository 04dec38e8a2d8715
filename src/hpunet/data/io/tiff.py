"""TIFF files, opened so that damage is an error, and checked against their headers before they are decoded.

By itself, tifffile only logs damage, fills missing parts with zeros, and unpacks without limits.
"""

import io
import logging
import math
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpunet.data.io.limits import ImageSize, check_image_size, check_unpacked, need
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_PARTS, MAX_UNLIKE

# The supported compressions, by the functions of imagecodecs that unpack with a limit.
_DECODERS = {"NONE": "", "LZW": "lzw", "ADOBE_DEFLATE": "zlib", "DEFLATE": "zlib", "PACKBITS": "packbits"}
_ORIENTATION, _SUBIFDS = 274, 330
_OF_SEVERAL_FILES = {"is_ome": False, "is_mmstack": False, "is_ndtiff": False}  # name other files to open


@contextmanager
def open_tiff(file: Path | io.BytesIO, *, name: str) -> Iterator[Any]:
    """An open `tifffile.TiffFile` whose warnings are errors."""
    thread = threading.get_ident()
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread and record.levelno >= logging.WARNING:
                complaints.append(record.getMessage())

    listener, logger = Listener(), logging.getLogger("tifffile")
    logger.addHandler(listener)
    try:
        with need("tifffile").TiffFile(file, **_OF_SEVERAL_FILES) as tiff:
            _check_directories(tiff, name=name)
            yield tiff
    finally:
        logger.removeHandler(listener)
    if complaints:
        raise DataError(f"{name}: damaged ({complaints[0]})")


def _check_directories(tiff: Any, *, name: str) -> None:
    """Refuse directories in a loop, of which tifffile reads millions, and thousands of them that are not alike."""
    file, layout = tiff.filehandle, tiff.tiff
    seen: set[int] = set()
    used, offset = 0, tiff.pages.first.offset
    with suppress(struct.error):  # cut off, of which tifffile complains
        while offset:
            tags = _read_tags(file, offset, layout)
            (follows,) = struct.unpack(layout.offsetformat, file.read(layout.offsetsize))
            found = [offset, *_subdirectories(tags, file, layout)]
            used += len(tags) + sum(len(_read_tags(file, each, layout)) for each in found[1:])
            if not seen.isdisjoint(found) or len(set(found)) < len(found) or used > file.size:
                raise DataError(f"{name}: damaged (its directories form a loop or overlap)")
            seen.update(found)
            offset = follows
    if len(seen) > MAX_UNLIKE and not tiff.is_uniform:
        raise DataError(f"{name}: more than {MAX_UNLIKE} images that are not alike")


def _read_tags(file: Any, offset: int, layout: Any) -> bytes:
    file.seek(offset)
    (count,) = struct.unpack(layout.tagnoformat, file.read(layout.tagnosize))
    tags: bytes = file.read(min(count * layout.tagsize, file.size))
    return tags


def _subdirectories(tags: bytes, file: Any, layout: Any) -> list[int]:
    """Offsets of smaller copies of an image, from its tags."""
    found: list[int] = []
    for start in range(0, len(tags), layout.tagsize):
        code, kind = struct.unpack_from(layout.tagformat1, tags, start)
        if code == _SUBIFDS:
            count, value = struct.unpack_from(layout.tagformat2, tags, start + 4)
            size = 8 if kind in (16, 17, 18) else 4
            if count * size > len(value):
                file.seek(struct.unpack(layout.offsetformat, value)[0])
                value = file.read(min(count * size, file.size))
            found += struct.unpack(f"{layout.byteorder}{count}{'Q' if size == 8 else 'I'}", value[: count * size])
    return [offset for offset in found if offset >= 8]  # tifffile passes over the others


def check_tiff_series(series: Any, *, name: str, size: ImageSize | None = None) -> None:
    """Refuse a series that is too large, has holes, ends too early or unpacks to another size than `size`, if any."""
    first, packed, unpacked = series.keyframe, series.parent.filehandle.size, series.nbytes
    check_image_size(first.imagelength, first.imagewidth, num_bytes=unpacked, packed=packed, size=size, name=name)
    if first.is_tiled:  # a small image may have tiles larger than itself
        tile = first.tilelength * first.tilewidth * first.samplesperpixel * first.dtype.itemsize
        check_image_size(first.tilelength, first.tilewidth, num_bytes=tile, packed=packed, size=None, name=name)
        all_tiles = tile * len(series.pages) * math.prod(first.chunked)
        if all_tiles > 4 * unpacked:
            check_unpacked(all_tiles, packed=packed, name=name)
    if first.compression.name not in _DECODERS:
        raise DataError(f"{name}: compressed by {first.compression.name}; save it with LZW, deflate or uncompressed")
    in_one_piece = series.dataoffset is not None
    if in_one_piece and series.dataoffset + series.nbytes > packed:
        raise DataError(f"{name}: truncated, {packed} bytes of {series.dataoffset + series.nbytes}")
    for number, page in enumerate(series.pages):
        if page is not None:
            _check_segments(page, name=f"{name}, image {number}")
        elif not in_one_piece:
            raise DataError(f"{name}: image {number} is missing")


def tiff_orientation(series: Any, *, name: str) -> Any:
    """How the images of a series are stored turned; see `images.upright`."""
    found = {page.tags.valueof(_ORIENTATION) for page in series.pages if hasattr(page, "tags")}
    if len(found) > 1:
        raise DataError(f"{name}: its images are stored turned in different ways (Orientation)")
    return found.pop() if found else None


def _check_segments(page: Any, *, name: str) -> None:
    """Unpack every strip or tile of an image once, into bounded memory."""
    first, file = page.keyframe, page.parent.filehandle
    decoder = _DECODERS[first.compression.name]
    planes = first.samplesperpixel if first.planarconfig == 2 else 1
    samples = first.samplesperpixel // planes
    height, width = (first.tilelength, first.tilewidth) if first.is_tiled else (first.rowsperstrip, first.imagewidth)
    height = height if first.is_tiled else min(height, first.imagelength)
    rows, columns = math.ceil(first.imagelength / height), math.ceil(first.imagewidth / width)
    row_bytes = math.ceil(width * samples * first.bitspersample / 8)
    if rows * columns * planes > MAX_PARTS:
        raise DataError(f"{name}: more than {MAX_PARTS} parts")
    if not len(page.dataoffsets) == len(page.databytecounts) == rows * columns * planes:
        raise DataError(f"{name}: {len(page.dataoffsets)} parts, expected {rows * columns * planes}")
    for number, (offset, length) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=True)):
        is_last = number // columns % rows == rows - 1
        present = first.imagelength - (rows - 1) * height if is_last and not first.is_tiled else height
        # Parts may be padded with surplus bytes, which even end behind the file, and readers ignore.
        found = length if decoder else min(length, present * row_bytes)
        if not offset or not length or offset + found > file.size:
            raise DataError(f"{name}: part {number} is missing or lies outside the file")
        if decoder:
            file.seek(offset)
            out = bytearray(height * row_bytes)
            found = len(getattr(need("imagecodecs"), f"{decoder}_decode")(file.read(length), out=out))
        if found < present * row_bytes:
            raise DataError(f"{name}: part {number} holds {found} bytes, expected {present * row_bytes}")
