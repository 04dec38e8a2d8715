"""`make dist`: wheel and sdist of the last commit into a folder, `dist` by default; what is not committed stays out.

The same commit gives the same bytes anywhere: times are that of the commit, hatchling sorts and levels the rest.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from places import ROOT


def git(*arguments: str, folder: Path = ROOT) -> str:
    """What git answers."""
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def build(source: Path, out: Path, *, kinds: Sequence[str] = ("sdist", "wheel")) -> list[Path]:
    """Build what is in the folder `source`, whose times are replaced by that of our last commit."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    for kind in kinds:
        subprocess.run([*command, "--target", kind], cwd=source, env=environment, check=True, capture_output=True)
    return sorted(out.glob("*.whl") if kinds == ("wheel",) else [*out.glob("*.whl"), *out.glob("*.tar.gz")])


def build_commit(out: Path, *, work: Path) -> list[Path]:
    """Build the last commit in a new folder `work`."""
    git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(work))
    return build(work, out)


def sha256(path: Path) -> str:
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    for old in [*target.glob("*.whl"), *target.glob("*.tar.gz")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for built in build_commit(target, work=Path(folder) / "source"):
            print(f"{sha256(built)}  {built.stat().st_size / 1e6:.1f} MB  {built.name}")
