"""Kill a training run again and again, and see whether it ends as if nothing had happened.

    python tests/chaos.py            30 SIGKILLs, 10 of them inside a save, then 5 SIGTERMs; some minutes
    python tests/chaos.py 6 2 1      6 SIGKILLs, 2 of them inside a save, then 1 SIGTERM

Disturbed runs are the real command in fresh processes, on tiny synthetic data. After every kill the newest checkpoint
is compared, bit for bit, with that of a run that nobody disturbed; so is everything at the end. `make chaos` is the
long version, `test_resume.py` a short one.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpunet.config.settings import load_settings
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.training.loop import train
from hpunet.weights.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint

SETTINGS = """
[model]
channels = [4, 4]
latent_dims = [1]
blocks_per_scale = 1
[data]
crop = [16, 16]
options = {{ num_images = 12, size = 16 }}
[objective]
top_k = 0.1
[optimiser]
iterations = {iterations}
batch_size = 2
learning_rates = [1e-3, 3e-4]
ema_decay = 0.9
[logging]
log_every = 1
validate_every = 20
validate_images = 2
validate_samples = 2
checkpoint_every = 5
"""
STARTUP_SECONDS = 4.0
INSIDE_A_SAVE = (".tmp-hpunet-", ".old-hpunet-")
TIMEOUT_SECONDS = 120
SAVE_SECONDS, STEP_SECONDS = 0.01, 0.03


@dataclass
class Row:
    what: str
    when: str
    same: bool


@dataclass
class Run:
    folder: Path
    settings: Path
    changes: Sequence[str] = ()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hpunet", "train", str(self.settings), "--data", "synthetic:lesions"]
        command += ["--out", str(self.folder), "--resume"]
        command += [word for change in self.changes for word in ("--set", change)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder.parent / f"{self.folder.name}.txt").open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def finish(self) -> None:
        code = self.start().wait(TIMEOUT_SECONDS)
        assert code == 0, (self.folder.parent / f"{self.folder.name}.txt").read_text()

    def train_here(self) -> None:
        """As `finish`, in this process: no start to wait for."""
        settings = load_settings(str(self.settings), self.changes)
        train(settings, data="synthetic:lesions", run=self.folder, device=torch.device("cpu"), say=lambda _line: None)

    def last_step(self) -> int:
        return max((line["step"] for line in read_log(self.folder / LOG_FILE)), default=0)

    def is_saving(self) -> bool:
        try:
            return any(name.startswith(INSIDE_A_SAVE) for name in os.listdir(self.folder / "checkpoints"))
        except FileNotFoundError:
            return False

    def newest(self) -> Checkpoint | None:
        return latest_checkpoint(self.folder / "checkpoints")


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[bytes], *, pause: float = 0.002) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while not happened() and process.poll() is None:
            assert time.monotonic() < deadline, "the run does not come forward"
            time.sleep(pause)
    except BaseException:
        process.kill()
        process.wait()
        raise


def same_checkpoint(one: Checkpoint, other: Checkpoint) -> bool:
    """Every bit of every tensor, and everything else but the settings of what is kept and logged, and by how many."""
    states = [dict(found.state) for found in (one, other)]
    for state in states:
        data = {**state["settings"]["data"], "num_workers": None}
        state["settings"] = {**state["settings"], "logging": None, "data": data}
    groups = one.tensors.keys() | other.tensors.keys()
    return (
        one.step == other.step
        and states[0] == states[1]
        and all(same_tensors(one.tensors.get(group, {}), other.tensors.get(group, {})) for group in groups)
    )


def same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Names and bytes: NaNs and signed zeros count."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one
    )


def same_so_far(run: Run, undisturbed: Run) -> bool:
    """The newest checkpoint, where the undisturbed run has one of that step, and the log up to it."""
    found = run.newest()
    if found is None:
        return True
    twin = undisturbed.folder / "checkpoints" / f"step-{found.step:08d}"
    logs = [
        [line for line in read_log(each.folder / LOG_FILE) if line["step"] <= found.step]
        for each in (run, undisturbed)
    ]
    return logs[0] == logs[1] and (not twin.is_dir() or same_checkpoint(found, load_checkpoint(twin)))


def same_end(run: Run, undisturbed: Run) -> bool:
    """Last and best checkpoint, the whole log, and what every validation saw."""
    names = [sorted(path.name for path in (each.folder / "pictures").glob("*.npz")) for each in (run, undisturbed)]
    return (
        names[0] == names[1]
        and same_so_far(run, undisturbed)
        and read_log(run.folder / LOG_FILE) == read_log(undisturbed.folder / LOG_FILE)
        and all(
            same_checkpoint(load_checkpoint(run.folder / name), load_checkpoint(undisturbed.folder / name))
            for name in ("checkpoints/best", f"checkpoints/step-{undisturbed.last_step():08d}")
        )
        and all(
            same_arrays(run.folder / "pictures" / name, undisturbed.folder / "pictures" / name) for name in names[0]
        )
    )


def same_arrays(one: Path, other: Path) -> bool:
    with np.load(one) as a, np.load(other) as b:
        return a.files == b.files and all(a[name].tobytes() == b[name].tobytes() for name in a.files)


def kill_in_a_save(run: Run, *, after: int, rng: random.Random) -> str | None:
    """SIGKILL once a save is under way beyond step `after`; None if the kill came too late for that."""
    process = run.start()
    wait_until(lambda: run.last_step() >= after, process)
    wait_until(lambda: not run.is_saving(), process, pause=0)
    wait_until(run.is_saving, process, pause=0)
    time.sleep(rng.uniform(0, SAVE_SECONDS))
    end(process, signal.SIGKILL)
    left = sorted(p.name for p in (run.folder / "checkpoints").iterdir() if p.name.startswith(INSIDE_A_SAVE))
    return f"inside a save ({left[0]})" if left else None


def kill_at(run: Run, *, step: int, signal_number: int, delay: float = 0) -> str:
    """A signal so many seconds after step `step` has been logged; the exit code must tell of it."""
    process = run.start()
    wait_until(lambda: run.last_step() >= step, process)
    time.sleep(delay)
    code = end(process, signal_number)
    expected = -signal.SIGKILL if signal_number == signal.SIGKILL else 128 + signal_number
    assert code == expected, f"exit code {code}, expected {expected}"
    return f"after iteration {run.last_step()}"


def kill_while_starting(run: Run, *, rng: random.Random) -> str:
    process, seconds = run.start(), rng.uniform(0.2, STARTUP_SECONDS)
    time.sleep(seconds)
    end(process, signal.SIGKILL)
    return f"{seconds:.2f} s after the start, at iteration {run.last_step()}"


def end(process: subprocess.Popen[bytes], signal_number: int) -> int:
    assert process.poll() is None, "the run ended before it was killed: too few iterations"
    process.send_signal(signal_number)
    return process.wait(TIMEOUT_SECONDS)


def chaos(
    folder: Path, *, kills: int, inside_saves: int, terms: int, show: Callable[[Row], None] = lambda _row: None
) -> list[Row]:
    """Compare two runs, one killed and one asked to stop, with an undisturbed one."""
    rng, rows = random.Random(0), []
    iterations = 20 + 10 * max(kills, terms)
    settings = folder / "settings.toml"
    settings.write_text(SETTINGS.format(iterations=iterations))
    undisturbed = Run(folder / "undisturbed", settings, ["logging.keep_checkpoints=10000"])
    undisturbed.train_here()

    def note(what: str, when: str, same: bool) -> None:
        rows.append(Row(what, when, same))
        show(rows[-1])

    killed = Run(folder / "killed", settings)
    kinds = ["save"] * inside_saves + ["anywhere"] * (kills - inside_saves)
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        step = rng.randint(10 * number, 10 * number + 9)
        if kind == "save":
            when = None
            while when is None:
                when = kill_in_a_save(killed, after=step, rng=rng)
                if when is None:
                    note("SIGKILL", "just after a save (not counted)", same_so_far(killed, undisturbed))
        elif number % 5 == 0:
            when = kill_while_starting(killed, rng=rng)
        else:
            when = kill_at(killed, step=step, signal_number=signal.SIGKILL, delay=rng.uniform(0, STEP_SECONDS))
        note("SIGKILL", when, same_so_far(killed, undisturbed))
    killed.finish()
    note("the end", f"{kills} SIGKILLs", same_end(killed, undisturbed))
    stopped = Run(folder / "stopped", settings)
    for number in range(terms):
        step = rng.randint(1 + 10 * number, 10 * number + 10)
        when = kill_at(stopped, step=step, signal_number=signal.SIGTERM, delay=rng.uniform(0, STEP_SECONDS))
        saved = stopped.newest()
        at_once = saved is not None and saved.step == stopped.last_step()
        note("SIGTERM", when, at_once and same_so_far(stopped, undisturbed))
    stopped.finish()
    note("the end", f"{terms} SIGTERMs", same_end(stopped, undisturbed))
    return rows


def main() -> None:
    torch.set_num_threads(1)  # as in the other processes
    kills, inside_saves, terms = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (30, 10, 5)

    def show(row: Row) -> None:
        print(f"{row.what:8}  {row.when:55}  {'identical' if row.same else 'DIFFERENT'}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        rows = chaos(Path(folder), kills=kills, inside_saves=inside_saves, terms=terms, show=show)
    different = sum(not row.same for row in rows)
    print(f"{kills} SIGKILLs, {inside_saves} of them inside a save, and {terms} SIGTERMs: {different} differences")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
