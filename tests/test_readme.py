"""The README is short, and everything it shows runs."""

import contextlib
import io
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpunet
from hpunet.cli.main import app

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
README = (ROOT / "README.md").read_text()
SMALLER = {
    "init": "--small --crop 32",
    "train": "--set optimiser.iterations=2 --set optimiser.batch_size=2",
    "evaluate": "--samples 2",
    "sample": "--samples 2",
}
"""Options that the tests add to a command, to save time."""


def test_readme_is_short_and_has_pictures() -> None:
    pictures = re.findall(r"!\[[^]]+\]\((docs/pictures/.*?)\)", README)
    assert len(README.split()) <= 1100
    assert len(pictures) >= 3
    assert all((ROOT / picture).stat().st_size < 1_000_000 for picture in pictures)


def test_readme_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(blocks), {})
    shown = re.findall(r"`(\d+%: [^`]+)`", README)
    assert len(shown) == 2
    assert printed.getvalue().splitlines()[:2] == shown


def test_readme_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    crop = hpunet.example("lidc").path
    shutil.copy(crop, "crop.png")
    shutil.copytree(crop.parents[1], "my-images")
    commands = re.findall(r"^hpunet (.*?)(?: +#.*)?$|`hpunet (sample .*?crop\.png.*?)`", README, flags=re.MULTILINE)
    assert len(commands) == 5
    commands.append((next(c for c, _ in commands if c.startswith("train")) + " --resume", ""))
    for command in map("".join, commands):
        words = [*shlex.split(command), *shlex.split(SMALLER.get(command.split()[0], ""))]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (command, result.output, result.exception)


def test_architecture_picture_is_the_one_its_script_draws() -> None:
    drawn = runpy.run_path(str(PICTURES / "architecture.py"))["architecture"]()
    assert (PICTURES / "architecture.svg").read_text() == drawn
