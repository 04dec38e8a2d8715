"""The commit that is named is that of this code, and of no other repository."""

import json
import subprocess
from pathlib import Path

import pytest

from hpunet.utils.source import _checked_out, source_commit


def test_checkout_knows_clean_from_changed_and_its_own_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@localhost", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert _checked_out(tmp_path) == {"commit": None, "dirty": None}
    git("init", "--quiet")
    assert _checked_out(tmp_path) == {"commit": None, "dirty": None}  # no commit yet
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--no-gpg-sign", "-m", "first")
    (tmp_path / "results").write_text("untracked files are no change of the source")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    found = _checked_out(tmp_path)
    monkeypatch.delenv("GIT_DIR")
    assert found == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("two")
    assert _checked_out(tmp_path)["dirty"] is True
    (tmp_path / "installed").mkdir()
    assert _checked_out(tmp_path / "installed")["commit"] is None


def test_an_installed_copy_says_what_its_build_wrote(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "hpunet"
    package.mkdir(parents=True)
    assert source_commit(package)["commit"] is None
    (package / "commit.json").write_text(json.dumps({"commit": "a" * 40, "dirty": False}))
    assert source_commit(package) == {"commit": "a" * 40, "dirty": False}
