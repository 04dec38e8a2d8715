"""A run that was interrupted ends as one that was not, bit for bit; `make chaos` is the long version."""

import multiprocessing
import re
import signal
from pathlib import Path

import pytest
import torch
from chaos import SETTINGS, Run, chaos, kill_at, same_end
from tiny_run import PUNET, tiny_settings, write_tiny_pack

from hpunet.errors import CheckpointError, DataError
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


def test_run_whose_reader_was_killed_resumes_with_fewer(tmp_path: Path) -> None:
    pack, said = str(write_tiny_pack(tmp_path / "pack")), []
    undisturbed, killed = (Run(tmp_path / name, tmp_path) for name in ("undisturbed", "killed"))
    common = {"data": pack, "device": torch.device("cpu"), "say": said.append}

    def kill_at_7(step: int, _numbers: dict[str, float]) -> None:
        if step == 7:
            for reader in multiprocessing.active_children():
                reader.kill()

    train(tiny_settings(), run=undisturbed.folder, **common)
    with pytest.raises(DataError, match="killed"):
        train(tiny_settings("data.num_workers=1"), run=killed.folder, watch=kill_at_7, **common)
    train(tiny_settings("data.num_workers=0"), run=killed.folder, resume=True, **common)
    assert same_end(killed, undisturbed)
    assert not [line for line in said if "warning" in line]


def test_other_number_of_threads_is_named_with_its_cure(tmp_path: Path) -> None:
    pack, said = str(write_tiny_pack(tmp_path / "pack")), []
    common = {"data": pack, "run": tmp_path / "run", "device": torch.device("cpu"), "say": said.append}
    before = torch.get_num_threads()
    for iterations, threads in ((1, before), (2, before + 1)):
        assert not [line for line in said if line.startswith("warning")]
        try:
            torch.set_num_threads(threads)
            train(tiny_settings(f"optimiser.iterations={iterations}"), resume=True, **common)
        finally:
            torch.set_num_threads(before)
    (warning,) = [line for line in said if line.startswith("warning")]
    assert f"OMP_NUM_THREADS={before}" in warning


def test_longer_runs_are_told_how_to_keep_their_learning_rates(tmp_path: Path) -> None:
    common = {"data": str(write_tiny_pack(tmp_path / "pack")), "run": tmp_path / "run", "device": torch.device("cpu")}
    rates = "optimiser.learning_rates=[1e-3, 1e-4, 1e-5]"
    train(tiny_settings("optimiser.iterations=6", rates), **common)
    with pytest.raises(CheckpointError, match=re.escape("--set 'optimiser.boundaries=[2,4]'")):
        train(tiny_settings("optimiser.iterations=9", rates), resume=True, **common)
    train(tiny_settings("optimiser.iterations=9", rates, "optimiser.boundaries=[2,4]"), resume=True, **common)


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
