"""What is named becomes cases, whose names and errors tell nothing of patients or folders."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from lidc_study import Series
from PIL import Image
from viewing import write_images

from hpunet.cli.view import _names_in_training
from hpunet.data.examples.load import example
from hpunet.errors import ConfigError, DataError
from hpunet.viewer.cases import Images, describe, find_cases, safe_name

EXAMPLES = example("lidc").path.parents[1]
PATIENT, UID = "Doe^Jane", "1.3.6.1.4.1.14519.5.2.1"


def test_files_folders_and_series_are_cases(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "some", count=2)
    series = Series(patient=PATIENT, uid=UID).write(tmp_path / "scans")
    (tmp_path / "some" / ".hidden.png").write_bytes(b"")
    (tmp_path / "some" / "notes.txt").write_text("none")
    names = [case.name for case in find_cases([folder, folder / "image-001.png", series, series.parent])]
    hashed = safe_name(series.name)
    assert names == ["image-000", "image-001", "image-001-2", hashed, f"{hashed}-2"]
    assert hashed.startswith("image-")
    assert UID not in hashed


def test_graders_of_a_data_folder_are_read(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "data")
    (tmp_path / "data" / "graders" / "2" / "lidc-1.png").unlink()
    first, second, _ = find_cases([tmp_path / "data"])
    assert first.grader_names == ("1", "2", "3", "4")
    assert first.labels(1, (1, 128, 128)) is None
    expected = example("lidc-2").labels
    for number in range(4):
        labels = second.labels(number, (1, 128, 128))
        assert labels is not None
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(labels[0], expected[number])


def test_patients_come_from_the_table(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "data")
    (tmp_path / "data" / "data.csv").write_text("file,patient\nlidc-1.png,a\nlidc-2.png,b\nlidc-3.png,a\n")
    assert [case.patient for case in find_cases([tmp_path / "data"])] == ["a", "b", "a"]


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such"):
        find_cases([tmp_path / "missing.png"])
    with pytest.raises(ConfigError, match="no image"):
        find_cases([tmp_path])
    with pytest.raises(ConfigError, match="unpack"):
        find_cases([tmp_path / "data.tar.gz"])


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("lesion.png", "lesion"),
        ("a b (1).nii.gz", "a b (1)"),
        ("x.png.png", "x"),
        ("..", "_"),
        ("...png", "_"),
        ("=1+1.png", "_=1+1"),
        ("-rf.png", "_-rf"),
        ("con.png", "_con"),
        ("a\nb\0c;d<e>.png", "a_b_c_d_e_"),
        ("Läsion.png", "Läsion"),
        ("x" * 300 + ".png", "x" * 50),
    ],
)
def test_names_are_fit_for_files(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_errors_name_no_folder_patient_or_uid(tmp_path: Path) -> None:
    series = Series(patient=PATIENT, uid=UID).write(tmp_path / "scans")
    for number, file in enumerate(sorted(series.iterdir())):
        file.rename(series / f"{UID}.{number}.dcm")
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "one.png")
    content = (tmp_path / "one.png").read_bytes()
    broken = series / f"{UID}.1.dcm"
    broken.write_bytes(broken.read_bytes()[:400])
    (tmp_path / "torn.png").write_bytes(content[:40])
    (tmp_path / "gone.png").write_bytes(content)
    cases = find_cases([series, tmp_path / "torn.png", tmp_path / "gone.png"])
    (tmp_path / "gone.png").unlink()
    for case in cases:
        with pytest.raises(DataError) as error:
            case.read()
        words = str(error.value)
        assert case.name in words or case.path.is_dir()
        for secret in (str(tmp_path), "scans", PATIENT, "Doe", UID):
            assert secret not in words


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        (np.uint8, np.uint8),
        (np.uint16, np.uint16),
        (np.int16, np.int16),
        (np.bool_, np.uint8),
        (np.int8, np.int16),
        (np.int32, np.float32),
        (np.float64, np.float32),
    ],
)
def test_values_have_one_of_four_types(tmp_path: Path, stored: type, seen: type) -> None:
    values = np.arange(12).reshape(3, 4).astype(stored)
    np.save(tmp_path / "a.npy", values)
    (case,) = find_cases([tmp_path / "a.npy"])
    found = case.read()
    assert found.values.dtype == seen
    factor = 255 if stored is np.bool_ else 1
    np.testing.assert_array_equal(found.values[0], values.astype(seen) * seen(factor))
    about = describe(found)
    assert (about["slices"], about["height"], about["width"], about["channels"]) == (1, 3, 4, 1)
    assert about["range"] == [values.min() * factor, values.max() * factor]
    assert about["window"][0] < about["window"][1]


def test_series_have_spacing_and_window(tmp_path: Path) -> None:
    def change(number: int, data: object) -> None:
        data.WindowCenter, data.WindowWidth = "-600", "1501"  # type: ignore[attr-defined]

    series = Series(patient=PATIENT, uid=UID, spacing=(0.7, 0.6)).write(tmp_path, change)
    (case,) = find_cases([series])
    about = describe(case.read())
    assert about["spacing"] == pytest.approx([0.7, 0.6])
    assert about["spacing_z"] == pytest.approx(2.5)
    assert about["slices"] == 4
    assert about["window"] == pytest.approx([-1350.5, 149.5], abs=1)


def test_opaque_alpha_is_left_out_and_constant_images_can_be_shown(tmp_path: Path) -> None:
    Image.new("RGBA", (5, 4), (7, 7, 7, 255)).save(tmp_path / "a.png")
    (case,) = find_cases([tmp_path / "a.png"])
    stored = case.read()
    assert stored.values.shape == (1, 4, 5, 3)
    assert describe(stored)["range"] == [7, 8]


def test_images_in_memory_are_bounded(tmp_path: Path) -> None:
    cases = find_cases([write_images(tmp_path, count=6)])
    images = Images(2 * 16 * 16)
    for case in cases:
        assert images.read(case).values.shape == (1, 16, 16)
        assert images._kept.num_bytes <= 2 * 16 * 16
    cases[-1].path.unlink()
    assert images.read(cases[-1]).values.any()
    cases[0].path.unlink()
    with pytest.raises(DataError):
        images.read(cases[0])


def test_graders_and_patients_come_from_names(tmp_path: Path) -> None:
    for side in "LR":
        for name in (f"eye_01{side}.jpg", f"eye_01{side}_1stHO.png", f"eye_01{side}_2ndHO.png"):
            Image.fromarray(np.full((8, 8), 1, dtype=np.uint8)).save(tmp_path / name)
    patterns = ["{name}_1stHO.png", "{name}_2ndHO.png"]
    assert len(find_cases([tmp_path])) == 6
    cases = find_cases([tmp_path], graders=patterns, patient=r"eye_(\d+)")
    assert [(case.name, case.patient) for case in cases] == [("eye_01L", "01"), ("eye_01R", "01")]
    assert [len(case.graders) for case in cases] == [2, 2]
    with pytest.raises(DataError):
        find_cases([tmp_path], graders=["{name}_3rdHO.png"])
    (tmp_path / "run").mkdir()
    assert _names_in_training(tmp_path / "run") == {}
    options = {"graders": patterns, "patient": r"eye_(\d+)"}
    for content, expected in ((json.dumps({"data": {"options": options}}), options), ("[]", {}), ("{", {})):
        (tmp_path / "run" / "settings.json").write_text(content)
        assert _names_in_training(tmp_path / "run") == expected
