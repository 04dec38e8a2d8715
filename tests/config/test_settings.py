from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from hpunet.config.settings import EXAMPLES, check_settings, load_settings, parse_assignments
from hpunet.errors import ConfigError


def test_assignments_are_toml_values_or_words() -> None:
    found = parse_assignments(["size=128", "slices.train=[0, 16]", "slices.val=[16,18]", "name=nuclei", "on = true"])
    assert found == {"size": 128, "slices": {"train": [0, 16], "val": [16, 18]}, "name": "nuclei", "on": True}


@pytest.mark.parametrize("wrong", ["size", "=3", "a..b=1", ".a=1"])
def test_assignments_that_are_none_are_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_assignments([wrong])


def test_assignments_do_not_overwrite_a_value_by_a_group() -> None:
    with pytest.raises(ConfigError, match="a already has a value"):
        parse_assignments(["a=1", "a.b=2"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optimiser.batchsize=3", "optimiser.batchsize: unknown setting, expected one of iterations, batch_size"),
        ("optimizer.batch_size=3", "optimizer: unknown setting, expected one of format, seed, model"),
        ("optimiser.batch_size=many", "optimiser.batch_size: expected a whole number (got 'many')"),
        ("optimiser.batch_size=0", "optimiser.batch_size: expected 1 or more (got 0)"),
        ("optimiser.accumulation_steps=5", "optimiser.accumulation_steps: 5 do not divide"),
        ("optimiser.boundaries=[2,1]", "boundaries: expected rising numbers, one fewer than learning_rates"),
        ("optimiser.learning_rates=[]", "optimiser.learning_rates: expected a list of numbers, for instance"),
        ("optimiser.grad_clip=nan", "optimiser.grad_clip: expected a finite number"),
        ("model.kind=unet", "model.kind: expected 'hpu' or 'punet' (got 'unet')"),
        ("model.kind=punet", "latent_dims: the Probabilistic U-Net has exactly one latent scale"),
        ("model.channels=[8,0]", "model.channels.1: expected 1 or more (got 0)"),
        ("data.crop=[16,16,16]", "data.crop: expected two whole numbers, for instance data.crop=[128,128] (got [16"),
        ("augmentation.tilt=5", "augmentation.tilt: it and scale_depth are for volumes, with model.ndim=3"),
        ("augmentation.scale_depth=[0.9,1.1]", "scale_depth are for volumes"),
        ("augmentation.scale_depth=2", "augmentation.scale_depth: expected two numbers, for instance"),
        ("data.crop=[16]", "data.crop: expected two whole numbers, for instance data.crop=[128,128]"),
        ("data.crop=128", "data.crop: expected two whole numbers, for instance data.crop=[128,128] (got 128)"),
        ("data.crop=[16,1.5]", "data.crop.1: expected a whole number (got 1.5)"),
        ("model.channels=8", "model.channels: expected a list of whole numbers, for instance model.channels=[24"),
        ("data.extrapolate=1", "data.extrapolate: expected true or false or 'future' (got 1)"),
        ("data.options=3", "data.options: expected options by name, for instance data.options.size=128 (got 3)"),
        ("data=3", "data: is a group of settings (crop, options, extrapolate, evaluate, num_workers), got 3"),
        ("objective.top_k=most", "objective.top_k: expected a number or 'all' (got 'most')"),
        ("objective.top_k=1.5", "objective.top_k: expected 1.0 at most or 'all' (got 1.5)"),
        ("logging.best=loss", "logging.best: expected 'ged2', 'hm_iou' or 'iou_rec' (got 'loss')"),
        ("objective.kl_warm_up=[9,9,9,9,9]", "objective.kl_warm_up: has more entries than model.latent_dims"),
        ("objective.energy=-1", "objective.energy: expected 0.0 or more (got -1)"),
        ("objective.energy_samples=1", "objective.energy_samples: expected 2 or more (got 1)"),
        ("seed=-1", "seed: expected 0 or more (got -1)"),
        ("model.channels=[8,1000000000]", "model.channels.1: expected 4096 at most (got 1000000000)"),
        ("model.channels=[8,8,8,8,8,8,8,8,8,8,8,8,8]", "model.channels: expected 12 entries at most"),
        ("model.blocks_per_scale=1000000", "model.blocks_per_scale: expected 32 at most (got 1000000)"),
        ("model.latent_dims=[1000000]", "model.latent_dims.0: expected 1024 at most"),
        ("data.crop=[128,1000000]", "data.crop.1: expected 8192 at most (got 1000000)"),
        ("data.num_workers=100000", "data.num_workers: expected 256 at most"),
        ("optimiser.batch_size=1000000000", "optimiser.batch_size: expected 65536 at most"),
        ("logging.validate_samples=100000", "logging.validate_samples: expected 1024 at most"),
    ],
)
def test_settings_that_cannot_be_are_named(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings("demo", [assignment])
    assert str(caught.value).startswith("demo: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_settings_given_as_examples_by_messages_can_be(example: str) -> None:
    key, value = example.rpartition(" ")[2].split("=")
    rates = "optimiser.learning_rates=[3e-4,1e-4,1e-5]"  # as many as the example of boundaries needs
    needed = {"optimiser.boundaries": [rates], "augmentation.scale_depth": ["model.ndim=3", "data.crop=[32,128,128]"]}
    settings = load_settings("lidc-hpu", [*needed.get(key, []), f"{key}={value}"])
    found = reduce(getitem, key.split("."), settings.model_dump(mode="json"))
    given = parse_assignments([f"given={value}"])["given"]
    named = key in ("optimiser.boundaries", "augmentation.fade", "objective.kl_warm_up")
    assert found == ([240_000 * share for share in given] if named else given)


def test_settings_shares_of_the_iterations_follow_their_number() -> None:
    changes = ["objective.kl_warm_up=[0.25,30,0]", "objective.energy_start=0.4"]
    settings = load_settings("lidc-hpu-plus", ["optimiser.iterations=1000", *changes])
    assert settings.optimiser.boundaries == [600, 867]
    assert settings.augmentation.fade == (500, 733)
    assert settings.objective.kl_warm_up == [250, 30, 0]
    assert settings.objective.energy_start == 400
    with pytest.raises(ConfigError, match=r"boundaries.0: expected a whole number \(got 1.5\)"):
        load_settings("lidc-hpu-plus", ["optimiser.boundaries=[1.5,600]"])


def test_settings_shares_of_very_few_iterations_still_rise() -> None:
    settings = load_settings("lidc-hpu-plus", ["optimiser.iterations=1"])
    assert settings.optimiser.boundaries == [1, 2]
    assert settings.augmentation.fade == (1, 2)
    assert settings.objective.kl_warm_up == [0]
    with pytest.raises(ConfigError, match=r"boundaries: expected rising numbers"):
        load_settings("lidc-hpu-plus", ["optimiser.boundaries=[0.9,0.6]"])


def test_settings_kl_warm_up_needs_geco() -> None:
    with pytest.raises(ConfigError, match=r"objective\.kl_warm_up: only with objective\.kind=geco"):
        load_settings("lidc-elbo", ["objective.kl_warm_up=[5]"])


def test_settings_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "half.toml").write_text("[model]\nchannels = [4, 4]\n")
    with pytest.raises(ConfigError, match=r"half.toml: model.latent_dims: is missing; data: is missing; optimiser"):
        load_settings(str(tmp_path / "half.toml"))


def test_settings_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[model\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name, message in {"broken": "not TOML", "binary": "cannot be read", "none": "no such file"}.items():
        with pytest.raises(ConfigError, match=rf"{name}.toml: {message}"):
            load_settings(str(tmp_path / f"{name}.toml"))
    with pytest.raises(ConfigError, match=r"preset 'lidc' is unknown; expected a .toml file or one of .*lidc-hpu"):
        load_settings("lidc")


def test_assignments_change_single_settings_and_leave_the_rest() -> None:
    changes = ["optimiser.batch_size=8", "data.options.size=64"]
    before, after = load_settings("lidc-hpu"), load_settings("lidc-hpu", changes)
    assert after.optimiser.batch_size == 8
    assert after.data.options == {"size": 64}
    assert after.optimiser.model_copy(update={"batch_size": 32}) == before.optimiser
    assert (after.model, after.objective) == (before.model, before.objective)
    assert check_settings(after.model_dump(mode="json"), where="again") == after
