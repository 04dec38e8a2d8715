"""Measurements of predictions, and as files: what `hpunet sample` writes and `hpunet measure` reads."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from typer.testing import CliRunner
from untrained import make_predictor

import hpunet.predict.predictor
from hpunet.cli.main import app
from hpunet.data.io.geometry import Geometry
from hpunet.data.synthetic.source import INFO
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.predict.measurements import read_measurements
from hpunet.predict.place import Place
from hpunet.predict.prediction import Prediction

PREDICTOR = make_predictor()


def predicted(labels: np.ndarray, *, spacing: tuple[float, ...] | None = (0.5, 2.0)) -> Prediction:
    """A prediction with these samples."""
    drawn = PREDICTOR(np.zeros(labels.shape[1:], dtype=np.uint8), num_samples=len(labels))
    place = Place((1, *labels.shape[1:]), geometry=Geometry("yx", spacing))
    return replace(drawn, samples=labels.astype(np.uint8), place=place, name="scan")


def squares(*sides: int) -> np.ndarray:
    maps = np.zeros((len(sides), 24, 24), dtype=np.uint8)
    for number, side in enumerate(sides):
        maps[number, 2 : 2 + side, 3 : 3 + side] = 1
    return maps


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    models = {"lesions": PREDICTOR.trained, "neurites": make_predictor(INFO["neurites"]).trained}
    monkeypatch.setattr(hpunet.predict.predictor, "load_trained", lambda run, **_: models[str(run)])
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_prediction_is_measured_in_the_unit_of_its_file() -> None:
    samples = squares(4, 8, 0)
    area = predicted(samples).measurements.of("area")
    assert (area.values.tolist(), area.unit, area.median) == ([16, 64, 0], "mm²", 16)
    longest = predicted(samples).measurements.of("longest_diameter")
    assert longest.values[0] == pytest.approx(math.hypot(3 * 0.5, 4 * 2))
    for unknown in (None, (0.0, 1.0), (1e9, 1.0)):
        area = predicted(samples, spacing=unknown).measurements.of("area")
        assert (area.values.tolist(), area.unit) == ([16, 64, 0], "pixels")


def test_growth_is_between_all_samples_of_two_images() -> None:
    before, after = predicted(squares(4, 4, 8)), predicted(squares(5, 9, 9, 4))
    # 16 → 25, 81, 81 and 64 → 81, 81 are more than 25 % larger: 2 · 3 + 2 of 12 pairs.
    assert before.growth(after) == pytest.approx(8 / 12)
    assert before.growth(after, more_than=0.6) == pytest.approx(4 / 12)
    assert before.growth(after, quantity="num_parts") == 0
    with pytest.raises(DataError, match="spacing"):
        before.growth(predicted(squares(5), spacing=None))


def test_stacks_have_no_volume_but_slices_have_areas(run: Callable[..., Any]) -> None:
    values = np.random.default_rng(0).integers(0, 255, (20, 28, 3)).astype(np.uint8)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([0.7, 0.7, 2.5, 1])), "v.nii.gz")
    assert run("sample", "lesions", "v.nii.gz", "--out", "out", "--samples", 3).exit_code == 0
    stack = PREDICTOR("v.nii.gz", num_samples=3)
    with pytest.raises(ConfigError, match="one by one"):
        _ = stack.measurements
    area = stack.slices[1].measurements.of("area")
    np.testing.assert_allclose(area.values, (stack.samples[:, 1] == 1).sum(axis=(1, 2)) * 0.49, rtol=1e-6)
    read = read_measurements("out/v/z-001")
    assert read.of("area").values.tolist() == area.values.tolist()
    assert "one by one" in json.loads(Path("out/v/z-001/measurements.json").read_text())["volume"]
    with pytest.raises(ConfigError, match="z-000"):
        read_measurements("out/v")


def test_files_hold_every_sample_and_the_distribution(tmp_path: Path) -> None:
    prediction = predicted(squares(4, 9, 4, 4, 0))
    prediction.save(tmp_path / "a", representatives=2)
    found = json.loads((tmp_path / "a/measurements.json").read_text())
    area = found["classes"]["lesion"]["area"]
    assert (area["unit"], area["samples"]) == ("mm²", [16, 81, 16, 16, 0])
    assert [area[name] for name in ("low", "median", "high")] == pytest.approx([3.2, 16, 68])
    assert (found["image"], found["spacing_mm"], found["volume"]) == ("scan", [0.5, 2], None)
    assert [(h["share"], h["sample"], h["classes"]["lesion"]["area"]) for h in found["hypotheses"]] == [
        (0.6, 1, 16), (0.2, 2, 81), (0.2, 5, 0),
    ]  # fmt: skip
    with (tmp_path / "a/measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["sample"], row["hypothesis"], float(row["area"]), row["num_parts"]) for row in rows] == [
        ("1", "1", 16, "1"), ("2", "2", 81, "1"), ("3", "1", 16, "1"), ("4", "1", 16, "1"), ("5", "3", 0, "0"),
    ]  # fmt: skip
    assert {(row["image"], row["class"], row["unit"]) for row in rows} == {("scan", "lesion", "mm")}
    read, measured = read_measurements(tmp_path / "a"), prediction.measurements
    assert read.spacing == measured.spacing
    for name, sizes in measured.classes["lesion"].items():
        assert read.of(name).values.tolist() == sizes.values.tolist()
        assert read.of(name).unit == sizes.unit
    few = json.loads((tmp_path / "a/representatives.json").read_text())["representatives"]
    assert [(each["share"], each["representative"]) for each in few] == [(0.8, "sample-01"), (0.2, "sample-05")]
    assert [h.representative for h in prediction.representatives(2)] == [0, 4]


def test_measure_prints_sizes_and_growth(run: Callable[..., Any]) -> None:
    predicted(squares(4, 4, 8)).save("before")
    predicted(squares(5, 9, 9, 4)).save("after")
    one = run("measure", "before", "--larger-than", 20)
    assert one.exit_code == 0, one.output
    assert "16 (16 to 59.2) mm²" in one.output
    assert "33%" in one.output
    both = run("measure", "before", "after/measurements.json", "--json", "table.json")
    assert "67%" in both.output
    table = json.loads(Path("table.json").read_text())
    assert table["sizes"][0]["quantity"] == "area"
    assert table["sizes"][0]["growth"] == pytest.approx(8 / 12)
    wrong = run("measure", "before", "--larger-than", 1, "--quantity", "volume")
    assert isinstance(wrong.exception, ConfigError)
    assert isinstance(run("measure", "nowhere").exception, HPUNetError)


def test_models_of_instances_are_neither_measured_nor_represented(run: Callable[..., Any]) -> None:
    np.save("a.npy", np.zeros((20, 28), dtype=np.uint8))
    assert run("sample", "neurites", "a.npy", "--out", "out", "--samples", 2).exit_code == 0
    assert not list(Path("out/a").glob("measurements*"))
    refused = run("sample", "neurites", "a.npy", "--out", "b", "--representatives", 2)
    assert "hpunet instances" in str(refused.exception)
    many = run("sample", "lesions", "a.npy", "--out", "b", "--samples", 3, "--representatives", 4)
    assert "at most 3" in str(many.exception)
    assert not Path("b").exists()
    shown = run("sample", "lesions", "a.npy", "--out", "b", "--samples", 3, "--representatives", 2)
    listed = json.loads(Path("b/a/representatives.json").read_text())["representatives"]
    assert f"{len(listed)} representative" in shown.output


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"classes": {}},
        {"classes": {"a": {"area": {"unit": "mm²", "samples": []}}}},
        {"classes": {"a": {"area": {"unit": "m", "samples": [1]}}}},
        {"classes": {"a": {"area": {"unit": "mm²", "samples": [-1]}}}},
        {"classes": {"a": {"mass": {"unit": "mm²", "samples": [1]}}}},
        {"classes": {"a": {"area": {"unit": "mm²", "samples": [1] * 2000}}}},
        {"classes": {"a": {q: {"unit": "mm", "samples": [1] * n} for n, q in enumerate(("area", "num_parts"), 1)}}},
        {"spacing_mm": [1]},
        {"spacing_mm": "1 mm"},
    ],
)
def test_other_files_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    area = {"unit": "mm²", "samples": [1.0, 2.0]}
    fine = {"format": "hpunet-measurements", "version": 1, "image": "a", "spacing_mm": [1, 1]}
    fine |= {"classes": {"lesion": {"area": area}}}
    (tmp_path / "measurements.json").write_text(json.dumps(fine))
    assert read_measurements(tmp_path).of("area").median == 1.5
    (tmp_path / "measurements.json").write_text(json.dumps(fine | change))
    with pytest.raises(DataError, match=r"measurements\.json"):
        read_measurements(tmp_path)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    predicted(squares(4, 8)).save(tmp_path / "a")
    file = tmp_path / "a" / "measurements.json"
    whole, rng, outcomes = file.read_bytes(), np.random.default_rng(0), set()
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[place] = rng.choice(list(b'0123456789,"[]{}\n.-eNainf\xff\x00'))
        file.write_bytes(damaged)
        try:
            read_measurements(file)
            outcomes.add("read")
        except HPUNetError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_sample_says_the_sizes_of_classes_that_it_shows(run: Callable[..., Any]) -> None:
    np.save("a.npy", np.zeros((20, 28), dtype=np.uint8))
    result = run("sample", "lesions", "a.npy", "--out", "out", "--samples", 3)
    area = read_measurements("out/a").of("area")
    assert area.values.any()
    assert f"area {area.median:.4g} pixels" in " ".join(result.output.split())
