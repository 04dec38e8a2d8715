"""Kill the workers of commands, start two writers of one folder, interrupt groups, and read a run that is written.

    python tests/helpers/two_at_once.py                30 kills, 20 pairs, 12 times Ctrl-C, 2,000 reads; some minutes
    python tests/helpers/two_at_once.py 2 2 1 50       2 kills, 2 pairs, 1 Ctrl-C, 50 reads

Commands run in forks of this process, which has imported them, in groups of their own. None of them may hang, print a
traceback, or leave something else than one that nobody disturbed. `make chaos` is the long version.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from chaos import SETTINGS, Run, same_end
from lidc_study import Series, Session, square, write_xml

from hpunet.cli.main import main as hpunet
from hpunet.data.synthetic.writers import write_cityscapes_scenes
from hpunet.errors import HPUNetError
from hpunet.reports.saved_run import read_run
from hpunet.weights.load import load_trained

TIMEOUT_SECONDS = 180
ITERATIONS, PATIENTS, SCENES = 30, 12, 10
LIVE = ["checkpoint_every=1", "keep_checkpoints=1", "validate_every=5", "validate_images=1"]
"""Of `logging`: a run that writes as fast as it can."""


class Command:
    """`hpunet …` in a fork; its output is in `said`."""

    def __init__(self, output: Path, *arguments: object) -> None:
        self.output, self.code = output, None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        code: object = 1
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.argv = ["hpunet", *map(str, arguments)]
            hpunet()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, until: Callable[[], object] = lambda: False) -> int | None:
        """The exit code once it has ended, or None when `until` is true before."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.ended():
            if until():
                return None
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                raise AssertionError(f"hangs: {self.said()}")
            time.sleep(0.002)
        return self.code

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.wait(until=lambda: time.monotonic() > end)

    def workers(self) -> list[int]:
        """Its children, but for the process in which Python notes what to tidy up."""
        found = []
        with suppress(OSError):
            for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def check(self, *codes: int, word: str = "") -> None:
        said = self.said()
        assert "Traceback" not in said, said
        assert self.code in codes, (self.code, said)
        assert word in said, said


class Place:
    """Inputs, and what each command makes of them when nobody disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.settings, self.live = folder / "settings.toml", folder / "live.toml"
        self.settings.write_text(SETTINGS.format(iterations=ITERATIONS))
        self.live.write_text(SETTINGS.format(iterations=10**6))

    def whole(self, kind: str) -> Path:
        """What nobody disturbs, made when it is first needed."""
        out = self.folder / f"whole-{kind}"
        if not out.exists():
            self.start(kind, out).wait()
        return out

    def streets(self) -> Path:
        folder = self.folder / "streets"
        if not folder.exists():
            write_cityscapes_scenes(folder, num_images=SCENES, size=(128, 256))
        return folder

    def study(self) -> Path:
        folder = self.folder / "study"
        for number in range(0 if folder.exists() else PATIENTS):
            series = Series(f"P{number}", f"1.2.{number}")
            series.write(folder)
            outline = Session(nodules=[[series.roi(1, square(30, 20, 6))]])
            write_xml(folder / f"{number}.xml", series.uid, [outline] * 4)
        return folder

    def start(self, kind: str, out: Path, *, processes: int = 1) -> Command:
        train = ["train", self.settings, "--data", "synthetic:lesions", "--out", out, "--resume"]
        size = ["--set", "size=[128,256]"]
        rows = ["--data", "synthetic:lesions", "--set", "num_images=12", "--set", "size=16", "--samples", 2]
        commands: dict[str, Callable[[], list[object]]] = {
            "train": lambda: [*train, "--set", f"data.num_workers={processes if processes > 1 else 0}"],
            "pack": lambda: ["data", "pack", self.streets(), out, *size, "--processes", processes],
            "import": lambda: ["data", "import-lidc", self.study(), out, "--processes", processes],
            "evaluate": lambda: ["evaluate", self.whole("train"), *rows, "--out", out],
            "make": lambda: ["data", "make", "cityscapes", out, "--count", 20, "--processes", processes],
            "export": lambda: ["export", self.whole("train"), out, "--name", "tiny-2026"],
        }
        arguments = commands[kind]()
        self.number += 1
        return Command(self.folder / f"{self.number}.txt", *arguments)

    def same(self, kind: str, out: Path) -> bool:
        if kind == "train":
            return same_end(Run(out, self.settings), Run(self.whole(kind), self.settings))
        return files(out) == files(self.whole(kind))


def files(folder: Path) -> dict[str, bytes]:
    """All that counts of a folder: not how long it took, nor how often it was begun."""
    passing = ("summary.json", ".lock-hpunet", "examples.npz")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in passing]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def kills(place: Place, number: int, rng: random.Random) -> None:
    """A worker dies at a random moment: while it starts, reads, or sends."""
    kinds = ("train", "pack", "import")
    for which in range(number):
        kind, done = kinds[which % 3], False
        out = place.folder / f"killed-{kind}"
        while not done:
            if kind == "pack":
                shutil.rmtree(out, ignore_errors=True)
            command = place.start(kind, out, processes=2)
            command.wait(until=command.workers)
            command.pause(rng.uniform(0, 0.5 if kind == "train" else 1.5))
            victims = command.workers()
            if victims and not command.ended():
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), signal.SIGKILL)
            code = command.wait()
            done = code != 0
            if not done:
                assert kind != "import" or place.same(kind, out)
                shutil.rmtree(out)
        command.check(2, word="killed")
        if kind == "pack":
            assert not [path for path in place.folder.iterdir() if "killed-pack" in path.name], "half-written"
        print(f"kill {which + 1:2} of {number}: {kind}: one line, exit code 2", flush=True)
    for kind in kinds[:number]:
        out = place.folder / f"killed-{kind}"
        assert place.start(kind, out).wait() == 0
        assert place.same(kind, out), f"{kind}: something was lost"


def pairs(place: Place, number: int, rng: random.Random) -> None:
    """Two writers of one folder: one of them writes all of it, the other one is refused or finds all done."""
    for which in range(number):
        kind = ("train", "pack", "evaluate", "import")[which % 4]
        out = place.folder / f"pair-{which}"
        first = place.start(kind, out)
        first.pause(rng.choice([0, rng.uniform(0, 0.5)]))
        second = place.start(kind, out)
        codes = [first.wait(), second.wait()]
        assert 0 in codes, (first.said(), second.said())
        for command in (first, second):
            command.check(0, 2, word="" if command.code == 0 else str(out))
        assert place.same(kind, out), f"{kind}: not what one writer leaves"
        print(f"pair {which + 1:2} of {number}: {kind}: exit codes {codes}, the result is whole", flush=True)


def interruptions(place: Place, number: int, rng: random.Random) -> None:
    """Ctrl-C for the whole group: at most one line of the main process, none of its workers."""
    for which in range(number):
        kind = ("train", "pack", "import", "make", "evaluate", "export")[which % 6]
        out, code, span = place.folder / f"interrupted-{which}", 0, 1.0
        while code == 0:
            shutil.rmtree(out, ignore_errors=True)
            command = place.start(kind, out, processes=2)
            if kind not in ("evaluate", "export"):
                command.wait(until=command.workers)
            command.pause(rng.uniform(0.02, span))
            if not command.ended():
                os.killpg(command.pid, signal.SIGINT)
            code, span = command.wait() or 0, max(0.05, span * 0.8)
        # A command that has not begun ends without a word.
        command.check(130, word={"train": "Saved", "evaluate": "", "export": ""}.get(kind, "Stopped"))
        if kind in ("pack", "make"):
            assert not out.exists() or not files(out), "half-written"
        print(f"Ctrl-C {which + 1:2} of {number}: {kind}: no traceback, exit code 130", flush=True)


def reads(place: Place, number: int) -> None:
    """Load and report a run that replaces and deletes its checkpoints all the time."""
    run, failures = place.folder / "live", []
    changes = [word for change in LIVE for word in ("--set", f"logging.{change}")]
    arguments = [place.live, "--data", "synthetic:lesions", "--out", run, *changes]
    writer = Command(place.folder / "live.txt", "train", *arguments)
    assert writer.wait(until=lambda: has_both(run / "checkpoints")) is None, writer.said()
    readers: list[Callable[[], object]] = [
        lambda: load_trained(run, device="cpu"),
        lambda: load_trained(run, checkpoint="best", device="cpu"),
        lambda: read_run(run),
    ]
    first, done = last_step(run), 0
    while done < number or (number and last_step(run) == first):
        try:
            readers[done % 3]()
        except HPUNetError as error:
            failures.append(str(error))
        done += 1
    saves = last_step(run) - first
    assert not writer.ended(), writer.said()
    os.kill(writer.pid, signal.SIGTERM)
    writer.wait()
    writer.check(128 + signal.SIGTERM)
    print(f"{done:,} reads of a run while it saved {saves:,} times: {len(failures)} failures")
    assert not failures, failures[:3]


def last_step(run: Path) -> int:
    return Run(run, run).last_step()


def has_both(checkpoints: Path) -> bool:
    return (checkpoints / "best").is_dir() and any(checkpoints.glob("step-*"))


def main() -> None:
    torch.set_num_threads(1)
    counts = list(map(int, sys.argv[1:])) if len(sys.argv) > 1 else [30, 20, 12, 2000]
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        kills(place, counts[0], rng)
        pairs(place, counts[1], rng)
        interruptions(place, counts[2], rng)
        reads(place, counts[3])
    print("{} kills, {} pairs of writers, {} interruptions, {:,} reads: nothing lost".format(*counts))


if __name__ == "__main__":
    main()
