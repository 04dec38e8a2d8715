"""docs/guides/train.md names what is there, and its example runs."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpunet.training.loop
from hpunet.config.settings import Settings, load_settings, preset_names

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "guides" / "train.md").read_text()


def test_training_page_lists_every_preset_and_no_other() -> None:
    table = TEXT.split("## Presets")[1].split("##")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, flags=re.MULTILINE)) == set(preset_names())


def test_training_page_lists_every_setting_and_no_other() -> None:
    table = TEXT.split("## Settings")[1].split("##")[0]
    for line in re.findall(r"^\| `\w+` .*", table, flags=re.MULTILINE):
        group, *names = re.findall(r"`(\w+)`", line)
        annotation: Any = Settings.model_fields[group].annotation
        assert set(names) == set(getattr(annotation, "model_fields", {})), group


def test_training_page_assigns_settings_that_exist() -> None:
    assignments = [a for a in re.findall(r"--set (\S+)|`(\w+\.\w+=\S+)`", TEXT) for a in a if "." in a]
    assert assignments
    load_settings("lidc-hpu-plus", assignments)


def test_training_page_logger_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for wandb and a shorter run of a smaller network."""
    heard: list[dict[str, Any]] = []
    run = SimpleNamespace(log=lambda values, step: heard.append({"step": step, **values}), finish=lambda: None)
    wandb = SimpleNamespace(init=lambda **_settings: run, Image=lambda pixels: pixels.shape)
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    changes = ["model.channels=[4,4,4,4,4]", "data.crop=[16,16]", "data.options={num_images=2, size=16}"]
    changes += ["optimiser.iterations=1", "logging.validate_samples=2"]
    block = block.replace('load_settings("demo")', f'load_settings("demo", {changes})')
    exec(block, {"__name__": "example"})
    assert {key for line in heard for key in line} >= {"rec", "kl", "val_ged2", "samples"}
    assert (tmp_path / "runs/wandb" / hpunet.training.loop.SETTINGS_FILE).is_file()
