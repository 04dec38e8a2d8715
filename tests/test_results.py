"""docs/results.md says what the rows kept in docs/results say."""

import re
import shlex
from pathlib import Path

import pytest

from hpunet.config import load_settings
from hpunet.evaluation_rows import read_evaluation
from hpunet.evaluation_summary import Scope, summarise

DOCS = Path(__file__).parents[1] / "docs"
KEPT = sorted(path for path in DOCS.glob("results/*/*") if path.is_dir())


def test_rows_are_kept() -> None:
    assert KEPT


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_results_page_says_what_the_kept_rows_say(folder: Path) -> None:
    identity, rows = read_evaluation(folder)
    scope = Scope(
        num_samples=identity["samples"], has_instances=False, has_average_precision=False, extrapolates=False
    )
    summary = summarise(rows, scope=scope)
    parts = (summary, summary, summary, summary["subset_b"], summary["subset_b"])
    entries = [part[name] for part, name in zip(parts, ("ged2", "hm_iou", "iou_rec", "ged2", "hm_iou"), strict=True)]
    numbers = [f"{entry['mean']:.3f} ± {entry['patient_std']:.3f}" for entry in entries]
    (line,) = re.findall(
        rf"^\| `{re.escape(folder.name)}` \|.*", (DOCS / "results.md").read_text(), flags=re.MULTILINE
    )
    assert re.findall(r"\d\.\d{3} ± \d\.\d{3}", line) == numbers


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_commands_of_kept_rows_can_be_run(folder: Path) -> None:
    train, evaluate = map(shlex.split, (folder / "command.txt").read_text().splitlines())
    assert train[:2] == ["hpunet", "train"]
    assert evaluate[:3] == ["hpunet", "evaluate", "RUN"]
    assert load_settings(train[2], [train[i + 1] for i, word in enumerate(train) if word == "--set"])
