"""Files of less than 1 MB that ask for far more memory or time: pictures, DICOM, volumes; written by code.

`READ` names those that hold as much as is allowed and are read; all others are refused.
"""

import functools
import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import imagecodecs
import nibabel
import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    JPEG2000,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    RLELossless,
)

from hpunet.data.io.png import PngHeader, num_pixel_bytes
from hpunet.utils.limits import allowed

Bomb = Callable[[Path], Path]
BOMBS: dict[str, Bomb] = {}
"""By name: writes the file into a folder, and returns the path to read: a file, a series or a folder of images."""


def bomb(name: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Enter a function that makes the content of the file `name`."""

    def enter(make: Callable[[], bytes]) -> Callable[[], bytes]:
        def write(folder: Path) -> Path:
            path = folder / name
            path.write_bytes(make())
            return path

        BOMBS[name] = write
        return make

    return enter


# PNG


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, rows: bytes, *extra: bytes, bits: int = 8, colours: int = 0, passes: int = 0
) -> bytes:
    """`rows` are packed."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, passes))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


@functools.cache
def _packed_mebibyte() -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)


def packed_zeros(size: int) -> bytes:
    """As deflate packs them; 2**26 become 65 kB."""
    packer = zlib.compressobj(9, wbits=-15)
    return _packed_mebibyte() * (size >> 20) + packer.compress(bytes(size & (2**20 - 1))) + packer.flush()


def zeros(size: int) -> bytes:
    """As zlib packs them."""
    return b"\x78\xda" + packed_zeros(size) + struct.pack(">HH", size % 65521, 1)


SMALL = zlib.compress(b"\0\0" * 2)


@bomb("text.png")
def _() -> bytes:
    return png(1, 2, SMALL, *[_chunk(b"zTXt", b"a\0\0" + zeros(2**27))] * 6)


@bomb("text-many.png")
def _() -> bytes:
    """Each as large as Pillow unpacks."""
    return png(1, 2, SMALL, *[_chunk(b"iTXt", b"a\0\1\0\0\0" + zeros(2**20 - 1))] * 800)


@bomb("profile.png")
def _() -> bytes:
    return png(1, 2, SMALL, *[_chunk(b"iCCP", b"a\0\0" + zeros(2**27))] * 6)


@bomb("profile-many.png")
def _() -> bytes:
    return png(1, 2, SMALL, *[_chunk(b"iCCP", b"a\0\0" + zeros(2**20 - 1))] * 800)


@bomb("parts.png")
def _() -> bytes:
    return png(1, 2, SMALL, *[_chunk(b"tEXt", b"a\0")] * 65000)


@bomb("orientation.png")
def _() -> bytes:
    """A million entries of EXIF."""
    entries = struct.pack("<HHII", 0x9286, 7, 8 * 10**5, 8) * 65535
    exif = b"II*\0" + struct.pack("<IH", 8, 65535) + entries + bytes(4)
    return png(1, 2, SMALL, _chunk(b"eXIf", exif))


@bomb("huge.png")
def _() -> bytes:
    return png(2**31 - 1, 2**31 - 1, SMALL)


@bomb("black.png")
def _() -> bytes:
    return png(2**13, 2**13 - 1, zeros((2**13 - 1) * (2**13 + 1)))


def _largest(pixel_bytes: int) -> tuple[int, int]:
    """Height and width of the largest image that a file of 1 MB may hold."""
    side = int(min(allowed(900_000).unpacked / pixel_bytes, allowed(900_000).memory / 18) ** 0.5)
    return side, side - side % 8


def _largest_png(bits: int, colours: int, *extra: bytes, passes: int = 0) -> bytes:
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[colours]
    height, width = _largest(max(1, bits * channels // 8))
    rows = zeros(num_pixel_bytes(PngHeader(width, height, bits, colours, bool(passes))))
    content = png(width, height, rows, *extra, bits=bits, colours=colours, passes=passes)
    fill = _chunk(b"tEXt", b"a\0" + bytes(max(0, 991_000 - len(content))))
    return png(width, height, rows, *extra, fill, bits=bits, colours=colours, passes=passes)


PALETTE = _chunk(b"PLTE", bytes([1, 2, 3] * 256))
for _name, _kind in {
    "grey": (8, 0),
    "bit": (1, 0),
    "rgb": (8, 2),
    "rgba": (8, 6),
    "deep": (16, 2),
    "deep-alpha": (16, 6),
    "palette": (8, 3, PALETTE),
    "clear-palette": (8, 3, PALETTE, _chunk(b"tRNS", bytes(256))),
    "clear-bit": (1, 3, _chunk(b"PLTE", bytes(6)), _chunk(b"tRNS", bytes(2))),
    "clear-rgb": (8, 2, _chunk(b"tRNS", bytes(6))),
}.items():
    bomb(f"largest-{_name}.png")(functools.partial(_largest_png, *_kind))
bomb("interlaced.png")(functools.partial(_largest_png, 8, 0, passes=1))


@bomb("film.png")
def _() -> bytes:
    frames = [
        _chunk(b"fcTL", struct.pack(">IIIIIHHBB", 2 * n + 1, 1, 2, 0, 0, 1, 1, 0, 0))
        + _chunk(b"fdAT", struct.pack(">I", 2 * n + 2) + SMALL)
        for n in range(10**4)
    ]
    still = png(1, 2, SMALL, _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))
    return still[:-12] + b"".join(frames) + still[-12:]


# GIF


def gif(width: int, height: int, *parts: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + b"".join(parts) + b";"


def gif_image(width: int, height: int, *, blocks: bytes | None = None) -> bytes:
    """One colour, in as few codes as LZW allows; or these blocks."""
    if blocks is None:
        pixels = imagecodecs.gif_encode(np.zeros((height, width), np.uint8))
        place = pixels.index(b"\x2c\0\0\0\0") + 9
        flags = pixels[place]
        blocks = pixels[place + 1 + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0) : -1]
    return b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + blocks


@bomb("huge.gif")
def _() -> bytes:
    return gif(65535, 65535, gif_image(65535, 65535, blocks=b"\x02\x02\x4c\x01\0"))


@bomb("film.gif")
def _() -> bytes:
    return gif(64, 64, *[gif_image(64, 64)] * 8000)


@bomb("comments.gif")
def _() -> bytes:
    return gif(8, 8, b"\x21\xfe\x01a\0" * 190_000, gif_image(8, 8))


@bomb("blocks.gif")
def _() -> bytes:
    """A pixel in each block, as far as there are any."""
    return gif(8, 8, gif_image(8, 8), b"\x21\xfe" + b"\x01a" * 490_000 + b"\0")


@bomb("largest.gif")
def _() -> bytes:
    height, width = _largest(1)
    return gif(width, height, gif_image(width, height), b"\x21\xfe" + (b"\xff" + bytes(255)) * 3500 + b"\0")


# JPEG


def _jpeg(height: int, width: int, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(options.pop("mode", "L"), (width, height)).save(buffer, format="JPEG", **options)
    return buffer.getvalue()


def _segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 255, marker, len(data) + 2) + data


def _scans(height: int, width: int, scans: Iterable[tuple[int, int, int, int]], *, pad: int = 0) -> bytes:
    """A progressive JPEG of grey; each scan (first and last coefficient, bits before and after) says: all zero."""
    tables = b""
    for kind in (0, 0x10):  # two codes of one bit: 0, and the end of a band for as many blocks as there can be
        tables += _segment(0xC4, bytes([kind, 1, 1, *[0] * 14]) + bytes([0, 0xE0 if kind else 0]))
    frame = _segment(0xC2, struct.pack(">BHHB3B", 8, height, width, 1, 1, 0x11, 0))
    head = b"\xff\xd8" + _segment(0xDB, b"\0" + b"\1" * 64) + frame + tables
    blocks = -(-height // 8) * -(-width // 8)
    body = b""
    for first, last, before, after in scans:
        if first == 0:
            data = bytes(-(-blocks // 8))
        else:  # code 10, then 14 bits: 2**14 + those more blocks
            runs = -(-blocks // (2**15 - 1))
            bits = "10" + "1" * 14
            data = int(bits * runs, 2).to_bytes(2 * runs, "big").replace(b"\xff", b"\xff\0")
        body += _segment(0xDA, bytes([1, 1, 0, first, last, before << 4 | after])) + data
    fill = _segment(0xFE, bytes(60000)) * (pad // 60000)
    return head + fill + body + b"\xff\xd9"


@bomb("scans.jpg")
def _() -> bytes:
    """One scan again and again."""
    return _scans(8000, 8000, [(0, 0, 0, 0), *[(1, 63, 0, 1), (1, 63, 1, 0)] * 4000])


@bomb("scans-one-by-one.jpg")
def _() -> bytes:
    """As many scans as the format allows: each bit of each coefficient has its own."""
    lines = [(k, k, bit + 1 if bit < 13 else 0, bit) for k in range(1, 64) for bit in reversed(range(14))]
    return _scans(8000, 8000, [(0, 0, 0, 0), *lines], pad=480_000)


@bomb("scans-often.jpg")
def _() -> bytes:
    """As above, in a file that holds as many pixels as it may."""
    lines = [(k, k, 0, 0) for k in range(1, 64)]
    return _scans(*_largest(1), [(0, 0, 0, 0), *lines], pad=900_000)


@bomb("scans-refined.jpg")
def _() -> bytes:
    """As often as coefficients have bits, all of them are looked at."""
    lines = [(1, 63, bit + 1 if bit < 13 else 0, bit) for bit in reversed(range(14))]
    return _scans(*_largest(1), [(0, 0, 0, 0), *lines], pad=900_000)


@bomb("huge.jpg")
def _() -> bytes:
    return _scans(65500, 65500, [(1, 63, 0, 0)])


@bomb("largest.jpg")
def _() -> bytes:
    height, width = _largest(3)
    content = _jpeg(height, width, mode="RGB", subsampling=0, progressive=True, quality=10)
    return content[:2] + _segment(0xFE, bytes(60_000)) * ((993_000 - len(content)) // 60_000) + content[2:]


@bomb("profiles.jpg")
def _() -> bytes:
    """Pieces of colour profiles, EXIF and Photoshop data."""
    small = _jpeg(8, 8)
    pieces = [_segment(0xE2, b"ICC_PROFILE\0\1\1"), _segment(0xED, b"Photoshop 3.0\0" + b"8BIM\0\1\0\0\0\0\0\0" * 9)]
    return small[:2] + b"".join(pieces * 4000) + _segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0") * 5000 + small[2:]


@bomb("markers.jpg")
def _() -> bytes:
    small = _jpeg(8, 8)
    return small[:2] + _segment(0xFE, b"") * 240_000 + small[2:]


# TIFF


def tiff(*directories: list[tuple[int, int, int, int]], behind: bytes = b"", loop: int | None = None) -> bytes:
    """Directories of tags (number, type, count, value), one behind the other; `behind` begins at byte 8."""
    place, parts = 8 + len(behind), [b"II*\0" + struct.pack("<I", 8 + len(behind)), behind]
    for number, tags in enumerate(directories):
        place += 6 + 12 * len(tags)
        follows = place if number + 1 < len(directories) else (loop or 0)
        entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
        parts.append(struct.pack("<H", len(tags)) + entries + struct.pack("<I", follows))
    return b"".join(parts)


def _tags(height: int, width: int, **others: int) -> list[tuple[int, int, int, int]]:
    values = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: height * width}
    values |= {int(tag[1:]): value for tag, value in others.items()}
    return [(tag, 4, 1, value) for tag, value in values.items()]


@bomb("directories.tif")
def _() -> bytes:
    return tiff(*[_tags(1, 1)] * 8000, behind=bytes(8))


@bomb("directories-short.tif")
def _() -> bytes:
    return tiff(*[[(256, 4, 1, 1)]] * 50_000, behind=bytes(8))


@bomb("directories-loop.tif")
def _() -> bytes:
    return tiff(_tags(1, 1), [(256, 4, 1, 1)], behind=bytes(8), loop=16)


@bomb("directories-loop-second.tif")
def _() -> bytes:
    return tiff(_tags(1, 1), [(256, 4, 1, 1)], behind=bytes(8), loop=16 + 6 + 12 * len(_tags(1, 1)))


@bomb("directories-unlike.tif")
def _() -> bytes:
    return tiff(_tags(1, 1), *[[(256, 4, 1, 4), (257, 4, 1, 4)]] * 30_000, behind=bytes(8))


@bomb("copies.tif")
def _() -> bytes:
    """Smaller copies of an image, each with a directory of its own."""
    count, directory = 40_000, struct.pack("<HHHIII", 1, 256, 4, 1, 1, 0)
    places = struct.pack(f"<{count}I", *range(8 + 4 * count, 8 + 22 * count, 18))
    return tiff([*_tags(1, 1), (330, 4, count, 8)], behind=places + directory * count)


@bomb("copies-same.tif")
def _() -> bytes:
    count = 200_000
    return tiff([*_tags(1, 1), (330, 4, count, 8)], behind=struct.pack("<I", 8 + 4 * count) * count)


@bomb("tags.tif")
def _() -> bytes:
    """Thousands of tags, whose values are the same thousands of numbers."""
    odd = [(40_000 + n, 4, 100_000, 8) for n in range(20_000)]
    return tiff([*_tags(1, 1), *odd], behind=bytes(400_000))


@bomb("tags-text.tif")
def _() -> bytes:
    odd = [(40_000 + n, 2, 400_000, 8) for n in range(20_000)]
    return tiff([*_tags(1, 1), *odd], behind=b"a" * 400_000)


@bomb("tags-known.tif")
def _() -> bytes:
    """As above, with tags of formats that have their own readers."""
    known = (270, 305, 306, 320, 33560, 33628, 33629, 34118, 34122, 34362, 34412, 37510, 50838, 50839, 51023, 65420)
    odd = [(tag, kind, 400_000 // size, 8) for tag in known for kind, size in ((4, 4), (2, 1), (7, 1))] * 300
    return tiff([*_tags(1, 1), *odd], behind=b"1" * 400_000)


@bomb("strips.tif")
def _() -> bytes:
    """A strip for each row, all of them at one place."""
    rows, strip = 60_000, imagecodecs.zlib_encode(bytes(16))
    behind = strip.ljust(16) + struct.pack(f"<{rows}I", *[8] * rows) + struct.pack(f"<{rows}I", *[len(strip)] * rows)
    tags = [tag for tag in _tags(rows, 16, _259=8, _278=1) if tag[0] not in (273, 279)]
    return tiff([*tags, (273, 4, rows, 24), (279, 4, rows, 24 + 4 * rows)], behind=behind)


@bomb("tiles.tif")
def _() -> bytes:
    """Tiles of which only a corner is in the image."""
    count, tile = 100_000, imagecodecs.zlib_encode(bytes(2**20))
    behind = tile + struct.pack(f"<{count}I", *[8] * count) + struct.pack(f"<{count}I", *[len(tile)] * count)
    tags = [tag for tag in _tags(count, 1, _259=8) if tag[0] not in (273, 278, 279)]
    places = [(322, 4, 1, 2**15), (323, 4, 1, 32), (324, 4, count // 32, 8 + len(tile))]
    return tiff([*tags, *places, (325, 4, count // 32, 8 + len(tile) + 4 * count)], behind=behind)


def _packed_tiff(code: int, pack: Callable[[bytes], bytes], **others: int) -> bytes:
    height, width = _largest(1)
    strip = pack(bytes(height * width))
    return tiff(_tags(height, width, _259=code, _279=len(strip), **others), behind=strip.ljust(991_000, b"\0"))


@bomb("lzw.tif")
def _() -> bytes:
    return _packed_tiff(5, imagecodecs.lzw_encode)


@bomb("deflate.tif")
def _() -> bytes:
    return _packed_tiff(8, lambda pixels: zeros(len(pixels)))


@bomb("predictor.tif")
def _() -> bytes:
    return _packed_tiff(8, lambda pixels: zeros(len(pixels)), _317=2)


@bomb("packbits.tif")
def _() -> bytes:
    height = width = 7800
    strip = b"\x81\0" * (height * width // 128)
    return tiff(_tags(height, width, _259=32773, _279=len(strip)), behind=strip)


@bomb("bits.tif")
def _() -> bytes:
    """A pixel takes a bit here, and a byte in memory."""
    height, width = 7700, 8000
    rows = zeros(height * width // 8)
    return tiff(_tags(height, width, _258=1, _259=8, _279=len(rows)), behind=rows.ljust(991_000, b"\0"))


@bomb("odd-bits.tif")
def _() -> bytes:
    height, width = 5700, 8000
    rows = zeros(height * width * 9 // 8)
    return tiff(_tags(height, width, _258=9, _259=8, _279=len(rows)), behind=rows.ljust(991_000, b"\0"))


@bomb("zstd.tif")
def _() -> bytes:
    return _packed_tiff(50000, imagecodecs.zstd_encode)


@bomb("beyond.tif")
def _() -> bytes:
    """A strip that unpacks to far more than its image has."""
    strip = zeros(2**29)
    return tiff(_tags(64, 64, _259=8, _279=len(strip)), behind=strip)


@bomb("series.tif")
def _() -> bytes:
    """A description that claims a million images."""
    text = b"ImageJ=1.53\nimages=1000000\nslices=1000000\nhyperstack=true\n\0"
    return tiff([*_tags(1, 1, _273=8 + len(text)), (270, 2, len(text), 8)], behind=text + bytes(8))


@bomb("series-json.tif")
def _() -> bytes:
    text = b'{"shape": [' + b"1, " * 100_000 + b'1], "axes": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\0"
    return tiff([*_tags(1, 1, _273=8 + len(text)), (270, 2, len(text), 8)], behind=text + bytes(8))


# DICOM


def dicom(
    rows: int, columns: int, pixels: bytes, syntax: str = ExplicitVRLittleEndian, **values: object
) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", "1.2"
    meta.TransferSyntaxUID = syntax
    data = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    values = {
        "Modality": "OT",
        "SeriesInstanceUID": "1.2",
        "Rows": rows,
        "Columns": columns,
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 8,
        "BitsStored": 8,
        "HighBit": 7,
        "PixelRepresentation": 0,
    } | values
    for name, value in values.items():
        setattr(data, name, value)
    data.PixelData = pixels
    data["PixelData"].VR = "OB" if pixels[:4] == b"\xfe\xff\x00\xe0" else "OW"
    return data


def saved(data: FileDataset) -> bytes:
    buffer = io.BytesIO()
    data.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


@bomb("huge.dcm")
def _() -> bytes:
    return saved(dicom(65535, 65535, bytes(8)))


@bomb("deflated.dcm")
def _() -> bytes:
    plain = saved(dicom(8, 8, bytes(64)))
    end = plain.index(b"\x08\0\x60\0")
    return plain[:end] + packed_zeros(900 * 2**20)


@bomb("deflated-named.dcm")
def _() -> bytes:
    return saved(dicom(8, 8, bytes(64), DeflatedExplicitVRLittleEndian, TextValue="a" * 10**8))


@bomb("rle.dcm")
def _() -> bytes:
    height, width = _largest(1)
    segment = b"\x81\0" * min(490_000, height * width // 128)
    frame = struct.pack("<16I", 1, 64, *[0] * 14) + segment
    return saved(dicom(height, width, encapsulate([frame]), RLELossless))


@bomb("rle-beyond.dcm")
def _() -> bytes:
    """A segment that unpacks to far more than its image has."""
    frame = struct.pack("<16I", 1, 64, *[0] * 14) + b"\x81\0" * 490_000
    return saved(dicom(8, 8, encapsulate([frame]), RLELossless))


@bomb("frames.dcm")
def _() -> bytes:
    return saved(dicom(1, 1, bytes(2**15), NumberOfFrames=2**15))


@bomb("frames-named.dcm")
def _() -> bytes:
    """A place for each frame."""
    data = dicom(1, 1, bytes(2**15), NumberOfFrames=2**15)
    data.PerFrameFunctionalGroupsSequence = [Dataset() for _ in range(2**15)]
    data.SharedFunctionalGroupsSequence = [Dataset()]
    return saved(data)


@bomb("frames-packed.dcm")
def _() -> bytes:
    frame = struct.pack("<16I", 1, 64, *[0] * 14) + b"\0\0"
    return saved(dicom(1, 1, encapsulate([frame] * 11_000), RLELossless, NumberOfFrames=11_000))


@bomb("nested.dcm")
def _() -> bytes:
    """Sequences within sequences."""
    depth = 40_000
    opened = b"\x40\0\x30\xa7SQ\0\0\xff\xff\xff\xff\xfe\xff\0\xe0\xff\xff\xff\xff"
    plain = saved(dicom(8, 8, bytes(64)))
    place = plain.index(b"\xe0\x7f\x10\0OW")
    return plain[:place] + opened * depth + plain[place:]


@bomb("nested-lengths.dcm")
def _() -> bytes:
    plain, inner = saved(dicom(8, 8, bytes(64))), b""
    for _ in range(3000):
        item = b"\xfe\xff\0\xe0" + struct.pack("<I", len(inner)) + inner
        inner = b"\x40\0\x30\xa7SQ\0\0" + struct.pack("<I", len(item)) + item
    place = plain.index(b"\xe0\x7f\x10\0OW")
    return plain[:place] + inner + plain[place:]


@bomb("elements.dcm")
def _() -> bytes:
    plain = saved(dicom(8, 8, bytes(64)))
    place = plain.index(b"\xe0\x7f\x10\0OW")
    odd = b"".join(struct.pack("<HH2sH", 0x0029 + 2 * (n >> 16), n & 0xFFFF, b"LO", 0) for n in range(2**12, 110_000))
    return plain[:place] + odd + plain[place:]


@bomb("jpeg.dcm")
def _() -> bytes:
    """A JPEG inside that is larger than the file says."""
    return saved(dicom(8, 8, encapsulate([_jpeg(9000, 9000, quality=1)]), JPEGBaseline8Bit))


def _jpeg2000(height: int, width: int, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height)).save(buffer, format="JPEG2000", no_jp2=True, **options)
    return buffer.getvalue()


@bomb("jpeg2000.dcm")
def _() -> bytes:
    return saved(dicom(8, 8, encapsulate([_jpeg2000(9000, 9000)]), JPEG2000))


@bomb("jpeg2000-claim.dcm")
def _() -> bytes:
    """A few bytes that say to be the largest image."""
    frame = bytearray(_jpeg2000(64, 64))
    place = frame.index(b"\xff\x51") + 6
    frame[place : place + 8] = struct.pack(">II", 9900, 9900)
    frame[place + 16 : place + 24] = struct.pack(">II", 9900, 9900)
    return saved(dicom(9900, 9900, encapsulate([bytes(frame) + bytes(980_000)]), JPEG2000))


@bomb("jpeg2000-tiles.dcm")
def _() -> bytes:
    frame = bytearray(_jpeg2000(64, 64))
    place = frame.index(b"\xff\x51") + 6
    frame[place : place + 8] = struct.pack(">II", 5000, 5000)
    frame[place + 16 : place + 24] = struct.pack(">II", 20, 20)
    return saved(dicom(5000, 5000, encapsulate([bytes(frame) + bytes(980_000)]), JPEG2000))


@bomb("jpeg2000-layers.dcm")
def _() -> bytes:
    """Small precincts and many layers, so that nearly empty packets are without number."""
    frame = bytearray(_jpeg2000(2048, 2048, num_resolutions=6))
    place = frame.index(b"\xff\x52")
    frame[place + 6 : place + 8] = struct.pack(">H", 65535)
    return saved(dicom(2048, 2048, encapsulate([bytes(frame) + bytes(10**5)]), JPEG2000))


# Volumes


def nifti(shape: tuple[int, ...], dtype: type, *, slope: float = 1, pad: int = 0, gz: bool = True) -> bytes:
    """Zeros; `pad` bytes of an extension, which cannot be packed, make the file large."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(dtype)
    header.set_slope_inter(slope, 0)
    header["magic"], header["vox_offset"] = b"n+1", 352 + pad
    head = header.binaryblock + bytes([bool(pad), 0, 0, 0])
    extension = struct.pack("<II", pad, 6) + np.random.default_rng(0).bytes(pad - 8) if pad else b""
    if not gz:
        return head + extension
    voxels = int(np.prod(shape)) * np.dtype(dtype).itemsize
    total = zlib.crc32(head + extension)
    for start in range(0, voxels, 2**20):
        total = zlib.crc32(bytes(min(2**20, voxels - start)), total)
    packer = zlib.compressobj(1, wbits=-15)
    packed = packer.compress(head + extension) + packer.flush(zlib.Z_FULL_FLUSH) + packed_zeros(voxels)
    size = len(head) + len(extension) + voxels
    return b"\x1f\x8b\x08" + bytes(7) + packed + struct.pack("<II", total, size)


@bomb("huge.nii")
def _() -> bytes:
    return nifti((32767, 32767, 32767), np.float64, gz=False)


@bomb("zeros.nii.gz")
def _() -> bytes:
    return nifti((512, 512, 1600), np.uint8)


@bomb("largest.nii.gz")
def _() -> bytes:
    return nifti((512, 512, 95), np.uint8, pad=850_000)


@bomb("scaled.nii.gz")
def _() -> bytes:
    """Bytes that become floats by a scaling."""
    return nifti((512, 512, 80), np.uint8, slope=0.5, pad=870_000)


@bomb("scaled-beyond.nii.gz")
def _() -> bytes:
    return nifti((512, 512, 330), np.uint8, slope=0.5, pad=600_000)


@bomb("slices.nii.gz")
def _() -> bytes:
    return nifti((1, 1, 32767), np.float64, pad=890_000)


@bomb("members.nii.gz")
def _() -> bytes:
    """A gzip file of thousands of files."""
    return nifti((8, 8, 8), np.uint8) + gzip.compress(b"", mtime=0) * 45_000


@bomb("name.nii.gz")
def _() -> bytes:
    """A name in the head of the gzip file that nearly fills it."""
    content = nifti((8, 8, 8), np.uint8)
    return content[:3] + b"\x08" + content[4:10] + b"a" * 980_000 + b"\0" + content[10:]


@bomb("huge.npy")
def _() -> bytes:
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999, 99999), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + bytes(10**5)


@bomb("nested.npy")
def _() -> bytes:
    head = b"(" * 60_000
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head


# Folders of images and label maps


def _mask_bomb(image: bytes, mask: bytes, endings: tuple[str, str]) -> Bomb:
    def write(folder: Path) -> Path:
        for name, content, ending in (("images", image, endings[0]), ("masks", mask, endings[1])):
            (folder / "set" / name).mkdir(parents=True, exist_ok=True)
            (folder / "set" / name / f"a{ending}").write_bytes(content)
        return folder / "set"

    return write


def _masks(folder: Path) -> Path:
    """Label maps of 64 bits for the largest volume."""
    image, mask = nifti((512, 512, 85), np.uint8, pad=760_000), nifti((512, 512, 85), np.int64)
    return _mask_bomb(image, mask, (".nii.gz", ".nii.gz"))(folder)


def _mask_png(folder: Path) -> Path:
    height, width = _largest(1)
    grey = png(width, height, zeros(height * (width + 1)), _chunk(b"tEXt", b"a\0" + bytes(895_000)))
    clear = png(width, height, zeros(height * (width + 1)), PALETTE, _chunk(b"tRNS", bytes(256)), colours=3)
    return _mask_bomb(grey, clear, (".png", ".png"))(folder)


def _raters(folder: Path) -> Path:
    """Label maps of a hundred raters for the largest volume."""
    image, mask = nifti((512, 512, 20), np.uint8, pad=400_000), nifti((512, 512, 20, 100), np.uint8)
    return _mask_bomb(image, mask, (".nii.gz", ".nii.gz"))(folder)


BOMBS |= {"masks-nii": _masks, "masks-png": _mask_png, "masks-raters": _raters}

READ = {
    "blocks.gif",
    "comments.gif",
    "deflate.tif",
    "elements.dcm",
    "frames-named.dcm",
    "frames-packed.dcm",
    "frames.dcm",
    "interlaced.png",
    "largest-bit.png",
    "largest-clear-bit.png",
    "largest-clear-palette.png",
    "largest-clear-rgb.png",
    "largest-deep-alpha.png",
    "largest-deep.png",
    "largest-grey.png",
    "largest-palette.png",
    "largest-rgb.png",
    "largest-rgba.png",
    "largest.gif",
    "largest.jpg",
    "largest.nii.gz",
    "lzw.tif",
    "masks-nii",
    "masks-png",
    "members.nii.gz",
    "nested-lengths.dcm",
    "orientation.png",
    "parts.png",
    "predictor.tif",
    "profiles.jpg",
    "rle-beyond.dcm",
    "scaled.nii.gz",
    "scans-often.jpg",
    "scans-refined.jpg",
    "slices.nii.gz",
    "strips.tif",
}
"""Those that are read within the limits; all others are refused."""
