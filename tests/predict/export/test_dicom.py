"""DICOM SEG and RTSTRUCT: read back by others, every pixel lies on the slice that its file says."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest
from dicom_series import IDENTITY, KINDS, NAME, ROOT, SPACING, write_series
from exported import inside, levels, stored_slices, thresholded
from lidc_study import Series
from skimage.draw import polygon2mask
from untrained import VOLUMES, make_instance_predictor, make_predictor, make_volume_predictor

from hpunet.errors import DataError
from hpunet.predict.export.registry import check_formats, fitting_formats
from hpunet.predict.instances import save_instances
from hpunet.predict.place import Place

PLACE = {"at": (8, 15), "slices": (1, 3)}


LESIONS = replace(VOLUMES, fixed_classes=("background", "lesion"))
SOURCES = [*((kind, False, False) for kind in KINDS), ("tilted", True, False), ("one-file", True, False)]
SOURCES += [("tilted", True, True), ("one-file", False, True)]  # by a model of volumes


@pytest.fixture(scope="module", params=SOURCES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a series, that of results, and the part of a slice that was sampled."""
    kind, is_crop, is_volume = request.param
    folder = tmp_path_factory.mktemp(kind)
    source = write_series(folder, kind)
    predictor = make_volume_predictor(LESIONS) if is_volume else make_predictor()
    prediction = thresholded(predictor, source, **PLACE if is_crop else {})
    prediction.save(folder / "out", formats="dicom-seg,rtstruct")
    (_, y, x), (h, w) = prediction.place.offset, prediction.mean.shape[-2:]
    return source, folder / "out", np.s_[y : y + h, x : x + w], len(prediction.mean)


def frames_of(data: pydicom.Dataset) -> dict[tuple[int, tuple[str, int]], tuple[np.ndarray, list[float]]]:
    """Pixels and position by number of the segment and slice of the source, by pydicom and the standard alone."""
    found = {}
    pixels = data.pixel_array.reshape(-1, data.Rows, data.Columns)
    for frame, groups in zip(pixels, data.PerFrameFunctionalGroupsSequence, strict=True):
        (image,) = groups.DerivationImageSequence[0].SourceImageSequence
        source = str(image.ReferencedSOPInstanceUID), int(image.get("ReferencedFrameNumber") or 1)
        number = int(groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber)
        place = groups.get("PlanePositionSequence")  # projections have none
        found[number, source] = frame, list(place[0].ImagePositionPatient) if place else []
    return found


def test_segments_are_the_pixels_of_the_slices_that_they_refer_to(written: Any) -> None:
    source, out, place, _ = written
    frames, slices = frames_of(pydicom.dcmread(out / "segments.dcm")), stored_slices(source)
    assert len(frames) == 4 * written[3]
    assert len({place for _, place in frames}) == written[3]
    for (number, where), (pixels, _) in frames.items():
        np.testing.assert_array_equal(pixels, inside(slices[where], place, levels()[number - 1]))
    # Overlapping, and one that marks nothing.
    described = pydicom.dcmread(out / "segments.dcm").SegmentSequence
    assert [item.SegmentLabel for item in described] == [f"{letter}: lesion" for letter in "ABCDE"]
    assert described[0].SegmentDescription.startswith("33% of 6 samples: ")
    assert described[4].SegmentDescription == "17% of 6 samples: nothing marked"
    assert {number for number, _ in frames} == {1, 2, 3, 4}
    assert {item.SegmentAlgorithmType for item in described} == {"AUTOMATIC"}


def test_segments_lie_where_the_slices_lie(written: Any) -> None:
    source, out, *_ = written
    data = pydicom.dcmread(out / "segments.dcm")
    shared = data.SharedFunctionalGroupsSequence[0]
    assert shared.PixelMeasuresSequence[0].PixelSpacing == list(SPACING)
    files = [pydicom.dcmread(path, stop_before_pixels=True) for path in source.iterdir()]
    places = {}
    for file in files:
        if "NumberOfFrames" in file:
            for number, groups in enumerate(file.PerFrameFunctionalGroupsSequence, start=1):
                position = groups.PlanePositionSequence[0].ImagePositionPatient
                places[str(file.SOPInstanceUID), number] = list(position)
        else:
            places[str(file.SOPInstanceUID), 1] = list(file.ImagePositionPatient)
            directions = shared.PlaneOrientationSequence[0].ImageOrientationPatient
            assert directions == file.ImageOrientationPatient
    for (_, where), (_, position) in frames_of(data).items():
        np.testing.assert_allclose(position, places[where], atol=1e-6)
    assert data.FrameOfReferenceUID == f"{ROOT}.3"
    assert data.StudyInstanceUID == f"{ROOT}.1"
    assert (data.PatientName, data.PatientID) == (NAME, IDENTITY)
    assert "not a medical device" in data.SeriesDescription


def test_highdicom_reads_segments_and_probability(written: Any) -> None:
    source, out, place, _ = written
    segments, slices = highdicom.seg.segread(out / "segments.dcm"), stored_slices(source)
    uids = list({uid for uid, _ in slices})
    how: dict[str, Any] = {"ignore_spatial_locations": True, "assert_missing_frames_are_empty": True}
    is_one_file = len(uids) == 1
    numbers = sorted({number for _, number in slices})

    def read(file: Any) -> np.ndarray:
        if is_one_file:
            return np.asarray(file.get_pixels_by_source_frame(uids[0], numbers, **how))
        return np.asarray(file.get_pixels_by_source_instance(uids, **how))

    order = [(uids[0], number) for number in numbers] if is_one_file else [(uid, 1) for uid in uids]
    wanted = [[inside(slices[each], place, level) for level in levels()] for each in order]
    expected, found = np.moveaxis(np.array(wanted), 1, -1), read(segments)
    sampled = found.any(axis=(1, 2, 3))
    assert sampled.sum() == written[3]
    np.testing.assert_array_equal(found[sampled], expected[sampled])
    mean = read(highdicom.seg.segread(out / "probability.dcm"))[..., 0]
    counted = (expected[..., [0, 0, 1, 2, 3, 4]].mean(axis=-1))[sampled]
    np.testing.assert_allclose(mean[sampled], counted, atol=0.5 / 255 + 1e-6)
    assert pydicom.dcmread(out / "probability.dcm").SegmentationFractionalType == "PROBABILITY"


def test_contours_enclose_the_pixels_of_the_slices_that_they_refer_to(written: Any) -> None:
    source, out, place, count = written
    data, slices = pydicom.dcmread(out / "contours.dcm"), stored_slices(source)
    assert [item.ROIName for item in data.StructureSetROISequence] == [f"{letter}: lesion" for letter in "ABCDE"]
    frames = frames_of(pydicom.dcmread(out / "segments.dcm"))
    where = {source: position for (_, source), (_, position) in frames.items()}
    shared = pydicom.dcmread(out / "segments.dcm").SharedFunctionalGroupsSequence[0]
    directions = np.reshape(shared.PlaneOrientationSequence[0].ImageOrientationPatient, (2, 3)).astype(float)
    for number, item in enumerate(data.ROIContourSequence):
        drawn: dict[Any, np.ndarray] = {}
        for contour in item.get("ContourSequence", []):
            (image,) = contour.ContourImageSequence
            key = str(image.ReferencedSOPInstanceUID), int(image.get("ReferencedFrameNumber") or 1)
            moved = np.reshape(contour.ContourData, (-1, 3)).astype(float) - np.array(where[key], dtype=float)
            assert np.abs(moved @ np.cross(*directions)).max() < 1e-4  # in the plane of its slice
            columns, rows = moved @ directions[0] / SPACING[1], moved @ directions[1] / SPACING[0]
            inner = polygon2mask(slices[key].shape, np.stack([rows, columns], axis=1))
            drawn[key] = drawn.get(key, np.zeros(slices[key].shape, dtype=np.bool_)) ^ inner
        assert len(drawn) == (count if number < 4 else 0)
        for key, mask in drawn.items():
            np.testing.assert_array_equal(mask, inside(slices[key], place, levels()[number]))
    assert (data.PatientName, data.FrameOfReferenceUID) == (NAME, f"{ROOT}.3")
    (reference,) = data.ReferencedFrameOfReferenceSequence
    series = reference.RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]
    assert series.SeriesInstanceUID == f"{ROOT}.2"


needs_dciodvfy = pytest.mark.skipif(not shutil.which("dciodvfy"), reason="needs dciodvfy, of Debian's dicom3tools")


def errors(path: Path) -> list[str]:
    """What dciodvfy calls an error."""
    result = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, check=False)
    return [line for line in (result.stdout + result.stderr).splitlines() if "Error" in line]


@needs_dciodvfy
def test_dciodvfy_finds_no_error(written: Any, tmp_path: Path) -> None:
    for name in ("segments.dcm", "probability.dcm", "contours.dcm"):
        assert pydicom.dcmread(written[1] / name).SeriesDescription.endswith("not a medical device")
        assert errors(written[1] / name) == []
    data = pydicom.dcmread(written[1] / "contours.dcm")
    del data.StructureSetLabel
    data.save_as(tmp_path / "without.dcm")
    assert "StructureSetLabel" in errors(tmp_path / "without.dcm")[0]


def test_instances_are_segments(tmp_path: Path) -> None:
    source = write_series(tmp_path, "reversed", num_slices=1)
    prediction = make_instance_predictor()(source, num_samples=6, window=(-100.0, 200.0))
    samples = np.zeros_like(prediction.samples)
    for number, ids in enumerate(samples):  # two blocks whose ids are never the same
        ids[2:12, 3:15], ids[15:26, 4:18] = 1 + number % 5, 1 + (number + 2) % 5
    prediction = replace(prediction, samples=samples)
    formats = ("dicom-seg", "rtstruct")
    (found,) = save_instances([prediction], tmp_path / "out", alpha=6, formats=formats).values()
    data = pydicom.dcmread(tmp_path / "out" / "segments.dcm")
    ids = {int(item.SegmentNumber): int(item.SegmentLabel.removeprefix("instance ")) for item in data.SegmentSequence}
    assert set(ids.values()) == set(np.unique(found[found > 0]).tolist())
    assert len(ids) == 2
    for (number, _), (pixels, _) in frames_of(data).items():
        np.testing.assert_array_equal(pixels, found == ids[number])
    assert not (tmp_path / "out" / "probability.dcm").exists()
    contours = pydicom.dcmread(tmp_path / "out" / "contours.dcm")
    assert len(contours.StructureSetROISequence) == len(ids)


LEFT_OUT: dict[str, tuple[int, tuple[str, ...]]] = {
    "no names": (4, ("PatientName", "PatientID", "PatientSex", "StudyDate", "StudyID", "AccessionNumber")),
    "no thickness": (4, ("SliceThickness",)),
    "a projection": (1, ("FrameOfReferenceUID", "ImagePositionPatient", "ImageOrientationPatient", "SliceThickness")),
}


@needs_dciodvfy
@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("is_empty", [False, True])
def test_what_files_may_leave_out_is_completed(name: str, is_empty: bool, tmp_path: Path) -> None:
    num_slices, names = LEFT_OUT[name]
    source = write_series(tmp_path, "reversed", num_slices=num_slices)
    for path in source.iterdir():
        data = pydicom.dcmread(path)
        for each in names:
            setattr(data, each, None) if is_empty else delattr(data, each)
        if name == "a projection":
            data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1"  # CR
        data.save_as(path)
    prediction = thresholded(make_predictor(), source)
    prediction.save(tmp_path / "seg", formats="dicom-seg")
    files = [tmp_path / "seg" / file for file in ("segments.dcm", "probability.dcm")]
    slices = stored_slices(source)
    for (number, where), (pixels, _) in frames_of(pydicom.dcmread(files[0])).items():
        np.testing.assert_array_equal(pixels, slices[where] > levels()[number - 1])
    if name == "a projection":
        with pytest.raises(DataError, match=r"no FrameOfReferenceUID|no position"):
            prediction.save(tmp_path / "rt", formats="rtstruct")
    else:
        prediction.save(tmp_path / "rt", formats="rtstruct")
        files.append(tmp_path / "rt" / "contours.dcm")
    assert [errors(file) for file in files] == [[]] * len(files)


def test_files_of_one_frame_each_are_referred_to_one_by_one(tmp_path: Path) -> None:
    source = write_series(tmp_path, "reversed")
    for path in source.iterdir():
        data = pydicom.dcmread(path)
        data.NumberOfFrames = 1
        data.save_as(path)
    thresholded(make_predictor(), source).save(tmp_path / "out", formats="dicom-seg,rtstruct")
    slices = stored_slices(source)
    for (number, where), (pixels, _) in frames_of(pydicom.dcmread(tmp_path / "out" / "segments.dcm")).items():
        np.testing.assert_array_equal(pixels, slices[where] > levels()[number - 1])
    contours = pydicom.dcmread(tmp_path / "out" / "contours.dcm").ROIContourSequence[0].ContourSequence
    images = [contour.ContourImageSequence[0] for contour in contours]
    found = {
        (image.ReferencedSOPInstanceUID, contour.ContourData[2])
        for image, contour in zip(images, contours, strict=True)
    }
    assert found == {(f"{ROOT}.2.{z}", 2.5 * z - 5) for z in range(4)}
    assert {image.ReferencedFrameNumber for image in images} == {1}


def test_what_cannot_refer_to_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs a DICOM"):
        check_formats(["dicom-seg"], place=Place((1, 2, 2)), has_regions=True, where="a.png")
    source = write_series(tmp_path, "axial")
    predictor = make_predictor()
    resampled = predictor(source, num_samples=1, window=(-100.0, 200.0), slices=(0, 1), spacing=0.7)
    with pytest.raises(DataError, match="spacing"):
        resampled.save(tmp_path / "out", formats="rtstruct")
    assert fitting_formats(resampled.place) == ["geojson", "imagej"]
    prediction = predictor(source, num_samples=1, window=(-100.0, 200.0))
    for path in source.iterdir():
        data = pydicom.dcmread(path)
        data.Rows, data.Columns = data.Columns, data.Rows
        data.save_as(path)
    with pytest.raises(DataError, match="changed since"):
        prediction.save(tmp_path / "out", formats="dicom-seg")
    bare = Series("P", "1.2.3", shape=(16, 16), num_slices=1).write(tmp_path / "bare")
    for name in ("dicom-seg", "rtstruct"):
        with pytest.raises(DataError, match="StudyInstanceUID"):
            predictor(bare, num_samples=1, window=(-100.0, 200.0)).save(tmp_path / "out", formats=name)
    assert not (tmp_path / "out").exists()
