"""Errors of commands are one line, with exit code 2. All run in one process: importing torch takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKS = {"here": "seed=0", "elsewhere": "seed=1"}
AS_PACKED = ["--set", "data.options.num_images=2", "--set", "data.options.size=16"]
TRAIN = ["train", "demo", "--data", "here", "--out", "run", *AS_PACKED]
SMALL = [
    *("--set", "optimiser.iterations=1", "--set", "optimiser.batch_size=2"),
    *("--set", "model.channels=[4,4,4,4,4]", "--set", "data.crop=[16,16]"),
    *("--set", "logging.validate_images=1", "--set", "logging.validate_samples=1"),
]
LESIONS = ["--data", "synthetic:lesions"]
LESION_RUN = ["train", "demo", *LESIONS, "--out", "x"]
HERE_RUN = ["train", "demo", "--data", "here", "--out", "x"]
IMAGE = "crops/test/images/lesions-s0-test-0000/z-000_c0.png"
SAMPLE = ["sample", "run", IMAGE, "--out", "x"]

SUCCEEDS = [
    *(
        ["data", "pack", "synthetic:lesions", name, *("--set", "num_images=2", "--set", "size=16", "--set", seed)]
        for name, seed in PACKS.items()
    ),
    [*TRAIN, *SMALL],
    ["init", "--data", "here", "--out", "here.toml"],
    ["data", "make", "lidc", "crops", "--count", "1", "--size", "16"],
    ["sample", "run", IMAGE, "--out", "drawn", "--samples", "2"],
]
FAILS = {
    "wrong preset": (["train", "lidc-hpv", *LESIONS, "--out", "x"], "'lidc-hpv' is unknown"),
    "missing file": (["train", "mine.toml", *LESIONS, "--out", "x"], "mine.toml: no such file"),
    "unknown group": ([*LESION_RUN, "--set", "optimizer.batch_size=2"], "optimizer: unknown setting"),
    "unknown key": ([*LESION_RUN, "--set", "optimiser.batchsize=2"], "optimiser.batchsize: unknown setting"),
    "wrong type": ([*LESION_RUN, "--set", "optimiser.batch_size=many"], "optimiser.batch_size: expected a whole"),
    "train: unknown kernels": ([*LESION_RUN, "--kernels", "quick"], "optimiser.kernels: expected 'auto'"),
    "train: no fused kernels": ([*HERE_RUN, *AS_PACKED, "--kernels", "fused"], "optimiser.kernels: fused"),
    "impossible": ([*HERE_RUN, "--set", "data.crop=[60,60]"], "choose multiples of 32, such as 32x32 or 64x64"),
    "packed with other options": (
        [*HERE_RUN, "--set", "data.options.size=16"],
        "the pack here was made with 2; pack again (hpunet data pack WHERE OUT --set num_images=2000 --set size=16)",
    ),
    "evaluate: packed with other options": (
        ["evaluate", "run", "--data", "elsewhere"],
        "pack elsewhere was made with 1; pack again (hpunet data pack WHERE OUT --set num_images=2 --set size=16)",
    ),
    "data info: packed with other options": (["data", "info", "here", "--set", "size=32"], "here was made with 16"),
    "missing data": (["train", "demo", "--data", "nowhere", "--out", "x"], "nowhere: no such file"),
    "wrong data option": ([*LESION_RUN, "--set", "data.options.size=big"], "size: option of synthetic data"),
    "data of another kind": (["train", "demo", "--data", "crops", "--out", "x"], "but crops is of kind"),
    "init: no place": (["init", "--data", "here", "--out", "here.toml/x.toml"], "here.toml/x.toml: cannot be"),
    "data make: no place": (["data", "make", "lidc", "here.toml/x"], "here.toml/x: cannot be written"),
    "data info: nothing there": (["data", "info", "nowhere"], "nowhere: no such file or folder"),
    "data info: wrong option": (
        ["data", "info", "synthetic:lesions", "--set", "seize=3"],
        "seize: unknown option of synthetic",
    ),
    "data info: no value": (["data", "info", "synthetic:lesions", "--set", "size"], "expected name=value"),
    "data make: no such layout": (["data", "make", "bicycles", "x"], "layout 'bicycles' is unknown"),
    "data pack: exists": (["data", "pack", "synthetic:lesions", "here"], "here: exists already"),
    "data info: no place": (["data", "info", "here", "--out", "here.toml"], "here.toml: cannot be written"),
    "a run is there": ([*TRAIN, *SMALL], "run: already holds a run; continue it with --resume"),
    "other settings": ([*TRAIN, *SMALL, "--resume", "--set", "augmentation.shear=0.2"], "settings (augmentation"),
    "other model": ([*TRAIN, *SMALL, "--resume", "--set", "model.blocks_per_scale=2"], "settings (model"),
    "other data": (
        ["train", "demo", "--data", "elsewhere", "--out", "run", *AS_PACKED, *SMALL, "--resume"],
        "different data than elsewhere",
    ),
    "evaluate: no run": (["evaluate", "x", *LESIONS], "x: no such folder"),
    "evaluate: a folder that is no run": (["evaluate", "crops", *LESIONS], "crops: not a run"),
    "evaluate: twice": (["evaluate", "run", "./run", *LESIONS], "run: given twice"),
    "evaluate: other classes": (["evaluate", "run", "--data", "synthetic:neurites"], "1 classes where the model"),
    "evaluate: no split": (["evaluate", "run", "--data", "here", "--split", "last"], "here: has no split 'last'"),
    "compare: not evaluated": (["compare", "run", "run2"], "run/evaluation/val-16: no such evaluation"),
    "compare: no run": (["compare", "nowhere", "run"], "nowhere: no such folder"),
    "report: a folder that is no run": (["report", "crops"], "crops: not a run"),
    "sample: no run": (["sample", "nowhere", IMAGE, "--out", "x"], "nowhere: no such folder"),
    "sample: no such name": (["sample", "lidc-hpu-1", IMAGE, "--out", "x"], "no published weights of that name"),
    "export: no name": (["export", "run", "x", "--name", "LIDC"], "name: expected 2 to 64"),
    "export: no folder": (["export", "run"], "expected one output folder"),
    "export: two folders": (["export", "run", "x", "--onnx", "y"], "expected one output folder"),
    "export: no licence": (["export", "run", "--hub", "x", "--license", "Apache 2"], "license: expected"),
    "export: onnx exists": (["export", "run", "--onnx", "here"], "here: exists already"),
    "export: exists": (["export", "run", "here", "--name", "lidc"], "here: exists already"),
    "export: no run": (["export", "crops", "x", "--name", "lidc"], "crops: not a run"),
    "convert-tf: nothing there": (["convert-tf", "model.ckpt-1", "x"], "model.ckpt-1: no such checkpoint"),
    "convert-tf: a folder of something else": (["convert-tf", "crops", "x"], "crops: holds no TensorFlow"),
    "convert-tf: a picture": (["convert-tf", IMAGE, "x"], "not a readable TensorFlow checkpoint"),
    "convert-tf: wrong setting": (
        ["convert-tf", "crops", "x", "--set", "model.channel=[2]"],
        "model.channel: unknown",
    ),
    "sample: no checkpoint": ([*SAMPLE, "--checkpoint", "step-1"], "there are latest, best, step-00000001"),
    "sample: wrong scale": ([*SAMPLE, "--scales", "9"], "scales: expected full, global, local"),
    "sample: no fused kernels": ([*SAMPLE, "--kernels", "fused"], "kernels: fused kernels need a CUDA"),
    "evaluate: no fused kernels": (["evaluate", "run", *LESIONS, "--kernels", "fused"], "need a CUDA GPU"),
    "instances: only classes": (["instances", "run", IMAGE, "--out", "x"], "use hpunet sample"),
    "bench: unknown part": (["bench", "--only", "dance"], "only: expected some of augment"),
    "init: missing data": (["init", "--data", "nowhere", "--out", "x.toml"], "nowhere: no such file"),
    "init: wrong option": (["init", *LESIONS, "--set", "seize=3"], "seize: unknown option"),
    "init: the file is there": (["init", *LESIONS, "--out", "here.toml"], "--replace"),
}

RUN_ALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from hpunet.cli.main import main
from hpunet.models import cpu_sampler

cpu_sampler.bfloat16_speed = lambda: 0.0  # a CPU without the instructions
results = []
for arguments in json.load(sys.stdin):
    sys.argv, out, error, code = ["hpunet", *arguments], io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(error):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    results.append((code, error.getvalue(), out.getvalue()))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, error output and output of every command, by its name."""
    commands = [*SUCCEEDS, *(arguments for arguments, _ in FAILS.values())]
    where, given = tmp_path_factory.mktemp("commands"), json.dumps(commands)
    command = [sys.executable, "-c", RUN_ALL]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=240, check=False, cwd=where)
    assert done.returncode == 0, done.stderr  # a traceback of any command ends here
    results = [tuple(result) for result in json.loads(done.stdout.splitlines()[-1])]
    for (code, text, _), arguments in zip(results, SUCCEEDS, strict=False):
        assert code == 0, (arguments, text)
    return dict(zip(FAILS, results[len(SUCCEEDS) :], strict=True))


@pytest.mark.parametrize("name", FAILS)
def test_error_is_one_line_that_says_what(name: str, outcomes: dict[str, tuple[int, str, str]]) -> None:
    code, text, _ = outcomes[name]
    assert code == 2
    assert FAILS[name][1] in text
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1


def test_data_info_prints_its_table_also_where_no_sheet_can_be_written(
    outcomes: dict[str, tuple[int, str, str]],
) -> None:
    assert "pixels: lesion" in outcomes["data info: no place"][2]


def test_error_of_a_real_process_has_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpunet", "train", "lidc-hpv", "--data", "x", "--out", "y"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: preset 'lidc-hpv' is unknown")
    assert not (tmp_path / "y").exists()
