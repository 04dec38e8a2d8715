"""Graders and patients by pattern through every command that reads a folder of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from retina import GRADERS, PATIENT, write_retina
from typer.testing import CliRunner, Result

import hpunet.training.loop
from hpunet.cli.main import app
from hpunet.config.settings import Settings, load_settings
from hpunet.data.packs import pack_origin


@pytest.fixture
def retina(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_retina(tmp_path / "retina")


def hpunet_ok(*args: str) -> Result:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    return result


def test_data_info_takes_patterns_after_one_flag_in_any_order(retina: Path) -> None:
    for args in (["retina", "--graders", *GRADERS], ["--graders", *GRADERS, "retina"]):
        result = hpunet_ok("data", "info", *args)
        assert "2 grader(s) (1stHO, 2ndHO)" in result.stdout
        assert "0.941, 0.889" in result.stdout
        assert r"--patient 'Image_(\d+)'" in result.stderr
    repeated = ["--graders", GRADERS[0], f"--graders={GRADERS[1]}"]
    assert "warning" not in hpunet_ok("data", "info", "retina", *repeated, "--patient", PATIENT).stderr


def test_a_pack_remembers_patterns(retina: Path) -> None:
    assert "warning" in hpunet_ok("data", "pack", "retina", "unsure", "--graders", *GRADERS).stderr
    hpunet_ok("data", "pack", "retina", "packed", "--graders", *GRADERS, "--patient", PATIENT)
    _, options = pack_origin(Path("packed"))
    assert options is not None
    assert (list(options["graders"]), options["patient"]) == (GRADERS, PATIENT)
    info = hpunet_ok("data", "info", "packed")
    assert "warning" not in info.stderr
    assert "1stHO, 2ndHO" in info.stdout
    assert "warning" in hpunet_ok("data", "info", "unsure").stderr


def test_init_writes_patterns_that_train_reads(retina: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "warning" in hpunet_ok("init", "--data", "retina", "--graders", *GRADERS, "--out", "a.toml").stderr
    given = ["--graders", *GRADERS, "--patient", PATIENT]
    assert "warning" not in hpunet_ok("init", "--data", "retina", *given, "--small", "--out", "b.toml").stderr
    assert load_settings("b.toml").data.options == {"graders": GRADERS, "patient": PATIENT}

    trained: list[Settings] = []

    def train(settings: Settings, **_: Any) -> dict[str, float]:
        trained.append(settings)
        return {}

    monkeypatch.setattr(hpunet.training.loop, "train", train)
    hpunet_ok("train", "b.toml", "--data", "retina", "--out", "run")
    hpunet_ok("train", "lidc-hpu", "--data", "retina", "--out", "run", *given)
    for settings in trained:
        options = settings.data.options
        assert (options["graders"], options["patient"]) == (GRADERS, PATIENT)


def test_data_info_warns_of_classes_that_nearly_never_occur(retina: Path) -> None:
    for mask in retina.glob("*.png"):
        Image.fromarray(np.asarray(Image.open(mask)) // 255).save(mask)
    classes = 'classes=["background", "vessel", "lesion"]'
    result = hpunet_ok("data", "info", "retina", "--graders", *GRADERS, "--set", classes)
    assert "nearly never show lesion (in 0 of 6)" in result.stderr
