"""A run that was interrupted ends as one that was not, bit for bit; `make chaos` is the long version."""

import signal
from pathlib import Path

import pytest
import torch
from chaos import SETTINGS, Run, chaos, kill_at, same_end
from tiny_run import PUNET, tiny_settings, write_tiny_pack

from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.training.loop import train


class CrashError(Exception):
    """Stands for anything that ends a run without a word."""


def crash_at(step: int) -> object:
    def watch(now: int, _numbers: dict[str, float]) -> None:
        if now == step:
            raise CrashError

    return watch


@pytest.mark.parametrize(
    "changes",
    [
        ("optimiser.ema_decay=0.9",),
        PUNET,
        ("optimiser.accumulation_steps=2", "optimiser.grad_clip=1.0"),
        ("data.num_workers=1",),
    ],
    ids=["geco, averaged", "punet", "pieces, clipped", "a worker"],
)
def test_crashed_runs_end_as_undisturbed_ones(changes: tuple[str, ...], tmp_path: Path) -> None:
    settings = tiny_settings(*changes)
    pack = str(write_tiny_pack(tmp_path / "pack"))
    undisturbed, crashed = (Run(tmp_path / name, tmp_path) for name in ("undisturbed", "crashed"))
    cpu = torch.device("cpu")
    train(settings, data=pack, run=undisturbed.folder, device=cpu, say=lambda _line: None)
    for step in (3, 8, 10, 12):  # before a checkpoint, between two, at one before it is written, at the last step
        with pytest.raises(CrashError):
            train(
                settings,
                data=pack,
                run=crashed.folder,
                resume=True,
                device=cpu,
                say=lambda _line: None,
                watch=crash_at(step),
            )
    train(settings, data=pack, run=crashed.folder, resume=True, device=cpu, say=lambda _line: None)
    assert same_end(crashed, undisturbed)
    steps = [line["step"] for line in read_log(crashed.folder / LOG_FILE) if "loss" in line]
    assert steps == list(range(1, 13))


def test_killed_runs_end_as_undisturbed_ones(tmp_path: Path) -> None:
    rows = chaos(tmp_path, kills=1, inside_saves=1, terms=1)  # more: `make chaos`
    assert [row for row in rows if not row.same] == []
    assert sum(row.when.startswith("inside a save") for row in rows) == 1


def test_interrupted_command_says_how_to_go_on(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(iterations=100_000))
    kill_at(Run(tmp_path / "run", settings), step=2, signal_number=signal.SIGINT)  # checks the exit code, 130
    said = (tmp_path / "run.txt").read_text()
    assert "Saved at iteration" in said
    assert "--resume" in said
    assert "Traceback" not in said
