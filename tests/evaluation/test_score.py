"""Scores of samples in files: the digits of an evaluation, in every layout, and clear errors instead of subsets."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import tiny_settings, untrained_model, write_tiny_pack

from hpunet.cli.compare import compare_command
from hpunet.cli.evaluate import evaluate_command
from hpunet.cli.score import score_command
from hpunet.data.folder.source import open_folder
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import Source
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation import sample_files
from hpunet.evaluation import summary as evaluation_summary
from hpunet.evaluation.rows import Row, read_rows
from hpunet.evaluation.run import evaluate
from hpunet.evaluation.sample_files import SampleFiles, write_samples
from hpunet.evaluation.score import score_samples
from hpunet.evaluation.scorer import Scorer
from hpunet.training.loop import train

KEYS = ("a", "p1/z-5_c0")


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 50)


def scorer_of(folder: Path, **changes: Any) -> Scorer:
    how = {"model": untrained_model(INFO["lesions"]), "info": INFO["lesions"], "crop": None, "num_samples": 6}
    return Scorer(**{**how, "samples_folder": folder / "samples", **changes})


def lesions() -> Source:
    return open_synthetic("lesions", split="val", num_images=5, size=16)


def score(samples: Path, source: Source, folder: Path, *, pattern: str | None = None, **how: Any) -> dict[str, Any]:
    files = SampleFiles(samples, keys=[key for _, key in source.identities], pattern=pattern)
    return score_samples(files, source=source, folder=folder, **{"num_samples": 6, **how})


def without_posterior(rows: list[Row]) -> list[dict[str, Any]]:
    return [{**vars(row), "scores": {k: v for k, v in row.scores.items() if k != "iou_rec"}} for row in rows]


@pytest.mark.parametrize("crop", [None, (8, 12), (20, 24)])
@pytest.mark.parametrize("counted", [False, True])
def test_own_samples_score_as_evaluated_to_the_last_digit(
    crop: tuple[int, int] | None, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lesions()
    monkeypatch.setattr(Scorer, "counts_on_device", counted)
    expected = evaluate(scorer_of(tmp_path, crop=crop), source=source, folder=tmp_path, batch_size=3)
    found = score(tmp_path / "samples", source, tmp_path / "scored", crop=crop)
    before, after = (read_rows(folder / "rows.csv") for folder in (tmp_path, tmp_path / "scored"))
    assert {"ged2", "hm_iou", "hm_iou_best", "best_match_dice", "calibration_error"} <= after[0].scores.keys()
    if counted:  # pixels are summed up in another order
        for one, other in zip(before, after, strict=True):
            assert other.scores == pytest.approx({k: v for k, v in one.scores.items() if k != "iou_rec"}, abs=1e-12)
        return
    assert without_posterior(after) == without_posterior(before)
    for name, entry in found.items():
        if isinstance(entry, dict) and "mean" in entry:
            assert entry == expected[name], name
    assert found["iou_rec"] is None
    assert found["reasons"]["iou_rec"] == "needs a posterior, which samples alone do not have"


def test_first_samples_are_those_of_a_smaller_evaluation(tmp_path: Path) -> None:
    source = lesions()
    evaluate(scorer_of(tmp_path), source=source, folder=tmp_path)
    evaluate(scorer_of(tmp_path / "few", num_samples=4), source=source, folder=tmp_path / "few")
    score(tmp_path / "samples", source, tmp_path / "scored", num_samples=4)
    rows = (without_posterior(read_rows(tmp_path / place / "rows.csv")) for place in ("few", "scored"))
    assert next(rows) == next(rows)


def test_samples_are_saved_again_where_they_are_missing_and_of_one_seed_only(tmp_path: Path) -> None:
    source = lesions()
    evaluate(scorer_of(tmp_path, samples_folder=None), source=source, folder=tmp_path)
    rows = (tmp_path / "rows.csv").read_bytes()
    evaluate(scorer_of(tmp_path), source=source, folder=tmp_path)
    saved = {file: file.read_bytes() for file in (tmp_path / "samples").rglob("*.npz")}
    assert len(saved) == 5
    next(iter(saved)).unlink()
    evaluate(scorer_of(tmp_path), source=source, folder=tmp_path)
    assert {file: file.read_bytes() for file in (tmp_path / "samples").rglob("*") if file.is_file()} == saved
    assert (tmp_path / "rows.csv").read_bytes() == rows
    evaluate(scorer_of(tmp_path, samples_folder=None), source=source, folder=tmp_path, replace=True)
    assert not (tmp_path / "samples").exists()
    with pytest.raises(ConfigError, match="2 seeds"):
        scorer_of(tmp_path, num_seeds=2)


@pytest.mark.parametrize("key", ["../a", "/a", "a/../../b", "", "a\0"])
def test_keys_that_lead_out_of_the_folder_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be the name"):
        write_samples(tmp_path / "samples", key, np.zeros((1, 2, 2), np.uint8))
    assert not list(tmp_path.rglob("*"))


def drawn(number: int, size: tuple[int, int] = (9, 7)) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 2, (6, *size)).astype(np.uint8)


def data_folder(root: Path, names: tuple[str, ...] = ("a", "b", "c")) -> Path:
    rng = np.random.default_rng(9)
    for name in names:
        for kind in ("images", "graders/x", "graders/y"):
            (root / kind).mkdir(parents=True, exist_ok=True)
            high = 256 if kind == "images" else 2
            Image.fromarray(rng.integers(0, high, (9, 7)).astype(np.uint8)).save(root / kind / f"{name}.png")
    (root / "data.csv").write_text("file,split\n" + "".join(f"{name}.png,val\n" for name in names))
    return root


def as_npz(folder: Path) -> str | None:
    for number, name in enumerate("abc"):
        np.savez_compressed(folder / f"{name}.npz", drawn(number).astype(np.int64))
    return None


def as_named_npz(folder: Path) -> str | None:
    for number, name in enumerate("abc"):
        np.savez(folder / f"{name}.npz", samples=drawn(number).astype(bool), probabilities=np.zeros(3))
    return None


def as_npy(folder: Path) -> str | None:
    for number, name in enumerate("abc"):
        np.save(folder / f"{name}_out.npy", 255.0 * drawn(number))
    return "{name}_out.npy"


def as_folders(folder: Path) -> str | None:
    for number, name in enumerate("abc"):
        (folder / name).mkdir()
        for n, labels in enumerate(drawn(number)):
            Image.fromarray(labels).save(folder / name / f"sample-{n + 1:02d}.png")
        Image.fromarray(drawn(0)[0]).save(folder / name / "mean.png")
    (folder / "readme.txt").write_text("not read")
    return None


def as_suffixes(folder: Path) -> str | None:
    for number, name in enumerate("abc"):
        for n, labels in enumerate(drawn(number)):
            Image.fromarray(255 * labels).save(folder / f"{name}_s{n}.tif")
    return "{name}_s{number}.tif"


@pytest.mark.parametrize("write", [as_npz, as_named_npz, as_npy, as_folders, as_suffixes])
def test_every_layout_has_the_same_scores(write: Callable[[Path], str | None], tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    for folder in ("plain", "other"):
        (tmp_path / folder).mkdir()
    as_npz(tmp_path / "plain")
    pattern = write(tmp_path / "other")
    expected = score(tmp_path / "plain", source, tmp_path / "1", num_samples=5)
    found = score(tmp_path / "other", source, tmp_path / "2", num_samples=5, pattern=pattern)
    rows = [read_rows(tmp_path / place / "rows.csv") for place in "12"]
    assert rows[0] == rows[1]
    assert len({row.scores["ged2"] for row in rows[0]}) == 3
    assert expected["ged2"] == found["ged2"]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("write", [as_npz, as_folders])
def test_an_archive_holds_what_its_folder_does(
    write: Callable[[Path], str | None], wrapped: bool, tmp_path: Path
) -> None:
    """Also if all keys begin with the same folder, which is not one around the samples."""
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    source.identities = [identity._replace(key=f"p1/{identity.key}") for identity in source.identities]
    (tmp_path / "theirs/p1").mkdir(parents=True)
    write(tmp_path / "theirs/p1")
    with tarfile.open(tmp_path / "theirs.tar", "w") as archive:
        archive.add(tmp_path / "theirs", arcname="theirs" if wrapped else ".")
    score(tmp_path / "theirs", source, tmp_path / "1")
    score(tmp_path / "theirs.tar", source, tmp_path / "2")
    assert read_rows(tmp_path / "1/rows.csv") == read_rows(tmp_path / "2/rows.csv")


@pytest.mark.parametrize("write", [as_npz, as_folders])
def test_an_archive_of_one_image(write: Callable[[Path], str | None], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        for file in (tmp_path / "out").glob("a*"):
            archive.add(file, arcname=file.name)
    assert not SampleFiles(tmp_path / "one.tar", keys=["a"]).missing(["a"])


@pytest.mark.parametrize("stacked", [False, True])
def test_volumes_are_scored_slice_by_slice(stacked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = sample_files.decode_nifti
    monkeypatch.setattr(
        sample_files, "decode_nifti", lambda *a, name, **how: decoded.append(name) or decode(*a, name=name, **how)
    )
    rng = np.random.default_rng(1)
    samples = rng.integers(0, 2, (7, 9, 4, 6)).astype(np.uint8)  # x, y, z, s
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        voxels = rng.integers(0, 2, (7, 9, 4)).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "data" / kind / "v.nii.gz")
    (tmp_path / "data/data.csv").write_text("file,split\nv.nii.gz,val\n")
    (tmp_path / "out").mkdir()
    if stacked:
        nibabel.save(nibabel.Nifti1Image(samples, np.eye(4)), tmp_path / "out/v.nii.gz")
    for n in range(0 if stacked else 6):
        nibabel.save(nibabel.Nifti1Image(samples[..., n], np.eye(4)), tmp_path / f"out/v_{n}.nii.gz")
    source = open_folder(tmp_path / "data", split="val")
    pattern = "{name}.nii.gz" if stacked else "{name}_{number}.nii.gz"
    score(tmp_path / "out", source, tmp_path / "scored", pattern=pattern, num_samples=5)
    (tmp_path / "plain/v").mkdir(parents=True)
    for z in range(4):
        np.savez(tmp_path / f"plain/v/z-{z:03d}.npz", samples[:, :, z].transpose(2, 0, 1))
    score(tmp_path / "plain", source, tmp_path / "expected", num_samples=5)
    rows = [read_rows(tmp_path / place / "rows.csv") for place in ("scored", "expected")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4
    assert len(decoded) == (1 if stacked else 5)  # each file once, not for every slice
    if not stacked:
        nibabel.save(nibabel.Nifti1Image(samples[..., :2], np.eye(4)), tmp_path / "out/v_3.nii.gz")
        with pytest.raises(DataError, match=r"v_3\.nii\.gz: holds 2 samples, .* one per file"):
            score(tmp_path / "out", source, tmp_path / "more", pattern=pattern, num_samples=5)


def npz(folder: Path, name: str, array: np.ndarray, **others: np.ndarray) -> None:
    np.savez(folder / f"{name}.npz", array, **others)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: (f / "b.npz").unlink(), r"b\.npz: there is no such file; 1 image of 3"),
    "extra": (lambda f: npz(f, "d", drawn(0)), r"d\.npz: fits .* no image for it; its first image is a"),
    "too few": (lambda f: npz(f, "b", drawn(0)[:5]), r"b\.npz: holds 5 samples of b, 6 are scored"),
    "other size": (lambda f: npz(f, "b", drawn(0, (7, 9))), r"b\.npz: shape \(6, 7, 9\); expected .* 9×7 as b has"),
    "one map": (lambda f: npz(f, "b", drawn(0)[0]), r"b\.npz: shape \(9, 7\)"),
    "two arrays": (lambda f: npz(f, "b", drawn(0), other=drawn(0)), r"b\.npz: expected one array, .*found 2"),
    "other class": (lambda f: npz(f, "b", 2 * drawn(0)), r"b\.npz: value 2"),
    "fractions": (lambda f: npz(f, "b", drawn(0) / 2), r"b\.npz: .*fractions"),
    "negative": (lambda f: npz(f, "b", -drawn(0).astype(np.int8)), r"b\.npz: .*labels from 0"),
    "text": (lambda f: npz(f, "b", drawn(0).astype(str)), r"b\.npz: expected whole numbers"),
    "fortran": (lambda f: npz(f, "b", np.asfortranarray(drawn(0))), r"b\.npz: is in Fortran's order"),
    "objects": (lambda f: npz(f, "b", np.array([drawn(0), None], dtype=object)), r"b\.npz: expected whole numbers"),
    "nonsense": (lambda f: (f / "b.npz").write_bytes(b"hello"), r"b\.npz: not a readable"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_by_the_name_of_the_file(name: str, tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    (tmp_path / "out").mkdir()
    as_npz(tmp_path / "out")
    change, words = WRONG[name]
    change(tmp_path / "out")
    with pytest.raises(DataError, match=words):
        score(tmp_path / "out", source, tmp_path / "scored")
    assert not (tmp_path / "scored/summary.json").exists()


def test_single_files_are_checked_too(tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    out = tmp_path / "out"
    for change, words in (
        (lambda: (out / "b/sample-06.png").unlink(), r"sample-05\.png: is the last of 5 samples of b, 6 are scored"),
        (lambda: (out / "b/sample-03.png").rename(out / "b/sample-09.png"), r"sample 3 of b is missing"),
        (lambda: shutil.copy(out / "b/sample-03.png", out / "b/sample-3.png"), r"sample-3\.png: .*the same sample"),
        (lambda: Image.new("L", (9, 7)).save(out / "b/sample-02.png"), r"sample-02\.png: 7x9 pixels, .* b has 9x7"),
        (lambda: Image.new("RGB", (7, 9)).save(out / "b/sample-02.png"), r"sample-02\.png"),
        (lambda: (out / "b/sample-02.png").write_bytes(b"x"), r"sample-02\.png: not a readable"),
        (lambda: shutil.copytree(out / "b", out / "d"), r"d/sample-01\.png: fits .* no image for it"),
    ):  # fmt: skip
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        as_folders(out)
        change()
        with pytest.raises(DataError, match=words):
            score(out, source, tmp_path / "scored", replace_rows=True)


def test_a_subset_is_scored_on_request_only_and_counted(tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    (tmp_path / "out").mkdir()
    as_npz(tmp_path / "out")
    whole = score(tmp_path / "out", source, tmp_path / "whole")
    (tmp_path / "out/b.npz").unlink()
    said: list[str] = []
    part = score(tmp_path / "out", source, tmp_path / "part", skip_missing=True, say=said.append)
    assert (whole["num_images"], whole["num_missing"], part["num_images"], part["num_missing"]) == (3, 0, 2, 1)
    assert "1 image of 3 without samples are left out" in said
    limited = score(tmp_path / "out", source, tmp_path / "limited", limit=1)
    assert (limited["num_images"], limited["limit"]) == (1, 1)
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"no file fits \{name\}\.npz or .*--pattern"):
        score(tmp_path / "out", source, tmp_path / "none", skip_missing=True)


def test_rows_are_kept_while_the_files_are_the_same(tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    (tmp_path / "out").mkdir()
    as_npz(tmp_path / "out")
    said: list[str] = []
    first = score(tmp_path / "out", source, tmp_path / "scored")
    again = score(tmp_path / "out", source, tmp_path / "scored", say=said.append)
    assert "3 of 3 rows are done already" in said
    assert first["ged2"] == again["ged2"]
    npz(tmp_path / "out", "b", 1 - drawn(1))
    with pytest.raises(ConfigError, match=r"holds a different evaluation \(predictions\)"):
        score(tmp_path / "out", source, tmp_path / "scored")
    assert score(tmp_path / "out", source, tmp_path / "scored", replace_rows=True)["ged2"] != first["ged2"]


def test_another_limit_extends_the_rows(tmp_path: Path) -> None:
    source = open_folder(data_folder(tmp_path / "data"), split="val")
    (tmp_path / "out").mkdir()
    as_npz(tmp_path / "out")
    said: list[str] = []
    whole = score(tmp_path / "out", source, tmp_path / "whole")
    for limit, done in ((1, 0), (2, 1), (None, 2), (1, 1)):
        found = score(tmp_path / "out", source, tmp_path / "scored", limit=limit, say=said.append)
        assert found["num_images"] == (limit or 3)
        assert not done or f"{done} of {limit or 3} rows are done already" in said
        if limit is None:
            assert found["ged2"] == whole["ged2"]
    (tmp_path / "out/b.npz").unlink()
    with pytest.raises(ConfigError, match=r"different evaluation \(predictions\)"):
        score(tmp_path / "out", source, tmp_path / "scored", skip_missing=True)


def test_samples_in_the_output_folder_are_not_deleted(tmp_path: Path) -> None:
    source = lesions()
    evaluate(scorer_of(tmp_path / "val-6"), source=source, folder=tmp_path / "val-6")
    (tmp_path / "link").symlink_to(tmp_path / "val-6/samples")
    before = {file: file.read_bytes() for file in (tmp_path / "val-6").rglob("*") if file.is_file()}
    for samples in (tmp_path / "val-6/samples", tmp_path / "link", tmp_path / "val-6"):
        pattern = "samples/{name}.npz" if samples.name == "val-6" else None
        with pytest.raises(ConfigError, match="lie in the output folder"):
            score(samples, source, tmp_path / "val-6", replace_rows=True, pattern=pattern)
    assert {file: file.read_bytes() for file in (tmp_path / "val-6").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "pattern",
    ["a.npz", "{name}.png", "{name}{number}.png", "{name}_{number}.npz", "/{name}.npz", "{name}/{name}.npz"],
)
def test_patterns_are_checked(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--pattern"):
        SampleFiles(tmp_path, keys=KEYS, pattern=pattern)


def test_instances_are_refused(tmp_path: Path) -> None:
    source = open_synthetic("neurites", split="val", num_images=1, size=16)
    write_samples(tmp_path, source.identities[0].key, np.zeros((6, 16, 16), np.uint8))
    with pytest.raises(ConfigError, match="labels are instances"):
        score(tmp_path, source, tmp_path / "scored")


def test_command_scores_what_evaluate_has_saved_and_compare_takes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    pack = write_tiny_pack(tmp_path / "pack")
    settings = tiny_settings("optimiser.iterations=1")
    train(settings, data=str(pack), run=tmp_path / "run", device=torch.device("cpu"), say=lambda _: None)
    evaluate_command(runs=[tmp_path / "run"], data="pack", samples=5, save_samples=True)
    printed = capsys.readouterr().out
    samples = tmp_path / "run/evaluation/val-5/samples"
    score_command(samples=samples, labels="pack", samples_per_image="5,3", json_file=tmp_path / "all.json")
    scored = capsys.readouterr().out
    table = [line for line in printed.splitlines() if "hm_iou" in line or "ged2" in line]
    assert len(table) == 4
    assert all(line in scored for line in table)
    assert "no iou_rec: needs a posterior" in scored
    found = json.loads((tmp_path / "all.json").read_text())
    assert [found[number]["num_samples"] for number in ("5", "3")] == [5, 3]
    compare_command(models=["run", "evaluation/run-val-5/val-5"], samples=5)
    gaps = json.loads((tmp_path / "run/comparison-val-5.json").read_text())
    assert gaps["ged2"]["differences"][0]["patient_mean"] == 0
    assert gaps["ged2"]["differences"][0]["num_images"] == 12
    assert gaps["iou_rec"]["differences"] == [None]
    shutil.copytree(tmp_path / "run/evaluation/val-5", tmp_path / "evaluation/other/val-5")  # as of published weights
    score_command(samples=Path("evaluation/other/val-5/samples"), labels="pack", samples_per_image="5")
    shutil.copytree(samples, tmp_path / "theirs/samples")
    score_command(samples=Path("theirs/samples"), labels="pack", samples_per_image="5")
    assert {str(file.parent) for file in Path("evaluation").rglob("summary.json")} == {
        *("evaluation/run-val-5/val-5", "evaluation/run-val-5/val-3", "evaluation/other/val-5"),
        *("evaluation/other-val-5/val-5", "evaluation/samples/val-5"),
    }
    with pytest.raises(ConfigError, match="--samples-per-image"):
        score_command(samples=samples, labels="pack", samples_per_image="1.5")
