"""What a constant map costs, by hand; and the warning when κ does not ask for more."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny_run import open_tiny, tiny_settings, write_tiny_pack

from hpunet.data.packs import Pack
from hpunet.training.build import build_example_builder
from hpunet.training.constant_map import constant_map_loss
from hpunet.training.loop import train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack") / "pack")


@pytest.fixture(scope="module")
def pack(place: Path) -> Pack:
    return open_tiny(place)


def loss_of(pack: Pack, *changes: str) -> float:
    settings = tiny_settings(*changes)
    return constant_map_loss(pack, build_example_builder(settings, info=pack.info), settings.objective)


def test_constant_map_over_all_pixels_costs_the_entropy_of_the_labels(pack: Pack) -> None:
    settings = tiny_settings()
    builder = build_example_builder(settings, info=pack.info)
    example = builder(pack.batch(torch.arange(len(pack))), step=0, positions=torch.arange(len(pack)))
    share = example.labels[example.valid].double().mean().item()
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert loss_of(pack, "objective.top_k=all") == pytest.approx(entropy, rel=1e-9)
    rarest = loss_of(pack, "objective.top_k=0.01", "objective.stochastic=false")
    assert rarest == pytest.approx(-math.log(min(share, 1 - share)), rel=1e-9)
    assert entropy < loss_of(pack, "objective.top_k=0.1") <= rarest


def test_training_warns_when_a_constant_map_meets_kappa(place: Path, pack: Pack, tmp_path: Path) -> None:
    constant = loss_of(pack, "objective.top_k=all")
    for factor, warns in ((1.01, True), (0.99, False)):
        said: list[str] = []
        changes = ("objective.top_k=all", f"objective.kappa={factor * constant}", "optimiser.iterations=1")
        train(tiny_settings(*changes), data=str(place), run=tmp_path / str(factor), say=said.append)
        assert any("constant map" in line and "objective.kappa" in line for line in said) == warns
        about = json.loads((tmp_path / str(factor) / "run.json").read_text())
        assert about["constant_map_rec"] == pytest.approx(constant)
