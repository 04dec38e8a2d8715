"""LIDC lesions as volumes: values are SimpleITK's at the same points, masks those of the crops; what is left out."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK
from lidc_study import Series, Session, square, write_xml

from hpunet.data.lidc import importer
from hpunet.data.lidc.crops import open_lidc_crops
from hpunet.data.lidc.importer import ImportSummary, import_lidc
from hpunet.data.open import detect_kind, open_splits
from hpunet.errors import DataError

HEIGHT, WIDTH = 130, 150
OPTIONS = {"volumes": True, "window": (-1000.0, 400.0)}


def waves(number: int) -> np.ndarray:
    rows, columns = np.indices((HEIGHT, WIDTH))
    return np.rint(-500 + 300 * np.sin(rows / 9) + 150 * np.cos(columns / 7 + number / 3))


def series(patient: str = "P", uid: str = "1.2", **options) -> Series:
    given = {"num_slices": 12, "shape": (HEIGHT, WIDTH), "spacing": (0.8, 0.65), "thickness": 1.5}
    return Series(patient, uid, **given | {"hounsfield": waves} | options)


def readers(scan: Series) -> list[Session]:
    """Three readers mark slices 4–6, 5–6 and 5; the fourth marks nothing."""
    found = [[scan.roi(z, square(60, 50, 8 + r)) for z in range(4 + (r > 0), 7 - (r > 1))] for r in range(3)]
    return [*(Session(nodules=[rois]) for rois in found), Session()]


def import_one(tmp_path: Path, scan: Series, sessions: list[Session], *change, **how) -> ImportSummary:
    scan.write(tmp_path / "in", *change)
    write_xml(tmp_path / "in" / f"{scan.patient}.xml", scan.uid, sessions)
    return import_lidc(tmp_path / "in", tmp_path / "out", processes=1, progress=False, volumes=True, **how)


def read(path: Path):
    return SimpleITK.ReadImage(str(path))


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"orientation": (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0)}])
def test_volumes_are_the_scan_at_their_place(tmp_path: Path, options: dict) -> None:
    scan = series(**options)
    summary = import_one(tmp_path, scan, readers(scan))
    assert (summary.num_lesions, summary.failures, summary.dropped) == (1, [], {})
    folder = tmp_path / "out/P_c0"
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"annotation_{r}.nii.gz" for r in (1, 2, 3, 4)), "image.nii.gz",
    ]  # fmt: skip
    image = read(folder / "image.nii.gz")
    # 5 mm are three slices of 1.5 mm, below slice 4 and above slice 6.
    assert (image.GetSize(), image.GetSpacing()) == ((180, 180, 9), pytest.approx((0.5, 0.5, 1.5)))
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "in/P/1.2")))
    whole = SimpleITK.Cast(reader.Execute(), SimpleITK.sitkFloat64)
    expected = SimpleITK.Resample(whole, image, SimpleITK.Transform(), SimpleITK.sitkLinear, np.nan)
    values, wanted = SimpleITK.GetArrayFromImage(image), SimpleITK.GetArrayFromImage(expected)
    inside = np.isfinite(wanted)
    assert inside.mean() > 0.5
    assert np.abs(values[inside] - wanted[inside]).max() <= 0.5 + 1e-6
    # Masks are drawn at native resolution; as a label image of the whole scan they are these, picked by nearest.
    for rater, (first, last, side) in enumerate([(4, 6, 8), (5, 6, 9), (5, 5, 10), (1, 0, 0)]):
        drawn = np.zeros((12, HEIGHT, WIDTH), np.uint8)
        drawn[first : last + 1, 50 : 50 + side, 60 : 60 + side] = 1
        native = SimpleITK.GetImageFromArray(drawn)
        native.CopyInformation(whole)
        nearest = SimpleITK.Resample(native, image, SimpleITK.Transform(), SimpleITK.sitkNearestNeighbor, 0)
        mask = read(folder / f"annotation_{rater + 1}.nii.gz")
        assert mask.GetOrigin() == image.GetOrigin()
        np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(mask), SimpleITK.GetArrayFromImage(nearest))


def test_volumes_are_read_back_with_patients_splits_and_spacing(tmp_path: Path) -> None:
    for number in range(4):
        scan = series(f"P{number}", f"1.2.{number}")
        sessions = readers(scan)
        if number == 1:
            sessions = sessions[:3]
        sessions[0].nodules.append([scan.roi(z, square(20, 90, 5)) for z in (3, 4)])
        scan.write(tmp_path / "in")
        write_xml(tmp_path / "in" / f"P{number}.xml", scan.uid, sessions)
    how = {"processes": 1, "progress": False, "seed": 3}
    summary = import_lidc(tmp_path / "in", tmp_path / "out", volumes=True, **how)
    flat = import_lidc(tmp_path / "in", tmp_path / "crops", **how)
    assert (summary.patients, summary.num_lesions, sum(summary.images.values())) == (flat.patients, 8, 8)
    assert detect_kind(str(tmp_path / "out")) == "folder"
    sources = open_splits(str(tmp_path / "out"), options=OPTIONS)
    names = ("annotation_1", "annotation_2", "annotation_3", "annotation_4")
    for split, source in sources.items():
        crops = open_lidc_crops(tmp_path / "crops", split=split)
        assert {i.patient for i in source.identities} == {i.patient for i in crops.identities}
        assert source.info.spacing == pytest.approx((1.5, 0.5, 0.5))
        assert source.info.grader_names == names
        for sample in map(source.__getitem__, range(len(source))):
            assert sample.graders.tolist() == [True, True, True, sample.identity.patient != "P1"]
            assert sample.labels.any()
    again = import_lidc(tmp_path / "in", tmp_path / "out", volumes=True, **how)
    assert again.num_patients_done_before == 4
    with pytest.raises(DataError, match="begun with another"):
        import_lidc(tmp_path / "in", tmp_path / "out", **how)


def test_an_unfinished_import_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patients would be unknown, so that one could get into two splits."""
    scan, written = series(), importer._write_table

    def killed(out: Path, split_of: dict[str, str]) -> None:
        if split_of:
            raise KeyboardInterrupt
        written(out, split_of)

    with monkeypatch.context() as patched:
        patched.setattr(importer, "_write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            import_one(tmp_path, scan, readers(scan))
    with pytest.raises(DataError, match=r"data\.csv: must name every image"):
        open_splits(str(tmp_path / "out"), options=OPTIONS)
    import_lidc(tmp_path / "in", tmp_path / "out", processes=1, progress=False, volumes=True)
    assert sum(map(len, open_splits(str(tmp_path / "out"), options=OPTIONS).values())) == 1


def test_what_is_no_whole_volume_is_left_out_and_counted(tmp_path: Path) -> None:
    def lose(*numbers: int):
        def change(number, data) -> None:
            if number in numbers:
                data.Modality = "MR"

        return change

    def shift(number, data) -> None:  # a tilted gantry
        data.ImagePositionPatient = ["-100", f"{-90 + 0.4 * number}", f"{scan.z(number):.6f}"]

    def uneven(number, data) -> None:
        data.ImagePositionPatient = ["-100", "-90", f"{scan.z(number) + 0.3 * (number == 5):.6f}"]
        data.SliceLocation = f"{scan.z(number) + 0.3 * (number == 5):.6f}"

    scan = series(num_slices=12)
    marked = [Session(nodules=[[scan.roi(z, square(60, 50, 8)) for z in (4, 5, 6)]])]
    cases = {
        "nodule: slices are missing within it": lose(5),
        "nodule: the gantry of its scan is tilted": shift,
        "nodule: its slices are not evenly spaced": uneven,
    }
    for number, (reason, change) in enumerate(cases.items()):
        summary = import_one(tmp_path / str(number), scan, marked, change)
        assert summary.dropped[reason] == 1
        assert (sum(summary.images.values()), summary.failures) == (0, [])
    # A slice that is missing beside the lesion ends the margin.
    summary = import_one(tmp_path / "margin", scan, marked, lose(2))
    assert read(tmp_path / "margin/out/P_c0/image.nii.gz").GetSize() == (180, 180, 1 + 3 + 3)
    assert nibabel.load(tmp_path / "margin/out/P_c0/image.nii.gz").affine[2, 3] == pytest.approx(scan.z(3))


def test_volumes_name_unreadable_slices(tmp_path: Path) -> None:
    scan = series()

    def cut(number, data) -> None:
        if number == 5:
            data.PixelData = data.PixelData[:-2]

    summary = import_one(tmp_path, scan, readers(scan), cut)
    assert "1-005.dcm" in summary.failures[0]
    assert summary.dropped == {"nodule: the pixels of a slice cannot be read": 1}
    assert not list((tmp_path / "out").glob("P_c*"))
