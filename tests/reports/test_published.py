"""The page of published weights, made of tiny ones in a cache of their own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_page import Page, pictures, save_pictures
from tiny_run import tiny_settings, untrained_model
from typer import Typer
from typer.testing import CliRunner

from hpunet.cli.report import report_command
from hpunet.data.synthetic.source import INFO
from hpunet.weights.load import TrainedModel, publish

pytest.importorskip("matplotlib")
NAME = "tiny-lesions-1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights of the test's name are found."""
    monkeypatch.setenv("HPUNET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home/pretrained" / NAME


def make_published(folder: Path, *, kind: str = "lidc") -> None:
    info = replace(INFO["lesions"], kind=kind, num_graders=4)
    settings = tiny_settings("model.channels=[4,8,8]", "model.latent_dims=[1,1]", "data.crop=[128,128]")
    trained = TrainedModel("run", untrained_model(info), settings, info, 7, torch.device("cpu"))
    publish(trained, out=folder, name=NAME, credit="Name the data.")


def write_page(*words: str) -> Page:
    app = Typer()
    app.command()(report_command)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.output, result.exception)
    return Page(Path(result.stdout.split()[-1]))


def test_page_of_published_weights_shows_model_scores_credit_and_examples(folder: Path) -> None:
    make_published(folder)
    (folder / "evaluation/val-16").mkdir(parents=True)
    summary = {"num_images": 21, "ged2": {"mean": 0.2034, "std": 0.0036, "patient_std": 0.0099}}
    (folder / "evaluation/val-16/summary.json").write_text(json.dumps(summary))
    page = write_page(NAME)
    assert Path(f"{NAME}.html").is_file()
    for words in (
        "Name the data.",
        "iteration 7",
        "latents",
        "lesion",
        "0.2034 ± 0.0036 (0.0099)",
        "val-16",
        "LIDC-IDRI",
    ):
        assert words in page.text, words
    assert len(page.images) == 2  # samples, scales (no more than two, so that no figure shows each alone)
    assert page.fetched == []


def test_page_of_published_weights_shows_evaluations_of_the_working_folder(folder: Path) -> None:
    make_published(folder)
    own = Path("evaluation", NAME, "val-16")
    own.mkdir(parents=True)
    summary = {"num_images": 21, "ged2": {"mean": 0.1234, "std": 0.0036, "patient_std": 0.0099}}
    (own / "summary.json").write_text(json.dumps(summary))
    hardness = {"hardness": np.array([0.5, 0.7]), "hardness_metric": np.array("ged2")}
    chosen = {"is_hardest": np.array([False, True]), "is_spread": np.array([True, False])}
    save_pictures(own / "examples.npz", pictures(8) | hardness | chosen)
    page = write_page(NAME)
    assert f"Evaluation val-16 of {NAME}" in page.text
    for words in (f"evaluation/{NAME}/val-16", "0.1234 ± 0.0036 (0.0099)", "by GED²"):
        assert words in page.text
    assert len(page.images) == 5  # samples, scales; samples, scales, hardest


def test_page_of_other_weights_says_why_it_has_no_examples(folder: Path) -> None:
    make_published(folder, kind="folder")
    page = write_page(str(folder), "--out", "page.html")
    assert "No example images" in page.text
    assert page.images == []
