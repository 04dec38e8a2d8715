"""The demonstration with few images and steps: what it writes and replaces, and how perfect samplers score."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer

from hpunet.cli.demo import demo_command
from hpunet.config.settings import load_settings
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.source import open_synthetic
from hpunet.demo import run as demo
from hpunet.demo import scores as demo_scores
from hpunet.demo.run import run_demo
from hpunet.demo.scores import (
    GLOBAL_ONLY,
    LOCAL_ONLY,
    border_shares,
    border_zone,
    perfect_ged2,
    scores_against_truth,
)
from hpunet.errors import ConfigError
from hpunet.models.build import build_model
from hpunet.training.loop import Interrupted

pytest.importorskip("matplotlib")

QUICK = [
    *("optimiser.iterations=2", "optimiser.batch_size=2", "logging.validate_images=2", "logging.validate_samples=2"),
    *("data.crop=[32, 32]", "data.options.size=32"),
]


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SPLIT_SIZES", {"train": 4, "val": 4, "test": 4})


def lesions(num_images: int) -> Any:
    return open_synthetic("lesions", split="test", num_images=num_images, size=32)


def sampler_of(monkeypatch: pytest.MonkeyPatch, draw: Any) -> None:
    """Have `demo_scores` sample by `draw(image number)` → (s, h, w), and reconstruct without a fault."""
    numbers = iter(range(1000))

    def sample(_model: object, *, image: torch.Tensor, **_options: object) -> SimpleNamespace:
        return SimpleNamespace(labels=torch.stack([torch.from_numpy(draw(next(numbers))).long() for _ in image]))

    def reconstruct(_model: object, *, labels: torch.Tensor, **_options: object) -> SimpleNamespace:
        return SimpleNamespace(labels=labels)

    monkeypatch.setattr(demo_scores, "sample", sample)
    monkeypatch.setattr(demo_scores, "reconstruct", reconstruct)


def small_model() -> Any:
    return build_model(load_settings("demo").model, in_channels=1, num_classes=2)


def test_scores_of_a_perfect_sampler_are_what_perfect_ged2_says(monkeypatch: pytest.MonkeyPatch) -> None:
    source, rng = lesions(60), np.random.default_rng(1)
    sampler_of(monkeypatch, lambda i: source.distribution(i).sample(rng, demo_scores.NUM_SAMPLES))
    found = scores_against_truth(small_model(), source, seed=0)
    assert {name: values.shape for name, values in found.items()} == dict.fromkeys(
        ("ged2", "hm_iou", "iou_rec"), (60,)
    )
    standard_error = found["ged2"].std() / 60**0.5
    assert abs(found["ged2"].mean() - perfect_ged2(source)) < 4 * standard_error < 0.02
    assert (found["iou_rec"] == 1).all()


def test_scores_are_worse_for_a_sampler_that_always_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = lesions(20)
    sampler_of(monkeypatch, lambda _: np.zeros((demo_scores.NUM_SAMPLES, 32, 32), dtype=np.int64))
    found = scores_against_truth(small_model(), source, seed=0)
    for i in range(20):  # d(empty, Y) is 1 unless Y is empty, which is state 0
        truth = source.distribution(i)
        assert found["ged2"][i] == pytest.approx(2 * (1 - truth.probabilities[0]) - truth.mean_distance)


def test_border_zone_is_two_pixels_on_either_side_of_every_outline() -> None:
    regions = np.zeros((24, 24), dtype=np.int32)
    regions[2:22, 2:22] = 2  # a side of the halo
    regions[8:16, 8:16] = 1  # the core
    row = border_zone(KnownDistribution(regions=regions, p_call=1.0, p_state=np.full((1, 9), 1 / 9)))[11]
    assert np.flatnonzero(row).tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 14, 15, 16, 17, 20, 21, 22, 23]


def test_border_shares_tell_borders_from_the_rest_by_what_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    source = lesions(3)
    zones = np.stack([border_zone(source.distribution(i)) for i in range(3)])

    def sample(_model: object, *, num_samples: int, latents: Any, **_: object) -> SimpleNamespace:
        drawn = torch.zeros(3, num_samples, 32, 32, dtype=torch.long)
        differs = {"global": ~zones, "local": zones, "neither": zones & ~zones}[what(latents)]
        drawn[:, ::2] = torch.from_numpy(differs).long()[:, None]
        return SimpleNamespace(labels=drawn)

    def what(latents: list[str]) -> str:
        return {0: "global", 3: "local"}[latents.index("sample")] if latents.count("sample") == 1 else "neither"

    monkeypatch.setattr(demo_scores, "sample", sample)
    shares = border_shares(small_model(), source, seed=0)
    assert (shares[GLOBAL_ONLY], shares[LOCAL_ONLY]) == (0.0, 1.0)


@pytest.mark.usefixtures("few_images")
def test_demo_goes_all_the_way_and_repeats_and_replaces_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    result = run_demo(tmp_path / "demo", changes=QUICK, say=told.append)
    assert told
    assert list(result.scores) == ["HPU-Net", "Probabilistic U-Net"]
    text = result.report.read_text(encoding="utf-8")
    for words in ("Against the known truth", "What each scale decides", "Hypotheses of probabilistic-u-net"):
        assert words in text
    saved = json.loads((tmp_path / "demo/demo.json").read_text(encoding="utf-8"))
    assert saved["scores"]["HPU-Net"]["ged2"]["mean"] == result.scores["HPU-Net"]["ged2"].mean
    (tmp_path / "demo/mine.txt").write_text("stays")
    result.report.unlink()
    demo_command(out=tmp_path / "demo", change=QUICK)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == str(tmp_path / "demo/report.html")
    for found in result.scores.values():
        assert f"{found['iou_rec'].mean:.3f} ± {found['iou_rec'].std:.3f}" in printed
    assert result.report.is_file()
    assert (tmp_path / "demo/mine.txt").is_file()


@pytest.mark.usefixtures("few_images")
def test_demo_command_says_that_it_starts_anew_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, run: Path, **__: object) -> None:
        assert not run.exists()
        (run / "checkpoints/step-00000001").mkdir(parents=True)
        raise Interrupted(2, 1)

    monkeypatch.setattr(demo, "train", interrupted)
    for _ in range(2):  # the second one finds what the first one left
        with pytest.raises(typer.Exit) as stop:
            demo_command(out=tmp_path)
        assert stop.value.exit_code == 130
        assert "replaces them" in " ".join(capsys.readouterr().err.split())


def test_run_demo_deletes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/precious").write_text("")
    with pytest.raises(ConfigError, match="earlier demonstration"):
        run_demo(tmp_path)
    assert (tmp_path / "data/precious").is_file()
    with pytest.raises(ConfigError, match="no folder"):
        run_demo(tmp_path / "data/precious")


def test_demo_presets_train_both_models_on_the_same_images() -> None:
    ours, baseline = (load_settings(preset) for preset in demo.MODELS.values())
    assert ours.data == baseline.data
    assert ours.augmentation == baseline.augmentation
    assert (ours.model.kind, baseline.model.kind) == ("hpu", "punet")
