"""Every preset holds the paper's numbers, builds, and trains on data of its own kind."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT

from hpunet.config.settings import load_settings, preset_names
from hpunet.data.cityscapes.scenes import open_cityscapes
from hpunet.data.lidc.crops import INFO as LIDC
from hpunet.data.snemi3d import open_snemi3d
from hpunet.data.synthetic.source import INFO as SYNTHETIC
from hpunet.data.synthetic.writers import write_cityscapes_scenes, write_lidc_crops, write_snemi3d_stack
from hpunet.models.build import build_model
from hpunet.training.build import learning_rate_at
from hpunet.training.loggers import read_log
from hpunet.training.loop import train

PAPER: dict[str, dict[str, Any]] = {
    "lidc-hpu": {"kappa": 0.05, "top_k": 0.02, "parameters": 20_584_302},
    "lidc-punet": {"beta": 1.0, "top_k": "all", "parameters": 9_315_162},
    "lidc-local": {"kappa": 0.05, "top_k": 0.02, "latent_dims": [0, 0, 0, 1], "parameters": 20_575_650},
    "lidc-global": {"kappa": 0.15, "top_k": 0.02, "latent_dims": [85], "parameters": 16_853_586},
    "lidc-no-topk": {"kappa": 0.05, "top_k": "all", "parameters": 20_584_302},
    "lidc-elbo": {"beta": 1.0, "top_k": 0.02, "parameters": 20_584_302},
    "snemi3d-hpu": {"kappa": 1.20, "top_k": 0.02, "parameters": 42_614_096},
    "snemi3d-punet": {"beta": 1.0, "top_k": "all", "latent_dims": [85], "parameters": 25_496_012},
    "snemi3d-extrapolate": {"kappa": 1.20, "top_k": 0.02, "parameters": 42_617_088},
    "cityscapes-hpu": {"kappa": 0.77, "top_k": 0.02, "parameters": 29_537_079},
}
"""κ, β, share of pixels, latents where they are not 1 on each of four scales, trainable parameters (those of local,
global and extrapolate are counted, not published)."""
OURS = ("lidc-hpu-plus", "snemi3d-hpu-plus", "cityscapes-hpu-plus", "cityscapes-hpu-hard", "lidc-no-topk-bound")
VOLUMES = ("lidc3d-hpu", "lidc3d-punet", "fibsem3d-hpu")
DEMO = ("demo", "demo-punet", "nodules3d-demo", "nodules3d-demo-2d")
SCHEDULES: dict[str, dict[str, Any]] = {
    "lidc": {"iterations": 240_000, "batch_size": 32, "crop": (128, 128), "num_rates": 4},
    "snemi3d": {"iterations": 450_000, "batch_size": 24, "crop": (256, 256), "num_rates": 5},
    "cityscapes": {"iterations": 100_000, "batch_size": 128, "crop": (512, 1024), "num_rates": 2},
}
"""By data set; see also the learning rates below."""


def kind_of(preset: str) -> str:
    return preset.split("-")[0]


def test_presets_are_those_of_the_paper_the_better_recipes_and_the_demonstration() -> None:
    assert set(preset_names()) == {*PAPER, *OURS, *VOLUMES, *DEMO}


def test_preset_with_the_better_recipe_trains_the_papers_network() -> None:
    paper, plus = load_settings("lidc-hpu"), load_settings("lidc-hpu-plus")
    assert (plus.model, plus.data) == (paper.model, paper.data)
    assert plus.objective.top_k == paper.objective.top_k


@pytest.mark.parametrize("preset", PAPER)
def test_preset_has_the_papers_objective_and_schedule(preset: str) -> None:
    settings, paper, schedule = load_settings(preset), PAPER[preset], SCHEDULES[kind_of(preset)]
    assert settings.objective.kind == ("geco" if "kappa" in paper else "elbo")
    assert settings.objective.kappa == paper.get("kappa", settings.objective.kappa)
    assert settings.objective.beta == paper.get("beta", settings.objective.beta)
    assert settings.objective.top_k == paper["top_k"]
    assert settings.objective.stochastic
    assert settings.optimiser.iterations == schedule["iterations"]
    assert settings.optimiser.batch_size == schedule["batch_size"]
    assert settings.optimiser.weight_decay == 1e-5
    assert settings.data.crop == schedule["crop"]
    assert settings.data.extrapolate == (preset == "snemi3d-extrapolate")
    assert len(settings.optimiser.learning_rates) == schedule["num_rates"]
    expected = paper.get("latent_dims", [6] if preset == "lidc-punet" else [1, 1, 1, 1])
    assert settings.model.latent_dims == expected


def test_preset_that_binds_differs_from_the_papers_in_kappa_alone() -> None:
    paper, bound = (load_settings(name).model_dump() for name in ("lidc-no-topk", "lidc-no-topk-bound"))
    assert (
        bound["objective"].pop("kappa") < 0.0315 < paper["objective"].pop("kappa")
    )  # what a constant map has on LIDC
    assert bound == paper


@pytest.mark.parametrize("preset", preset_names())
def test_preset_for_instances_keeps_the_best_reconstruction(preset: str) -> None:
    has_instances = kind_of(preset) in ("snemi3d", "cityscapes", "fibsem3d")
    assert load_settings(preset).logging.best == ("iou_rec" if has_instances else "ged2")


@pytest.mark.parametrize("preset", [*PAPER, *OURS])
def test_preset_translates_where_its_crop_fills_the_image_and_changes_colours_of_streets(preset: str) -> None:
    augmentation = load_settings(preset).augmentation
    fills = kind_of(preset) in ("snemi3d", "cityscapes") and preset != "snemi3d-hpu-plus"  # which crops whole slices
    assert (augmentation.translate > 0) == fills
    for name in ("saturation", "contrast", "gain"):
        assert (getattr(augmentation, name) != (1, 1)) == (kind_of(preset) == "cityscapes")


@pytest.mark.parametrize(
    ("preset", "rates"),
    [
        ("lidc-hpu", {0: 1e-4, 59_999: 1e-4, 60_000: 0.5e-4, 180_000: 0.5e-5, 239_999: 0.5e-5}),
        ("lidc-punet", {0: 1e-4, 239_999: 0.5e-6}),
        ("snemi3d-hpu", {0: 1e-4, 89_999: 1e-4, 90_000: 0.5e-4, 360_000: 1e-7, 449_999: 1e-7}),
        ("snemi3d-punet", {0: 1e-4, 449_999: 1e-7}),
        ("cityscapes-hpu", {0: 2e-4, 69_999: 2e-4, 70_000: 1e-4, 99_999: 1e-4}),
    ],
)
def test_preset_has_the_papers_learning_rates(preset: str, rates: dict[int, float]) -> None:
    optimiser = load_settings(preset).optimiser
    assert {step: learning_rate_at(optimiser, step) for step in rates} == rates


@pytest.mark.parametrize("preset", preset_names())
def test_preset_builds_for_its_data_and_divides_its_crop(preset: str) -> None:
    settings = load_settings(preset)
    infos = {"snemi3d": SYNTHETIC["neurites"], "fibsem3d": SYNTHETIC["neurites"], "cityscapes": SYNTHETIC["streets"]}
    info = infos.get(kind_of(preset), LIDC)
    with torch.device("meta"):
        how = {"in_channels": info.in_channels, "num_classes": info.num_classes}
        model = build_model(settings.model, **how, extrapolate=settings.data.extrapolate)
    if preset in PAPER:
        assert sum(p.numel() for p in model.parameters()) == PAPER[preset]["parameters"]
    assert not any(n % multiple for n, multiple in zip(settings.data.crop, model.size_multiples, strict=True))
    if preset == "snemi3d-extrapolate":
        assert model.cond_channels == 1 + 16  # what is visible, and its labels


@pytest.mark.parametrize("preset", preset_names())
def test_preset_opens_with_its_command_cost_and_number(preset: str) -> None:
    text = (ROOT / "src/hpunet/config/presets" / f"{preset}.toml").read_text()
    header = text.split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    command = "hpunet demo" if preset in ("demo", "demo-punet") else f"hpunet train {preset} --data "
    assert f"#   {command}" in header
    assert "# Cost: " in header
    if preset in PAPER:
        assert f"{PAPER[preset]['parameters'] / 1e6:.1f} M parameters" in header
    assert "# Expect: " in header


@pytest.fixture(scope="module")
def data_of_each_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny sets in the layouts that the presets are for."""
    folder = tmp_path_factory.mktemp("data")
    write_lidc_crops(folder / "lidc", num_patients=1, size=40)
    write_snemi3d_stack(folder / "snemi3d", depth=5, size=64)
    write_cityscapes_scenes(folder / "cityscapes", num_images=2, size=(32, 64))
    return {kind: folder / kind.replace("fibsem", "snemi").replace("lidc3d", "lidc") for kind in SHRUNK}


FIVE_SCALES = ("model.channels=[4,4,4,4,4]", "model.strides=[[1,2,2],[2,2,2],[2,2,2],[1,2,2]]")
SHRUNK: dict[str, list[str]] = {
    "lidc": ["data.crop=[32,32]"],
    "snemi3d": ["data.crop=[32,32]", "data.options.patch=32"],
    "lidc3d": ["data.crop=[4,32,32]", *FIVE_SCALES],
    "fibsem3d": ["data.crop=[8,32,32]", *FIVE_SCALES, "data.options.slices={ train = [0, 4], val = [4, 5] }"],
    "cityscapes": [
        *("data.crop=[32,64]", "data.options.size=[32,64]", "data.num_workers=1"),
        *("optimiser.accumulation_steps=2", "model.blocks_per_scale=1"),
    ],
}
"""What makes a preset fit the tiny data of its kind."""
TINY = [
    *("optimiser.iterations=2", "optimiser.batch_size=2"),
    *("logging.log_every=1", "logging.validate_images=2", "logging.validate_samples=2"),
]


@pytest.mark.parametrize("preset", [*PAPER, *OURS, *VOLUMES])
def test_preset_trains_on_data_of_its_kind(preset: str, data_of_each_kind: dict[str, Path], tmp_path: Path) -> None:
    channels = [f"model.channels={[4] * (3 if preset.endswith('punet') else 6)}"]
    settings = load_settings(preset, [*TINY, *channels, *SHRUNK[kind_of(preset)]])
    data = str(data_of_each_kind[kind_of(preset)])
    final = train(settings, data=data, run=tmp_path, device=torch.device("cpu"), say=lambda _message: None)
    assert all(math.isfinite(value) for value in final.values())
    steps = [line for line in read_log(tmp_path / "log.jsonl") if "rec" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(math.isfinite(line["rec"]) and math.isfinite(line["kl"]) and line["rec"] > 0 for line in steps)
    assert steps[-1]["skipped"] == 0
    assert len(steps[-1].keys() & {f"kl_{i}" for i in range(9)}) == len(settings.model.latent_dims)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_score_whole_images_but_for_the_papers_centre_of_lidc(preset: str) -> None:
    assert load_settings(preset).data.evaluate == ("crop" if preset.startswith("lidc-") else "whole")


def test_demo_preset_trains_on_what_it_demonstrates(tmp_path: Path) -> None:
    settings = load_settings("demo", [*TINY, "data.options.num_images=2", "model.channels=[4,4,4,4,4]"])
    final = train(settings, data="synthetic:lesions", run=tmp_path, device=torch.device("cpu"), say=lambda _: None)
    assert all(math.isfinite(value) for value in final.values())


def test_tiny_data_are_read_as_the_presets_expect(data_of_each_kind: dict[str, Path]) -> None:
    """The shapes that the parameter counts above assume are those of the readers."""
    stack = open_snemi3d(data_of_each_kind["snemi3d"], split="train", patch=32)
    assert (stack.info.in_channels, stack.info.num_classes) == (1, 16)
    streets = open_cityscapes(data_of_each_kind["cityscapes"], split="train", size=(32, 64))
    assert (streets.info.in_channels, streets.info.num_classes) == (3, 23)
