"""Comparisons of evaluations that are written by hand: paired differences, and what is refused."""

import csv
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from hpunet.errors import ConfigError, DataError
from hpunet.evaluation import summary as evaluation_summary
from hpunet.evaluation.compare import Evaluated, compare, comparison_csv, read_evaluated
from hpunet.evaluation.rows import METRICS, SUMMARY_FILE, Row, RowStore
from hpunet.evaluation.summary import ALL_METRICS, NUM_BOOTSTRAPS, Scope, pooled, resampled, summarise
from hpunet.metrics import InstanceMatches
from hpunet.reports.comparison import draw_comparison
from hpunet.utils.files import dump_json

IDENTITY = {"split": "val", "samples": 4, "seeds": 1, "crop": [8, 8], "extrapolate": False, "alpha": None}
IDENTITY |= {"data": "x", "limit": None}
CLASSES = Scope(num_samples=4, has_instances=False, has_average_precision=False)


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 200)


def rows_of(ged2: np.ndarray, *, patients: int = 5, **changes: Any) -> list[Row]:
    values: dict[str, Any] = {"num_graders": 4, **changes}
    return [
        Row(image=i, key=f"image-{i}", patient=f"p{i % patients}", scores={"ged2": float(v)}, **values)
        for i, v in enumerate(ged2)
    ]


def evaluated(name: str, *runs: list[Row], **changes: Any) -> list[Evaluated]:
    """A model of one or several runs."""
    how: dict[str, Any] = {"name": name, "folder": Path(name), "identity": {**IDENTITY, **changes}}
    return [Evaluated(rows={row.key: row for row in rows}, **how) for rows in runs]


def compared(models: list[list[Evaluated]]) -> dict[str, Any]:
    return compare({runs[0].name: runs for runs in models})


def hard_and_easy(num: int = 40) -> np.ndarray:
    return np.random.default_rng(0).random(num)


def test_differences_are_paired() -> None:
    """Images differ much from each other, the models by a constant: the difference has no spread."""
    ours, theirs = rows_of(hard_and_easy()), rows_of(hard_and_easy() + 0.01)
    found = compared([evaluated("a", ours), evaluated("b", theirs), evaluated("c", ours)])
    (gap, same) = found["ged2"]["differences"]
    assert gap["mean"] == pytest.approx(0.01)
    assert gap["std"] == pytest.approx(0, abs=1e-9)
    assert (gap["low"], gap["patient_high"]) == (pytest.approx(0.01), pytest.approx(0.01))
    assert (same["mean"], same["num_images"]) == (0, 40)
    assert found["ged2"]["runs"][0]["std"] > 0.02
    assert found["hm_iou"]["differences"] == [None, None]
    dump_json(found, name="strict JSON")


def test_interval_is_that_of_the_resampled_differences() -> None:
    noise = np.random.default_rng(1).normal(0.1, 0.2, 40)
    found = compared([evaluated("a", rows_of(hard_and_easy())), evaluated("b", rows_of(hard_and_easy() + noise))])
    (gap,) = found["ged2"]["differences"]
    assert gap["mean"] == pytest.approx(noise.mean(), abs=0.01)
    assert gap["std"] == pytest.approx(noise.std() / 40**0.5, rel=0.2)
    assert gap["high"] - gap["low"] == pytest.approx(3.92 * gap["std"], rel=0.2)


def test_models_of_several_runs_differ_by_the_draws_of_all_their_pairs() -> None:
    """Seeds of training move a model by constants: that alone is the spread, and means stay."""
    ours = evaluated("a", *(rows_of(hard_and_easy() + shift) for shift in (0.0, 0.02)))
    theirs = evaluated("b", *(rows_of(hard_and_easy() + shift) for shift in (0.3, 0.32, 0.37)))
    found = compared([ours, theirs])
    (gap,) = found["ged2"]["differences"]
    shifts = np.array([mine - base for mine in (0.3, 0.32, 0.37) for base in (0.0, 0.02)])
    assert gap["mean"] == pytest.approx(shifts.mean())
    assert gap["std"] == pytest.approx(shifts.std())
    assert (gap["low"], gap["patient_high"]) == (pytest.approx(shifts.min()), pytest.approx(shifts.max()))
    alone = compared([evaluated("a", rows_of(hard_and_easy())), theirs])["ged2"]["runs"]
    entry = found["ged2"]["runs"][0]
    assert entry["mean"] == pytest.approx(alone[0]["mean"] + 0.01)
    assert entry["std"] == pytest.approx(np.hypot(alone[0]["std"], 0.01))
    assert [len(run["folders"]) for run in found["runs"]] == [2, 3]


def test_images_that_failed_or_lack_a_metric_are_left_out_of_both() -> None:
    ours, theirs = rows_of(hard_and_easy(4)), rows_of(hard_and_easy(4) + 1)
    ours[0] = Row(image=0, key="image-0", patient="p0", error="gone")
    theirs[1] = Row(image=1, key="image-1", patient="p1", num_graders=4)
    found = compared([evaluated("a", ours), evaluated("b", theirs)])
    assert (found["num_images"], found["num_failed"]) == (3, 1)
    (gap,) = found["ged2"]["differences"]
    assert (gap["num_images"], gap["mean"]) == (2, pytest.approx(1))


def test_average_precision_is_compared_on_the_same_draws() -> None:
    def with_cars(found: list[bool]) -> list[Row]:
        one = {"scores": np.ones(1), "ignored_share": np.zeros(1)}
        matches = [InstanceMatches(iou=np.array([[0.9 * hit]]), **one) for hit in found]
        return [Row(image=i, key=str(i), patient=str(i), num_graders=1, matches=m) for i, m in enumerate(matches)]

    half = [True, False] * 10
    one, two = (evaluated(name, with_cars(half), alpha=4) for name in "ab")
    found = compared([one, two, evaluated("c", with_cars([True] * 20), alpha=4)])
    same, better = found["ap50"]["differences"]
    assert (same["mean"], same["std"]) == (0, 0)
    assert 0.2 < better["low"] < better["mean"] < better["high"] < 0.9
    assert found["ap50"]["runs"][2]["value"] == 1


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        (5, {}, "b and a were evaluated on different images: 1 only in b"),
        (3, {}, r"1 only in a \(image-3\); use the same --data"),
        (4, {"samples": 8}, "differently: samples 8 and 4; evaluate both with the same --samples"),
        (4, {"seeds": 3}, "differently: seeds 3 and 1; evaluate both with the same --seeds"),
        (4, {"representatives": 4}, "differently: representatives 4 and none; .* same --representatives"),
        (4, {"limit": 3}, "differently: limit 3 and none; evaluate both with the same --limit"),
        (4, {"crop": [9, 9], "data": "y"}, "crop 9×9 and 8×8, other data; evaluate both with --whole"),
    ],
)
def test_evaluations_of_different_images_are_refused(rows: int, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compared([evaluated("a", rows_of(hard_and_easy(4))), evaluated("b", rows_of(hard_and_easy(rows)), **changes)])
    with pytest.raises(ConfigError, match="at least two"):
        compared([evaluated("a", rows_of(hard_and_easy(4)))])


def test_read_evaluated_finds_the_folder_or_says_what_to_do(tmp_path: Path) -> None:
    how: dict[str, Any] = {"split": "val", "num_samples": 4, "name": "run"}
    with pytest.raises(ConfigError, match="run: no such folder"):
        read_evaluated(tmp_path / "run", **how)
    folder = tmp_path / "run/evaluation/val-4"
    without_seeds = {name: value for name, value in IDENTITY.items() if name not in ("limit", "seeds")}
    with RowStore(folder, identity=without_seeds) as store:
        with pytest.raises(ConfigError, match=r"\(there: val-4\).*run --data DIR --split test --samples 4"):
            read_evaluated(tmp_path / "run", **how | {"split": "test"})
        with pytest.raises(ConfigError, match=r"val-4x3: no such evaluation.*--samples 4 --seeds 3"):
            read_evaluated(tmp_path / "run", num_seeds=3, **how)
        store.append(rows_of(hard_and_easy(4)))
        with pytest.raises(ConfigError, match="not finished"):
            read_evaluated(tmp_path / "run", **how)
        store.finish()
    with pytest.raises(ConfigError, match="not finished"):  # it has no summary
        read_evaluated(tmp_path / "run", **how)
    for limit, number in ((None, 4), (3, 3)):
        (folder / SUMMARY_FILE).write_bytes(dump_json({"limit": limit}, name="summary"))
        for where in (tmp_path / "run", folder):
            found = read_evaluated(where, **how)
            assert (found.identity["limit"], found.identity["seeds"], len(found.rows)) == (limit, 1, number)
            for key, row in found.rows.items():
                assert row.scores["ged2"] == hard_and_easy(4)[int(key.removeprefix("image-"))]
    for number in (32, 16):  # as evaluated by default
        copytree(folder, tmp_path / f"run/evaluation/val-{number}")
        assert read_evaluated(tmp_path / "run", **how | {"num_samples": None}).folder.name == f"val-{number}"
    for damaged in ("3", '{"limit": 0}', '{"limit": "all"}'):
        (folder / SUMMARY_FILE).write_text(damaged)
        with pytest.raises(DataError, match=r"summary.json: limit"):
            read_evaluated(folder, **how)


def test_csv_has_a_line_for_each_run_metric_and_subset_with_the_numbers_of_the_json() -> None:
    shift = np.random.default_rng(1).normal(0.1, 0.2, 40)
    names = ("a", 'b, "new"', "c")
    runs = []
    for number, name in enumerate(names):
        rows = rows_of(hard_and_easy() + number * shift)
        rows = [replace(row, subset_b=i % 2 == 0, scores={**row.scores, "hm_iou": 0.5}) for i, row in enumerate(rows)]
        runs.append(evaluated(name, rows))
    found = compared(runs)
    table = comparison_csv(found).splitlines()
    lines = {(line["run"], line["metric"], line["subset"]): line for line in csv.DictReader(table)}
    assert set(lines) == {(name, metric, s) for name in names for metric in ("ged2", "hm_iou") for s in ("all", "b")}
    for subset, part, count in (("all", found, "40"), ("b", found["subset_b"], "20")):
        for number, name in enumerate(names):
            line, entry = lines[name, "ged2", subset], part["ged2"]["runs"][number]
            assert line["num_images"] == count
            assert all(float(line[key]) == entry[key] for key in ("mean", "std", "patient_std"))
            if number == 0:
                assert {value for key, value in line.items() if key.startswith("difference")} == {""}
                continue
            gap = part["ged2"]["differences"][number - 1]
            for key in ("mean", "low", "high", "patient_mean", "patient_low", "patient_high"):
                assert float(line[f"difference_{key}"]) == gap[key]
            assert line["difference_low"] != line["difference_patient_low"]


def test_drawing_has_every_run_and_metric() -> None:
    pytest.importorskip("matplotlib")
    scores = dict.fromkeys(METRICS, 0.5)
    rows = [Row(image=i, key=str(i), patient=str(i), num_graders=4, scores=scores) for i in range(4)]
    drawn = draw_comparison(compared([evaluated("first <run>", rows), evaluated("second", rows)]))
    assert drawn["png"].startswith(b"\x89PNG")
    assert b"<svg" in drawn["svg"]


def test_pooled_runs_are_as_their_bootstraps_put_together() -> None:
    runs = [rows_of(hard_and_easy() + shift, subset_b=True) for shift in (0.0, 0.3, 0.1)]
    found = pooled([summarise(rows, scope=CLASSES) for rows in runs])
    for prefix, by_patient in (("", False), ("patient_", True)):
        drawn = np.concatenate([resampled(rows, ("ged2",), by_patient=by_patient)["ged2"] for rows in runs])
        for entry in (found["ged2"], found["subset_b"]["ged2"]):
            assert entry[f"{prefix}mean"] == pytest.approx(drawn.mean())
            assert entry[f"{prefix}std"] == pytest.approx(drawn.std())
    assert (found["num_images"], found["hm_iou"]) == (40, None)
    assert found["reasons"]["hm_iou"] == "undefined for every image"


def test_bootstraps_are_a_thousand_and_every_metric_is_listed() -> None:
    assert NUM_BOOTSTRAPS == 1000
    assert {*METRICS, "ap", "ap50"} == set(ALL_METRICS)
