"""`hpunet evaluate` and `hpunet compare` as a person runs them, by one process and by two."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tiny_run import tiny_settings, write_tiny_pack

from hpunet.cli.compare import compare_command
from hpunet.cli.evaluate import evaluate_command
from hpunet.data.synthetic.source import INFO
from hpunet.errors import ConfigError
from hpunet.evaluation.rows import ROWS_FILE, read_rows
from hpunet.evaluation.scores import default_num_samples
from hpunet.training.loop import train
from hpunet.utils.files import parse_json

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny runs and a pack."""
    folder = tmp_path_factory.mktemp("evaluated")
    pack = write_tiny_pack(folder / "pack")
    for seed in (0, 1):
        settings = tiny_settings(f"seed={seed}", "optimiser.iterations=2")
        train(settings, data=str(pack), run=folder / f"run{seed}", say=lambda _: None)
    return folder


def test_runs_are_evaluated_pooled_and_compared(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [place / "run0", place / "run1"]
    evaluate_command(runs=runs, data=str(place / "pack"), samples=3, json_file=place / "all.json")
    printed = capsys.readouterr().out
    assert "run0 (iteration 2), run1 (iteration 2): 12 val images, 3 samples each" in " ".join(printed.split())
    summary = parse_json((place / "all.json").read_bytes(), name="all.json")
    assert (summary["num_images"], summary["num_samples"], summary["split"]) == (12, 3, "val")
    assert [(run["name"], run["step"]) for run in summary["runs"]] == [("run0", 2), ("run1", 2)]
    means = []
    for run in runs:
        own = json.loads((run / "evaluation/val-3/summary.json").read_text())
        means.append(own["ged2"]["mean"])
        assert own["data_fingerprint"] == summary["data_fingerprint"]
    assert summary["ged2"]["mean"] == pytest.approx(sum(means) / 2)
    assert f"{summary['ged2']['mean']:.4f} ± {summary['ged2']['std']:.4f}" in printed
    assert printed.count("labels are classes, not instances") == 1
    assert "no rand_error, ap50, ap: labels" in printed

    compare_command(models=[*map(str, runs)], samples=3, csv_file=place / "table.csv")
    printed = capsys.readouterr().out
    lines = (place / "table.csv").read_text().splitlines()
    assert lines[0].startswith("run,metric,subset,num_images,mean,std,patient_std,difference_num_images,")
    assert any(line.startswith("run1,ged2,b,") for line in lines)
    for kind in ("json", "png", "svg"):
        assert (place / f"run0/comparison-val-3.{kind}").is_file()
    found = parse_json((place / "run0/comparison-val-3.json").read_bytes(), name="comparison")
    for part in (found, found["subset_b"]):  # both intervals, over all images and over subset B
        gap = part["ged2"]["differences"][0]
        for prefix in ("", "patient_"):
            mean, std, low, high = (gap[prefix + key] for key in ("mean", "std", "low", "high"))
            assert f"{mean:+.4f} ± {std:.4f}" in printed
            assert f"[{low:+.4f}, {high:+.4f}]" in printed
    copied = shutil.copytree(runs[1] / "evaluation/val-3", place / "copied")
    compare_command(models=[f"of two seeds={runs[0]},{runs[1]}", str(copied)], samples=3, out=place)
    assert re.search(r"of two +seeds .* copied", " ".join(capsys.readouterr().out.split()))
    found = parse_json((place / "comparison-val-3.json").read_bytes(), name="comparison")
    assert [(run["name"], len(run["folders"])) for run in found["runs"]] == [("of two seeds", 2), ("copied", 1)]
    assert found["ged2"]["runs"][0]["mean"] == pytest.approx(summary["ged2"]["mean"])
    monkeypatch.setattr("hpunet.cli.compare.find_spec", lambda _: None)
    compare_command(models=[*map(str, runs)], samples=3, out=place / "plain")
    printed = capsys.readouterr()
    assert "matplotlib" in printed.err
    assert f"{means[0]:.4f}" in printed.out
    assert [path.name for path in (place / "plain").iterdir()] == ["comparison-val-3.json"]
    for models, words in (
        ([f"={runs[0]}", str(copied)], "expected a run, RUN,RUN… or NAME=RUN,RUN…"),
        ([f"{runs[0]},,{runs[1]}", str(copied)], "expected a run"),
        ([f"a={runs[0]}", f"a={copied}"], "two models have the same name"),
        ([f"{runs[0]},{runs[1]}"], "at least two"),
    ):
        with pytest.raises(ConfigError, match=words):
            compare_command(models=models, samples=3)
    with pytest.raises(ConfigError, match="--samples 5"):
        compare_command(models=[*map(str, runs)], samples=5)
    twice = [runs[0], runs[0] / "../run0"]
    for command in (
        lambda: compare_command(models=[*map(str, twice)]),
        lambda: evaluate_command(runs=twice, data="x"),
    ):
        with pytest.raises(ConfigError, match="run0: given twice"):
            command()


def test_runs_evaluated_with_several_seeds_are_compared_with_each_other_only(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, data = [place / "run0", place / "run1"], str(place / "pack")
    evaluate_command(runs=runs, data=data, samples=2, seed=1, seeds=2, limit=4)
    words = "4 val images, 2 samples each, mean of 2 seeds"
    assert words in " ".join(capsys.readouterr().out.split())
    evaluate_command(runs=runs, data=data, samples=2, seed=1, seeds=2, limit=4)
    there = capsys.readouterr().err
    for name in ("run0", "run1"):
        assert f"{name}: all 4 rows are done already" in there
    assert json.loads((place / "run0/evaluation/val-2x2/summary.json").read_text())["num_seeds"] == 2
    compare_command(models=[*map(str, runs)], samples=2, seeds=2)
    assert words in " ".join(capsys.readouterr().out.split())
    assert (place / "run0/comparison-val-2x2.json").is_file()
    evaluate_command(runs=runs[:1], data=data, samples=2, limit=4)
    with pytest.raises(ConfigError, match="differently: seeds 2 and 1; evaluate both with the same --seeds"):
        compare_command(models=[f"{place}/run0/evaluation/val-2", f"{place}/run1/evaluation/val-2x2"])


def test_failed_images_make_the_exit_code(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(  # a set of LIDC's layout, in a process of its own: it may use several
        [sys.executable, "-m", "hpunet", "data", "make", "lidc", str(place / "crops"), "--count", "3"],
        check=True,
        capture_output=True,
    )
    (first, *_) = sorted((place / "crops/val/images").rglob("*.png"))
    first.write_bytes(b"not a picture")
    with pytest.raises(typer.Exit) as stop:
        evaluate_command(runs=[place / "run0"], data=str(place / "crops"), samples=2, out=place / "elsewhere")
    assert stop.value.exit_code == 1
    assert f"1 image failed, the first: {first}" in capsys.readouterr().err
    rows = read_rows(place / "elsewhere/run0" / ROWS_FILE)
    assert [bool(row.error) for row in rows].count(True) == 1
    assert len(rows) > 1


def test_torchrun_by_two_gives_the_same_rows(place: Path) -> None:
    data = str(place / "pack")
    evaluate_command(runs=[place / "run0"], data=data, samples=2, out=place / "one", batch=2)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hpunet"]
    command += ["evaluate", str(place / "run0"), "--data", data, "--samples", "2", "--batch", "2"]
    with (place / "two.txt").open("wb") as output:
        torchrun = subprocess.Popen([*command, "--out", str(place / "two")], stdout=output, stderr=output)
    try:
        assert torchrun.wait(100) == 0, (place / "two.txt").read_text()
    finally:
        torchrun.terminate()
        torchrun.wait(60)
    one, two = (place / name / "run0" for name in ("one", "two"))
    assert (one / ROWS_FILE).read_bytes() == (two / ROWS_FILE).read_bytes()
    assert len(read_rows(two / ROWS_FILE)) == 12
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    for summary in summaries:
        del summary["duration_s"], summary["runs"]
    assert summaries[0] == summaries[1]
    assert not list(two.glob("*.part*"))


def test_by_default_whole_images_are_scored_with_the_papers_number_of_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["data.options={num_images=2,size=[32,64]}", "optimiser.iterations=1", "logging.validate_samples=1"]
    how: dict[str, Any] = {"data": "synthetic:streets", "run": tmp_path / "run", "device": torch.device("cpu")}
    train(tiny_settings(*changes), **how, say=lambda _line: None)
    for whole, name, what in ((None, "val-32", "whole images"), (False, "other/run", "the centre 16×16 of each")):
        out = tmp_path / "other" if whole is False else None
        evaluate_command(runs=[tmp_path / "run"], data="synthetic:streets", whole=whole, out=out)
        folder = tmp_path / (name if out else f"run/evaluation/{name}")
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["num_samples"], summary["crop"]) == (32, None if whole is None else [16, 16])
        printed = " ".join(capsys.readouterr().out.split())
        assert f"2 val images, 32 samples each, {what}" in printed


@pytest.mark.parametrize(("kind", "number"), [("lesions", 16), ("neurites", 16), ("streets", 32)])
def test_default_number_of_samples_is_the_papers(kind: str, number: int) -> None:
    assert default_num_samples(INFO[kind]) == number
    assert default_num_samples(INFO[kind], clustered=False) == 16
