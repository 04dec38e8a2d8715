"""Evaluation of models that complete a hidden part: its scores, evaluations older than these, the commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from older_rows import make_older
from tiny_run import untrained_model

import hpunet.evaluation.run as evaluation
from hpunet.cli.compare import compare_command
from hpunet.cli.evaluate import evaluate_command
from hpunet.cli.report import report_command
from hpunet.config.settings import load_settings
from hpunet.data.batch import FIELDS, Batch
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.evaluation import summary as evaluation_summary
from hpunet.evaluation.compare import compare, comparison_csv, read_evaluated
from hpunet.evaluation.images import true_instances, with_evaluation_ids
from hpunet.evaluation.rows import (
    EXAMPLES_FILE,
    HIDDEN_METRICS,
    ROWS_FILE,
    columns_of,
    read_evaluation,
    read_rows,
)
from hpunet.evaluation.run import evaluate
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.scores import instances_of
from hpunet.evaluation.summary import listed, pooled
from hpunet.metrics import border_agreement, hidden_accuracy, hidden_iou, hidden_sample_disagreement, rand_error
from hpunet.reports import page as report
from hpunet.reports.comparison import draw_comparison
from hpunet.training.loop import train
from hpunet.utils.files import parse_json

pytest.importorskip("matplotlib")

NO_INSTANCES = "a part is hidden, so samples have no instances to agree on"


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 50)
    monkeypatch.setattr(evaluation, "NUM_SHOWN", 6)


def scorer_of(kind: str, *, extrapolate: bool = True, **changes: Any) -> Scorer:
    model = untrained_model(INFO[kind], extrapolate=extrapolate)
    how = {"model": model, "info": INFO[kind], "crop": (32, 32), "num_samples": 4, "extrapolate": extrapolate}
    return Scorer(**{**how, **changes})


def run_it(folder: Path, scorer: Scorer, kind: str = "neurites", **options: Any) -> dict[str, Any]:
    source = open_synthetic(kind, split="val", num_images=6, size=(32, 32))
    return evaluate(scorer, source=source, folder=folder, **options)


@pytest.mark.parametrize("kind", ["neurites", "lesions", "streets"])
def test_rows_hold_what_the_completed_maps_score(kind: str, tmp_path: Path) -> None:
    summary = run_it(tmp_path, scorer_of(kind), kind)
    with np.load(tmp_path / EXAMPLES_FILE, allow_pickle=False) as archive:
        shown = {name: archive[name] for name in archive.files}
    assert str(shown["hardness_metric"]) == "ged2"
    assert "instances" not in shown
    rows = {row.key: row for row in read_rows(tmp_path / ROWS_FILE)}
    assert set(shown["keys"].tolist()) == set(rows)
    labels, samples = shown["labels"][:, 0], shown["samples_full"]  # all four samples fit in
    pixels = {"visible": shown["visible"], "valid": shown["valid"], "num_classes": INFO[kind].num_classes}
    all_classes = {"labels": labels, **pixels}
    stochastic = {"classes": INFO[kind].stochastic_classes, **all_classes}
    rebuilt, hidden = shown["reconstructions"][:, :1], shown["valid"] & ~shown["visible"]
    expected = {
        "hidden_iou_rec": hidden_iou(maps=rebuilt, **stochastic),
        "hidden_iou_samples": hidden_iou(maps=samples, **stochastic),
        "hidden_accuracy_rec": hidden_accuracy(maps=rebuilt, **all_classes),
        "hidden_accuracy_samples": hidden_accuracy(maps=samples, **all_classes),
        "hidden_accuracy_background": ((labels == 0) & hidden).sum((1, 2)) / hidden.sum((1, 2)),
        "border_agreement_samples": border_agreement(maps=samples, **stochastic),
        "border_agreement_truth": border_agreement(maps=labels[:, None], **stochastic),
        "hidden_sample_disagreement": hidden_sample_disagreement(samples=samples, **pixels),
    }
    assert tuple(expected) == HIDDEN_METRICS
    for name, values in expected.items():
        for key, value in zip(shown["keys"].tolist(), values, strict=True):
            assert rows[key].scores.get(name, np.nan) == pytest.approx(value, nan_ok=True), (name, key)
        if summary[name] is None:
            assert np.isnan(values).all()
            assert summary["reasons"][name] == "nothing that is given reaches the hidden part, in every image"
        else:
            assert summary[name]["num_images"] == np.isfinite(values).sum()
            assert summary[name]["mean"] == pytest.approx(np.nanmean(values), abs=0.1)
    parse_json((tmp_path / "summary.json").read_bytes(), name="strict: no NaN")


def test_samples_of_a_hidden_part_are_not_clustered(tmp_path: Path) -> None:
    """They all have the ids that were given, so that even perfect ones would be far from perfect instances."""
    info, sample = INFO["neurites"], open_synthetic("neurites", split="val", num_images=1, size=64)[0]
    batch = Batch(**{name: torch.from_numpy(getattr(sample, name))[None] for name in FIELDS})
    perfect = with_evaluation_ids(batch, keys=["a"], info=info, seed=0).labels[0, 0].numpy().astype(np.uint8)
    instances = instances_of(perfect[None].repeat(4, axis=0), info=info, alpha=4, seed=0)
    assert rand_error(prediction=instances[None], truth=true_instances(batch, info))[0] > 0.1
    for kind, names in (("neurites", ["rand_error"]), ("streets", ["rand_error", "ap", "ap50"])):
        summary = run_it(tmp_path / kind, scorer_of(kind), kind)
        assert [summary["reasons"][name] for name in names] == [NO_INSTANCES] * len(names)
        assert all(row.matches is None for row in read_rows(tmp_path / kind / ROWS_FILE))
    lesions = run_it(tmp_path / "lesions", scorer_of("lesions"), "lesions")
    assert lesions["reasons"]["rand_error"] == "labels are classes, not instances"


def test_undefined_metrics_say_why(tmp_path: Path) -> None:
    one_sample = run_it(tmp_path, scorer_of("neurites", num_samples=1))
    assert one_sample["reasons"]["hidden_sample_disagreement"] == "needs at least two samples"
    assert {name for name in listed(one_sample) if one_sample[name] is None} == one_sample["reasons"].keys()


def test_models_that_see_all_have_neither_columns_nor_metrics_of_hidden_parts(tmp_path: Path) -> None:
    whole = run_it(tmp_path / "whole", scorer_of("neurites", extrapolate=False))
    assert not set(HIDDEN_METRICS) & {*whole, *whole["reasons"], *whole["subset_b"]}
    assert header(tmp_path / "whole") == columns_of({"alpha": 4})
    completed = run_it(tmp_path / "part", scorer_of("neurites"))
    assert header(tmp_path / "part") == columns_of({"alpha": 4, "extrapolate": True})
    for pair in ([whole, completed], [completed, whole]):
        both = pooled(pair)
        assert not set(HIDDEN_METRICS) & {*both, *both["reasons"], *both["subset_b"]}
        assert (both["rand_error"], both["reasons"]["rand_error"]) == (None, NO_INSTANCES)
        assert both["ged2"]["mean"] == pytest.approx((whole["ged2"]["mean"] + completed["ged2"]["mean"]) / 2)


def header(folder: Path) -> tuple[str, ...]:
    return tuple((folder / ROWS_FILE).read_text().splitlines()[0].split(","))


def test_older_evaluations_can_still_be_read_and_compared(tmp_path: Path) -> None:
    for name in ("new", "old"):
        run_it(tmp_path / name, scorer_of("neurites"))
    make_older(tmp_path / "old" / ROWS_FILE)
    assert len(read_evaluation(tmp_path / "old")[1]) == 6
    new, old = (read_evaluated(tmp_path / n, split="val", num_samples=4, name=n) for n in ("new", "old"))
    for runs, has in (((new, old), [True, False]), ((old, new), [False, True]), ((old, old), [False, False])):
        found = compare({"a": [runs[0]], "b": [runs[1]]})
        for name in ("hidden_iou_rec", "border_agreement_truth"):
            assert [entry is not None for entry in found[name]["runs"]] == has
            assert found[name]["differences"] == [None]
            assert "older" in found["reasons"][name]
        assert found["ged2"]["differences"][0]["mean"] == 0
        assert found["rand_error"]["runs"] == [None, None]
        assert found["reasons"]["rand_error"] == NO_INSTANCES
        assert ("hidden_iou_rec" in comparison_csv(found)) == any(has)
    assert b"<svg" in draw_comparison(compare({"old": [old], "new": [new]}))["svg"]


def test_evaluating_again_replaces_rows_with_other_columns(tmp_path: Path) -> None:
    scorer = scorer_of("neurites")
    run_it(tmp_path, scorer)
    rows = (tmp_path / ROWS_FILE).read_bytes()
    make_older(tmp_path / ROWS_FILE)
    heard: list[tuple[int, int]] = []
    run_it(tmp_path, scorer, watch=lambda *told: heard.append(told))
    assert heard[0] == (0, 6)
    assert (tmp_path / ROWS_FILE).read_bytes() == rows

    (tmp_path / ROWS_FILE).rename(tmp_path / "rows-1.part.csv")  # an interrupted evaluation
    make_older(tmp_path / "rows-1.part.csv")
    heard.clear()
    run_it(tmp_path, scorer, watch=lambda *told: heard.append(told))
    assert heard[0] == (0, 6)
    assert (tmp_path / ROWS_FILE).read_bytes() == rows


def test_interrupted_evaluation_keeps_what_it_has(tmp_path: Path) -> None:
    run_it(tmp_path / "whole", scorer_of("neurites"))

    def interrupt(done: int, _total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_it(tmp_path / "parts", scorer_of("neurites"), batch_size=2, watch=interrupt)
    heard: list[tuple[int, int]] = []
    run_it(tmp_path / "parts", scorer_of("neurites"), batch_size=2, watch=lambda *told: heard.append(told))
    assert heard[0] == (0, 2)
    assert (tmp_path / "parts" / ROWS_FILE).read_bytes() == (tmp_path / "whole" / ROWS_FILE).read_bytes()


def test_commands_score_compare_and_report_extrapolating_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["model.channels=[4,4,4]", "model.latent_dims=[1,1]", "model.blocks_per_scale=1", "data.num_workers=0"]
    small += [
        "data.crop=[32,32]",
        "optimiser.iterations=1",
        "optimiser.batch_size=2",
        "optimiser.accumulation_steps=1",
    ]
    small += ["data.options={num_images=4,size=32}", "logging.validate_samples=2"]
    runs = [tmp_path / "run0", tmp_path / "run1"]
    for seed, run in enumerate(runs):
        settings = load_settings("snemi3d-extrapolate", [*small, f"seed={seed}"])
        train(settings, data="synthetic:neurites", run=run, device=torch.device("cpu"), say=lambda _: None)
    evaluate_command(runs=runs, data="synthetic:neurites", samples=3, json_file=tmp_path / "all.json")
    printed = capsys.readouterr().out
    assert "no rand_error" in printed
    assert printed.count(NO_INSTANCES) == 1
    summary = parse_json((tmp_path / "all.json").read_bytes(), name="all.json")
    for name in HIDDEN_METRICS:
        assert f"{summary[name]['mean']:.4f} ± {summary[name]['std']:.4f}" in printed
        assert 0 <= summary[name]["mean"] <= 1
    assert summary["hidden_accuracy_background"]["mean"] < 0.5 < summary["border_agreement_truth"]["mean"]

    compare_command(models=[str(run) for run in runs], samples=3, csv_file=tmp_path / "table.csv")
    printed = capsys.readouterr().out
    table = (tmp_path / "table.csv").read_text()
    comparison = json.loads((runs[0] / "comparison-val-3.json").read_text())
    for name in HIDDEN_METRICS:
        assert name in printed
        assert f"run1,{name},all,4," in table
        assert comparison[name]["differences"][0]["num_images"] == 4
    (gap,) = comparison["hidden_accuracy_background"]["differences"]
    assert (gap["mean"], gap["std"]) == (0, 0)  # the same parts of the same images are hidden

    monkeypatch.setattr(report, "report_sections", lambda _runs: [])  # figures take long and are tested elsewhere
    report_command(runs=runs, out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(f"<td>{name}</td>" in page for name in HIDDEN_METRICS)
    assert "<td>rand_error</td>" not in page
