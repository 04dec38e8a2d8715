"""The pages give the numbers of the rows kept in results/."""

import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import hpunet
from hpunet.cli.data import make
from hpunet.config.settings import load_settings
from hpunet.evaluation.rows import read_evaluation
from hpunet.evaluation.scorer import weights_sum
from hpunet.evaluation.summary import Scope, summarise
from hpunet.weights.published import published_names

ROOT = Path(__file__).parents[1]
RESULTS, DOCS, README = ROOT / "results", ROOT / "docs", (ROOT / "README.md").read_text()
LAB = "".join(page.read_text() for page in sorted((DOCS / "lab").glob("*.md")))
PAGE = (DOCS / "results.md").read_text()
KEPT = sorted(path for path in RESULTS.glob("*/*") if path.is_dir())


@cache
def summary_of(folder: Path) -> dict[str, Any]:
    identity, rows = read_evaluation(folder)
    scope = Scope(
        num_samples=identity["samples"],
        has_instances=identity["alpha"] is not None,
        has_average_precision=any(row.matches is not None for row in rows),
        extrapolates=identity["extrapolate"],
    )
    return {**summarise(rows, scope=scope), "scope": scope}


def scores_of(folder: Path) -> list[dict[str, Any]]:
    """GED², matched IoU and IoU_rec of all images, GED² and matched IoU of subset B."""
    summary = summary_of(folder)
    parts = (summary, summary, summary, summary["subset_b"], summary["subset_b"])
    return [part[name] for part, name in zip(parts, ("ged2", "hm_iou", "iou_rec", "ged2", "hm_iou"), strict=True)]


def numbers_of(folder: Path) -> list[str]:
    """What the results page says of kept rows: ± is that of patients, or of images where there are few patients."""
    summary = summary_of(folder)
    scope = summary["scope"]
    if not scope.has_instances:
        return [f"{entry['mean']:.3f} ± {entry['patient_std']:.3f}" for entry in scores_of(folder)]
    names = ["rand_error", "iou_rec", *(["ap50", "ap"] if scope.has_average_precision else [])]
    if scope.extrapolates:
        names = ["hidden_iou_rec", "hidden_iou_samples", "border_agreement_samples", "hidden_sample_disagreement"]
    return [f"{summary[name]['mean']:.3f} ± {summary[name]['std']:.3f}" for name in names]


def in_line(line: str) -> list[str]:
    return re.findall(r"\d\.\d{3} ± \d\.\d{3}", line)


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_pages_give_the_numbers_of_kept_rows(folder: Path) -> None:
    (line,) = re.findall(rf"^\| `{re.escape(folder.name)}` \|.*", LAB, flags=re.MULTILINE)
    assert in_line(line) == numbers_of(folder)
    for line in re.findall(rf"^\|.*`{re.escape(str(folder.relative_to(ROOT)))}` \|$", PAGE, flags=re.MULTILINE):
        assert in_line(line)
        assert in_line(line) == numbers_of(folder)[: len(in_line(line))]


def test_results_page_names_kept_rows() -> None:
    named = set(re.findall(r"`(results/[a-z]+/[\w-]+)` \|$", PAGE, flags=re.M))
    assert 9 <= len(named & {str(folder.relative_to(ROOT)) for folder in KEPT}) == len(named)


RENAMED = dict(
    re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", (RESULTS / "README.md").read_text(), flags=re.MULTILINE)
)


def today(assignment: str) -> str:
    """Commands are kept as they were run; some settings have other names today."""
    key, equals, value = assignment.partition("=")
    return RENAMED.get(key, key) + equals + value


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_commands_of_kept_rows_can_be_run(folder: Path) -> None:
    train, *export, evaluate = map(shlex.split, (folder / "command.txt").read_text().splitlines())
    assert train[:2] == ["hpunet", "train"]
    assert evaluate[:2] == ["hpunet", "evaluate"]
    assert evaluate[2] in (published_names() if export else ["RUN"])
    assert [command[:4] for command in export] == [["hpunet", "export", "RUN", evaluate[2]]] * len(export)
    changes = [train[i + 1] for i, word in enumerate(train) if word == "--set"]
    assert load_settings(train[2], [today(change) for change in changes])


SEEDS = {
    "HPU-Net": ("30k-hpu-plus-seed-0", "30k-hpu-plus-seed-1", "30k-hpu-plus-seed-2"),
    "Probabilistic U-Net": (
        "30k-punet-three-rates",
        "30k-punet-three-rates-seed-1",
        "30k-punet-three-rates-seed-2",
    ),
    "its better two": ("30k-punet-three-rates", "30k-punet-three-rates-seed-2"),
    "HPU-Net without top-k": ("30k-no-topk",),
    "latents at 8×8 alone": ("30k-local",),
    "85 latents at 1×1 alone": ("30k-global",),
}


@pytest.mark.parametrize("model", SEEDS)
def test_results_page_and_readme_give_the_means_of_trainings(model: str) -> None:
    trained = [scores_of(RESULTS / "lidc" / name) for name in SEEDS[model]]
    numbers = []
    for values in zip(*([entry["mean"] for entry in each] for each in trained), strict=True):
        spread = f" ± {stdev(values):.3f}".replace("0.000", "<0.001") if len(values) > 2 else ""
        numbers.append(f"{mean(values):.3f}{spread}")
    for page in (LAB, PAGE):
        for line in re.findall(rf"^\| {re.escape(model)}(?: \(.*?| )\| \d \|.*", page, re.MULTILINE):
            assert [cell.strip() for cell in line.split("|")][3:8] == numbers
    assert model == "its better two" or f"\n| {model}" in PAGE
    in_readme = re.findall(rf"^\| {re.escape(model)}, .*? \| 30,000 .*", README, re.MULTILINE)
    for line in in_readme:
        assert [cell.strip() for cell in line.split("|")][3:6] == [numbers[0], numbers[2], numbers[1]]
    assert len(in_readme) == (len(trained) > 2)


def test_the_published_row_is_that_of_the_weights_in_the_package() -> None:
    folder = RESULTS / "lidc" / "lidc-hpu-2026"
    identity, _ = read_evaluation(folder)
    trained = hpunet.load("lidc-hpu-2026", device="cpu")
    assert identity["weights"] == weights_sum(trained.model)
    assert identity["orientations"] == trained.model.orientations == 8
    numbers = [f"{entry['mean']:.4f} ± {entry['patient_std']:.4f}" for entry in scores_of(folder)]
    card = (DOCS / "model_cards" / "lidc-hpu-2026.md").read_text()
    assert re.findall(r"\d\.\d{4} ± \d\.\d{4}", card) == numbers
    (line,) = re.findall(r"^\| `lidc-hpu-2026`.*", README, flags=re.MULTILINE)
    ged2, hm_iou, iou_rec, *_ = numbers_of(folder)
    assert in_line(line) == [ged2, iou_rec, hm_iou]


def test_perfect_samples_are_told_apart_better_by_more_ids_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(layout="snemi3d", out=tmp_path / "stack", count=10, size=256)
    script = str(RESULTS / "perfect_instances.py")
    monkeypatch.setattr("sys.argv", [script, "--data", str(tmp_path / "stack"), "--images", "1"])
    runpy.run_path(script, run_name="__main__")
    rows = re.findall(r"\| (\d+) \| (\d+) \| ([\d.]+) ± [\d.]+ \|", capsys.readouterr().out)
    errors = {(int(ids), int(samples)): float(error) for ids, samples, error in rows}
    assert len(errors) == 8
    assert errors[5, 4] > errors[15, 4] > errors[15, 32]
    assert errors[5, 4] > errors[5, 16]
    assert errors[15, 32] < 0.01


@pytest.mark.parametrize("name", published_names())
def test_weights_in_the_package_come_with_the_summary_of_their_kept_rows(name: str) -> None:
    (shipped,) = (Path(hpunet.__file__).parent / "weights/pretrained" / name).glob("evaluation/*/summary.json")
    assert shipped.read_bytes() == (RESULTS / "lidc" / name / "summary.json").read_bytes()
