"""Changes to PNG, TIFF and JPEG files, and to sets of them."""

import functools
import io
import struct
import zlib
from pathlib import PurePosixPath
from random import Random

import numpy as np
import tifffile
from corpus import Files, png, tiff
from mutate import Change, Mutation, content, copy_over, of_bytes, swap_files
from PIL import Image

HUGE = (2**31 - 1, 2**32 - 1, 2**24, 65535, 30000, 8192)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, position = [], 8
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        found.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return found


def _joined(chunks: list[tuple[bytes, bytes]]) -> bytes:
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _with_header(data: bytes, **fields: int) -> bytes:
    chunks = _chunks(data)
    names = ("width", "height", "bits", "colour", "packing", "filter", "interlace")
    header = dict(zip(names, struct.unpack(">IIBBBBB", chunks[0][1]), strict=True)) | fields
    return _joined([(b"IHDR", struct.pack(">IIBBBBB", *header.values())), *chunks[1:]])


def huge_size(data: bytes, rng: Random) -> bytes:
    fields = rng.choice((("width",), ("height",), ("width", "height")))
    return _with_header(data, **{field: rng.choice(HUGE) for field in fields})


def other_size(data: bytes, rng: Random) -> bytes:
    """One row or column more or less, and the same pixels."""
    height, width = np.asarray(Image.open(io.BytesIO(data))).shape[:2]
    return _with_header(data, **rng.choice(({"height": height + 1}, {"height": height - 1}, {"width": width - 1})))


def other_kind(data: bytes, rng: Random) -> bytes:
    fields = {
        "bits": (0, 1, 2, 4, 8, 16, 32),
        "colour": (0, 2, 3, 4, 6, 7),
        "packing": (1,),
        "filter": (1,),
        "interlace": (1, 2),
    }
    name = rng.choice(sorted(fields))
    return _with_header(data, **{name: rng.choice(fields[name])})


def other_number_of_rows(data: bytes, rng: Random) -> bytes:
    """Well packed and with the right checksums, but too few or too many pixels."""
    chunks = _chunks(data)
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    pixels = rng.choice((pixels[: rng.randrange(len(pixels))], pixels + pixels, pixels + bytes(2**26), b""))
    return _joined([chunks[0], (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")])


def odd_pixels(data: bytes, rng: Random) -> bytes:
    """Well packed and with the right checksums, but filters that do not exist, or any bytes at all."""
    chunks = _chunks(data)
    pixels = bytearray(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")))
    for _ in range(rng.choice((1, 20))):
        pixels[rng.randrange(len(pixels))] = rng.randrange(256)
    return _joined([chunks[0], (b"IDAT", zlib.compress(bytes(pixels))), (b"IEND", b"")])


def odd_chunks(data: bytes, rng: Random) -> bytes:
    chunks = _chunks(data)
    place = rng.randrange(len(chunks))
    extra = rng.choice((b"PLTE", b"tRNS", b"acTL", b"fcTL", b"eXIf", b"pHYs", b"gAMA", b"IDAT", b"IHDR", b"ABCD"))
    changes = (
        chunks[:place] + chunks[place + 1 :],
        [*chunks[: place + 1], *chunks[place:]],
        chunks[::-1],
        [chunks[0], (extra, rng.randbytes(rng.choice((0, 1, 8, 26, 768)))), *chunks[1:]],
    )
    return _joined(rng.choice(changes))


@functools.cache
def _packed_zeros(size: int) -> bytes:
    return zlib.compress(bytes(size), 9)


def hidden_bomb(data: bytes, rng: Random) -> bytes:
    """64 MiB of text or of a colour profile."""
    zeros = _packed_zeros(2**26)
    extra = rng.choice(((b"zTXt", b"a\0\0" + zeros), (b"iTXt", b"a\0\1\0\0\0" + zeros), (b"iCCP", b"a\0\0" + zeros)))
    chunks = _chunks(data)
    return _joined([chunks[0], *[extra] * rng.choice((1, 20)), *chunks[1:]])


def pixel_bomb(data: bytes, rng: Random) -> bytes:
    """An image of 67 million black pixels that is all there."""
    header = struct.pack(">IIBBBBB", 2**14, 2**12, 8, rng.choice((0, 3)), 0, 0, 0)
    rows = _packed_zeros(2**12 * (2**14 + 1))
    return _joined([(b"IHDR", header), (b"PLTE", bytes(768)), (b"IDAT", rows), (b"IEND", b"")])


def many_chunks(data: bytes, rng: Random) -> bytes:
    chunks = _chunks(data)
    return _joined([chunks[0], *[(b"tEXt", b"a\0b")] * 70000, *chunks[1:]])


def animation(data: bytes, rng: Random) -> bytes:
    buffer, image = io.BytesIO(), Image.open(io.BytesIO(data))
    image.save(buffer, format="PNG", save_all=True, append_images=[Image.new(image.mode, image.size, 1)])
    return buffer.getvalue()


def _pixels(data: bytes) -> np.ndarray:
    return (
        tifffile.imread(io.BytesIO(data)) if data[:2] in (b"II", b"MM") else np.asarray(Image.open(io.BytesIO(data)))
    )


def _saved_like(data: bytes, pixels: np.ndarray) -> bytes:
    return tiff(pixels, photometric="minisblack") if data[:2] in (b"II", b"MM") else png(pixels)


def unknown_label(data: bytes, rng: Random) -> bytes:
    """A value that no class has: 77 is neither 0, 1 or 255 nor a class of Cityscapes, nor are 40000 and 65535."""
    labels = _pixels(data).copy()
    value = rng.choice((77, 40000, 65535)) if labels.dtype == np.uint16 else 77
    labels[:: rng.choice((1, 5))] = value
    return _saved_like(data, labels)


def other_shape(data: bytes, rng: Random) -> bytes:
    labels = _pixels(data)
    width = labels.shape[-1]
    changed = (labels[..., 1:, :], labels[..., : width - 1], np.repeat(labels, 2, -1), labels.reshape(-1)[None, :])
    return _saved_like(data, rng.choice(changed[: 4 if labels.ndim == 2 else 3]))


def colour_labels(data: bytes, rng: Random) -> bytes:
    labels = np.stack([_pixels(data).astype(np.uint8)] * 3, axis=-1)
    return tiff(labels, photometric="rgb") if data[:2] == b"II" else png(labels)


def float_labels(data: bytes, rng: Random) -> bytes:
    labels = _pixels(data).astype(np.float32)
    labels[..., 0, 0] = rng.choice((0.5, float("nan"), float("inf"), -1.0, 1e30))
    return tiff(labels, photometric="minisblack")


def lost_file(files: Files, rng: Random) -> Change:
    """An image without label maps, or label maps without their image. The error names what is left of the item."""
    name = rng.choice([name for name in sorted(files) if "mages/" in name or "leftImg8bit" in name])
    stem = PurePosixPath(name).name.split(".")[0].removesuffix("_leftImg8bit")
    belonging = {other for other in files if stem in PurePosixPath(other).name}
    lost = rng.choice(({name}, belonging - {name}))
    return Change({n: c for n, c in files.items() if n not in lost}, tuple(sorted(belonging - lost)), refused=True)


def lost_stack(files: Files, rng: Random) -> Change:
    name = rng.choice(sorted(files))
    return Change({n: c for n, c in files.items() if n != name}, (name.split(".")[0],), refused=True)


def same_name_twice(files: Files, rng: Random) -> Change:
    """The same item with another ending, or under another name that means the same."""
    name = rng.choice(
        [name for name in sorted(files) if name.startswith(("images", "graders", "instances", "train"))]
    )
    stem, ending = name.rsplit(".", 1)
    twin = f"{stem}.{'tiff' if name.startswith('train') else 'png' if ending == 'tif' else 'tif'}"
    return Change(files | {twin: files[name]}, (stem.split("/")[-1],), refused=True)


def odd_name(files: Files, rng: Random) -> Change:
    name = rng.choice(sorted(files))
    folder = name.rsplit("/", 1)[0]
    odd = rng.choice(("notes.txt", "Thumbs.db", "a.png.part", "x/y/z/deep.txt"))
    return Change(files | {f"{folder}/{odd}": b"x"}, (odd.split("/")[-1], "x/y"), refused=True)


_ENTRY = struct.Struct("<HHII")


def _tags(data: bytes) -> dict[int, int]:
    """Places of the entries of a TIFF's first directory, by tag; at -1 that of the pointer to the next directory."""
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    places = {struct.unpack_from("<H", data, start + 2 + 12 * i)[0]: start + 2 + 12 * i for i in range(count)}
    return places | {-1: start + 2 + 12 * count}


def _with_tag(data: bytes, tag: int, *, kind: int = 4, count: int = 1, value: int = 0) -> bytes:
    place = _tags(data).get(tag)
    if place is None:
        return data[: len(data) // 2]
    return data[:place] + _ENTRY.pack(tag, kind, count, value & 0xFFFFFFFF) + data[place + 12 :]


def huge_tiff_size(data: bytes, rng: Random) -> bytes:
    for tag in rng.choice(((256,), (257,), (256, 257))):
        data = _with_tag(data, tag, value=rng.choice(HUGE))
    return data


def odd_tag(data: bytes, rng: Random) -> bytes:
    """Any tag with another type, count or value."""
    tag = rng.choice([tag for tag in _tags(data) if tag > 0])
    value = rng.choice((0, 1, 2, 3, 5, 7, 8, 16, 17, 31, 64, 255, len(data), *HUGE))
    return _with_tag(
        data,
        tag,
        kind=rng.choice((1, 2, 3, 4, 5, 12, 13, 16, 99)),
        count=rng.choice((0, 1, 1, 2, 2**16, 2**30)),
        value=value,
    )


def other_compression(data: bytes, rng: Random) -> bytes:
    known = (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        32773,
        32946,
        33003,
        34712,
        34887,
        34925,
        34926,
        34933,
        50000,
        50001,
        50002,
        12345,
    )
    return _with_tag(data, 259, kind=3, value=rng.choice(known))


def other_layout(data: bytes, rng: Random) -> bytes:
    """Bits, colours, samples, planes, predictor, sample format, fill order."""
    tag = rng.choice((258, 262, 277, 284, 317, 339, 266, 278, 322, 323))
    return _with_tag(data, tag, kind=3, value=rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 65535)))


def hole(data: bytes, rng: Random) -> bytes:
    """The first part is said to have no bytes, or to lie at the start or behind the end of the file."""
    places = _tags(data)
    tag, value = rng.choice(
        ((325 if 325 in places else 279, 0), (324 if 324 in places else 273, rng.choice((0, len(data), 2**31))))
    )
    _, kind, count, where = _ENTRY.unpack_from(data, places[tag])
    size = {3: 2, 4: 4, 16: 8}[kind]
    place = places[tag] + 8 if size * count <= 4 else where
    return data[:place] + (value & (2 ** (8 * size) - 1)).to_bytes(size, "little") + data[place + size :]


def directory_loop(data: bytes, rng: Random) -> bytes:
    place = _tags(data)[-1]
    target = rng.choice((struct.unpack_from("<I", data, 4)[0], place, 8, len(data) - 3, 2**32 - 1))
    return data[:place] + struct.pack("<I", target) + data[place + 4 :]


def part_bomb(data: bytes, rng: Random) -> bytes:
    """A small image whose only part unpacks to 64 MiB, or twice as much as it should."""
    pixels = _pixels(data)
    zeros = rng.choice((_packed_zeros(2**26), zlib.compress(bytes(pixels.nbytes * 2))))
    buffer = io.BytesIO()
    options = {"photometric": "rgb" if pixels.shape[-1] == 3 else "minisblack", "compression": "zlib"}
    tifffile.imwrite(
        buffer,
        iter([zeros] * (len(pixels) if pixels.ndim == 3 and pixels.shape[-1] != 3 else 1)),
        shape=pixels.shape,
        dtype=pixels.dtype,
        rowsperstrip=4096,
        **options,
    )
    return buffer.getvalue()


def tiff_bomb(data: bytes, rng: Random) -> bytes:
    """67 million black pixels that are all there."""
    buffer = io.BytesIO()
    strip = zlib.compress(bytes(2**20))
    tifffile.imwrite(
        buffer, iter([strip] * 64), shape=(2**13, 2**13), dtype=np.uint8, compression="zlib", rowsperstrip=2**7
    )
    return buffer.getvalue()


def points_to_other_files(data: bytes, rng: Random) -> bytes:
    """A description that makes some readers open other files."""
    pixels = _pixels(data)
    text = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        '<Pixels ID="P:0" DimensionOrder="XYZCT" Type="uint8" SizeX="16" SizeY="16" SizeZ="9" SizeC="1" SizeT="1">'
        '<TiffData IFD="0" FirstZ="0" PlaneCount="1"><UUID FileName="../../secret.tif">urn:uuid:1</UUID></TiffData>'
        "</Pixels></Image></OME>"
    )
    return tiff(pixels, photometric="rgb" if pixels.shape[-1] == 3 else "minisblack", description=text, metadata=None)


def fewer_slices(data: bytes, rng: Random) -> bytes:
    return tiff(_pixels(data)[: rng.randrange(1, 5)], photometric="minisblack")


def huge_jpeg_size(data: bytes, rng: Random) -> bytes:
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", *rng.choices((65500, 65535, 20000, 9000), k=2)) + data[place + 4 :]


def orient(data: bytes, rng: Random) -> bytes:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = rng.randrange(2, 9)
    Image.open(io.BytesIO(data)).save(buffer, format="JPEG", exif=exif)
    return buffer.getvalue()


def png_mutations(labels: str, *, by_name: bool = True) -> list[Mutation]:
    """For a set whose label maps have `labels` in their names."""
    sure = (huge_size, other_size, other_number_of_rows, pixel_bomb, many_chunks, animation)
    of_labels = (unknown_label, other_shape, colour_labels)
    return [
        *of_bytes(".png"),
        content(truncate_surely, ending=".png", refused=True),
        *(content(change, ending=".png") for change in (other_kind, odd_pixels, odd_chunks, hidden_bomb)),
        *(content(change, ending=".png", refused=True) for change in sure),
        *(content(change, part=labels, ending=".png", refused=True) for change in of_labels),
        *((swap_files, copy_over, lost_file) if by_name else ()),
    ]


def truncate_surely(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def tiff_mutations(labels: str) -> list[Mutation]:
    sure = (huge_tiff_size, hole, part_bomb)
    likely = (odd_tag, odd_tag, other_compression, other_layout, directory_loop, points_to_other_files)
    of_labels = (unknown_label, other_shape, colour_labels, float_labels)
    if labels == "train-labels":  # any number may be a cell
        of_labels = (other_shape, colour_labels, float_labels, fewer_slices)
    return [
        *of_bytes(".tif"),
        *(content(change, ending=".tif") for change in likely),
        *(content(change, ending=".tif", refused=True) for change in (*sure, tiff_bomb)),
        *(content(change, part=labels, refused=True) for change in of_labels),
        swap_files,
        copy_over,
        lost_stack if labels == "train-labels" else lost_file,
        same_name_twice,
    ]


def huge_gif_size(data: bytes, rng: Random) -> bytes:
    """Of the screen, of the image in it, or of both."""
    places, size = [6, data.index(b"\x2c\0\0\0\0", 13) + 5], struct.pack("<HH", *rng.choices((65535, 30000), k=2))
    for place in rng.choice((places, places[:1], places[1:])):
        data = data[:place] + size + data[place + 4 :]
    return data


def gif_film(data: bytes, rng: Random) -> bytes:
    """The same image several times."""
    place = data.index(b"\x2c\0\0\0\0", 13)
    return data[:-1] + data[place:-1] * rng.choice((1, 10**4)) + data[-1:]


def short_gif(data: bytes, rng: Random) -> bytes:
    """Whole blocks, but too few pixels in them: the last byte may hold no more than the mark of the end."""
    place = data.index(b"\x2c\0\0\0\0", 13) + 11
    length = rng.randrange(1, data[place] - 1)
    return data[:place] + bytes([length]) + data[place + 1 : place + 1 + length] + b"\0;"


def wider_gif(data: bytes, rng: Random) -> bytes:
    buffer, image = io.BytesIO(), Image.open(io.BytesIO(data))
    image.resize((image.width + rng.choice((-1, 1, 40)), image.height)).save(buffer, format="GIF")
    return buffer.getvalue()


def gif_mutations(labels: str) -> list[Mutation]:
    sure = (huge_gif_size, gif_film, short_gif, truncate_surely)
    return [
        *of_bytes(".gif"),
        *(content(change, ending=".gif", refused=True) for change in sure),
        content(wider_gif, part=labels, ending=".gif", refused=True),
        *(swap_files, copy_over, lost_file),
    ]


def jpeg_mutations() -> list[Mutation]:
    sure = (huge_jpeg_size, orient)
    return [*of_bytes(".jpg"), *(content(change, ending=".jpg", refused=True) for change in sure), swap_files]
