import platform
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpunet import __version__
from hpunet.cli.data import make
from hpunet.config.settings import parse_assignments
from hpunet.data.open import open_splits


def hpunet(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpunet", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


def test_version_and_help() -> None:
    ours, others = hpunet("--version").stdout.splitlines()
    assert ours.startswith(f"hpunet {__version__} (commit ")
    for word in (platform.python_version(), torch.__version__, np.__version__):
        assert word in others
    assert "demo" in hpunet("--help").stdout


def test_unknown_command_says_so_without_traceback() -> None:
    result = hpunet("dream")
    assert result.returncode != 0
    assert "dream" in result.stderr
    assert "Traceback" not in result.stderr


def test_report_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for args, expected in {
        ("nowhere",): "nowhere: no such folder",
        ("run",): "run: not a run's folder (no settings.json)",
    }.items():
        result = hpunet("report", *args, cwd=tmp_path)
        assert result.returncode != 0
        assert "Traceback" not in result.stderr
        assert expected in " ".join(result.stderr.split())


def test_demo_refuses_an_unwritable_folder_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = hpunet("demo", "--out", "file", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "file" in result.stderr


def test_data_make_info_and_pack_go_all_the_way(tmp_path: Path) -> None:
    made = hpunet("data", "make", "lidc", "crops", "--count", "2", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    info = hpunet("data", "info", "crops", cwd=tmp_path)
    assert info.returncode == 0, info.stderr
    assert "runs/data/crops-train.png" in info.stdout
    assert (tmp_path / "runs/data/crops-val.png").is_file()
    packed = hpunet("data", "pack", "crops", "packed", cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    assert "Packed" in packed.stdout
    assert hpunet("data", "info", "packed", cwd=tmp_path).returncode == 0


def test_data_info_sheets_go_by_the_whole_name(tmp_path: Path) -> None:
    for where in ("crops", "crops.v2"):
        assert hpunet("data", "make", "lidc", where, "--count", "1", "--size", "16", cwd=tmp_path).returncode == 0
        assert f"runs/data/{where}-val.png" in hpunet("data", "info", where, cwd=tmp_path).stdout
    assert len(list((tmp_path / "runs/data").iterdir())) == 6


@pytest.mark.parametrize(
    ("command", "kept"),
    [("sample_command", "images are kept"), ("report_command", "results are kept")],
)
def test_ctrl_c_is_one_line(command: str, kept: str) -> None:
    name = command.removesuffix("_command")
    module = f"hpunet.cli.{name}"
    code = f"""
import sys, {module}
def stopped(): raise KeyboardInterrupt
{module}.{command} = stopped
from hpunet.cli.main import main
sys.argv = ["hpunet", "{name}"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (130, "", 1)
    assert kept in done.stderr


@pytest.mark.parametrize(
    ("layout", "size", "options"),
    [
        ("cityscapes", 32, "--set size=[32,64]"),
        ("snemi3d", 64, "--set patch=64"),
        ("nifti", 32, """--set volumes=true --set window=[0,255] --set 'classes=["background","nodule"]'"""),
        ("lidc", 32, None),
    ],
)
def test_data_make_prints_the_options_to_read_what_it_wrote(
    layout: str, size: int, options: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    make(layout, out, count=5, size=size)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith(f"hpunet data info {out}" + (f" {options}" if options else ""))
    assert bool(rest) == bool(options)
    given = parse_assignments([word for word in shlex.split(options or "") if word != "--set"])
    given = {
        name: [0.0, 255.0] if name == "window" else value for name, value in given.items()
    }  # annotated as floats
    height = open_splits(str(out), options=given)["train"][0].image.shape[-2]
    assert height == size
