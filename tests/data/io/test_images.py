"""Readers of image files, stacks and archives: what they give back, and what they refuse."""

import gzip
import io
import os
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import imagecodecs
import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from hpunet.data.io import archives, limits, volumes
from hpunet.data.io.archives import FileTree, read_tar
from hpunet.data.io.images import decode_image, decode_png, read_image
from hpunet.data.io.limits import need
from hpunet.data.io.png import num_pixel_bytes, read_png_header
from hpunet.data.io.volumes import (
    NIFTI_HEAD_BYTES,
    decode_nifti,
    encode_nifti,
    nifti_depth,
    read_stack,
    stack_header,
)
from hpunet.errors import DataError

RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6)

TILED = {"shape": (8, 8), "dtype": "uint8", "compression": "zlib", "tile": (32768, 32768)}


def saved(array: np.ndarray, path: Path, **options: object) -> Path:
    Image.fromarray(array).save(path, **options)
    return path


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_read_image_keeps_grey_values(tmp_path: Path, dtype: type, ending: str) -> None:
    image = (RAMP * 10).astype(dtype)
    found = read_image(saved(image, tmp_path / f"a.{ending}"))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, image)


def test_read_image_keeps_colour_and_float(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(read_image(saved(colour, tmp_path / "a.png")), colour)
    for name, planar in (("chunky", "contig"), ("planes", "separate")):
        stored = colour if planar == "contig" else colour.transpose(2, 0, 1)
        tifffile.imwrite(tmp_path / f"{name}.tif", stored, photometric="rgb", planarconfig=planar, compression="lzw")
        np.testing.assert_array_equal(read_image(tmp_path / f"{name}.tif"), colour)
    tifffile.imwrite(tmp_path / "f.tif", RAMP.astype(">f4") / 7, byteorder=">")
    found = read_image(tmp_path / "f.tif")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, RAMP / 7, rtol=1e-6)


def test_read_image_jpeg_is_close_and_never_a_label_map(tmp_path: Path) -> None:
    flat = np.full((16, 16, 3), (200, 40, 90), dtype=np.uint8)
    path = saved(flat, tmp_path / "a.jpg", quality=95)
    np.testing.assert_allclose(read_image(path), flat, atol=4)
    with pytest.raises(DataError, match=r"a\.jpg.*JPEG changes label values"):
        read_image(path, labels=True)


def test_read_image_palette_gives_colours_or_indices(tmp_path: Path) -> None:
    indices = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)
    image = Image.fromarray(indices).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata(indices.ravel().tolist())
    image.save(tmp_path / "p.png")
    np.testing.assert_array_equal(read_image(tmp_path / "p.png", labels=True), indices)
    assert read_image(tmp_path / "p.png")[0].tolist() == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    image.save(tmp_path / "t.png", transparency=1)
    assert read_image(tmp_path / "t.png")[0, :, 3].tolist() == [255, 0, 255]


def in_palette(indices: np.ndarray, *colours: tuple[int, int, int]) -> Image.Image:
    image = Image.new("P", indices.shape[::-1])
    image.putpalette(np.ravel(colours).tolist())
    image.putdata(indices.ravel().tolist())
    return image


@pytest.mark.parametrize("ending", ["png", "gif"])
def test_palettes_give_colours_grey_or_classes(tmp_path: Path, ending: str) -> None:
    indices, path = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8), tmp_path / f"p.{ending}"
    in_palette(indices, (10, 20, 30), (40, 50, 60), (70, 80, 90)).save(path)
    assert read_image(path)[0].tolist() == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    np.testing.assert_array_equal(read_image(path, labels=True), indices)
    in_palette(indices, (9, 9, 9), (50, 50, 50), (200, 200, 200)).save(path)
    assert read_image(path)[0].tolist() == [9, 50, 200]
    np.testing.assert_array_equal(read_image(path, labels=True), indices)
    # Either of two colours may come first, so what is white is marked.
    for colours, marked in (((0, 255), indices == 1), ((255, 0), indices != 1)):
        in_palette(indices % 2, *((value,) * 3 for value in colours)).save(path)
        np.testing.assert_array_equal(read_image(path, labels=True), marked * 255)
        np.testing.assert_array_equal(read_image(path), marked * 255)


def test_gif_keeps_grey_and_is_whole_and_one(tmp_path: Path) -> None:
    image = np.arange(256, dtype=np.uint8).reshape(8, 32)
    path = saved(image, tmp_path / "a.gif")
    np.testing.assert_array_equal(read_image(path), image)
    np.testing.assert_array_equal(read_image(path, labels=True), image)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        with pytest.raises(DataError, match=r"a\.gif: .*(GIF|damaged)"):
            decode_image(content[:length], name="a.gif")
    second = Image.fromarray(255 - image)
    Image.fromarray(image).save(path, save_all=True, append_images=[second])
    with pytest.raises(DataError, match="holds 2 images, expected one"):
        read_image(path)
    place = content.index(b"\x2c\0\0\0\0", 13)
    smaller = content[: place + 5] + b"\x10" + content[place + 6 :]
    with pytest.raises(DataError, match="expected a whole one"):
        decode_image(smaller, name="a.gif")


def test_rotated_jpeg_is_turned_where_a_note_says_so(tmp_path: Path) -> None:
    orient, notes = Image.Exif(), list[str]()
    orient[0x0112] = 6
    image = np.kron(RAMP * 10, np.ones((16, 16), np.uint8)).astype(np.uint8)
    turned = read_image(saved(image, tmp_path / "a.jpg", exif=orient, quality=95), notes=notes)
    np.testing.assert_allclose(turned, np.rot90(image, -1), atol=6)
    assert "EXIF" in notes[0]
    assert read_image(saved(image, tmp_path / "b.jpg"), notes=notes).shape == image.shape
    assert len(notes) == 1


def padded_tiff(image: np.ndarray, *, rows: int, pack: Callable[[bytes], bytes], compression: int) -> bytes:
    """An RGB TIFF whose strips all hold the same number of rows and a few bytes more, as some writers have them."""
    h, w, _ = image.shape
    parts = [image[y : y + rows].tobytes() for y in range(0, h, rows)]
    parts = [pack(part + bytes(rows * w * 3 + 5 - len(part))) for part in parts]
    places = np.cumsum([8, *map(len, parts)])
    end = int(places[-1])
    arrays = struct.pack(f"<3H{2 * len(parts)}I", 8, 8, 8, *places[:-1], *map(len, parts))
    values = {256: w, 257: h, 258: end, 259: compression, 262: 2, 273: end + 6, 277: 3, 278: rows}
    values |= {279: end + 6 + 4 * len(parts), 284: 1}
    if len(parts) == 1:  # a single number stands in its tag
        values |= {273: 8, 279: len(parts[0])}
    counts = {258: 3, 273: len(parts), 279: len(parts)}
    tags = [(tag, 3 if tag in (258, 259) else 4, counts.get(tag, 1), value) for tag, value in values.items()]
    directory = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = b"II*\0" + struct.pack("<I", end + len(arrays))
    return head + b"".join(parts) + arrays + struct.pack("<H", len(tags)) + directory + bytes(4)


@pytest.mark.parametrize("rows", [8, 24])
@pytest.mark.parametrize(("pack", "compression"), [(bytes, 1), (imagecodecs.lzw_encode, 5)])
def test_tiff_of_padded_strips(rows: int, pack: Callable[[bytes], bytes], compression: int) -> None:
    """LZW strips of such files were refused, although Pillow and tifffile read them."""
    image = np.random.default_rng(0).integers(0, 256, (20, 13, 3), dtype=np.uint8)
    content = padded_tiff(image, rows=rows, pack=pack, compression=compression)
    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(content)), image)
    np.testing.assert_array_equal(decode_image(content, name="a.tif"), image)


def test_tiff_whose_last_strip_claims_more_than_the_file_has() -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 13, 3), dtype=np.uint8)
    content = padded_tiff(image, rows=20, pack=bytes, compression=1)
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        place = tiff.pages[0].tags[279].offset + 8
    more = content[:place] + struct.pack("<I", 10**6) + content[place + 4 :]
    np.testing.assert_array_equal(decode_image(more, name="a.tif"), image)


def test_tiff_where_0_is_white_is_turned(tmp_path: Path) -> None:
    notes: list[str] = []
    tifffile.imwrite(tmp_path / "w.tif", RAMP, photometric="miniswhite")
    np.testing.assert_array_equal(read_image(tmp_path / "w.tif", notes=notes), 255 - RAMP)
    assert "MINISWHITE" in notes[0]
    tifffile.imwrite(tmp_path / "m.tif", RAMP % 2 == 0, photometric="miniswhite")
    np.testing.assert_array_equal(read_image(tmp_path / "m.tif", labels=True), RAMP % 2)


def grey_png(bits: int, rows: list[bytes], width: int, *, colour_type: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("bits", "row", "values", "shown"),
    [
        (1, b"\x60", [0, 1, 1, 0], [0, 255, 255, 0]),
        (2, b"\x1b", [0, 1, 2, 3], [0, 85, 170, 255]),
        (4, b"\x01\x7f", [0, 1, 7, 15], [0, 17, 119, 255]),
    ],
)
def test_decode_png_labels_of_few_bits_are_not_stretched(
    bits: int, row: bytes, values: list[int], shown: list[int]
) -> None:
    content = grey_png(bits, [row], 4)
    assert decode_png(content, name="a", labels=True).tolist() == [values]
    assert decode_png(content, name="a").tolist() == [shown]


@pytest.mark.parametrize("num_channels", [3, 4])
def test_decode_png_keeps_colour_of_16_bits(num_channels: int) -> None:
    """Pillow gives 8 bits."""
    image = np.random.default_rng(0).integers(0, 65536, (5, 7, num_channels), dtype=np.uint16)
    np.testing.assert_array_equal(decode_png(imagecodecs.png_encode(image), name="deep.png"), image)
    little = decode_png(grey_png(16, [b"\x01\x02" * 6], 2, colour_type=2), name="deep.png")
    assert little.tolist() == [[[258] * 3] * 2]


def test_decode_png_refuses_huge_claims() -> None:
    with pytest.raises(DataError, match=r"huge\.png"):
        decode_png(grey_png(8, [b"\0"] * 9000, 9000), name="huge.png")


def assert_refused_when_damaged(path: Path, read: Callable[[Path], object]) -> None:
    content = path.read_bytes()
    for damaged in (b"", b"nonsense", content[:20], content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(path.name)):
            read(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "tif"])
def test_read_image_damaged_files_are_named(tmp_path: Path, ending: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8)
    path = saved(noise, tmp_path / f"cut.{ending}")
    assert_refused_when_damaged(path, read_image)


def test_read_image_refusals_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"none\.png.*cannot be read"):
        read_image(tmp_path / "none.png")
    (tmp_path / "a.bmp").write_bytes(b"BM")
    with pytest.raises(DataError, match=r"a\.bmp.*expected an image"):
        read_image(tmp_path / "a.bmp")
    Image.new("CMYK", (4, 4)).save(tmp_path / "c.jpg")
    with pytest.raises(DataError, match=r"c\.jpg.*CMYK"):
        read_image(tmp_path / "c.jpg")
    orient = Image.Exif()
    orient[0x0112] = 6
    saved(RAMP, tmp_path / "t.jpg", exif=orient)
    with pytest.raises(DataError, match=r"t\.jpg.*upright"):
        read_image(tmp_path / "t.jpg")
    tifffile.imwrite(tmp_path / "w.tif", RAMP, photometric="miniswhite")
    with pytest.raises(DataError, match=r"w\.tif.*MINISWHITE"):
        read_image(tmp_path / "w.tif", labels=True)
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    with pytest.raises(DataError, match=r"s\.tif.*one grey or colour image"):
        read_image(tmp_path / "s.tif")
    Image.fromarray(RAMP).save(tmp_path / "two.png", save_all=True, append_images=[Image.fromarray(RAMP + 1)])
    with pytest.raises(DataError, match=r"two\.png.*animation"):
        read_image(tmp_path / "two.png")
    tifffile.imwrite(tmp_path / "tile.tif", iter([zlib.compress(b"")]), **TILED)
    with pytest.raises(DataError, match=r"tile\.tif: 32768x32768"):
        read_image(tmp_path / "tile.tif")
    saved(RAMP, tmp_path / "big.tif")
    monkeypatch.setattr(limits, "MAX_PIXELS", 20)
    with pytest.raises(DataError, match=r"big\.tif.*20 pixels"):
        read_image(tmp_path / "big.tif")
    os.truncate(tmp_path / "big.tif", 2**30 + 1)
    with pytest.raises(DataError, match=r"big\.tif.*at most"):
        read_image(tmp_path / "big.tif")


def test_read_image_refuses_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: not a plain file"):
        read_image(tmp_path / "pipe.png")


def png_of_rows(num_rows: int, *, height: int = 4, spoil_checksum: bool = False) -> bytes:
    """A PNG that says it has `height` rows of 6 pixels and holds another number of them."""
    content = bytearray(grey_png(8, [bytes([200]) * 6] * num_rows, 6))
    content[20:24] = struct.pack(">I", height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]) ^ spoil_checksum)
    return bytes(content)


def test_decode_png_wants_all_its_pixels_and_no_others() -> None:
    assert (decode_png(png_of_rows(4), name="a.png") == 200).all()
    with pytest.raises(DataError, match=r"a\.png: truncated, 21 bytes of pixels where 28 are expected"):
        decode_png(png_of_rows(3), name="a.png")
    with pytest.raises(DataError, match=r"a\.png: damaged, holds more pixels than its 4x6"):
        decode_png(png_of_rows(5), name="a.png")
    with pytest.raises(DataError, match=r"a\.png: damaged, the checksum of its part IHDR is wrong"):
        decode_png(png_of_rows(4, spoil_checksum=True), name="a.png")


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (5, 4), (8, 8), (9, 17)])
@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "I;16"])
def test_num_pixel_bytes_of_interlaced_images(height: int, width: int, mode: str) -> None:
    """Each pass is an image of its own, made of every 8th, 4th or 2nd pixel."""
    header = read_png_header(interlaced_header(height, width, mode), name="a")
    pixels = np.indices((height, width))
    row, column = pixels[0] % 8, pixels[1] % 8
    passes = [
        (row == 0) & (column == 0),
        (row == 0) & (column == 4),
        (row == 4) & (column % 4 == 0),
        (row % 4 == 0) & (column % 4 == 2),
        (row % 4 == 2) & (column % 2 == 0),
        (row % 2 == 0) & (column % 2 == 1),
        row % 2 == 1,
    ]
    assert np.sum(passes, axis=0).tolist() == np.ones((height, width), int).tolist()
    bits = {"1": 1, "L": 8, "RGB": 24, "RGBA": 32, "I;16": 16}[mode]
    rows = [line.sum() for chosen in passes for line in chosen if line.any()]
    assert num_pixel_bytes(header) == sum(1 + (int(count) * bits + 7) // 8 for count in rows)


def interlaced_header(height: int, width: int, mode: str) -> bytes:
    bits, colour = {"1": (1, 0), "L": (8, 0), "RGB": (8, 2), "RGBA": (8, 6), "I;16": (16, 0)}[mode]
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + bytes(4)


def test_read_image_refuses_files_that_grow_out_of_proportion(tmp_path: Path) -> None:
    black = np.zeros((6000, 6000), np.uint8)
    for path in (saved(black, tmp_path / "black.png"), tmp_path / "black.tif"):
        if path.suffix == ".tif":
            tifffile.imwrite(path, black, compression="zlib")
        with pytest.raises(DataError, match=rf"{path.name}: \d+ bytes that claim to hold 36"):
            read_image(path)
        size = limits.ImageSize(1, 6000, 6000, "image.png")
        assert decode_image(path.read_bytes(), name=path.name, labels=True, size=size).shape == (6000, 6000)


def test_read_image_refuses_holes_in_a_tiff(tmp_path: Path) -> None:
    path = tmp_path / "hole.tif"
    tifffile.imwrite(path, RAMP, compression="zlib", rowsperstrip=1)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        counts = list(tiff.pages[0].databytecounts)
        tiff.pages[0].tags["StripByteCounts"].overwrite([*counts[:-1], 0])
    with pytest.raises(DataError, match=r"hole\.tif, image 0: part 3 is missing"):
        read_image(path)
    tifffile.imwrite(path, iter([zlib.compress(bytes(2**20))]), shape=(4, 6), dtype=np.uint8, compression="zlib")
    with pytest.raises(DataError, match=r"hole\.tif"):
        read_image(path)


def test_need_names_the_extra() -> None:
    with pytest.raises(DataError, match=r"no_such_module.*pip install no_such_module"):
        need("no_such_module")


STACK = np.random.default_rng(2).integers(0, 60000, (3, 8, 10), dtype=np.uint16)


def write_tiff(path: Path) -> Path:
    tifffile.imwrite(path.with_suffix(".tif"), STACK, photometric="minisblack")
    return path.with_suffix(".tif")


def write_packed_tiff(path: Path) -> Path:
    tifffile.imwrite(path.with_suffix(".tif"), STACK, photometric="minisblack", compression="zlib")
    return path.with_suffix(".tif")


def write_hdf5(path: Path) -> Path:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["notes"] = np.zeros(4)
        file.create_dataset("any/name", data=STACK, compression="gzip")
    return path.with_suffix(".h5")


@pytest.mark.parametrize("write", [write_tiff, write_packed_tiff, write_hdf5])
def test_read_stack_gives_what_was_written(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "stack")
    assert stack_header(path) == ((3, 8, 10), np.dtype(np.uint16))
    stack = read_stack(path)
    np.testing.assert_array_equal(stack, STACK)
    assert isinstance(stack, np.memmap) == (write is write_tiff)


def test_read_stack_takes_a_single_slice(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "one.tif", STACK[0])
    np.testing.assert_array_equal(read_stack(tmp_path / "one.tif"), STACK[:1])


@pytest.mark.parametrize("write", [write_tiff, write_packed_tiff, write_hdf5])
def test_read_stack_damaged_files_are_named(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    assert_refused_when_damaged(write(tmp_path / "cut"), read_stack)


def test_read_stack_refusals_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"none\.tif"):
        read_stack(tmp_path / "none.tif")
    with pytest.raises(DataError, match=r"a\.npy.*expected a stack"):
        stack_header(tmp_path / "a.npy")
    tifffile.imwrite(tmp_path / "rgb.tif", np.zeros((8, 8, 3), np.uint8), photometric="rgb")
    with pytest.raises(DataError, match=r"rgb\.tif.*grey slices"):
        read_stack(tmp_path / "rgb.tif")
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["first"], file["second"] = STACK, STACK
    with pytest.raises(DataError, match=r"two\.h5.*/first, /second"):
        read_stack(tmp_path / "two.h5")
    with h5py.File(tmp_path / "none.h5", "w") as file:
        file["flat"] = STACK[0]
        file["link"] = h5py.ExternalLink(str(tmp_path / "two.h5"), "first")
    with pytest.raises(DataError, match=r"none\.h5.*found none"):
        read_stack(tmp_path / "none.h5")
    with h5py.File(tmp_path / "ext.h5", "w") as file:
        raw = [(str(tmp_path / "secret"), 0, STACK.nbytes)]
        file.create_dataset("voxels", STACK.shape, STACK.dtype, external=raw)
    with pytest.raises(DataError, match=r"ext\.h5.*other files"):
        read_stack(tmp_path / "ext.h5")
    monkeypatch.setattr(volumes, "MAX_VOLUME_BYTES", 100)
    with pytest.raises(DataError, match=r"big\.tif.*100 bytes"):
        read_stack(write_tiff(tmp_path / "big"))


def nifti_bytes(array: np.ndarray, *, version: type = nibabel.Nifti1Image) -> bytes:
    return version(array, np.diag([2.0, 3.0, 4.0, 1.0])).to_bytes()


def in_two_members(content: bytes) -> bytes:
    return gzip.compress(content[:-8]) + gzip.compress(content[-8:])


@pytest.mark.parametrize("version", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, in_two_members])
def test_decode_nifti_slices_along_the_last_axis(version: type, pack: Callable[[bytes], bytes]) -> None:
    array = np.arange(2 * 3 * 5, dtype=np.int16).reshape(2, 3, 5) - 7
    content = pack(nifti_bytes(array, version=version))
    volume = decode_nifti(content, name="v")
    assert nifti_depth(content[: volumes.NIFTI_HEAD_BYTES], packed=len(content), name="v") == 5
    np.testing.assert_array_equal(volume.slices, array.transpose(2, 0, 1))
    np.testing.assert_array_equal(volume.affine, np.diag([2.0, 3.0, 4.0, 1.0]))


def test_decode_nifti_applies_its_own_scaling() -> None:
    image = nibabel.Nifti1Image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    content = bytearray(image.to_bytes())
    content[112:120] = struct.pack("<ff", 0.5, -1.0)  # scl_slope, scl_inter
    assert decode_nifti(bytes(content), name="v").slices[:, 0, 0].tolist() == [-1.0, -0.5]
    content[112:120] = struct.pack("<ff", 0.5, np.inf)
    for size in (None, limits.ImageSize(2, 2, 2, "image")):  # of an image or a mask
        with pytest.raises(DataError, match=r"v\.nii.*intercept"):
            decode_nifti(bytes(content), name="v.nii", size=size)


def test_decode_nifti_passes_over_long_extensions() -> None:
    image = nibabel.Nifti1Image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * 20000))
    assert decode_nifti(image.to_bytes(), name="v").slices.ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_encode_nifti_without_a_header_and_back() -> None:
    slices = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    content = encode_nifti(slices, header=None)
    assert content == encode_nifti(slices, header=None)
    back = decode_nifti(content, name="v")
    np.testing.assert_array_equal(back.slices, slices)
    np.testing.assert_array_equal(back.affine, np.eye(4))


def test_decode_nifti_refusals_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    content = nifti_bytes(np.zeros((4, 4, 4), np.float32))
    packed = gzip.compress(nifti_bytes(np.random.default_rng(0).random((8, 8, 8))))
    for damaged in (b"", b"nonsense" * 50, content[:100], content[:-1], packed[:-200], packed[:300], b"\x1f\x8bxx"):
        with pytest.raises(DataError, match=r"cut\.nii"):
            decode_nifti(damaged, name="cut.nii")
    negative = content[:42] + struct.pack("<h", -4) + content[44:]  # the first size
    with pytest.raises(DataError, match=r"minus\.nii"):
        nifti_depth(negative, packed=len(negative), name="minus.nii")
    with pytest.raises(DataError, match=r"four\.nii.*three dimensions"):
        decode_nifti(nifti_bytes(np.zeros((4, 4, 4, 2), np.float32)), name="four.nii")
    with pytest.raises(DataError, match=r"complex\.nii.*numbers"):
        decode_nifti(nifti_bytes(np.zeros((4, 4, 4), np.complex64)), name="complex.nii")
    monkeypatch.setattr(volumes, "MAX_VOLUME_BYTES", 500)
    with pytest.raises(DataError, match=r"big\.nii.*500 bytes"):
        decode_nifti(content, name="big.nii")


def write_tar(path: Path, members: list[tuple[str, bytes]], *, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_file_tree_is_the_same_for_folder_and_archive(tmp_path: Path) -> None:
    members = [("images/a.png", b"12345"), ("graders/x/a.png", b"6"), ("other/b", b"7"), ("images/.hidden", b"8")]
    for name, content in members:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(content)
    plain = write_tar(tmp_path / "plain.tar.gz", members)
    below = write_tar(tmp_path / "below.tgz", [(f"./set/{name}", content) for name, content in members])
    for path in (tmp_path / "set", plain, below):
        tree = FileTree(path, tops=("images", "graders"))
        assert tree.names == ["graders/x/a.png", "images/a.png"]
        assert tree.read("images/a.png") == b"12345"
        assert tree.head("images/a.png", 2) == b"12"


def test_read_stack_refuses_what_was_never_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("voxels", STACK.shape, STACK.dtype, chunks=(1, 8, 10))[:2] = STACK[:2]
    with pytest.raises(DataError, match=r"part\.h5: dataset /voxels is incomplete"):
        read_stack(tmp_path / "part.h5")


def test_read_tar_refuses_an_archive_that_ends_too_early(tmp_path: Path) -> None:
    """tarfile itself takes a damaged header for the end, and gives the files before it."""
    path = tmp_path / "cut.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a", "b"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"123"))
    content = path.read_bytes()
    assert read_tar(path) == {"a": b"123", "b": b"123"}
    for damaged in (content[:1024], content[:1200], content[:1024] + b"x" + content[1025:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cut\.tar: damaged or cut off at byte 1024"):
            read_tar(path)
    path.write_bytes(content[:1024] + bytes(512) + content[1536:])
    with pytest.raises(DataError, match=r"cut\.tar: damaged, .*behind"):
        read_tar(path)


def test_file_tree_refuses_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(b"1")
    (tmp_path / "images/loop").symlink_to(tmp_path / "images")
    with pytest.raises(DataError, match="loop: lies more than 6 folders deep, or is a loop of links"):
        FileTree(tmp_path, tops=("images",))


def test_read_tar_refusals_name_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.tar.gz"
    for name in ("../a", "/etc/a", "x/../../a"):
        with pytest.raises(DataError, match=r"bad\.tar\.gz.*leads out of the archive"):
            read_tar(write_tar(path, [(name, b"")]))
    with pytest.raises(DataError, match=r"bad\.tar\.gz/a: links, devices and sparse files are refused"):
        read_tar(write_tar(path, [("a", b"")], kind=tarfile.SYMTYPE))
    with pytest.raises(DataError, match=r"bad\.tar\.gz/a: is in the archive twice"):
        read_tar(write_tar(path, [("a", b"1"), ("a", b"2")]))
    content = write_tar(path, [("a", np.random.default_rng(0).bytes(5000))]).read_bytes()
    for damaged in (b"", b"nonsense", content[:3000]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"bad\.tar\.gz.*not a readable archive"):
            read_tar(path)
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(DataError, match=r"bad\.tar\.gz.*more than"):
        read_tar(write_tar(path, [("a", b"123456"), ("b", b"123456")]))
    with pytest.raises(DataError, match=r"absent.*no such folder"):
        FileTree(tmp_path / "absent", tops=("images",))


def test_nifti_headers_of_fewer_slices_than_the_file_holds_are_refused() -> None:
    content = bytearray(nibabel.Nifti1Image(np.zeros((4, 5, 3), np.int16), np.eye(4)).to_bytes())
    assert nifti_depth(bytes(content[:NIFTI_HEAD_BYTES]), packed=len(content), name="a.nii") == 3
    content[46:48] = (1).to_bytes(2, "little")
    with pytest.raises(DataError, match=r"a\.nii.*more than"):
        nifti_depth(bytes(content[:NIFTI_HEAD_BYTES]), packed=len(content), name="a.nii")
