"""Several processes: they follow one, over torchrun too, and notice when one of them dies."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from chaos import SETTINGS, Run
from tiny_run import write_tiny_pack
from two_processes import CASES, NUM_STEPS, POISONED_STEPS, Curve, by_two, everything, start_two

from hpunet.config.settings import load_settings
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.training.loop import train
from hpunet.weights.checkpoints import latest_checkpoint


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Curve], list[dict[str, Curve]]]:
    folder = tmp_path_factory.mktemp("two")
    pack = write_tiny_pack(folder / "pack")
    return everything(pack), by_two(pack, folder)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_follow_one_in_float64(
    case: str, curves: tuple[dict[str, Curve], list[dict[str, Curve]]]
) -> None:
    one, two = curves
    assert repr(two[0][case]) == repr(two[1][case])  # bit for bit, and NaN is NaN
    assert len(one[case]) == NUM_STEPS
    for number, (alone, shared) in enumerate(zip(one[case], two[0][case], strict=True)):
        assert shared == pytest.approx(alone, rel=1e-9, abs=1e-9, nan_ok=True)
        poisoned = case == "poisoned" and number in POISONED_STEPS
        assert math.isnan(shared[0]) == poisoned
    assert one[case][-1][-2] == (len(POISONED_STEPS) if case == "poisoned" else 0)


def test_two_processes_stay_close_in_float32(curves: tuple[dict[str, Curve], list[dict[str, Curve]]]) -> None:
    one, two = curves
    for alone, shared in zip(one["geco in float32"], two[0]["geco in float32"], strict=True):
        assert shared == pytest.approx(alone, rel=1e-3)


def train_by_torchrun(settings: Path, out: Path, *changes: str, processes: int, **environment: str) -> str:
    """What the processes print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "hpunet", "train", str(settings), "--data", "synthetic:lesions", "--out", str(out)]
    command += [word for change in changes for word in ("--set", change)]
    with out.with_suffix(".txt").open("wb") as output:
        torchrun = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        assert torchrun.wait(200) == 0, out.with_suffix(".txt").read_text()
    finally:
        torchrun.terminate()  # if it hangs: it passes this on to its workers
        torchrun.wait(60)
    return out.with_suffix(".txt").read_text()


def test_torchrun_trains_as_one_process_does(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(iterations=10).replace("16", "64"))  # large enough for `run_upsampled`
    alone = Run(tmp_path / "alone", settings)
    alone.train_here()
    printed = train_by_torchrun(settings, tmp_path / "two", processes=2, CUDA_VISIBLE_DEVICES="")
    assert "Warning" not in printed  # of strides of gradients, for instance
    logs = [read_log(tmp_path / name / LOG_FILE) for name in ("alone", "two")]
    assert len(logs[0]) == len(logs[1]) == 11
    for one, two in zip(*logs, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    found = latest_checkpoint(tmp_path / "two" / "checkpoints")
    assert found is not None
    assert found.step == 10


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["torch", "fused"])
def test_captured_steps_of_torchrun_follow_one_process(kernels: str, tmp_path: Path) -> None:
    """One process with NCCL in the graph, and two that share the GPU with Gloo between its pieces."""
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(iterations=10).replace("16", "64").replace("[4, 4]", "[8, 16]"))
    changes = ["optimiser.cuda_graph=true", "optimiser.precision=bf16", f"optimiser.kernels={kernels}"]
    alone = load_settings(str(settings), changes)
    train(alone, data="synthetic:lesions", run=tmp_path / "alone", device=torch.device("cuda", 0))
    one_gpu = {"CUDA_VISIBLE_DEVICES": "0"}
    for processes in (1, 2):
        printed = train_by_torchrun(settings, tmp_path / str(processes), *changes, processes=processes, **one_gpu)
        assert "not used" not in printed
    logs = {name: read_log(tmp_path / name / LOG_FILE) for name in ("alone", "1", "2")}
    for name in ("1", "2"):
        for expected, line in zip(logs["alone"][:10], logs[name][:10], strict=True):
            assert line["loss"] == pytest.approx(expected["loss"], rel=0.05), (name, line["step"])
        assert logs[name][0]["loss"] == pytest.approx(logs["alone"][0]["loss"], rel=5e-3)


def test_killed_process_ends_the_other(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(iterations=100_000))
    command = [sys.executable, "-m", "hpunet", "train", str(settings), "--data", "synthetic:lesions"]
    processes = start_two([*command, "--out", str(tmp_path / "run")])
    try:
        run = Run(tmp_path / "run", settings)
        deadline = time.monotonic() + 100
        while run.last_step() < 3:
            assert time.monotonic() < deadline
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.05)
        os.kill(processes[1].pid, signal.SIGKILL)
        assert processes[0].wait(30) != 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
