"""Chooses between fused kernels and plain torch; the only module of this package that others import."""

import re
from typing import Any

import torch
from torch import nn

from hpunet.errors import ConfigError
from hpunet.kernels.failures import failures_named
from hpunet.kernels.side_stream import SideStream
from hpunet.models.cpu_sampler import bfloat16_sampler
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.utils.keyed_random import Draw

CHOICES = ("auto", "fused", "torch")
MIN_CAPABILITY = (8, 0)
MIN_TRITON = (3, 5)  # compiles kernels in parallel (`launch.compiling_ahead`); comes with PyTorch 2.9


def reason_against_fused(
    model: nn.Module, *, device: torch.device, precision: str = "bf16", activation_checkpointing: bool = False,
    compiled: bool = False, sampling: bool = False, prior_draws: bool = False,
) -> str | None:  # fmt: skip
    """Why fused kernels cannot run this model here, or None if they can."""
    if device.type != "cuda":
        return f"fused kernels need a CUDA GPU, this is a {device.type.upper()}"
    if not isinstance(model, HPUNet if sampling or prior_draws else (HPUNet, ProbUNet)):
        what = "sample" if sampling else "support objective.energy for" if prior_draws else "support"
        return f"fused kernels {what} the HPU-Net only, this is a {type(model).__name__}"
    if model.ndim != 2:
        return "fused kernels compute images, this model computes volumes (model.ndim=3)"
    if torch.version.hip is not None or torch.version.cuda is None:
        build = "without CUDA" if torch.version.hip is None else "for ROCm"
        return f"fused kernels need an NVIDIA GPU, this PyTorch is built {build}"
    if reason := _reason_against_triton():
        return reason
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (MIN_CAPABILITY, capability))
        return f"fused kernels need compute capability {needed}, this GPU has {found}"
    if isinstance(model, HPUNet) and not sampling:
        skips = [net.encoder[0][0].skip for net in (model.prior, model.posterior)]  # type: ignore[index]
        if (skips[0] is None) != (skips[1] is None):  # they share launches
            which, width = ("prior" if skips[0] is None else "posterior"), model.channels[0]
            return (
                f"fused kernels need model.channels[0] other than {width}, the number of the {which}'s input channels"
            )
    if precision != "bf16":
        return f"fused kernels compute in bf16, optimiser.precision is {precision}"
    if activation_checkpointing:
        return "fused kernels keep activations, model.activation_checkpointing is on"
    if compiled:
        return "fused kernels cannot be compiled, optimiser.compile is on"
    return None


def _reason_against_triton() -> str | None:
    try:
        import triton
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "triton"
        return f"fused kernels need Triton, which {'is not installed' if missing else f'cannot be imported: {error}'}"
    needed, found = ".".join(map(str, MIN_TRITON)), triton.__version__
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < MIN_TRITON:
        return f"fused kernels need Triton {needed}, found {found}; a newer PyTorch brings it"
    return None


def fused_network(
    model: nn.Module, *, size: tuple[int, ...], images: int | None = None, prior_samples: int = 0
) -> nn.Module:
    """Replaces the model in training on images of this size. Check `reason_against_fused` first.

    With `images`, a pass of that many runs on zeros, with so many samples per image from the prior: a `ConfigError`
    says why if one of its kernels cannot be compiled or launched. The model's weights and random numbers stay as
    they are.
    """
    from hpunet.kernels.network import FusedNetwork

    assert isinstance(model, (HPUNet, ProbUNet))
    with failures_named():
        network = FusedNetwork(model, dtype=torch.bfloat16, size=size)
        if images is not None:
            network.try_pass(images, prior_samples=prior_samples)
    return network


def fused_draw() -> Draw:
    """A kernel that draws keyed random numbers, for `keyed_random.drawing_by`."""
    from hpunet.kernels.triton_random import draw

    return draw


def capture_stream(device: torch.device) -> SideStream:
    """While a CUDA graph is captured, a second stream beside the current one; else the current one."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return SideStream(device if capturing else torch.device("cpu"))


def use_fused_loss(objective: Any) -> None:
    """Let an objective (`objectives`) compute its reconstruction term, and GECO also its constraint, by kernels."""
    from hpunet.kernels import triton_geco, triton_loss

    objective.reconstruction.kernel = triton_loss.reconstruction
    if hasattr(objective, "kernel"):
        objective.kernel = triton_geco.penalty


def fast_sampler(model: nn.Module, *, kernels: str, device: torch.device) -> Any:
    """A bf16 sampler that replaces the model in `sample`, or None for plain torch in float32.

    "auto" gives one if fused kernels can run, "fused" gives one or raises an error, "torch" gives none. Images that
    need tiles use plain torch in any case (`sampling.tiling.choose_sampler`).
    """
    if kernels not in CHOICES:
        raise ConfigError(f"kernels: expected {', '.join(CHOICES)}, got {kernels!r}")
    if kernels == "fused" and device.type == "cpu":
        return bfloat16_sampler(model)
    reason = None if kernels == "torch" else reason_against_fused(model, device=device, sampling=True)
    if kernels == "fused" and reason:
        raise ConfigError(f"kernels: {reason}; use auto or torch")
    if kernels == "torch" or reason:
        return None
    from hpunet.kernels.sampler import FusedSampler

    assert isinstance(model, HPUNet)
    return FusedSampler(model, dtype=torch.bfloat16)
