"""The pages name what exists, and what they show runs."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from places import ROOT
from typer.testing import CliRunner

import hpunet.training.loop
from hpunet.cli.main import app
from hpunet.config.settings import Settings, load_settings, preset_names

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results/README.md", *sorted(DOCS.rglob("*.md"))]
START = sorted((DOCS / "start").glob("*.md"))


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def commands(group: Any, prefix: str = "hpunet") -> dict[str, set[str]]:
    """The options of each command by its name, `hpunet data make` for instance."""
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{prefix} {name}")
        else:
            options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            found[f"{prefix} {name}"] = {option for option in options if option.startswith("--")}
    return found


COMMANDS = commands(typer.main.get_command(app))


def shown_commands(text: str) -> Iterator[str]:
    """Lines of code blocks and inline code that begin with `hpunet`; continued lines joined, comments cut off."""
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        yield from re.findall(r"^(?:torchrun .*-m )?(hpunet .*?)(?:\s+# .*)?$", line)
    yield from (words.replace("\n", " ") for words in re.findall(r"(?<!`)`(hpunet [a-z][^`]*)`", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_what_exists(page: Path) -> None:
    """Commands with their options and settings, paths of the repository, linked files."""
    text = page.read_text()
    for command in shown_commands(text):
        name = " ".join(command.split()[: 3 if command.startswith("hpunet data ") else 2])
        wanted = set(re.findall(r"--[a-z-]+", command)) - {"--help"}
        if name in COMMANDS:
            assert wanted <= COMMANDS[name], command
        else:
            assert name in ("hpunet COMMAND", "hpunet data", "hpunet --version", "hpunet --help"), command
        changes = [word for word in re.findall(r"--set[= ]\"?([^\s`\"]+)", command) if word.split(".")[0] in SECTIONS]
        if changes and "…" not in command:
            preset = next((word for word in command.split() if word in preset_names()), "lidc-hpu-plus")
            load_settings(preset, [change.strip("'") for change in changes])
    for path in re.findall(r"(?<![\w/.-])(?:src|tests|benchmarks|results|docs)/[\w./*-]*[\w/*]", text):
        assert list(ROOT.glob(re.sub(r"/NAME\b", "/*", path).rstrip("/"))), path
    for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


SECTIONS = {name for name, field in Settings.model_fields.items() if hasattr(field.annotation, "model_fields")}


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors between pages, the navigation, and every name of the API reference.

    Without --quiet, which hides warnings from --strict.
    """
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    fetched = re.findall(r'(?:src|<link[^>]*href)="(https?:[^"]*)', (tmp_path / "index.html").read_text())
    assert not fetched


def test_settings_page_lists_every_setting_with_its_default() -> None:
    expected = {}
    for name, field in Settings.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        for key, entry in {f"{name}.{k}": f for k, f in inner.items()}.items() if inner else {name: field}.items():
            expected[key] = "required" if entry.is_required() else json.dumps(entry.get_default())
    shown = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text_of("reference/settings.md"), flags=re.MULTILINE)
    assert dict(shown) == expected
    assert len(shown) == len(expected)


def test_pages_list_every_command_option_and_preset() -> None:
    lines = re.findall(r"^\| `(hpunet [\w -]+)` \| (`--.*) \|$", text_of("reference/cli.md"), flags=re.MULTILINE)
    assert {name: set(re.findall(r"--[a-z-]+", line)) for name, line in lines} == COMMANDS
    options = re.findall(r"^\| `(--[a-z-]+)", text_of("guides/evaluate.md"), flags=re.MULTILINE)
    assert {*options} <= COMMANDS["hpunet evaluate"]
    presets = re.findall(r"^\| `([a-z0-9-]+)` \|", text_of("guides/train.md").split("\n## ")[1], flags=re.MULTILINE)
    assert sorted(presets) == preset_names()


def test_paper_map_names_code_that_exists() -> None:
    table = text_of("background/paper_map.md").split("## Every deviation")[0]
    for name in re.findall(r"`((?:models|metrics|data|sampling|objectives)\.[\w.]+)`", table):
        found: Any = hpunet
        for part in name.split("."):
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")


@pytest.mark.parametrize("page", START, ids=lambda page: page.stem)
def test_start_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, block in re.findall(r"^```(python)?\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        if kind:
            exec(block, {"__name__": "example"})
            continue
        for command in shown_commands(f"```\n{block}```"):
            words = [w for word in shlex.split(command)[1:] for w in (sorted(map(str, Path().glob(word))) or [word])]
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (command, result.output, result.exception)


@pytest.mark.parametrize(
    "page",
    ["guides/sample.md", "guides/guarantees.md", "guides/latents.md", "guides/measure.md", "reference/metrics.md"],
)
def test_python_of_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL):
        exec(block, {})
    printed = capsys.readouterr().out
    assert page != "guides/sample.md" or [line.split()[0] for line in printed.splitlines()[1:]] == [
        "50%",
        "25%",
        "25%",
    ]


def test_training_page_logger_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for wandb and a shorter run of a smaller network."""
    heard: list[dict[str, Any]] = []
    run = SimpleNamespace(log=lambda values, step: heard.append({"step": step, **values}), finish=lambda: None)
    wandb = SimpleNamespace(init=lambda **_settings: run, Image=lambda pixels: pixels.shape)
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", text_of("guides/train.md"), flags=re.DOTALL)
    changes = ["model.channels=[4,4,4,4,4]", "data.crop=[16,16]", "data.options={num_images=2, size=16}"]
    changes += ["optimiser.iterations=1", "logging.validate_samples=2"]
    block = block.replace('load_settings("demo")', f'load_settings("demo", {changes})')
    exec(block, {"__name__": "example"})
    assert {key for line in heard for key in line} >= {"rec", "kl", "val_ged2", "samples"}
    assert (tmp_path / "runs/wandb" / hpunet.training.loop.SETTINGS_FILE).is_file()
