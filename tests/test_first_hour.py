"""The first hour of somebody with photographs of two graders: from files to results that can be believed."""

import csv
import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from retina import GRADERS, PATIENT, vessels, write_retina
from typer.testing import CliRunner, Result

from hpunet.cli.main import app

SIZE = (960, 999)
MAX_CPU_SECONDS = 90


def hpunet_ok(*args: str) -> Result:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def dice_of_samples(folder: Path, *, image: str) -> float:
    """The mean over samples and graders."""
    truth = [np.asarray(Image.open(f"retina/{name.replace('{name}', image)}")) > 0 for name in GRADERS]
    samples = [np.asarray(Image.open(file)) > 0 for file in sorted((folder / image).glob("sample-*.png"))]
    assert samples[0].shape == SIZE
    return float(np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a in samples for b in truth]))


@pytest.mark.timeout(900)  # on a machine whose cores others use; what it may cost is asserted below
def test_first_hour_from_photographs_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    write_retina(tmp_path / "retina", size=SIZE, draw=vessels)

    unsure = hpunet_ok("data", "info", "retina", "--graders", *GRADERS)
    assert f"--patient '{PATIENT}'" in unsure.stderr
    how = ["--graders", *GRADERS, "--patient", PATIENT]
    shown = hpunet_ok("data", "info", "retina", *how)
    assert "warning" not in shown.stderr
    assert "1stHO and 2ndHO: Dice" in shown.stdout
    assert Path("runs/data/retina-train.png").is_file()

    hpunet_ok("init", "--data", "retina", *how, "--small", "--crop", "64", "--out", "mine.toml")
    settings = ["optimiser.iterations=300", "optimiser.batch_size=2", "model.channels=[8,16,16,16,16,16,16]"]
    settings += ["logging.validate_every=100", "logging.validate_samples=2"]
    changes = [word for setting in settings for word in ("--set", setting)]
    trained = hpunet_ok("train", "mine.toml", "--data", "retina", "--out", "runs/mine", *changes)
    verdict = Path("runs/mine/verdict.txt").read_text()
    assert verdict in trained.stderr
    for found in ("κ was not reached", "λ is", "Validation still improves", "the line to beat", "KL", "Next: "):
        assert found in verdict

    hpunet_ok("evaluate", "runs/mine", "--data", "retina", "--samples", "4", "--json", "scores.json")
    assert json.loads(Path("scores.json").read_text())["crop"] is None  # whole images
    rows = list(csv.DictReader(Path("runs/mine/evaluation/val-4/rows.csv").read_text().splitlines()))
    assert [row["key"][-1] for row in rows] == ["L", "R"]
    assert len({row["patient"] for row in rows}) == 1

    image, dice = rows[0]["key"], {}
    for weights in ("raw", "ema"):
        chosen = ["--weights", weights, "--samples", "4", "--out", weights]
        hpunet_ok("sample", "runs/mine", f"retina/{image}.jpg", *chosen)
        dice[weights] = dice_of_samples(Path(weights), image=image)
    assert dice["ema"] > 0.7
    assert dice["ema"] == pytest.approx(dice["raw"], abs=0.02)

    hpunet_ok("report", "runs/mine")
    page = Path("runs/mine/report.html").read_text()
    assert page.index("Verdict") < page.index("κ was not reached") < page.index("<img")
    assert time.process_time() - started < MAX_CPU_SECONDS
