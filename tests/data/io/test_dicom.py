"""DICOM images and series: values and geometry are SimpleITK's, and what is not a single scan is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from lidc_study import AXIAL, Series
from pydicom.dataset import Dataset, FileDataset
from scipy.spatial.transform import Rotation

from hpunet.data.io.geometry import Geometry
from hpunet.data.io.inputs import input_name, read_stored
from hpunet.data.io.volumes import decode_nifti, encode_nifti
from hpunet.errors import DataError

FILES = Path(pydicom.__file__).parent / "data" / "test_files"
TILT = Rotation.from_euler("xyz", [20, -10, 15], degrees=True).as_matrix()
SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)


def affine_of(image: Any) -> np.ndarray:
    """From (row, column, slice, 1) to RAS, of a SimpleITK image."""
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    return np.diag([-1, -1, 1, 1]) @ affine[:, [1, 0, 2, 3]]


def check_spacing(geometry: Geometry, image: Any) -> None:
    assert geometry.spacing == pytest.approx(image.GetSpacing()[::-1], abs=1e-5)


def tilted(**options: Any) -> tuple[Series, Callable[[int, FileDataset], None]]:
    """A series with slope, intercept and tilt whose files are in the reversed order."""
    orientation = tuple((TILT @ np.reshape(AXIAL, (2, 3)).T).T.ravel().tolist())
    given: dict[str, Any] = {"slope": 2.5, "intercept": -1000.0, "spacing": (0.7, 0.6), "shape": (12, 10)}
    series = Series("P", "1.2", **given | {"reverse": True, "orientation": orientation, "num_slices": 5} | options)

    def place(number: int, data: FileDataset) -> None:
        position = [-20, 30, -5] + TILT @ [0, 0, 1] * 1.5 * number
        data.ImagePositionPatient = [f"{value:.8f}" for value in position]

    return series, place


def test_tilted_series_in_reversed_order_is_simple_itks(tmp_path: Path) -> None:
    series, place = tilted()
    folder = series.write(tmp_path, place)
    (folder / "readme.txt").write_text("not a slice")
    stored = read_stored(folder)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    expected = reader.Execute()
    np.testing.assert_array_equal(stored.values, SimpleITK.GetArrayFromImage(expected))
    assert stored.geometry.affine is not None
    np.testing.assert_allclose(stored.geometry.affine, affine_of(expected), atol=1e-5)
    assert stored.geometry.axes == "zyx"
    check_spacing(stored.geometry, expected)
    assert "2.5 · stored − 1000" in stored.notes[0]
    # Results lie where the series lies, for whoever reads them.
    result = tmp_path / "result.nii.gz"
    result.write_bytes(encode_nifti(stored.values, header=stored.header))
    written = SimpleITK.ReadImage(str(result))
    np.testing.assert_allclose(affine_of(written)[:, [1, 0, 2, 3]], affine_of(expected), atol=1e-4)
    # The order of the files does not matter, and the names of files may be given.
    files = sorted(folder.glob("*.dcm"))[::2] + sorted(folder.glob("*.dcm"))[1::2]
    again = read_stored(files)
    np.testing.assert_array_equal(again.values, stored.values)
    assert input_name(folder) == folder.name


CT, MR = "dicomdirtests/98892001/CT2N", "dicomdirtests/98892003"
PLAIN = ("CT_small.dcm", "MR_small.dcm", "MR_small_padded.dcm", "MR_small_implicit.dcm", "MR_small_bigendian.dcm")
PACKED = (
    "MR_small_RLE.dcm",
    "MR_small_jpeg_ls_lossless.dcm",
    "MR_small_jp2klossless.dcm",
    "J2K_pixelrep_mismatch.dcm",
    "JPEG2000.dcm",
)
COLOUR = ("ExplVR_BigEnd.dcm", "SC_rgb_rle_2frame.dcm", "SC_ybr_full_422_uncompressed.dcm", "SC_rgb_jpeg_dcmtk.dcm")
INVERTED = tuple(f"dicomdirtests/77654033/CR{name}" for name in ("1/6154", "2/6247", "3/6278"))
OBLIQUE = (
    f"{CT}/6293",
    f"{CT}/6924",
    *(f"{MR}/{name}" for name in ("MR1/4919", "MR2/4950", "MR2/6273", "MR700/4467")),
)


@pytest.mark.parametrize("name", [*PLAIN, *PACKED, *COLOUR, *INVERTED, *OBLIQUE])
def test_files_of_pydicom_are_as_simple_itk_reads_them(name: str) -> None:
    stored, image = read_stored(FILES / name), SimpleITK.ReadImage(str(FILES / name))
    values = SimpleITK.GetArrayFromImage(image).reshape(stored.values.shape)
    np.testing.assert_allclose(stored.values, values, rtol=1e-6)
    if stored.geometry.affine is None:
        assert name in (*COLOUR, *INVERTED, "JPEG2000.dcm")
        return
    expected = affine_of(image)
    # For SimpleITK, slices without SpacingBetweenSlices are 1 mm apart.
    expected[:, 2] *= np.linalg.norm(stored.geometry.affine[:, 2]) / np.linalg.norm(expected[:, 2])
    np.testing.assert_allclose(stored.geometry.affine, expected, atol=1e-4)


def test_series_of_pydicom_are_as_simple_itk_reads_them(tmp_path: Path) -> None:
    folder = FILES / "dicomdirtests" / "98892001" / "CT5N"
    stored, reader = read_stored(folder), SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    expected = reader.Execute()
    np.testing.assert_array_equal(stored.values, SimpleITK.GetArrayFromImage(expected))
    assert stored.geometry.affine is not None
    np.testing.assert_allclose(stored.geometry.affine, affine_of(expected), atol=1e-4)
    assert stored.window == (-160, 239)


def test_gantry_tilt_is_kept_as_a_slant(tmp_path: Path) -> None:
    """The slices of a tilted gantry are not stacked along their normal."""
    tilt = np.radians(20)
    orientation = (1, 0, 0, 0, np.cos(tilt), -np.sin(tilt))
    series = Series("P", "1.2", shape=(8, 8), orientation=orientation, num_slices=3, thickness=2.0)
    stored = read_stored(series.write(tmp_path))
    assert stored.geometry.affine is not None
    np.testing.assert_allclose(stored.geometry.affine[:3, 2], [0, 0, 2], atol=1e-5)
    assert (stored.geometry.spacing or ())[0] == pytest.approx(2 * np.cos(tilt), abs=1e-5)
    written = decode_nifti(encode_nifti(stored.values, header=stored.header), name="result")
    np.testing.assert_allclose(written.affine, stored.geometry.affine, atol=1e-5)


def enhanced(series: Series, place: Callable[[int, FileDataset], None]) -> FileDataset:
    """The series as one file of several frames, in reversed order."""
    data = series.dataset(0)
    frames = [series.dataset(number) for number in reversed(range(series.num_slices))]
    for number, frame in enumerate(reversed(frames)):
        place(number, frame)

    def item(**values: Any) -> list[Dataset]:
        inner = Dataset()
        for name, value in values.items():
            setattr(inner, name, value)
        return [inner]

    shared = Dataset()
    shared.PixelMeasuresSequence = item(PixelSpacing=data.PixelSpacing, SliceThickness="1.5")
    shared.PlaneOrientationSequence = item(ImageOrientationPatient=data.ImageOrientationPatient)
    shared.PixelValueTransformationSequence = item(RescaleSlope=data.RescaleSlope, RescaleIntercept="-1000")
    data.SharedFunctionalGroupsSequence = [shared]
    data.PerFrameFunctionalGroupsSequence = []
    for frame in frames:
        groups = Dataset()
        groups.PlanePositionSequence = item(ImagePositionPatient=frame.ImagePositionPatient)
        data.PerFrameFunctionalGroupsSequence.append(groups)
    for name in (
        "PixelSpacing",
        "ImageOrientationPatient",
        "ImagePositionPatient",
        "RescaleSlope",
        "RescaleIntercept",
    ):
        delattr(data, name)
    data.NumberOfFrames = len(frames)
    data.PixelData = b"".join(frame.PixelData for frame in frames)
    return data


def test_one_file_of_many_frames_is_the_series(tmp_path: Path) -> None:
    series, place = tilted()
    expected = read_stored(series.write(tmp_path, place))
    enhanced(series, place).save_as(tmp_path / "frames.dcm", enforce_file_format=True)
    stored = read_stored(tmp_path / "frames.dcm")
    np.testing.assert_array_equal(stored.values, expected.values)
    assert stored.geometry.affine is not None
    assert expected.geometry.affine is not None
    np.testing.assert_allclose(stored.geometry.affine, expected.geometry.affine)


def test_brightness_of_monochrome1_is_turned_but_for_ct(tmp_path: Path) -> None:
    for modality in ("CT", "DX"):
        series = Series("P", "1.2", num_slices=1, shape=(8, 8), signed=False, modality=modality)
        as_is = read_stored(series.write(tmp_path / modality))
        series.photometric = "MONOCHROME1"
        turned = read_stored(series.write(tmp_path / f"{modality}1"))
        image = as_is.values if modality == "CT" else 65535 - 2048 - as_is.values
        np.testing.assert_array_equal(turned.values, image)
        assert len(turned.notes) == (1 if modality == "CT" else 2)


def drop(number: int) -> Callable[[Path], None]:
    return lambda folder: (folder / f"1-{number:03d}.dcm").unlink()


def second_series(folder: Path) -> None:
    other = Series("P", "1.9", num_slices=2, shape=(12, 10)).write(folder / "other")
    for file in other.iterdir():
        os.rename(file, folder / f"other-{file.name}")


def change_one(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = pydicom.dcmread(folder / "1-002.dcm")
        for name, value in values.items():
            setattr(data, name, value)
        data.save_as(folder / "1-002.dcm")

    return change


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(2), "slices are missing after slice 2 of 4: a gap of 3 mm where 1.5 mm"),
        (second_series, "holds 2 series, of 5 and 2 files"),
        (change_one(ImagePositionPatient=["-20", "30", "-5"]), "lie at the place of another"),
        (change_one(PixelSpacing=["0.7", "0.7"]), "orientation or spacing differ"),
        (change_one(Rows=6), "its size or colours differ"),
        (change_one(PixelData=bytes(100)), "100 bytes of pixels, expected 240"),
        (change_one(RescaleSlope="0"), "RescaleSlope 0"),
        (change_one(PhotometricInterpretation="PALETTE COLOR"), "expected grey or RGB"),
        (change_one(NumberOfFrames=10**6), "frames"),
        (empty, "holds no DICOM file"),
    ],
)
def test_what_is_not_one_whole_scan_is_refused(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    series, place = tilted()
    folder = series.write(tmp_path, place)
    change(folder)
    with pytest.raises(DataError, match=message) as refused:
        read_stored(folder)
    said = str(refused.value).replace(str(folder), "")
    assert "1.2" not in said.replace("1.5", "")  # no UID


def test_compressed_files_name_the_package_that_is_missing() -> None:
    with pytest.raises(DataError, match="pip install pylibjpeg pylibjpeg-libjpeg"):
        read_stored(FILES / "SC_rgb_jpeg_gdcm.dcm")
    with pytest.raises(DataError, match="save it uncompressed"):
        read_stored(FILES / "image_dfl.dcm")
