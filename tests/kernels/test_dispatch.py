"""Fused kernels are used if they can be, else the reason is reported. GPUs are faked."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_run import PUNET, tiny_settings, write_tiny_pack
from torch import nn

from hpunet.errors import ConfigError
from hpunet.kernels import dispatch
from hpunet.kernels.dispatch import fast_sampler, reason_against_fused
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.training.loop import train
from hpunet.training.resume import restore, save
from hpunet.training.state import Training

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MODEL = HPUNet(in_channels=1, num_classes=2, channels=(4, 6), latent_dims=(1,), blocks_per_scale=1)
BASELINE = ProbUNet(in_channels=1, num_classes=2, channels=(4, 6))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a recent GPU and Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr("hpunet.kernels.dispatch.find_spec", lambda _name: "there")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("model", [MODEL, BASELINE])
def test_bf16_on_a_recent_gpu_runs_fused(model: nn.Module) -> None:
    assert reason_against_fused(model, device=GPU) is None


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("need a CUDA GPU, this is a CPU", {"device": CPU}),
        ("this is a Linear", {"model": nn.Linear(1, 1)}),
        ("sample .* this is a ProbUNet", {"model": BASELINE, "sampling": True}),
        (r"objective\.energy .* this is a ProbUNet", {"model": BASELINE, "prior_draws": True}),
        ("compute in bf16, optimiser.precision is tf32", {"precision": "tf32"}),
        ("model.activation_checkpointing is on", {"activation_checkpointing": True}),
        ("optimiser.compile is on", {"compiled": True}),
    ],
)
def test_each_reason_is_named(expected: str, changes: dict[str, Any]) -> None:
    reason = reason_against_fused(**{"model": MODEL, "device": GPU, **changes})
    assert re.search(expected, str(reason))


@pytest.mark.usefixtures("hopper")
def test_old_gpus_and_missing_triton_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert "7.5" in str(reason_against_fused(MODEL, device=GPU))
    monkeypatch.setattr("hpunet.kernels.dispatch.find_spec", lambda _name: None)
    assert "Triton" in str(reason_against_fused(MODEL, device=GPU))


def test_other_packages_import_only_dispatch() -> None:
    root = Path(dispatch.__file__).parents[1]
    others = [path for path in root.rglob("*.py") if path.parent.name != "kernels"]
    assert others
    for path in others:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "module", None) or "" if isinstance(node, ast.ImportFrom) else ""
            assert not name.startswith("hpunet.kernels") or name == "hpunet.kernels.dispatch", path


def test_dispatch_works_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails now
    spec = importlib.util.spec_from_file_location("dispatch_again", dispatch.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.fast_sampler(MODEL, kernels="auto", device=CPU) is None


def test_fast_sampler_is_none_unless_fused_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpunet.models.cpu_sampler.bfloat16_speed", lambda: 0.0)
    for kernels in ("auto", "torch"):
        assert fast_sampler(MODEL, kernels=kernels, device=GPU) is None
    with pytest.raises(ConfigError, match=r"kernels: .* CPU; use auto or torch"):
        fast_sampler(MODEL, kernels="fused", device=CPU)
    with pytest.raises(ConfigError, match=r"kernels: .*quick"):
        fast_sampler(MODEL, kernels="quick", device=CPU)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack") / "pack")


class Fused(nn.Module):
    """Stands for the fused network, and counts its calls."""

    def __init__(self, model: HPUNet, *, dtype: torch.dtype, size: tuple[int, int]) -> None:
        super().__init__()
        self.model, self.dtype, self.size, self.calls = model, dtype, size, 0

    def forward(self, **tensors: Any) -> Any:
        self.calls += 1
        return self.model(**tensors)


def test_training_says_why_it_uses_plain_torch(pack: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for name, changes in {"auto": (), "asked": ("optimiser.kernels=torch",), "punet": PUNET}.items():
        settings = tiny_settings(*changes, "optimiser.iterations=1")
        train(settings, data=str(pack), run=tmp_path / name, say=lines.append, device=CPU)
        assert json.loads((tmp_path / name / "run.json").read_text())["kernels"] == "torch"
    no_gpu = "kernels: torch (fused kernels need a CUDA GPU, this is a CPU)"
    assert lines == [no_gpu, "kernels: torch (as requested)", no_gpu]
    with pytest.raises(ConfigError, match=r"^optimiser\.kernels: fused kernels need a CUDA GPU, this is a CPU; use"):
        train(tiny_settings("optimiser.kernels=fused"), data=str(pack), run=tmp_path / "x", device=CPU)


def test_training_runs_on_fused_kernels_and_a_resume_may_change_them(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("hpunet.training.state.reason_against_fused", lambda _model, **how: asked.update(how))
    monkeypatch.setitem(sys.modules, "hpunet.kernels.network", SimpleNamespace(FusedNetwork=Fused))  # type: ignore[arg-type]
    changes = ("optimiser.precision=bf16", "optimiser.iterations=2", "objective.energy=1.0")
    training = Training(tiny_settings(*changes), pack_path=pack, run=tmp_path, device=CPU)
    network = training.train_step.network
    assert isinstance(network, Fused)
    assert network.model is training.model
    assert (network.dtype, network.size) == (torch.bfloat16, training.settings.data.crop)
    expected = {"device": CPU, "precision": "bf16", "activation_checkpointing": False, "compiled": False}
    assert asked == {**expected, "prior_draws": True}
    for _ in training.run_steps():
        training.step += 1
    assert network.calls == 2
    save(training)
    later = Training(tiny_settings(*changes, "optimiser.kernels=torch"), pack_path=pack, run=tmp_path, device=CPU)
    assert not isinstance(later.train_step.network, Fused)
    assert restore(later, lambda _line: None)
    assert later.step == 2
