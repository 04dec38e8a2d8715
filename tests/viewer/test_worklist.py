"""The work list on disk: what is acknowledged is there after a kill, and accepted cases are a data set."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lidc_study import Series
from PIL import Image
from viewing import SOURCE, write_images

from hpunet.data.examples.load import example
from hpunet.data.io.volumes import decode_nifti
from hpunet.data.open import open_data, open_splits
from hpunet.errors import ConfigError, DataError
from hpunet.viewer.cases import Case, find_cases
from hpunet.viewer.events import EVENTS, EventError
from hpunet.viewer.worklist import ConflictError, DiskError, WorkList, open_work_list

PAINT = {"kind": "paint", "slice": 0, "value": 1, "runs": [[3, 2], [20, 1]]}
NOTE = {"kind": "note", "text": 'Größe?\n\u2028 {"kind": 1}'}
ACCEPT, REOPEN, UNDO = ({"kind": kind} for kind in ("accept", "reopen", "undo"))
CHOOSE = {"kind": "choose", "slice": 0, "value_map": [[0, 5, 1]], "source": SOURCE}


def add(work: WorkList, case: Case, *events: dict[str, Any], version: int | None = None) -> int:
    stored = case.read()
    before = work.fold(case).version if version is None else version
    parsed = EVENTS.validate_python(list(events))
    how: dict[str, Any] = {"version": before, "shape": stored.values.shape[:3], "read": lambda: stored}
    return work.append(case, parsed, **how).version


def statuses(work: WorkList) -> list[str]:
    return [each["status"] for each in work.summary()]


def test_what_was_done_is_there_when_opened_again(tmp_path: Path) -> None:
    cases = find_cases([write_images(tmp_path / "images", count=3)])
    with open_work_list(tmp_path / "list", cases, model="run") as work:
        assert add(work, cases[0], CHOOSE, PAINT, NOTE) == 3
        assert add(work, cases[1], PAINT, ACCEPT) == 2
        assert add(work, cases[0], UNDO) == 4
        mask = work.fold(cases[0]).mask(0, shape=(16, 16))
    with open_work_list(tmp_path / "list", cases, model="run") as work:
        assert statuses(work) == ["open", "accepted", "open"]
        assert [each["note"] for each in work.summary()] == [True, False, False]
        fold = work.fold(cases[0])
        assert (fold.version, fold.done, len(fold.steps), fold.note) == (4, 1, 2, NOTE["text"])
        np.testing.assert_array_equal(fold.mask(0, shape=(16, 16)), mask)
        assert work.events(cases[0]) == (4, [CHOOSE, PAINT, NOTE, UNDO])


def test_a_slower_tab_gets_a_conflict_and_changes_nothing(tmp_path: Path) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT, version=0)
        with pytest.raises(ConflictError) as error:
            add(work, case, CHOOSE, version=0)
        assert error.value.version == 1
        assert work.events(case) == (1, [PAINT])


def test_a_batch_is_added_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        for batch in ([PAINT, UNDO, UNDO], [PAINT, ACCEPT, PAINT], [ACCEPT]):
            with pytest.raises(EventError):
                add(work, case, *batch)
            assert work.fold(case).version == 0
        assert (tmp_path / "list" / "log.jsonl").read_bytes() == b""
        assert not (tmp_path / "list" / "images").exists()


@pytest.mark.parametrize("torn", [b"{", b'{"case": "image-000", "events"', b"\0" * 7, b'{"case"}\n', b"\xff\n"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT)
    log = tmp_path / "list" / "log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + torn)
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        assert work.fold(case).version == 1
        assert log.read_bytes() == whole
        add(work, case, CHOOSE)
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        assert work.events(case) == (2, [PAINT, CHOOSE])


def test_every_torn_end_of_a_log_leaves_whole_batches(tmp_path: Path) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT, CHOOSE)
        add(work, case, NOTE, PAINT)
    log = tmp_path / "list" / "log.jsonl"
    content = log.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(0, len(content), 41):
        log.write_bytes(content[:end])
        with open_work_list(tmp_path / "list", [case], model="run") as work:
            assert work.fold(case).version == (0 if end < first else 2)


def test_damage_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT)
        add(work, case, PAINT)
    log = tmp_path / "list" / "log.jsonl"
    log.write_bytes(b"x" + log.read_bytes()[1:])
    with (
        pytest.raises(DataError, match="line 1"),
        open_work_list(tmp_path / "list", [case], model="run"),
    ):
        pass


def test_a_full_disk_refuses_and_keeps_the_log_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT)
        before = (tmp_path / "list" / "log.jsonl").read_bytes()

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(DiskError, match="full"):
                add(work, case, CHOOSE)
        assert (tmp_path / "list" / "log.jsonl").read_bytes() == before
        assert add(work, case, CHOOSE) == 2


def test_one_server_at_a_time(tmp_path: Path) -> None:
    cases = find_cases([write_images(tmp_path / "images", count=1)])
    with (
        open_work_list(tmp_path / "list", cases, model="run"),
        pytest.raises(ConfigError, match="in use"),
        open_work_list(tmp_path / "list", cases, model="run"),
    ):
        pass


def test_a_folder_with_other_data_is_left_alone(tmp_path: Path) -> None:
    shutil.copytree(example("lidc").path.parents[1], tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="other data"), open_work_list(tmp_path / "data", [], model="run"):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_another_image_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (case,) = find_cases([write_images(tmp_path / "images", count=1)])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT)
        with pytest.raises(DataError, match="another image"):
            work.check_shape(case, (1, 8, 8))


def test_accepted_cases_are_a_data_set(tmp_path: Path) -> None:
    cases = find_cases([example("lidc").path.parents[1]])
    folder = tmp_path / "list"
    with open_work_list(folder, cases, model="run") as work:
        masks = []
        for case in cases:
            add(work, case, CHOOSE, PAINT, ACCEPT)
            masks.append(work.fold(case).mask(0, shape=(128, 128)))
        splits = open_splits(str(folder), options={"val_every": 3})
        assert {name: len(source) for name, source in splits.items()} == {"train": 2, "val": 1}
        found = {each.identities[n].key: each[n] for each in splits.values() for n in range(len(each))}
        for case, mask in zip(cases, masks, strict=True):
            np.testing.assert_array_equal(found[case.name].labels[0], mask)
            np.testing.assert_array_equal(found[case.name].pixels[0], example(case.name).image)
        add(work, cases[1], REOPEN)
        assert sorted(file.name for file in (folder / "images").iterdir()) == ["lidc-1.png", "lidc-3.png"]
        assert (folder / "data.csv").read_text() == "file,patient\nlidc-1.png,lidc-1\nlidc-3.png,lidc-3\n"
        add(work, cases[1], UNDO, ACCEPT)
    labels = Image.open(folder / "graders" / "reviewer" / "lidc-2.png")
    assert np.asarray(labels).sum() == 5
    assert len(find_cases([folder])) == 3  # it can be looked at again


def test_patients_of_a_table_stay_together_but_are_not_named(tmp_path: Path) -> None:
    shutil.copytree(example("lidc").path.parents[1], tmp_path / "data")
    (tmp_path / "data" / "data.csv").write_text("file,patient\nlidc-1.png,Doe\nlidc-2.png,Roe\nlidc-3.png,Doe\n")
    cases = find_cases([tmp_path / "data"])
    for _ in range(2):
        with open_work_list(tmp_path / "list", cases, model="run") as work:
            for case in cases:
                add(work, case, *[REOPEN] * (work.fold(case).status == "accepted"))
                add(work, case, PAINT, ACCEPT)
    table = (tmp_path / "list" / "data.csv").read_text()
    first, second, third = (row.split(",")[1] for row in table.splitlines()[1:])
    assert first == third != second
    for file in (tmp_path / "list").glob("*.*"):
        assert b"Doe" not in file.read_bytes()


def test_volumes_keep_their_geometry(tmp_path: Path) -> None:
    series = Series("Doe^Jane", "1.3.6.1.4.1.14519.5.2.1").write(tmp_path / "scans")
    (case,) = find_cases([series])
    with open_work_list(tmp_path / "list", [case], model="run") as work:
        add(work, case, PAINT | {"slice": 2}, ACCEPT)
        mask = work.fold(case).mask(2, shape=(64, 64))
    files = [tmp_path / "list" / place / f"{case.name}.nii.gz" for place in ("images", "graders/reviewer")]
    image, labels = (decode_nifti(file.read_bytes(), name="it") for file in files)
    np.testing.assert_array_equal(labels.slices[2], mask)
    assert not labels.slices[[0, 1, 3]].any()
    np.testing.assert_array_equal(image.slices, case.read().values)
    np.testing.assert_allclose(image.affine, case.read().geometry.affine, atol=1e-5)
    np.testing.assert_allclose(labels.affine, image.affine)
    assert len(open_data(str(tmp_path / "list"), split="train")) == 4
    for file in (tmp_path / "list").rglob("*"):
        assert not file.is_file() or not any(name in file.read_bytes() for name in (b"Doe", b"1.3.6.1.4"))


def test_files_of_an_accept_that_was_not_logged_are_deleted(tmp_path: Path) -> None:
    cases = find_cases([write_images(tmp_path / "images", count=2)])
    folder = tmp_path / "list"
    with open_work_list(folder, cases, model="run") as work:
        add(work, cases[0], PAINT, ACCEPT)
        add(work, cases[1], PAINT)
        log = (folder / "log.jsonl").read_bytes()
        add(work, cases[1], ACCEPT)
    (folder / "log.jsonl").write_bytes(log)  # killed between the files and the line
    with open_work_list(folder, cases, model="run") as work:
        assert statuses(work) == ["accepted", "open"]
        assert [file.name for file in (folder / "images").iterdir()] == ["image-000.png"]
        assert len((folder / "data.csv").read_text().splitlines()) == 2


def test_uploads_stay_without_metadata(tmp_path: Path) -> None:
    picture = Image.new("L", (9, 8), 5)
    exif = Image.Exif()
    exif[0x010E] = "Doe^Jane"
    picture.save(tmp_path / "upload.jpg", exif=exif)
    series = Series("Doe^Jane", "1.3.6.1.4.1.14519.5.2.1", num_slices=1).write(tmp_path / "scans")
    (dicom,) = series.iterdir()
    with open_work_list(tmp_path / "list", [], model="run") as work:
        assert work.upload("../../etc/Bild 1.jpg", tmp_path / "upload.jpg") == 0
        assert work.upload("C:\\scans\\bild 1.JPG", tmp_path / "upload.jpg") == 1
        assert work.upload("1.3.6.1.4.1.14519.5.2.1.7.dcm", dicom) == 2
        names = [case.name for case in work.cases]
        assert names[:2] == ["Bild 1", "bild 1-2"]
        assert names[2].startswith("image-")
        add(work, work.cases[1], PAINT, ACCEPT)
        spacing = dicom_spacing = work.cases[2].read().geometry.spacing
        assert spacing is not None
    with open_work_list(tmp_path / "list", [], model="run") as work:
        assert [case.name for case in work.cases] == names
        assert statuses(work) == ["open", "accepted", "open"]
        np.testing.assert_allclose(work.cases[2].read().geometry.spacing[-2:], dicom_spacing[-2:])
    for file in (tmp_path / "list").rglob("*"):
        assert not file.is_file() or not any(word in file.read_bytes() for word in (b"Doe", b"1.3.6.1.4", b"Exif"))


def test_the_log_names_no_folder(tmp_path: Path) -> None:
    cases = find_cases([write_images(tmp_path / "secret", count=1)])
    with open_work_list(tmp_path / "list", cases, model="run") as work:
        add(work, cases[0], PAINT)
    for file in ("log.jsonl", "worklist.json"):
        assert "secret" not in (tmp_path / "list" / file).read_text()
    json.loads((tmp_path / "list" / "worklist.json").read_text())
