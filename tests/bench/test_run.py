"""`hpunet bench` on a network so small that it takes seconds; what it gives on a GPU only where there is one."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomlkit
import torch
from tiny_run import BASE, tiny_settings

from hpunet.bench.run import GROUPS, Row, Workload, bare_step, plain_warp, run_bench
from hpunet.bench.timing import Candidate, Replay, Timer
from hpunet.cli.bench import bench_command, markdown_row
from hpunet.data.batch import Batch
from hpunet.errors import ConfigError
from hpunet.models.cpu_sampler import WORTH_IT, bfloat16_speed

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "tiny.toml"
    path.write_text(tomlkit.dumps(BASE))
    return str(path)


def tiny_work() -> Workload:
    return Workload(tiny_settings(), "lesions", Timer(CPU, repeats=2, say=lambda _words: None))


def test_bench_measures_everything_and_writes_it_down(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command(preset=preset, batch=2, repeats=1, json_file=tmp_path / "bench.json")
    found = json.loads((tmp_path / "bench.json").read_text())
    assert {"preset", "repeats", "device", "torch", "date", "commit", "rows"} <= found.keys()
    assert [row["group"] for row in found["rows"]] == sorted(
        (row["group"] for row in found["rows"]), key=list(GROUPS).index
    )
    questions = defaultdict(list)
    for row in found["rows"]:
        assert row.keys() == Row.__dataclass_fields__.keys()
        if row["failure"] and row["candidate"] == "fused (bf16)":
            assert bfloat16_speed() < WORTH_IT
            continue
        assert row["failure"] is None
        assert row["value"] > 0
        assert len(row["seconds"]) == 1
        questions[row["group"], row["question"]].append(row)
    assert {group for group, _ in questions} == GROUPS.keys()
    for (group, _), (first, *others) in questions.items():
        assert first["speed"] == 1
        assert others or group == "evaluate"
        for other in others:
            assert other["speed"] == pytest.approx(first["seconds"][0] / other["seconds"][0])
    printed = capsys.readouterr().out
    assert "steps/s" in printed
    assert found["date"] in printed


def test_bench_can_be_asked_for_parts_in_markdown(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench_command(preset=preset, batch=2, repeats=1, only=["train"], markdown=True)
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert [line.split(" | ")[:2] for line in lines[2:4]] == [
        ["| training step, batch 2", "plain NCHW"],
        ["| training step, batch 2", "default"],
    ]
    assert lines[5].startswith(f"`hpunet bench --preset {preset}`; ")
    with pytest.raises(ConfigError, match="augment, sample, train, end-to-end, evaluate"):
        next(run_bench(preset, device=CPU, only=["dance"]))


def test_rows_that_could_not_be_measured_say_so() -> None:
    row = Row("train", "step", "fused", "ms", None, None, None, None, "no Triton", [])
    assert markdown_row(row) == "| step | fused | not measured |  |  |  |"


def test_failed_candidate_is_recorded() -> None:
    timer = tiny_work().timer

    def broken() -> Any:
        raise RuntimeError("out of memory\nand a long trace")

    candidates = [timer.prepare("broken", broken), timer.prepare("whole", lambda: lambda: None)]
    timer.measure(candidates)
    assert [c.failure for c in candidates] == ["RuntimeError: out of memory", None]
    assert [len(c.seconds) for c in candidates] == [0, 2]
    assert candidates[0].median is None


def test_candidates_take_turns() -> None:
    timer, calls = tiny_work().timer, []
    candidates = [timer.prepare(name, lambda name=name: lambda: calls.append(name)) for name in "ab"]
    timer.measure(candidates)
    assert calls == [*"ab", *"abab"]  # a warm-up each, then two repeats


def test_bare_step_trains_on_new_data_every_time() -> None:
    seen: list[dict[str, Any]] = []
    models = []

    def wrap(model: Any) -> Any:
        models.append(model)
        return lambda **tensors: seen.append(tensors) or model(**tensors)

    step = bare_step(tiny_work(), wrap=wrap)
    before = [p.detach().clone() for p in models[0].parameters()]
    step()
    step()
    assert not torch.equal(seen[0]["image"], seen[1]["image"])
    assert not torch.equal(seen[0]["labels"], seen[1]["labels"])
    assert set(seen[0]["labels"].unique().tolist()) == {0, 1}
    assert all(not torch.equal(p, old) for p, old in zip(models[0].parameters(), before, strict=True))


def test_plain_warp_moves_image_and_labels_together() -> None:
    torch.manual_seed(0)
    labels = torch.zeros(8, 2, 24, 24, dtype=torch.int32)
    labels[:, :, 6:18, 6:18] = 1
    everywhere = {"valid": torch.ones(8, 24, 24, dtype=torch.bool), "graders": torch.ones(8, 2, dtype=torch.bool)}
    image, moved = plain_warp(Batch(image=labels[:, :1].float(), labels=labels, **everywhere), (16, 16))
    assert (image.shape, moved.shape) == ((8, 1, 16, 16), (8, 2, 16, 16))
    assert set(moved.unique().tolist()) == {0, 1}
    assert ((image[:, 0] > 0.5) == (moved[:, 0] == 1)).float().mean() > 0.9
    assert len({one.numpy().tobytes() for one in moved}) == 8


class PretendedGPU(Timer):
    """Has the candidates of a GPU take part, on the CPU."""

    def __init__(self) -> None:
        super().__init__(CPU, repeats=1, say=lambda _words: None)
        self.on_gpu = True

    def prepare(self, name: str, build: Any, *, graph: bool = False) -> Candidate:
        return tiny_work().timer.prepare(name, build)

    def _seconds(self, call: Any, calls: int) -> float:
        return tiny_work().timer._seconds(call, 1)


@pytest.mark.parametrize("fused", [True, False])
def test_gpu_candidates_are_all_measured(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    if fused:
        for place in ("hpunet.bench.run", "hpunet.kernels.dispatch"):
            monkeypatch.setattr(f"{place}.reason_against_fused", lambda *_model, **_how: None)
        stubs = {"network": {"FusedNetwork": lambda model, dtype, size: model}}  # fused kernels need a GPU
        stubs["sampler"] = {"FusedSampler": lambda model, dtype: model}
        for name, stub in stubs.items():
            monkeypatch.setitem(sys.modules, f"hpunet.kernels.{name}", SimpleNamespace(**stub))  # type: ignore[arg-type]
        monkeypatch.setattr("hpunet.bench.run.fast_sampler", lambda model, **_how: model)
        monkeypatch.setattr("hpunet.bench.run.use_fused_loss", lambda _objective: None)
    monkeypatch.setattr("hpunet.models.cpu_sampler.bfloat16_speed", lambda: 0.0)
    work = Workload(tiny_settings(), "lesions", PretendedGPU())
    rows = [row for measure in GROUPS.values() for question in measure(work) for row in question]
    assert len(rows) == 4 + 2 * 4 + 2 + 3 + 2
    for row in rows:
        missing = not fused and row.candidate.startswith("fused")
        assert (row.value is None) == missing
        assert (row.failure is not None and "need a CUDA GPU" in row.failure) == missing


@pytest.mark.gpu
def test_replays_draw_new_numbers() -> None:
    drawn = torch.zeros(4, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        replay = Replay(lambda: drawn.copy_(torch.rand(4, device="cuda")))
        replay()
        first = drawn.tolist()
        replay()
        assert drawn.tolist() != first


@pytest.mark.gpu
def test_bench_measures_every_candidate_on_a_gpu(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    command = [sys.executable, "-m", "hpunet", "bench", "--preset", preset, "--repeats", "1", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["group"] for row in rows} == GROUPS.keys()
    assert not [(row["candidate"], row["failure"]) for row in rows if row["failure"]]
    assert all(row["peak_mib"] > 0 for row in rows if row["group"] == "train")
