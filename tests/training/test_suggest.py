"""`hpunet init`: the rules, the file, and that it trains as it is."""

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from places import SHARED
from typer.testing import CliRunner

from hpunet.cli.init import init_command
from hpunet.config.settings import Settings, check_settings, load_settings
from hpunet.data.open import open_splits
from hpunet.data.packs import write_pack
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.models.build import build_model
from hpunet.training.loop import train
from hpunet.training.patches import choose_crop
from hpunet.training.suggest import (
    DatasetProfile,
    Setting,
    choose_kappa,
    profile_dataset,
    settings_text,
    suggest,
)

DATA = SHARED / "data"


def describe(**changes: Any) -> SetInfo:
    values = {"kind": "folder", "in_channels": 1, "num_graders": 1, "fixed_classes": ("background", "foreground")}
    return SetInfo(**values | changes)


def instances(num_random_ids: int, **changes: Any) -> SetInfo:
    return describe(fixed_classes=("background",), num_random_ids=num_random_ids, **changes)


def look(
    info: SetInfo, size: tuple[int, int], largest: tuple[int, int] | None = None, num_train: int = 1000
) -> DatasetProfile:
    return DatasetProfile(info=info, num_train=num_train, num_val=50, smallest=size, largest=largest or size)


def settings_for(
    seen: DatasetProfile, *, model: Any = "hpu", options: dict[str, Any] | None = None, **how: Any
) -> Settings:
    sections = suggest(seen, model=model, options=options or {}, **how)
    text = settings_text(sections, look=seen, where="somewhere", out=Path("some.toml"))
    return check_settings(tomllib.loads(text), where="some.toml")


def init(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(init_command)
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("smallest", "crop", "scales"),
    [
        ((128, 128), (128, 128), 8),  # LIDC, down to 1×1
        ((180, 180), (128, 128), 8),
        ((256, 256), (256, 256), 9),  # SNEMI3D
        ((512, 1024), (512, 1024), 9),  # Cityscapes, 2×4
        ((1024, 2048), (512, 1024), 9),
        ((1024, 1024), (512, 512), 9),
        ((250, 200), (192, 192), 7),
        ((100, 130), (96, 128), 6),
        ((1000, 64), (256, 64), 7),
        ((8, 8), (8, 8), 4),
    ],
)
def test_crop_is_the_largest_that_halves_to_four_pixels_or_fewer(
    smallest: tuple[int, int], crop: tuple[int, int], scales: int
) -> None:
    assert choose_crop(smallest) == (crop, scales)


@pytest.mark.parametrize("height", range(8, 300, 7))
@pytest.mark.parametrize("width", [8, 37, 64, 129, 700])
def test_crop_fits_every_image_and_divides_by_its_scales(height: int, width: int) -> None:
    (h, w), scales = choose_crop((height, width))
    assert h <= height
    assert w <= width
    step = 2 ** (scales - 1)
    assert (h % step, w % step) == (0, 0)
    assert max(h, w) // step <= 4


def test_crop_of_tiny_images_is_refused() -> None:
    with pytest.raises(DataError, match="smallest image side is 7 pixels; at least 8"):
        choose_crop((7, 100))
    with pytest.raises(DataError, match="a crop has 7 pixels; at least 8"):
        choose_crop((70, 100), limit=7)


def test_validation_of_large_images_draws_few_samples() -> None:
    photographs = settings_for(look(describe(in_channels=3), (960, 999), num_train=22), small=True)
    assert photographs.logging.validate_samples == 4
    assert settings_for(look(describe(), (180, 180)), small=True).logging.validate_samples == 16


def test_crop_keeps_to_a_limit() -> None:
    assert choose_crop((1024, 2048), limit=128) == ((128, 128), 8)
    assert choose_crop((100, 130), limit=100) == ((96, 96), 6)


@pytest.mark.parametrize(
    ("info", "kappa"),
    [
        (describe(), 0.05),  # LIDC
        (instances(15), 1.20),  # SNEMI3D
        (instances(5), 0.77),  # Cityscapes
        (describe(fixed_classes=("background", "a", "b", "c")), 0.10),
        (instances(1), 0.14),
    ],
)
def test_kappa_is_the_papers_where_it_has_one(info: SetInfo, kappa: float) -> None:
    assert choose_kappa(info) == kappa


def test_suggestions_for_the_papers_data_are_the_papers_networks() -> None:
    streets = describe(in_channels=3, fixed_classes=tuple("abcdefghijklmnopqr"), num_random_ids=5)
    for seen, preset in [
        (look(describe(num_graders=4), (180, 180), num_train=8882), "lidc-hpu"),
        (look(instances(15), (256, 256)), "snemi3d-hpu"),
        (
            look(SetInfo(**vars(streets) | {"fixed_classes": tuple("abcdefghijklmnopqr")}), (512, 1024)),
            "cityscapes-hpu",
        ),
    ]:
        suggested, papers = settings_for(seen), load_settings(preset)
        assert suggested.model == papers.model
        assert suggested.data.crop == papers.data.crop
        assert suggested.objective == papers.objective
        assert suggested.augmentation.mirror_up_down == papers.augmentation.mirror_up_down
        assert suggested.augmentation.rotation == papers.augmentation.rotation
        assert suggested.augmentation.gamma == papers.augmentation.gamma
        for name in ("translate", "saturation", "contrast", "gain"):
            assert getattr(suggested.augmentation, name) == getattr(papers.augmentation, name), name
        if preset != "cityscapes-hpu":
            assert suggested.optimiser.batch_size == papers.optimiser.batch_size
        if preset == "lidc-hpu":
            ours = {"learning_rates", "boundaries", "grad_clip", "ema_decay"}
            assert suggested.optimiser.model_dump(exclude=ours) == papers.optimiser.model_dump(exclude=ours)
            assert suggested.optimiser.learning_rates[0] == pytest.approx(3 * papers.optimiser.learning_rates[0])
    for seen, preset in [
        (look(describe(num_graders=4), (180, 180), num_train=8882), "lidc-punet"),
        (look(instances(15), (256, 256)), "snemi3d-punet"),
    ]:
        suggested, papers = settings_for(seen, model="punet"), load_settings(preset)
        assert suggested.model == papers.model
        assert suggested.objective == papers.objective


@pytest.mark.parametrize("model", ["hpu", "punet"])
@pytest.mark.parametrize("size", [(8, 8), (16, 40), (33, 64), (96, 96), (150, 700)])
@pytest.mark.parametrize("info", [describe(), instances(3, in_channels=3)], ids=["classes", "instances"])
def test_suggestions_build_and_divide_the_crop(info: SetInfo, size: tuple[int, int], model: str) -> None:
    settings = settings_for(look(info, size, num_train=5), model=model)
    with torch.device("meta"):
        network = build_model(settings.model, in_channels=info.in_channels, num_classes=info.num_classes)
    assert not any(n % multiple for n, multiple in zip(settings.data.crop, network.size_multiples, strict=True))
    assert settings.optimiser.batch_size == 5
    assert settings.logging.best == ("iou_rec" if info.has_instances else "ged2")


@pytest.mark.parametrize("model", ["hpu", "punet"])
@pytest.mark.parametrize("info", [describe(), instances(3, in_channels=3)], ids=["classes", "instances"])
def test_small_suggestions_are_smaller_and_build(info: SetInfo, model: str) -> None:
    seen = look(info, (256, 512))
    settings = settings_for(seen, model=model, small=True)
    assert settings.data.crop == (128, 128)
    usual = settings_for(seen, model=model, crop=128)
    networks = []
    for chosen in (settings, usual):
        with torch.device("meta"):
            networks.append(build_model(chosen.model, in_channels=info.in_channels, num_classes=info.num_classes))
    small, large = (sum(p.numel() for p in network.parameters()) for network in networks)
    assert small < large / 4
    longer = info.has_instances and model == "hpu"
    assert settings.optimiser.iterations == (5000 if longer else 2000) <= usual.optimiser.iterations / 4
    assert settings.optimiser.learning_rates[0] == (1e-3 if longer else 5e-4)
    assert settings.objective == usual.objective


def test_latents_are_fewer_for_small_images() -> None:
    counts = [len(settings_for(look(describe(), (side, side))).model.latent_dims) for side in (8, 16, 32, 64, 128)]
    assert counts == [1, 2, 3, 4, 4]


def test_reasons_fit_the_values() -> None:
    """What is off is not explained by why it would be on."""

    def reasons(seen: DatasetProfile) -> dict[str, str]:
        sections = suggest(seen, model="hpu", options={})
        return {setting.key: setting.why for settings in sections.values() for setting in settings}

    roomy, filled = (reasons(look(describe(in_channels=c), (side, side))) for c, side in ((1, 300), (3, 512)))
    for key, word in (("translate", "margin"), ("activation_checkpointing", "this large crop")):
        assert word in filled[key]
        assert word not in roomy[key]
    for key in ("gamma", "saturation", "contrast", "gain"):
        assert "varied" in filled[key]
        assert "varied" not in roomy[key]
    assert "fewer" not in roomy["latent_dims"]


def test_every_setting_has_its_reason_above_it() -> None:
    seen = look(describe(), (200, 300), (400, 500))
    text = settings_text(suggest(seen, model="hpu", options={"seed": 3}), look=seen, where="a b", out=Path("x.toml"))
    lines = text.splitlines()
    for previous, line in pairwise(lines):
        if " = " in line and not line.startswith("#"):
            assert previous.startswith("# "), line
    assert "hpunet train x.toml --data 'a b' --out runs/x" in text
    assert "Image sizes differ: heights 200 to 400, widths 300 to 500" in text.replace("\n# ", " ")
    assert tomllib.loads(text)["optimiser"]["cuda_graph"] is False  # sizes differ
    assert tomllib.loads(text)["data"]["options"] == {"seed": 3}


def test_names_with_line_breaks_do_not_break_out_of_comments() -> None:
    seen = look(describe(), (64, 64))
    sections = suggest(seen, model="hpu", options={})
    text = settings_text(sections, look=seen, where="a\n[model]", out=Path("b\n[data].toml"))
    check_settings(tomllib.loads(text), where="b")


@pytest.mark.parametrize(
    "value",
    [
        {"slices": {"train": [0, 16], "val": [16, 18]}, "allow_remainder": True},
        {"classes": ['say "no"', "back\\slash", "naïve\n\x7f", "😀"], "window": [-1000.0, 400.5]},
        {"odd key": 1e-7, "": [], "with.dot": {}},
    ],
)
def test_settings_text_keeps_options_of_any_kind(value: dict[str, Any]) -> None:
    seen = look(describe(), (64, 64))
    text = settings_text({"data": [Setting("options", value, "why")]}, look=seen, where="w", out=Path("x.toml"))
    assert tomllib.loads(text) == {"data": {"options": value}}


def test_look_reads_sizes_of_images_and_of_packs_alike(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    for index, (height, width) in enumerate([(20, 40), (30, 33), (25, 36), (21, 50)]):
        for top in ("images", "masks"):
            (folder / top).mkdir(parents=True, exist_ok=True)
            pixels = np.full((height, width), index % 2, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / top / f"{index}.png")
    seen = profile_dataset(str(folder), options={"val_every": 4})
    assert (seen.smallest, seen.largest) == ((20, 33), (30, 50))
    assert (seen.num_train, seen.num_val) == (3, 1)
    write_pack(open_splits(str(folder), options={"val_every": 4}), tmp_path / "pack")
    assert profile_dataset(str(tmp_path / "pack"), options={}) == seen


def test_look_refuses_data_without_validation_images(tmp_path: Path) -> None:
    train_only = {"train": open_splits("synthetic:lesions", options={"num_images": 1})["train"]}
    write_pack(train_only, tmp_path / "pack")
    with pytest.raises(DataError, match="has no val images, only train"):
        profile_dataset(str(tmp_path / "pack"), options={})


def test_command_writes_refuses_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--data", "synthetic:lesions", "--set", "num_images=2", "--set", "size=16")
    made = init(*arguments)
    assert made.exit_code == 0
    assert "hpunet train synthetic-lesions.toml --data synthetic:lesions" in made.stdout
    first = Path("synthetic-lesions.toml").read_text()
    again = init(*arguments)
    assert isinstance(again.exception, ConfigError)
    assert "exists already" in str(again.exception)
    assert init(*arguments, "--model", "punet", "--replace").exit_code == 0
    assert Path("synthetic-lesions.toml").read_text() != first
    wrong = init(*arguments, "--out", "settings.yaml")
    assert "ends in .toml" in str(wrong.exception)


TINY = [
    "model.channels=[4,4,4]",
    "model.latent_dims=[1]",
    "data.crop=[32,32]",
    "optimiser.iterations=2",
    "optimiser.batch_size=2",
    "logging.validate_images=2",
    "logging.validate_samples=2",
]


@pytest.mark.parametrize("model", ["hpu", "punet"])
def test_what_init_writes_trains_unedited(model: str, tmp_path: Path) -> None:
    """Only narrower (orthogonal weights take their time) and shorter."""
    file = tmp_path / "lesions.toml"
    arguments = ["--set", "num_images=2", "--set", "size=16", "--model", model]
    assert init("--data", "synthetic:lesions", "--out", str(file), *arguments).exit_code == 0
    narrow = [4] * len(load_settings(str(file)).model.channels)
    settings = load_settings(str(file), [f"model.channels={narrow}", "optimiser.iterations=1"])
    final = train(settings, data="synthetic:lesions", run=tmp_path / "run", say=lambda _message: None)
    assert np.isfinite(list(final.values())).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nuclei.tar.gz", ["val_every=10"]),
        ("em_neurites", ["slices.train=[0,16]", "slices.val=[16,18]", "patch=256"]),
    ],
)
def test_init_and_train_on_real_data(name: str, options: list[str], tmp_path: Path) -> None:
    where = DATA / name
    if not where.exists():
        pytest.skip(f"no data at {where}; set HPUNET_SHARED")
    file = tmp_path / "real.toml"
    changes = [word for option in options for word in ("--set", option)]
    assert init("--data", str(where), "--out", str(file), *changes).exit_code == 0
    settings = load_settings(str(file), TINY)
    assert load_settings(str(file)).data.crop == (256, 256)
    final = train(settings, data=str(where), run=tmp_path / "run", say=lambda _message: None)
    assert 0 <= final["ged2"] <= 2
