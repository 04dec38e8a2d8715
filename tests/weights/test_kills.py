"""Saves that are cut off at every single step, and by real kills, always leave a whole checkpoint.

`HPUNET_KILLS=2000 pytest tests/test_kills.py` is the long version.
"""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpunet.errors import CheckpointError
from hpunet.utils import files as storage
from hpunet.weights.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint

NUM_KILLS = int(os.environ.get("HPUNET_KILLS", "20"))
SYSTEM_CALLS = ("mkdir", "rename", "fsync", "unlink", "rmdir")


class Killed(BaseException):
    """Stands for the end of the process: nothing can be done after it."""


class Faults:
    """Lets a number of system calls and writes through, then fails one of them (`once`) or all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, allowed: int, error: BaseException, once: bool) -> None:
        self.left, self.error, self.once, self.struck = allowed, error, once, False
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))
        monkeypatch.setattr(storage, "open", self.opened, raising=False)

    def check(self) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and not self.once):
            self.struck = True
            raise self.error

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **options: Any) -> Any:
            self.check()
            return call(*arguments, **options)

        return checked

    def opened(self, path: Path, mode: str) -> io.FileIO:
        if mode != "rb":
            self.check()
        file = HalfWritten(path, mode)
        file.faults = self
        return file


class HalfWritten(io.FileIO):
    """A file whose writes may be cut off in the middle."""

    faults: Faults

    def write(self, content: Any) -> int:
        half = len(content) // 2
        super().write(content[:half])
        self.faults.check()
        return half + super().write(content[half:])


def save(folder: Path, *, step: int, version: int, name: str | None) -> Path:
    tensors = {"model": {"w": torch.full((3,), float(version))}, "optimiser": {"m": torch.tensor(version)}}
    return save_checkpoint(folder, step=step, tensors=tensors, state={"version": version}, name=name)


def version_of(found: Checkpoint) -> int:
    version = found.state["version"]
    assert found.tensors["model"]["w"].tolist() == [version] * 3
    assert found.tensors["optimiser"]["m"].item() == version
    return int(version)


TARGETS = {"new step": (2, None), "same step": (1, None), "best": (1, "best")}


@pytest.mark.parametrize("kind", ["error", "kill"])
@pytest.mark.parametrize(("step", "name"), TARGETS.values(), ids=TARGETS)
def test_save_cut_off_at_any_call_leaves_the_old_or_the_new(
    step: int, name: str | None, kind: str, tmp_path: Path
) -> None:
    struck, allowed = True, 0
    while struck:
        folder = tmp_path / str(allowed)
        save(folder, step=1, version=1, name=name)
        with pytest.MonkeyPatch.context() as patch:
            error = Killed() if kind == "kill" else OSError(28, os.strerror(28))
            faults = Faults(patch, allowed=allowed, error=error, once=kind == "error")
            message = "finished"
            try:
                save(folder, step=step, version=2, name=name)
            except (Killed, CheckpointError) as caught:
                message = str(caught)
        finished, struck = message == "finished", faults.struck
        found = load_checkpoint(folder / name) if name else latest_checkpoint(folder)
        assert found is not None
        assert version_of(found) in ([2] if finished else [1, 2])
        if kind == "error" and not finished:
            assert "the disk is full" in message
            assert found.skipped == []  # not only recoverable: back in its place
            assert not [entry for entry in folder.iterdir() if entry.name.startswith(".tmp")]
        save(folder, step=3, version=3, name=None)
        wanted = {name or "step-00000001", "step-00000003"}
        assert wanted <= {entry.name for entry in folder.iterdir()} <= {*wanted, "step-00000002"}
        assert all(load_checkpoint(entry).skipped == [] for entry in folder.iterdir())
        allowed += 1
    assert allowed > 15  # it was cut off at that many places


KILL_SAVES = """
import os, random, signal, sys, time, shutil
from pathlib import Path
import torch
from hpunet.weights.checkpoints import latest_checkpoint, load_checkpoint, prune, save_checkpoint

def save_for_ever(folder, version, report):
    while True:  # a new step, the same step again, and a named one, in turn
        version += 1
        tensors = {"model": {"w": torch.full((5000,), float(version))}, "optimiser": {"m": torch.tensor(version)}}
        plain = {"tensors": tensors, "state": {"version": version}}
        save_checkpoint(folder, step=version // 3, **plain)
        os.write(report, b"s")
        save_checkpoint(folder, step=version // 3, name="best", **plain)
        os.write(report, b"b")
        prune(folder, keep=2)

def version_of(found):
    version = found.state["version"]
    assert found.tensors["model"]["w"].eq(version).all() and found.tensors["optimiser"]["m"] == version
    return version

folder, rng = Path(sys.argv[1]), random.Random(0)
torch.set_num_threads(1)
save_checkpoint(folder, step=0, tensors={"model": {"w": torch.zeros(1)}, "optimiser": {"m": torch.tensor(0)}},
                state={"version": 0})
shutil.copytree(folder / "step-00000000", folder / "best")
lasts, interrupted = {"step": 0, "best": 0}, 0
for kill in range(int(sys.argv[2])):
    reader, writer = os.pipe()
    start = max(lasts.values())
    child = os.fork()
    if child == 0:
        os.close(reader)
        save_for_ever(folder, start, writer)
    os.close(writer)
    os.read(reader, 1) if kill % 2 else None
    time.sleep(rng.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reports = (b"s" if kill % 2 else b"") + b"".join(iter(lambda: os.read(reader, 999), b""))
    os.close(reader)
    interrupted += any(entry.name.startswith(".") for entry in folder.iterdir())
    found = {"step": version_of(latest_checkpoint(folder)), "best": version_of(load_checkpoint(folder / "best"))}
    for what, letter in (("step", b"s"), ("best", b"b")):
        promised = start + reports.count(letter) if letter in reports else lasts[what]
        assert promised <= found[what] <= start + reports.count(letter) + 1, (kill, what, lasts, reports, found)
    lasts = found
print("whole after every kill;", interrupted, "in the middle of a save; version", max(lasts.values()))
"""


def test_save_killed_at_random_moments_loses_nothing_it_promised(tmp_path: Path) -> None:
    """One process imports torch once and forks those that are killed while they save."""
    command = [sys.executable, "-W", "ignore", "-c", KILL_SAVES, str(tmp_path), str(NUM_KILLS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("whole after every kill; ")
    assert int(result.stdout.split()[4]) > 0, "no kill struck a save"
