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

from hpunet.config.settings import load_settings, preset_names
from hpunet.errors import ConfigError
from hpunet.kernels import dispatch
from hpunet.kernels.dispatch import fast_sampler, reason_against_fused
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.training.loop import train
from hpunet.training.resume import restore, save
from hpunet.training.state import Training

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MODEL = HPUNet(in_channels=1, num_classes=2, channels=(4, 6), latent_dims=(1,), blocks_per_scale=1)
WIDE = HPUNet(in_channels=1, num_classes=3, channels=(4, 6), latent_dims=(1,), blocks_per_scale=1)
BASELINE = ProbUNet(in_channels=1, num_classes=2, channels=(4, 6))
VOLUMES = HPUNet(in_channels=1, num_classes=2, channels=(4, 6), latent_dims=(1,), blocks_per_scale=1, ndim=3)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a recent GPU, PyTorch built for it, and Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.5.1"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("model", [MODEL, BASELINE])
def test_bf16_on_a_recent_gpu_runs_fused(model: nn.Module) -> None:
    assert reason_against_fused(model, device=GPU) is None


def is_for_images_on_a_gpu(preset: str) -> bool:
    """Fused kernels are for images; demos are for CPUs."""
    return "demo" not in preset and load_settings(preset).model.ndim == 2


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("preset", [name for name in preset_names() if is_for_images_on_a_gpu(name)])
def test_every_preset_for_a_gpu_runs_fused(preset: str) -> None:
    settings = load_settings(preset)
    with torch.device("meta"):
        model = build_model(settings.model, in_channels=1, num_classes=2, extrapolate=settings.data.extrapolate)
    reason = reason_against_fused(
        model,
        device=GPU,
        precision=settings.optimiser.precision,
        activation_checkpointing=settings.model.activation_checkpointing,
        compiled=settings.optimiser.compile,
        prior_draws=settings.objective.energy > 0,
    )
    assert reason is None


@pytest.mark.usefixtures("hopper")
def test_what_hinders_training_alone_does_not_hinder_sampling() -> None:
    assert reason_against_fused(WIDE, device=GPU, sampling=True) is None


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("need a CUDA GPU, this is a CPU", {"device": CPU}),
        ("this is a Linear", {"model": nn.Linear(1, 1)}),
        (r"this model computes volumes \(model.ndim=3\)", {"model": VOLUMES}),
        (r"this model computes volumes", {"model": VOLUMES, "sampling": True}),
        ("sample .* this is a ProbUNet", {"model": BASELINE, "sampling": True}),
        (r"objective\.energy .* this is a ProbUNet", {"model": BASELINE, "prior_draws": True}),
        ("compute in bf16, optimiser.precision is tf32", {"precision": "tf32"}),
        ("model.activation_checkpointing is on", {"activation_checkpointing": True}),
        ("optimiser.compile is on", {"compiled": True}),
        (r"model\.channels\[0\] other than 4, .* posterior", {"model": WIDE}),  # 3 classes and an image
    ],
)
def test_each_reason_is_named(expected: str, changes: dict[str, Any]) -> None:
    reason = reason_against_fused(**{"model": MODEL, "device": GPU, **changes})
    assert re.search(expected, str(reason))


@pytest.mark.usefixtures("hopper")
def test_old_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert "7.5" in str(reason_against_fused(MODEL, device=GPU))


@pytest.mark.usefixtures("hopper")
def test_pytorch_for_other_hardware_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "without CUDA" in str(reason_against_fused(MODEL, device=GPU))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm" in str(reason_against_fused(MODEL, device=GPU))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("version", "fits"), [("3.5.0", True), ("3.10.0+git1", True), ("4.0.0", True), ("3.4.9", False), ("2.6.0", False)]
)
def test_triton_without_what_kernels_need_is_named(version: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    assert (reason_against_fused(MODEL, device=GPU) is None) == fits
    assert fits or f"found {version}" in str(reason_against_fused(MODEL, device=GPU))


@pytest.mark.usefixtures("hopper")
def test_missing_and_broken_triton_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "triton")
    assert "not installed" in str(reason_against_fused(MODEL, device=GPU))
    (tmp_path / "triton.py").write_text("raise ImportError('libcuda.so: not found')")
    assert "libcuda.so" in str(reason_against_fused(MODEL, device=GPU))


def test_volumes_are_sampled_by_plain_torch() -> None:
    for kernels in ("auto", "torch"):
        assert fast_sampler(VOLUMES, kernels=kernels, device=CPU) is None
    with pytest.raises(ConfigError, match=r"kernels: .* this model computes volumes .*; use auto or torch"):
        fast_sampler(VOLUMES, kernels="fused", device=CPU)


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


@pytest.mark.usefixtures("hopper")
def test_fast_sampler_is_on_fused_kernels_where_they_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    network = SimpleNamespace(FusedSampler=lambda model, dtype: (model, dtype))
    monkeypatch.setitem(sys.modules, "hpunet.kernels.sampler", network)  # type: ignore[arg-type]
    for kernels in ("auto", "fused"):
        assert fast_sampler(MODEL, kernels=kernels, device=GPU) == (MODEL, torch.bfloat16)
    assert fast_sampler(MODEL, kernels="torch", device=GPU) is None


def test_fast_sampler_is_none_or_refused_where_fused_kernels_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpunet.models.cpu_sampler.bfloat16_speed", lambda: 0.0)
    for model, device in ((MODEL, CPU), (BASELINE, GPU)):
        assert fast_sampler(model, kernels="auto", device=device) is None
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

    def try_pass(self, images: int, *, prior_samples: int) -> None:
        self.tried = images, prior_samples

    def forward(self, **tensors: Any) -> Any:
        self.calls += 1
        return self.model(**tensors)


@pytest.fixture
def fused_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Fused` as the fused network, and no reason against it."""
    monkeypatch.setattr("hpunet.training.state.reason_against_fused", lambda _model, **_how: None)
    monkeypatch.setitem(sys.modules, "hpunet.kernels.network", SimpleNamespace(FusedNetwork=Fused))  # type: ignore[arg-type]


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
    objectives: list[nn.Module] = []
    monkeypatch.setattr("hpunet.training.state.use_fused_loss", objectives.append)
    changes = ("optimiser.precision=bf16", "optimiser.iterations=2", "objective.energy=1.0")
    training = Training(tiny_settings(*changes), pack_path=pack, run=tmp_path, device=CPU)
    network = training.train_step.network
    assert isinstance(network, Fused)
    assert network.model is training.model
    assert (network.dtype, network.size) == (torch.bfloat16, training.settings.data.crop)
    assert network.tried == (4, training.settings.objective.energy_samples)
    expected = {"device": CPU, "precision": "bf16", "activation_checkpointing": False, "compiled": False}
    assert asked == {**expected, "prior_draws": True}
    assert objectives == [training.loss.objective]
    for _ in training.run_steps():
        training.step += 1
    assert network.calls == 2
    save(training)
    later = Training(tiny_settings(*changes, "optimiser.kernels=torch"), pack_path=pack, run=tmp_path, device=CPU)
    assert not isinstance(later.train_step.network, Fused)
    assert restore(later, lambda _line: None)
    assert later.step == 2


@pytest.mark.usefixtures("fused_on_cpu")
def test_training_falls_back_with_one_warning_if_a_kernel_fails(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TritonError(Exception):
        pass

    def fail(_self: Fused, _images: int, *, prior_samples: int) -> None:
        assert not prior_samples
        raise TritonError("out of resource: shared memory, Required: 120000\nmore")

    monkeypatch.setattr(Fused, "try_pass", fail)
    changes = ("optimiser.precision=bf16", "optimiser.iterations=2")
    lines: list[str] = []
    numbers = train(tiny_settings(*changes), data=str(pack), run=tmp_path / "auto", say=lines.append, device=CPU)
    (line,) = [line for line in lines if "kernels" in line]
    assert line.startswith("warning: kernels: torch (")
    assert "TritonError: out of resource: shared memory, Required: 120000)" in line
    plain = tiny_settings(*changes, "optimiser.kernels=torch")
    assert train(plain, data=str(pack), run=tmp_path / "torch", device=CPU) == numbers
    fused = tiny_settings(*changes, "optimiser.kernels=fused")
    with pytest.raises(ConfigError, match=r"^optimiser\.kernels: .*shared memory.*; use auto or torch"):
        train(fused, data=str(pack), run=tmp_path / "fused", device=CPU)


@pytest.mark.usefixtures("fused_on_cpu")
def test_too_little_memory_is_no_reason_to_fall_back(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Fused, _images: int, *, prior_samples: int) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Fused, "try_pass", fail)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        train(tiny_settings("optimiser.precision=bf16"), data=str(pack), run=tmp_path / "run", device=CPU)


@pytest.mark.usefixtures("fused_on_cpu")
def test_processes_agree_on_plain_torch_if_another_one_fails(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpunet.training.state.all_reduce", lambda failed: failed + 1)
    training = Training(tiny_settings("optimiser.precision=bf16"), pack_path=pack, run=tmp_path, device=CPU)
    assert not isinstance(training.train_step.network, Fused)
    assert "another process" in str(training.why_not_fused)
