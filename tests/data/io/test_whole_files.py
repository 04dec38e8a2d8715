"""Files that decoders read otherwise than they were written: turned, cut off, longer, shifted, in other units."""

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagecodecs
import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from lidc_study import Series
from PIL import Image
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import JPEG2000, JPEGBaseline8Bit

from hpunet.data.io.images import decode_image, decode_jpeg, read_image
from hpunet.data.io.inputs import read_stored, to_input
from hpunet.data.io.volumes import decode_nifti, encode_nifti, nifti_depth, read_stack
from hpunet.data.lidc.dicom import read_header, read_hounsfield
from hpunet.data.types import SetInfo
from hpunet.errors import DataError
from hpunet.predict.open_image import _pillow_array

RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
ORIENTATION = 0x0112


def noisy(*shape: int, seed: int = 0) -> np.ndarray:
    """Smooth with some noise, as photographs are."""
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(np.cumsum(rng.normal(size=shape), axis=0), axis=1)
    smooth = (smooth - smooth.min()) / max(1e-9, float(np.ptp(smooth))) * 255
    return (smooth + rng.normal(size=shape) * 5).clip(0, 255).astype(np.uint8)


def saved(image: np.ndarray, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format=kind, **options)
    return buffer.getvalue()


# Orientation


def turned_file(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    if kind == "TIFF":
        return with_tags(RAMP, (274, 3, 1, orientation))
    return saved(np.kron(RAMP, np.ones((16, 16), np.uint8)) if kind == "JPEG" else RAMP, kind, exif=exif)


def with_tags(image: np.ndarray, *tags: tuple[int, int, int, int]) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, image, photometric="minisblack", metadata=None, extratags=tags)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_orientation_is_followed_with_a_note_and_refused_in_training(kind: str, orientation: int) -> None:
    content, name, notes = turned_file(orientation, kind), f"a.{kind.lower()}", list[str]()
    found = decode_image(content, name=name.replace("jpeg", "jpg"), notes=notes)
    with Image.open(io.BytesIO(content)) as image:  # TIFF files are turned by Pillow itself
        expected = np.asarray(image)
        if kind != "TIFF":
            expected = {
                1: expected,
                2: expected[:, ::-1],
                3: expected[::-1, ::-1],
                4: expected[::-1],
                5: expected.T,
                6: expected[::-1].T,
                7: expected[::-1, ::-1].T,
                8: expected[:, ::-1].T,
            }[orientation]
        np.testing.assert_array_equal(found, expected)
        if kind != "TIFF":
            np.testing.assert_array_equal(_pillow_array(image, notes=[]), expected)
    assert len(notes) == (orientation != 1)
    if orientation == 1:
        decode_image(content, name=name.replace("jpeg", "jpg"))
        return
    for labels in (False, True) if kind != "JPEG" else (False,):
        with pytest.raises(DataError, match="upright"):
            decode_image(content, name=name.replace("jpeg", "jpg"), labels=labels)


def test_orientation_of_deep_colours_and_behind_the_pixels() -> None:
    """Of PNGs that Pillow does not decode, and of PNGs that name it last."""
    image = np.random.default_rng(0).integers(0, 65536, (4, 6, 3), dtype=np.uint16)
    plain = imagecodecs.png_encode(image)
    exif = b"II*\0" + struct.pack("<IHHHII", 8, 1, ORIENTATION, 3, 1, 6) + bytes(4)
    part = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    for place in (33, len(plain) - 12):
        content, notes = plain[:place] + part + plain[place:], list[str]()
        np.testing.assert_array_equal(decode_image(content, name="a.png", notes=notes), np.rot90(image, -1))
        assert notes


def test_stacks_must_be_upright_and_black_at_0(tmp_path: Path) -> None:
    stack = np.random.default_rng(0).integers(0, 256, (3, 8, 10), dtype=np.uint8)
    for name, options in (("turned", {"extratags": [(274, 3, 1, 6)]}), ("white", {"photometric": "miniswhite"})):
        tifffile.imwrite(tmp_path / f"{name}.tif", stack, **{"photometric": "minisblack", "metadata": None} | options)
        with pytest.raises(DataError, match=f"{name}.*upright"):
            read_stack(tmp_path / f"{name}.tif")


# JPEG


@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"optimize": True, "quality": 30},
        {"progressive": True, "quality": 97},
        {"restart_marker_blocks": 3},
        {"subsampling": 0},
        {"progressive": True, "subsampling": 1},
    ],
)
def test_jpeg_whole_is_read_and_cut_off_is_refused(channels: tuple[int, ...], options: dict[str, Any]) -> None:
    for seed, (h, w) in enumerate([(1, 1), (8, 8), (17, 5), (64, 64), (50, 131)]):
        image = noisy(h, w, *channels, seed=seed)
        content = saved(image, "JPEG", **options)
        expected = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(decode_jpeg(content, name="a.jpg"), expected)
        np.testing.assert_array_equal(decode_jpeg(content + b"behind", name="a.jpg"), expected)
    start = content.index(b"\xff\xda") + 14
    for end in np.linspace(start, len(content) - 25, 40).astype(int):
        for closed in (content[:end], content[:end].rstrip(b"\xff") + b"\xff\xd9"):
            with pytest.raises(DataError, match=r"a\.jpg: .*(truncated|damaged)"):
                decode_jpeg(closed, name="a.jpg")


def test_jpeg_of_another_encoder_is_read() -> None:
    for options in ({}, {"optimize": True}, {"subsampling": "411"}):
        content = imagecodecs.jpeg8_encode(noisy(70, 90, 3), level=80, **options)
        np.testing.assert_array_equal(decode_jpeg(content, name="a.jpg"), Image.open(io.BytesIO(content)))


def test_jpeg_of_missing_or_repeated_scans_is_refused() -> None:
    content = saved(noisy(64, 64), "JPEG", progressive=True)
    scans = [place for place in range(len(content)) if content[place : place + 2] == b"\xff\xda"]
    with pytest.raises(DataError, match="scans are not all there"):
        decode_jpeg(content[: scans[-1]] + b"\xff\xd9", name="a.jpg")
    with pytest.raises(DataError, match="repeat"):
        decode_jpeg(content[: scans[2]] + content[scans[1] :], name="a.jpg")


# TIFF and arrays


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite"])
def test_tiff_of_few_bits_is_white_at_its_largest_value(bits: int, photometric: str, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 2**bits, (6, 8), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric=photometric, bitspersample=bits)
    found, expected = read_image(tmp_path / "a.tif"), np.asarray(Image.open(tmp_path / "a.tif"))
    np.testing.assert_array_equal(found, expected)
    assert found.max() == 255
    if photometric == "minisblack":
        np.testing.assert_array_equal(read_image(tmp_path / "a.tif", labels=True), image)


def test_array_files_of_more_than_one_array_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "two.npy").open("wb") as file:
        np.save(file, RAMP)
        np.save(file, RAMP)
    with pytest.raises(DataError, match=r"two\.npy: holds more"):
        read_stored(tmp_path / "two.npy")


# NIfTI


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_nifti_longer_than_its_header_is_refused(pack: Callable[[bytes], bytes]) -> None:
    content = nibabel.Nifti1Image(np.ones((3, 4, 5), np.int16), np.eye(4)).to_bytes()
    assert decode_nifti(pack(content), name="v").slices.shape == (5, 3, 4)
    with pytest.raises(DataError, match="holds more"):
        decode_nifti(pack(content + bytes(2)), name="v")


@pytest.mark.parametrize("dtype", ["u1", ">i2", "<i2", ">i4", ">f4", "<f8", "u8"])
@pytest.mark.parametrize("scaling", [(0, 5), (np.nan, 0), (np.inf, 1), (1, 0), (0.1, -3)])
def test_nifti_values_are_nibabels(dtype: str, scaling: tuple[float, float]) -> None:
    """A slope that is 0 or no number is none."""
    stored = np.random.default_rng(0).integers(0, 200, (4, 5, 3)).astype(dtype)
    header = nibabel.Nifti1Header(endianness=">" if dtype[0] == ">" else "<")
    header.set_data_dtype(stored.dtype)
    content = bytearray(nibabel.Nifti1Image(stored, np.eye(4), header).to_bytes())
    order = "<" if content[:4] == b"\x5c\x01\0\0" else ">"
    content[112:120] = struct.pack(f"{order}ff", *scaling)
    expected = nibabel.Nifti1Image.from_bytes(bytes(content)).get_fdata()
    found = decode_nifti(bytes(content), name="v").slices
    np.testing.assert_allclose(found, np.moveaxis(expected, 2, 0), rtol=1e-6)
    assert found.dtype.isnative


# DICOM


def slice_file(folder: Path, **values: Any) -> Path:
    def change(_: int, data: Any) -> None:
        for name, value in values.items():
            setattr(data, name, value)

    return next(Series("P", "1.2", num_slices=1, shape=(8, 8)).write(folder, change).iterdir())


def test_dicom_pixels_in_high_bits_are_refused(tmp_path: Path) -> None:
    path = slice_file(tmp_path, BitsStored=12, HighBit=15)
    header = read_header(path)
    assert header is not None
    for read in (lambda: read_stored(path), lambda: read_hounsfield(header)):
        with pytest.raises(DataError, match="HighBit 15"):
            read()


def test_dicom_bits_above_the_stored_ones_do_not_count(tmp_path: Path) -> None:
    """Old scanners kept overlays there."""
    pixels = np.arange(64, dtype=np.uint16).reshape(8, 8)
    path = slice_file(
        tmp_path, BitsStored=12, HighBit=11, PixelRepresentation=0, PixelData=(pixels | 0x8000).tobytes()
    )
    np.testing.assert_array_equal(read_stored(path).values[0], pixels.astype(np.float32) - 1024)
    header = read_header(path)
    assert header is not None
    np.testing.assert_array_equal(read_hounsfield(header), pixels.astype(np.float32) - 1024)


def test_dicom_units_other_than_hounsfield(tmp_path: Path) -> None:
    info = SetInfo("folder", 1, 1, ("background", "lesion"), image_bits=32)
    for unit, is_hounsfield in (("HU", True), ("US", True), ("OD", False), ("mg/cc\x1b[31m", False)):
        path = slice_file(tmp_path / unit[:2], RescaleType=unit)
        stored, header = read_stored(path), read_header(path)
        assert header is not None
        assert "RescaleType" in stored.notes[0]
        assert "\x1b" not in stored.notes[0]
        if is_hounsfield:
            to_input(stored, name="a", where="a", info=info, window="ct-lung")
            read_hounsfield(header)
            continue
        with pytest.raises(DataError, match="not Hounsfield"):
            to_input(stored, name="a", where="a", info=info, window="ct-lung")
        with pytest.raises(DataError, match="expected Hounsfield"):
            read_hounsfield(header)
        to_input(stored, name="a", where="a", info=info, window=(0.0, 5.0))


def test_dicom_series_of_two_units_is_refused(tmp_path: Path) -> None:
    def change(number: int, data: Any) -> None:
        data.RescaleType = "OD" if number == 1 else "HU"

    folder = Series("P", "1.2", shape=(8, 8)).write(tmp_path, change)
    with pytest.raises(DataError, match="'HU' and 'OD'"):
        read_stored(folder)


def test_dicom_of_more_frames_than_it_says_is_refused(tmp_path: Path) -> None:
    path = slice_file(tmp_path, PixelData=bytes(3 * 8 * 8 * 2))
    with pytest.raises(DataError, match="384 bytes of pixels, expected 128"):
        read_stored(path)


FILES = Path(pydicom.__file__).parent / "data" / "test_files"


@pytest.mark.parametrize("name", ["SC_rgb_jpeg_dcmtk.dcm", "JPEG2000.dcm", "MR_small_jp2klossless.dcm"])
def test_dicom_of_compressed_frames_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    data = pydicom.dcmread(FILES / name)
    (frame,) = generate_frames(data.PixelData, number_of_frames=1)
    assert read_stored(FILES / name).values.any()
    for part in (0.4, 0.7, 0.95):
        data.PixelData = encapsulate([frame[: int(part * len(frame))].rstrip(b"\xff") + b"\xff\xd9"])
        data.save_as(tmp_path / "cut.dcm")
        with pytest.raises(DataError, match=r"cut\.dcm.*truncated"):
            read_stored(tmp_path / "cut.dcm")


@pytest.mark.parametrize(("kind", "syntax"), [("JPEG", JPEGBaseline8Bit), ("JPEG2000", JPEG2000)])
def test_dicom_of_frames_of_another_size_is_refused(kind: str, syntax: str, tmp_path: Path) -> None:
    path = slice_file(tmp_path, BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0)
    data = pydicom.dcmread(path)
    options = {"no_jp2": True} if kind == "JPEG2000" else {}
    for side in (8, 9):
        data.PixelData = encapsulate([saved(noisy(side, side), kind, **options)])
        data["PixelData"].VR, data.file_meta.TransferSyntaxUID = "OB", syntax
        data.save_as(path)
        if side == 8:
            assert read_stored(path).values.shape == (1, 8, 8)
    with pytest.raises(DataError, match=r"has \(?9"):
        read_stored(path)


def test_a_volume_of_fewer_voxels_than_its_header_says_is_refused_before_slices_are_counted() -> None:
    content = bytearray(gzip.decompress(encode_nifti(np.zeros((3, 4, 5), dtype=np.int16), header=None)))
    assert nifti_depth(bytes(content), packed=len(content), name="v.nii") == 3
    content[46:48] = (30_000).to_bytes(2, "little")
    with pytest.raises(DataError, match=r"v\.nii: truncated, "):
        nifti_depth(bytes(content), packed=len(content), name="v.nii")
