import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from hpunet import __version__


def hpunet(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpunet", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


def test_version_and_help() -> None:
    assert hpunet("--version").stdout.strip() == __version__
    assert "demo" in hpunet("--help").stdout


def test_unknown_command_says_so_without_traceback() -> None:
    result = hpunet("dream")
    assert result.returncode != 0
    assert "dream" in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_writes_its_picture_and_says_where_and_that_it_is_untrained(tmp_path: Path) -> None:
    result = hpunet("demo", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "untrained" in result.stdout
    assert "runs/demo/hypotheses.png" in result.stdout
    picture = np.asarray(Image.open(tmp_path / "runs/demo/hypotheses.png"))
    assert picture.shape[1] > 1000


def test_demo_refuses_an_unwritable_folder_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = hpunet("demo", "--out", "file", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "file" in result.stderr
