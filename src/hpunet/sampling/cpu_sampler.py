"""Sampling on a CPU: the same function with less work, and in bfloat16 on request, where that is faster.

The first convolutions of a decoder scale see [upsampled x, features]. They are split by channels: the share of the
features is computed once for all hypotheses of an image, that of x at its own size. The rest of a residual block
runs on convolutions that include the ReLU or the sum that follows.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import PerScale, SamplingProxy, SegmentationModel, compute_type
from hpunet.models.blocks import ResidualBlock, downsample, match_memory_format, upsample_nearest
from hpunet.models.fused_conv import add_conv, conv
from hpunet.models.gaussian import Gaussian, GaussianHead
from hpunet.models.hpunet import HPUNet, LatentUNet

WORTH_IT = 1.1
"""How many times as fast bfloat16 must be."""
_TRIALS = 5
_MODULES = (LatentUNet, nn.ModuleList, nn.Sequential, ResidualBlock, GaussianHead, nn.Conv2d)


def on_cpu(model: SegmentationModel) -> SegmentationModel:
    """The `CPUSampler` of a float32 model on a CPU, the same function but for rounding; other models as they are."""
    if not _is_known(model) or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return model
    return CPUSampler(model) if compute_type(model) == torch.float32 else model


def _is_known(model: object) -> TypeGuard[HPUNet]:
    """Whether `CPUSampler` computes what the model does: hooks and modules of others would not run."""
    if type(model) is not HPUNet or not model.channels_last or not model.logits.weight.is_cpu:
        return False
    modules = [*model.prior.modules(), model.logits]
    return all(type(each) in _MODULES and not each._forward_hooks and not each._forward_pre_hooks for each in modules)


def bfloat16_sampler(model: nn.Module) -> "CPUSampler":
    """A sampler in bfloat16, or a `ConfigError` that says why there is none."""
    if not _is_known(model):
        reason = f"fused kernels sample the HPU-Net only, this is a {type(model).__name__}"
    elif not (speed := bfloat16_speed()):
        reason = "fused kernels need a CUDA GPU or a CPU with bf16 instructions, this is another CPU"
    elif speed < WORTH_IT:
        reason = f"fused kernels compute in bf16, {speed:.2g} times as fast as float32 on this CPU"
    else:
        return CPUSampler(model, dtype=torch.bfloat16)
    raise ConfigError(f"kernels: {reason}; use auto or torch")


@cache
@torch.no_grad()
def bfloat16_speed() -> float:
    """How many times as fast as in float32 a typical convolution is, measured once; 0 where it is not to be had."""
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0.0
    shortest = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(4, 24, 64, 64, dtype=dtype).to(memory_format=torch.channels_last)
        layer = nn.Conv2d(24, 24, kernel_size=3, padding=1).to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        times = []
        for _ in range(_TRIALS):
            start = perf_counter()
            layer(x)
            times.append(perf_counter() - start)
        shortest.append(min(times))
    return shortest[0] / shortest[1]


@dataclass(frozen=True)
class _Split:
    """Weights of a decoder scale's first convolution and skip, by what they see: x, which is doubled, or features."""

    first: Float[Tensor, "f o 4 4"]
    first_of_features: Float[Tensor, "o g 3 3"]
    skip: Float[Tensor, "p f 1 1"]
    skip_of_features: Float[Tensor, "p g 1 1"]
    first_bias: Float[Tensor, " o"]
    skip_bias: Float[Tensor, " p"]


class CPUSampler(SamplingProxy[HPUNet]):
    """An `HPUNet` that shares the features' convolutions; for sampling only, since it has no gradients.

    Its features are the coarsest map, then for each decoder scale what the encoder adds to the first convolution and
    to the skip. It keeps copies of some weights: make a new one when weights change.
    """

    def __init__(self, model: HPUNet, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model)
        self.dtype, self._splits = dtype, [_split(stage[0], dtype=dtype) for stage in _stages(model.prior.decoder)]
        self.prior, self.logits = model.prior, model.logits
        if dtype != compute_type(model):
            self.prior, self.logits = copy.deepcopy(model.prior).to(dtype), copy.deepcopy(model.logits).to(dtype)

    def encode(self, *, image: Float[Tensor, "b c h w"], cond: Tensor | None = None) -> list[Tensor]:
        """See the class."""
        x = match_memory_format(self.model.prior_input(image=image, cond=cond).to(self.dtype), channels_last=True)
        shared: list[Tensor] = []
        for depth, stage in enumerate(_stages(self.prior.encoder)):
            x = _run(stage, downsample(x) if depth else x)
            if depth < len(self._splits):
                split = self._splits[-1 - depth]
                residual = F.conv2d(F.relu(x), split.first_of_features, split.first_bias, padding=1)
                shared = [residual, F.conv2d(x, split.skip_of_features, split.skip_bias), *shared]
        return [x, *shared]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k h w"], list[Tensor], list[Gaussian]]:
        """See the model's `decode`."""
        none: PerScale = [None] * len(self.latent_dims)
        stages, residuals, skips = _stages(self.prior.decoder), features[1::2], features[2::2]

        def up(i: int, x: Tensor) -> Tensor:
            split, (first, *others) = self._splits[i], stages[i]
            residual = F.conv_transpose2d(F.relu(x), split.first, stride=2, padding=1).add_(residuals[i]).relu_()
            total = upsample_nearest(F.conv2d(x, split.skip)).add_(skips[i])
            return _run(others, _finish(first, residual, total))

        x, latents, gaussians = self.prior.decode(features[:1], noise=noise or none, given=given or none, up=up)
        return self.logits(x).float(), latents, gaussians


def _stages(stages: nn.ModuleList) -> list[list[ResidualBlock]]:
    return [list(stage.children()) for stage in stages]  # type: ignore[arg-type]


def _run(stage: Sequence[ResidualBlock], x: Tensor) -> Tensor:
    """Residual blocks; overwrites `x`."""
    for block in stage:
        residual = conv(F.relu(x), block.convs[0], relu=True)
        x = _finish(block, residual, x if block.skip is None else conv(x, block.skip))
    return x


def _finish(block: ResidualBlock, residual: Tensor, total: Tensor) -> Tensor:
    """`total` plus the residual after the first convolution and its ReLU; overwrites `total`."""
    for layer in block.convs[1:-1]:
        residual = conv(residual, layer, relu=True)
    return add_conv(total, conv(residual, block.convs[-1]), block.project)


@torch.no_grad()
def _split(block: ResidualBlock, *, dtype: torch.dtype) -> _Split:
    """Split the first convolution and the skip by channels.

    A 3×3 convolution of the doubled map is a transposed 4×4 one with stride 2: two neighbours of a row or column are
    the same value, so that their weights add up.
    """
    first, skip, num_features = block.convs[0], block.skip, block.project.out_channels
    assert isinstance(first, nn.Conv2d)
    assert skip is not None
    sizes = first.in_channels - num_features, num_features
    of_x, first_of_features = first.weight.split(sizes, dim=1)
    skip_of_x, skip_of_features = skip.weight.split(sizes, dim=1)
    taps = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=of_x.dtype)
    doubled = torch.einsum("ai,bj,ofij->foab", taps, taps, of_x)
    parts = doubled, first_of_features, skip_of_x, skip_of_features
    weights = [part.to(dtype).contiguous(memory_format=torch.channels_last) for part in parts]
    assert first.bias is not None
    assert skip.bias is not None
    return _Split(*[*weights, first.bias.to(dtype), skip.bias.to(dtype)])
