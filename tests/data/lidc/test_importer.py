"""The importer of the original LIDC-IDRI, on made-up studies: every rule has a case of its own."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pydicom
import pytest
from lidc_study import Roi, Series, Session, square, write_xml
from PIL import Image
from pydicom.uid import DeflatedExplicitVRLittleEndian
from scipy.ndimage import map_coordinates

from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.lidc.importer import FRACTIONS, ImportSummary, import_lidc
from hpunet.data.lidc.scan import Outline, Part, join_lesions
from hpunet.data.synthetic.writers import write_lidc_crops
from hpunet.errors import ConfigError, DataError
from hpunet.utils.locks import lock_folder

LOCATION_RULE = "slice: |SliceLocation| is not |ImagePositionPatient[2]|"


def run(source: Path, out: Path, **options) -> ImportSummary:
    return import_lidc(source, out, processes=1, progress=False, **options)


def pictures(out: Path) -> dict[str, np.ndarray]:
    """Every picture of the output by its name below the patient, e.g. 'images/P/z-001_c0'."""
    return {
        path.relative_to(out).with_suffix("").as_posix().split("/", 1)[1]: np.asarray(Image.open(path))
        for path in sorted(out.rglob("*.png"))
    }


def import_one(tmp_path: Path, series: Series, sessions: list[Session], *change) -> tuple[ImportSummary, dict]:
    """Write and import a study of one series, changed by `change`."""
    series.write(tmp_path / "in", *change)
    write_xml(tmp_path / "in" / "scan.xml", series.uid, sessions)
    summary = run(tmp_path / "in", tmp_path / "out")
    return summary, pictures(tmp_path / "out")


def images(made: dict) -> list[str]:
    return [name for name in made if name.startswith("images")]


def readers(series: Series, slice_number: int = 1, vertices=None, count: int = 4) -> list[Session]:
    """So many readers with the same square."""
    outline = square(30, 20, 6) if vertices is None else vertices
    return [Session(nodules=[[series.roi(slice_number, outline)]]) for _ in range(count)]


def to_grey(hounsfield: np.ndarray) -> np.ndarray:
    return np.rint((np.clip(hounsfield, -1000, 400) + 1000) / 1400 * 255).astype(np.uint8)


def test_import_lidc_centres_and_pads_the_crop(tmp_path):
    series = Series("P", "1.2")
    summary, made = import_one(tmp_path, series, readers(series))
    assert list(made) == [*(f"gt/P/z-001_c0_l{grader}" for grader in range(4)), "images/P/z-001_c0"]
    # The square covers columns 30...35 and rows 20...25; its middle, rounded up, becomes pixel (90, 90).
    expected = np.zeros((180, 180), dtype=np.uint8)
    expected[90 - 23 : 154 - 23, 90 - 33 : 154 - 33] = to_grey(series.values(1))
    assert np.array_equal(made["images/P/z-001_c0"], expected)
    for grader in range(4):
        assert np.argwhere(made[f"gt/P/z-001_c0_l{grader}"] == 255).tolist() == [
            [row, column] for row in range(87, 93) for column in range(87, 93)
        ]
    assert summary.noted == {"crops: padded where they leave the scan": 1}
    assert summary.dropped == {}
    assert summary.failures == []
    assert (summary.num_scans, summary.num_lesions, sum(summary.images.values())) == (1, 1, 1)


def test_import_lidc_resamples_non_square_pixels(tmp_path):
    rows, columns = np.indices((130, 200))
    values = np.rint(-600 + 300 * np.sin(rows / 5) + 200 * np.cos(columns / 7))
    series = Series("P", "1.2", shape=(130, 200), spacing=(0.8, 0.65), hounsfield=lambda number: values)
    outline = square(90, 60, 9)
    summary, made = import_one(tmp_path, series, readers(series, vertices=outline))
    assert summary.noted == {}  # large enough: nothing padded
    middle = np.floor(np.array([64 * 0.8, 94 * 0.65]) / 0.5 + 0.5)
    grid = [(middle[axis] - 90 + np.arange(180)) * 0.5 / (0.8, 0.65)[axis] for axis in (0, 1)]
    where = np.meshgrid(*grid, indexing="ij")
    image = to_grey(map_coordinates(values, where, order=1, mode="nearest"))
    difference = np.abs(made["images/P/z-001_c0"].astype(int) - image)
    assert difference.max() <= 1  # another order of the sums may round the other way
    assert (difference > 0).mean() < 0.001
    mask = np.zeros((130, 200))
    mask[60:69, 90:99] = 255
    nearest = mask[tuple(np.floor(axis + 0.5).astype(int) for axis in where)]
    assert np.array_equal(made["gt/P/z-001_c0_l0"], nearest)


@pytest.mark.parametrize(("side", "exceeds"), [(88, 0), (92, 1)])
def test_import_lidc_notes_lesions_larger_than_a_crop(tmp_path, side, exceeds):
    series = Series("P", "1.2", shape=(110, 110), spacing=(1.0, 1.0))
    summary, made = import_one(tmp_path, series, readers(series, vertices=square(5, 5, side)))
    assert summary.noted["crops: smaller than their lesion"] == exceeds
    assert made["gt/P/z-001_c0_l0"].all() == exceeds


@pytest.mark.parametrize(
    "options",
    [
        {"signed": False},
        {"slope": 2.0, "intercept": -3000.0},
        {"slope": -1.0, "intercept": 400.0},
        {"photometric": "MONOCHROME1"},
        {"reverse": True},
        {"orientation": (1.0, 0.0, 0.0, 0.0, 0.94, -0.3412)},
        {"orientation": (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0)},
    ],
)
def test_import_lidc_gives_the_same_crops_however_a_series_is_stored(tmp_path, options):
    def even(number: int) -> np.ndarray:
        rows, columns = np.indices((64, 64))
        return -1000 + 10 * rows + 6 * columns + 2 * number

    plain = Series("P", "1.2", hounsfield=even)
    other = Series("P", "1.2", hounsfield=even, **options)
    _, expected = import_one(tmp_path / "plain", plain, readers(plain))
    summary, made = import_one(tmp_path / "other", other, readers(other))
    assert made.keys() == expected.keys()
    assert all(np.array_equal(made[name], expected[name]) for name in made)
    assert summary.noted["series: tilted"] == ("orientation" in options and options["orientation"][4] == 0.94)


def test_import_lidc_refuses_series_that_are_not_axial(tmp_path):
    series = Series("P", "1.2", orientation=(0.0, 1.0, 0.0, 0.0, 0.0, -1.0))
    summary, made = import_one(tmp_path, series, readers(series))
    assert made == {}
    assert len(summary.failures) == 1
    assert "not an axial series" in summary.failures[0]
    assert "scan.xml" in summary.failures[0]


def test_import_lidc_drops_slices_by_location(tmp_path):
    series = Series("P", "1.2")

    def change(number: int, data: pydicom.Dataset) -> None:
        if number == 1:
            data.SliceLocation = "-99.5"
        if number == 2:
            data.SliceLocation = f"{-series.z(number)}"  # the other sign is the same place
        if number == 3:
            del data.SliceLocation

    nodule = [series.roi(number, square(30, 20, 6)) for number in range(4)]
    summary, made = import_one(tmp_path, series, [Session(nodules=[nodule])], change)
    assert images(made) == [f"images/P/z-00{number}_c0" for number in range(3)]  # counted without the dropped one
    assert summary.dropped == {LOCATION_RULE: 1, "contour: its slice is missing or was dropped": 1}
    assert summary.noted["gaps where slices are missing"] == 1


def test_import_lidc_keeps_missing_and_empty_graders_apart(tmp_path):
    series = Series("P", "1.2")
    sessions = [*readers(series, count=1), Session(), Session(blinded=[[series.roi(1, square(5, 5, 3))]])]
    _, made = import_one(tmp_path, series, sessions)
    assert [name for name in made if name.startswith("gt")] == [f"gt/P/z-001_c0_l{grader}" for grader in range(3)]
    assert [int((made[f"gt/P/z-001_c0_l{grader}"] > 0).sum()) for grader in range(3)] == [36, 0, 0]


def test_import_lidc_drops_points_and_non_nodules(tmp_path):
    series = Series("P", "1.2")
    nodules = [[series.roi(1, square(30, 20, 6)), series.roi(2, [(32, 22)])], [series.roi(1, [(9, 9)])]]
    flat = [[series.roi(1, [(5, 5), (6, 5), (5, 5)])]]
    sessions = [Session(nodules=nodules, num_non_nodules=2), Session(nodules=flat)]
    summary, made = import_one(tmp_path, series, sessions)
    assert len(images(made)) == 1
    assert summary.dropped == {
        "contour: a single point": 1,
        "nodule: marked by a point": 1,
        "marker of a non-nodule": 2,
        "nodule slice: nothing inside its contours": 1,
        "nodule: nothing of it is left": 1,
    }


def test_import_lidc_joins_parts_and_cuts_exclusions(tmp_path):
    series = Series("P", "1.2")
    parts = [series.roi(1, square(20, 20, 5)), series.roi(1, square(30, 20, 3))]
    hole = series.roi(1, square(22, 22, 1), inclusion="FALSE")
    _, made = import_one(tmp_path, series, [Session(nodules=[[*parts, hole]])])
    mask = np.zeros((64, 64), dtype=bool)
    mask[20:25, 20:25] = mask[20:23, 30:33] = True
    mask[22, 22] = False
    # The union covers rows 20...24 and columns 20...32, so the middle is (22, 26).
    assert np.array_equal(made["gt/P/z-001_c0_l0"][90 - 22 :, 90 - 26 :][:64, :64] > 0, mask)
    assert (made["gt/P/z-001_c0_l0"] > 0).sum() == mask.sum()


def test_import_lidc_joins_lesions_by_overlapping_boxes(tmp_path):
    series = Series("P", "1.2", num_slices=6)
    first = [series.roi(1, square(20, 20, 4)), series.roi(2, square(20, 20, 4))]
    chained = [series.roi(2, square(23, 23, 4))]  # shares one corner pixel with the first
    last = [series.roi(2, square(26, 26, 4))]  # and with the second, not with the first
    beside = [series.roi(1, square(24, 20, 2))]  # touches the first box without sharing a pixel of it
    other_slice = [series.roi(4, square(20, 20, 4))]
    same_grader = [series.roi(1, square(22, 22, 3))]
    nodules = [[first, same_grader], [chained], [last, beside], [other_slice]]
    summary, made = import_one(tmp_path, series, [Session(nodules=found) for found in nodules])
    # Only outlines of different graders join: the first grader's second nodule stays a lesion of its own.
    areas = {
        name.split("/")[-1]: [int((made[f"gt/P/{name.split('/')[-1]}_l{grader}"] > 0).sum()) for grader in range(4)]
        for name in images(made)
    }
    assert areas == {
        "z-001_c0": [16, 0, 0, 0],
        "z-002_c0": [16, 16, 16, 0],
        "z-001_c1": [0, 0, 4, 0],
        "z-001_c2": [9, 0, 0, 0],
        "z-004_c3": [0, 0, 0, 16],
    }
    assert summary.num_lesions == 4


def test_import_lidc_finds_slices_by_uid_then_by_position(tmp_path):
    series = Series("P", "1.2")
    outline = square(30, 20, 6)
    rois = [
        Roi(99.0, outline, sop_uid=series.sop_uid(0)),
        Roi(series.z(1) + 0.004, outline, sop_uid="9.9"),
        Roi(series.z(2), outline),
        Roi(series.z(3) + 1, outline),
    ]
    summary, made = import_one(tmp_path, series, [Session(nodules=[rois])])
    assert images(made) == [f"images/P/z-00{n}_c0" for n in range(3)]
    assert summary.dropped == {"contour: its slice is missing or was dropped": 1}


def test_import_lidc_drops_duplicate_slices(tmp_path):
    series = Series("P", "1.2")
    folder = series.write(tmp_path / "in")
    (folder / "copy.dcm").write_bytes((folder / "1-000.dcm").read_bytes())
    twin = series.dataset(1)
    twin.SOPInstanceUID = twin.file_meta.MediaStorageSOPInstanceUID = "1.1"  # first in order, but no outline names it
    twin.PixelData = bytes(len(twin.PixelData))
    pydicom.dcmwrite(folder / "twin.dcm", twin, enforce_file_format=True)
    write_xml(tmp_path / "in" / "scan.xml", series.uid, readers(series))
    summary = run(tmp_path / "in", tmp_path / "out")
    assert summary.dropped == {
        "slice: a copy with the same SOP UID": 1,
        "slice: a second one at the same position": 1,
    }
    assert pictures(tmp_path / "out")["images/P/z-001_c0"][90, 90] == to_grey(series.values(1))[23, 33]


def test_import_lidc_numbers_crops_through_all_scans_of_a_patient(tmp_path):
    for uid in ("1.2", "1.3"):
        series = Series("P", uid)
        series.write(tmp_path / "in")
        write_xml(tmp_path / "in" / f"{uid}.xml", uid, readers(series))
    summary = run(tmp_path / "in", tmp_path / "out")
    assert images(pictures(tmp_path / "out")) == ["images/P/z-001_c0", "images/P/z-001_c1"]
    assert summary.num_scans == 2


def test_import_lidc_counts_what_does_not_match(tmp_path):
    source = tmp_path / "in"
    good, lonely = Series("P", "1.2"), Series("Q", "1.3")
    good.write(source)
    lonely.write(source)
    Series("R", "1.4", modality="DX", num_slices=2).write(source)
    write_xml(source / "good.xml", "1.2", readers(good))
    write_xml(source / "copy.xml", "1.2", readers(good))
    write_xml(source / "absent.xml", "1.9", readers(good))
    (source / "radiograph.xml").write_text("<IdriReadMessage/>")
    summary = run(source, tmp_path / "out")
    assert summary.dropped == {
        "file: not a CT slice": 2,
        "file: XML that is no CT reading": 1,
        "XML: its series is not there": 1,
        "series: no XML for it": 1,
        "XML: a copy": 1,
    }
    assert summary.failures == []
    assert sum(summary.patients.values()) == 2  # with the one who has no readings
    assert sum(summary.images.values()) == 1


def test_import_lidc_refuses_two_different_readings_of_a_series(tmp_path):
    series = Series("P", "1.2")
    write_xml(tmp_path / "in" / "a.xml", "1.2", readers(series, count=3))
    summary, made = import_one(tmp_path, series, readers(series))
    assert made == {}
    assert "scan.xml: readings of the same series" in summary.failures[0]


def set_value(name: str, value: object):
    def change(data: pydicom.Dataset) -> None:
        setattr(data, name, value)

    return change


def set_decimal(name: str, text: str):
    """Decimal strings that pydicom would not let through are written as raw bytes."""

    def change(data: pydicom.Dataset) -> None:
        tag = pydicom.tag.Tag(name)
        data[tag] = pydicom.dataelem.RawDataElement(tag, "DS", len(text), text.encode(), 0, False, True)

    return change


def deflate(data: pydicom.Dataset) -> None:
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_decimal("PixelSpacing", "nan\\0.5 "), "PixelSpacing: expected a number"),
        (set_decimal("PixelSpacing", "0\\0.5"), "PixelSpacing must lie in"),
        (set_decimal("PixelSpacing", "0.5 "), "PixelSpacing must have 2 values"),
        (set_decimal("RescaleSlope", "inf "), "RescaleSlope: expected a number"),
        (set_decimal("RescaleSlope", "0 "), "RescaleSlope is 0"),
        (set_decimal("RescaleIntercept", "1e30"), "RescaleIntercept: expected a number"),
        (set_decimal("ImagePositionPatient", "0\\0\\1e99"), "ImagePositionPatient: expected a number"),
        (set_decimal("SliceLocation", "here"), "SliceLocation"),
        (set_value("Rows", 60000), "expected 2...4096 rows"),
        (set_value("PhotometricInterpretation", "RGB"), "MONOCHROME"),
        (set_value("BitsAllocated", 32), "8 or 16 bit"),
        (set_value("PixelData", bytes(100)), "100 bytes of pixels, expected 8192"),
        (set_value("PatientID", "../P"), "cannot be the name of a folder"),
        (set_value("RescaleSlope", None), "has no RescaleSlope"),
        (deflate, "transfer syntax 1.2.840.10008.1.2.1.99"),
    ],
)
def test_import_lidc_goes_on_past_a_bad_slice(tmp_path, change, message):
    series = Series("P", "1.2")

    def change_one(number: int, data: pydicom.Dataset) -> None:
        if number == 1:
            change(data)

    folder = series.write(tmp_path / "in", change_one)
    nodule = [series.roi(number, square(30, 20, 6)) for number in range(4)]
    write_xml(tmp_path / "in" / "scan.xml", series.uid, [Session(nodules=[nodule])])
    summary = run(tmp_path / "in", tmp_path / "out")
    (failure,) = summary.failures
    assert str(folder / "1-001.dcm") in failure
    assert message in failure
    assert "../P" not in failure
    assert sum(summary.images.values()) == 3
    assert sum(summary.dropped.values()) == 1  # the outline, or the crop, of the bad slice


@pytest.mark.parametrize("content", [b"", b"no DICOM", bytes(128) + b"DICM" + bytes(50)])
def test_import_lidc_names_files_that_are_no_dicom(tmp_path, content):
    series = Series("P", "1.2")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.dcm").write_bytes(content)
    summary, made = import_one(tmp_path, series, readers(series))
    assert len(made) == 5
    (failure,) = summary.failures
    assert "bad.dcm" in failure


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ([Session(nodules=[[Roi(-7.5, square(70, 20, 6))]])], "outside an image of 64x64"),
        ([Session()] * 5, "5 reading sessions, expected up to 4"),
        ([], "no reading session"),
        ([Session(nodules=[[Roi(float("nan"), square(3, 3, 2))]])], "imageZposition"),
    ],
)
def test_import_lidc_goes_on_past_a_bad_reading(tmp_path, sessions, message):
    bad, good = Series("P", "1.2"), Series("Q", "1.3")
    bad.write(tmp_path / "in")
    write_xml(tmp_path / "in" / "bad.xml", "1.2", sessions)
    summary, made = import_one(tmp_path, good, readers(good))
    (failure,) = summary.failures
    assert "bad.xml" in failure
    assert message in failure
    assert {name.split("/")[1] for name in made} == {"Q"}


def many_patients(folder: Path, count: int = 7) -> None:
    for number in range(count):
        series = Series(f"P{number}", f"1.{number}", num_slices=2)
        series.write(folder)
        write_xml(folder / f"{number}.xml", series.uid, readers(series))


def test_import_lidc_splits_by_patient_and_is_read_back(tmp_path):
    many_patients(tmp_path / "in")
    summary = run(tmp_path / "in", tmp_path / "out", seed=3)
    assert summary.patients == {"train": 5, "val": 1, "test": 1}
    assert summary.images == summary.patients
    patients = []
    for split in FRACTIONS:
        source = open_lidc_crops(tmp_path / "out", split=split, size=128)
        assert source[0].labels.sum(axis=(1, 2)).tolist() == [36] * 4
        patients += [identity.patient for identity in source.identities]
    assert sorted(patients) == [f"P{number}" for number in range(7)]
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written == vars(summary)
    others = [run(tmp_path / "in", tmp_path / f"out{seed}", seed=seed) for seed in (3, 4)]
    assert others[0] == summary
    lists = [sorted(p.name for p in (tmp_path / f"out{s}" / "train" / "images").iterdir()) for s in (3, 4)]
    assert lists[0] != lists[1]


def test_import_lidc_does_the_same_with_several_processes(tmp_path):
    many_patients(tmp_path / "in", count=3)
    alone = run(tmp_path / "in", tmp_path / "alone")
    together = import_lidc(tmp_path / "in", tmp_path / "together", processes=2, progress=False)
    assert together == alone
    first, second = pictures(tmp_path / "alone"), pictures(tmp_path / "together")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_import_lidc_goes_on_where_it_stopped(tmp_path, monkeypatch):
    source, out = tmp_path / "in", tmp_path / "out"
    many_patients(source)
    # A file that cannot be written stops the run, in the middle of the third patient.
    save, calls = Image.Image.save, []

    def failing(self, target, *args, **options):
        calls.append(target)
        if len(calls) == 13:
            raise OSError(28, "No space left on device", str(target))
        return save(self, target, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", failing)
        with pytest.raises(DataError, match=r"cannot be written.*No space left"):
            run(source, out)
    complete = {path.name for path in out.glob("*/images/*")}
    assert complete == {"P0", "P1"} == {path.name for path in out.glob("*/gt/*")}
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/*.png")}
    summary = run(source, out)
    assert summary.num_patients_done_before == 2
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert sum(summary.images.values()) == 7
    assert not list((out / ".import" / "staging").rglob("*.png"))


def test_import_lidc_tries_again_what_failed(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    many_patients(source, count=2)
    bad = source / "P1" / "1.1" / "1-001.dcm"
    whole = bad.read_bytes()
    data = pydicom.dcmread(bad)
    data.PixelData = bytes(10)
    data.save_as(bad)
    assert len(run(source, out).failures) == 1
    bad.write_bytes(whole)
    summary = run(source, out)
    assert summary.failures == []
    assert summary.num_patients_done_before == 1
    assert sum(summary.images.values()) == 2


@pytest.mark.parametrize("what", ["readings", "slice"])
def test_import_lidc_imports_a_patient_again_whose_files_have_changed(tmp_path, what):
    source, out = tmp_path / "in", tmp_path / "out"
    many_patients(source, count=2)
    run(source, out)
    before = pictures(out)
    if what == "readings":
        series = Series("P1", "1.1", num_slices=2)
        write_xml(source / "1.xml", series.uid, readers(series, vertices=square(30, 20, 9)))
    else:
        file = source / "P1" / "1.1" / "1-001.dcm"
        data = pydicom.dcmread(file)
        data.PixelData = bytes(len(data.PixelData))
        data.save_as(file)
    assert run(source, out).num_patients_done_before == 1
    after = pictures(out)
    different = {name.split("/")[1] for name in before if not np.array_equal(before[name], after.get(name))}
    assert different == {"P1"}


def test_import_lidc_refuses_to_mix_imports(tmp_path):
    many_patients(tmp_path / "in", count=2)
    run(tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match="another seed or other patients"):
        run(tmp_path / "in", tmp_path / "out", seed=1)
    Series("P9", "1.9").write(tmp_path / "in")
    with pytest.raises(DataError, match="another seed or other patients"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="not empty"):
        run(tmp_path / "in", tmp_path / "full")


def test_import_lidc_names_an_empty_source(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match="0 DICOM files"):
        run(tmp_path / "in", tmp_path / "out")


def test_import_lidc_is_bounded(tmp_path, monkeypatch):
    series = Series("P", "1.2")
    monkeypatch.setattr("hpunet.data.lidc.dicom.MAX_DICOM_BYTES", 1000)
    summary, made = import_one(tmp_path, series, readers(series))
    assert made == {}
    assert len(summary.failures) == series.num_slices
    assert "at most 1000" in summary.failures[0]


def test_import_lidc_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"needs pydicom: pip install pydicom"):
        run(tmp_path, tmp_path / "out")


def test_import_lidc_has_the_shares_of_the_paper():
    assert [round(1010 * share) for share in FRACTIONS.values()] == [722, 144, 144]


def test_import_lidc_names_a_slice_of_another_patient(tmp_path):
    series = Series("P", "1.2")
    series.write(tmp_path / "in", lambda number, data: setattr(data, "PatientID", "Q" if number == 3 else "P"))
    write_xml(tmp_path / "in" / "scan.xml", series.uid, readers(series))
    summary = run(tmp_path / "in", tmp_path / "out")
    assert len(summary.failures) == 1
    assert "1-003.dcm: of another patient" in summary.failures[0]
    assert "1.2" not in (tmp_path / "out/.import/done/P.json").read_text()
    assert sum(summary.images.values()) == 1


def test_import_lidc_refuses_two_slices_with_one_identifier(tmp_path):
    series = Series("P", "1.2")
    series.write(tmp_path / "in", lambda number, data: setattr(data, "SOPInstanceUID", f"1.2.{min(number, 2)}"))
    write_xml(tmp_path / "in" / "scan.xml", series.uid, readers(series))
    summary = run(tmp_path / "in", tmp_path / "out")
    assert "1-003.dcm: another slice than" in summary.failures[0]
    assert sum(summary.images.values()) == 0


def test_import_lidc_names_files_that_a_rule_left_out(tmp_path):
    series = Series("P", "1.2")
    series.write(tmp_path / "in", lambda number, data: setattr(data, "Modality", "DX" if number == 3 else "CT"))
    write_xml(tmp_path / "in" / "scan.xml", series.uid, readers(series))
    write_xml(tmp_path / "in" / "alone.xml", "1.9", readers(series))
    summary = run(tmp_path / "in", tmp_path / "out")
    assert [line.split("/")[-1] for line in summary.unused] == [
        "1-003.dcm: file: not a CT slice",
        "alone.xml: XML: its series is not there",
    ]


def test_import_lidc_leaves_a_folder_alone_that_another_process_writes(tmp_path):
    (tmp_path / "source").mkdir()
    with lock_folder(tmp_path / "out"), pytest.raises(ConfigError, match="in use"):
        import_lidc(tmp_path / "source", tmp_path / "out", processes=1, progress=False)
    with lock_folder(tmp_path / "made"), pytest.raises(ConfigError, match="in use"):
        write_lidc_crops(tmp_path / "made", num_patients=1)


def test_join_lesions_equals_one_pair_at_a_time() -> None:
    rng = np.random.default_rng(0)
    places = zip(rng.integers(4, size=80).tolist(), rng.integers(0, 30, (80, 3)).tolist(), strict=True)
    outlines = [
        Outline(g, {z: Part(y, x, np.ones((5, 6), np.bool_)) for z in (first, first + 4)})
        for g, (first, y, x) in places
    ]
    groups: list[set[int]] = [{i} for i in range(len(outlines))]
    for i, j in itertools.combinations(range(len(outlines)), 2):
        (low, high), (other_low, other_high) = outlines[i].box(), outlines[j].box()
        if outlines[i].grader != outlines[j].grader and (low <= other_high).all() and (other_low <= high).all():
            joined = next(g for g in groups if i in g) | next(g for g in groups if j in g)
            groups = [g for g in groups if not g & joined] + [joined]
    found = [{id(outline) for outline in lesion} for lesion in join_lesions(outlines)]
    assert {frozenset(lesion) for lesion in found} == {frozenset(id(outlines[i]) for i in group) for group in groups}
    assert 5 < len(found) < 78
