"""Which commit this code is. The build puts the answer beside the package (`hatch_build.py`), a checkout asks git."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
IN_WHEEL = "commit.json"


def source_commit(package: Path = PACKAGE) -> dict[str, Any]:
    """`commit`, and whether tracked files differ from it (`dirty`); None where neither build nor git knows."""
    built = package / IN_WHEEL
    if built.is_file():
        found: dict[str, Any] = json.loads(built.read_text())
        return found
    return _checked_out(package.parents[1])


def _checked_out(root: Path) -> dict[str, Any]:
    unknown = {"commit": None, "dirty": None}
    if not (root / ".git").exists():  # an installed copy; a repository further up is not ours
        return unknown
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(  # nosec B603 # fixed words and our own path; no shell
            command, capture_output=True, text=True, timeout=20, check=True, env=environment
        )
        return done.stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return unknown
