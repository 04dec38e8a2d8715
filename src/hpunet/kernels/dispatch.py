"""Chooses between fused kernels and plain torch; the only module of this package that others import."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from hpunet.errors import ConfigError
from hpunet.models.cpu_sampler import bfloat16_sampler
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.utils.keyed_random import Draw

CHOICES = ("auto", "fused", "torch")
MIN_CAPABILITY = (8, 0)


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
    if find_spec("triton") is None:
        return "fused kernels need Triton, which is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (MIN_CAPABILITY, capability))
        return f"fused kernels need compute capability {needed}, this GPU has {found}"
    if precision != "bf16":
        return f"fused kernels compute in bf16, optimiser.precision is {precision}"
    if activation_checkpointing:
        return "fused kernels keep activations, model.activation_checkpointing is on"
    if compiled:
        return "fused kernels cannot be compiled, optimiser.compile is on"
    return None


def fused_network(model: nn.Module, *, size: tuple[int, int]) -> nn.Module:
    """Replaces the model in training on images of this size. Check `reason_against_fused` first."""
    from hpunet.kernels.network import FusedNetwork

    assert isinstance(model, (HPUNet, ProbUNet))
    return FusedNetwork(model, dtype=torch.bfloat16, size=size)


def fused_draw() -> Draw:
    """A kernel that draws keyed random numbers, for `keyed_random.drawing_by`."""
    from hpunet.kernels.triton_random import draw

    return draw


def fast_sampler(model: nn.Module, *, kernels: str, device: torch.device) -> Any:
    """With `kernels="fused"`, a bf16 sampler that replaces the model in `sample`, also on a CPU; else None.

    "auto" samples with plain torch in float32, so that tiled and whole images give the same.
    """
    if kernels not in CHOICES:
        raise ConfigError(f"kernels: expected {', '.join(CHOICES)}, got {kernels!r}")
    if kernels == "fused" and device.type == "cpu":
        return bfloat16_sampler(model)
    if kernels != "fused":
        return None
    if reason := reason_against_fused(model, device=device, sampling=True):
        raise ConfigError(f"kernels: {reason}; use auto or torch")
    from hpunet.kernels.network import FusedSampler

    assert isinstance(model, HPUNet)
    return FusedSampler(model, dtype=torch.bfloat16)
