"""Sampling on a CPU: the same function with less work, and in bfloat16 on request, where that is faster.

The first convolutions of a decoder scale see [upsampled x, features]. They are split by channels: the share of the
features is computed once for all hypotheses of an image, that of x at its own size. The rest of a residual block
runs on convolutions that include the ReLU or the sum that follows.
"""

from collections.abc import Sequence
from functools import cache
from time import thread_time
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import PerScale, SamplingProxy, SegmentationModel, compute_type
from hpunet.models.blocks import ResidualBlock, downsample, match_memory_format, upsample_nearest
from hpunet.models.fused_conv import FusedConv
from hpunet.models.gaussian import Gaussian, GaussianHead
from hpunet.models.hpunet import HPUNet, LatentUNet

WORTH_IT = 1.1
"""How many times as fast bfloat16 must be."""
_TRIALS = 8
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
    if getattr(model, "ndim", 2) != 2:
        reason = "fused kernels compute images, this model computes volumes (model.ndim=3)"
    elif not _is_known(model):
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
    threads, shortest = torch.get_num_threads(), []
    torch.set_num_threads(1)  # several would wait for each other where other processes use the cores
    try:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(4, 24, 64, 64, dtype=dtype).contiguous(memory_format=torch.channels_last)
            conv, times = FusedConv(x[0].expand(24, -1, -1, -1)[:, :, :3, :3], x[0, :, 0, 0]), []
            for _ in range(_TRIALS):
                start = thread_time()
                conv(x)
                times.append(thread_time() - start)
            shortest.append(min(times))
    except RuntimeError:  # as oneDNN on other processors may
        return 0.0
    finally:
        torch.set_num_threads(threads)
    return shortest[0] / shortest[1]


class CPUSampler(SamplingProxy[HPUNet]):
    """An `HPUNet` that shares the features' convolutions; for sampling only, since it has no gradients.

    Its features are the coarsest map, then for each decoder scale what the encoder adds to the first convolution and
    to the skip. It keeps copies of some weights: make a new one when weights change.
    """

    def __init__(self, model: HPUNet, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model)
        self.dtype, prior = dtype, model.prior
        self._encoder = [[_Block(block, dtype=dtype) for block in _blocks(stage)] for stage in prior.encoder]
        self._decoder = [_Scale(stage, dtype=dtype) for stage in prior.decoder]
        self._logits = _fused(model.logits, dtype=dtype)

    def encode(self, *, image: Float[Tensor, "b c h w"], cond: Tensor | None = None) -> list[Tensor]:
        """See the class."""
        x = match_memory_format(self.model.prior_input(image=image, cond=cond).to(self.dtype), channels_last=True)
        features: list[Tensor] = []
        for depth, blocks in enumerate(self._encoder):
            x = _run(blocks, downsample(x) if depth else x)
            if depth < len(self._decoder):
                features = [*self._decoder[-1 - depth].share(x), *features]
        return [x, *features]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k h w"], list[Tensor], list[Gaussian]]:
        """See the model's `decode`."""
        none: PerScale = [None] * len(self.latent_dims)

        def up(i: int, x: Tensor) -> Tensor:
            return self._decoder[i](x, residual=features[2 * i + 1], skip=features[2 * i + 2])

        how: dict[str, Any] = {"noise": noise or none, "given": given or none}
        x, latents, gaussians = self.model.prior.decode(features[:1], up=up, **how)
        return self._logits(x).float(), latents, gaussians


class _Block:
    """A `ResidualBlock`."""

    def __init__(self, block: ResidualBlock, *, dtype: torch.dtype) -> None:
        self.convs = [_fused(layer, dtype=dtype) for layer in block.convs]
        self.project = _fused(block.project, dtype=dtype)
        self.skip = None if block.skip is None else _fused(block.skip, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Overwrites `x`."""
        residual = self.convs[0](F.relu(x), relu=True)
        return self.after_first_conv(residual, x if self.skip is None else self.skip(x))

    def after_first_conv(self, residual: Tensor, total: Tensor) -> Tensor:
        """`total`, which is overwritten, plus the rest of the residual branch."""
        for conv in self.convs[1:-1]:
            residual = conv(residual, relu=True)
        return self.project.add_to(total, self.convs[-1](residual))


class _Scale:
    """A scale of the decoder: its first convolution and its skip are split by channels.

    A 3×3 convolution of the doubled map is a transposed 4×4 one with stride 2: two neighbours of a row or column are
    the same value, so that their weights add up.
    """

    def __init__(self, stage: nn.Module, *, dtype: torch.dtype) -> None:
        block = _blocks(stage)[0]
        assert block.skip is not None
        weight, bias = _parameters(block.convs[0])
        skip_weight, skip_bias = _parameters(block.skip)
        sizes = weight.shape[1] - block.project.out_channels, block.project.out_channels
        (of_x, of_features), (skip_of_x, skip_of_features) = (w.split(sizes, dim=1) for w in (weight, skip_weight))
        taps = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=weight.dtype)
        doubled = torch.kron(taps, taps) @ of_x.permute(0, 2, 3, 1).flatten(1, 2)  # (o, 16, f)
        self._first = doubled.unflatten(1, (4, 4)).permute(3, 0, 1, 2).to(dtype, memory_format=torch.channels_last)
        self._skip = FusedConv(skip_of_x.to(dtype), None)
        self._first_of_features = FusedConv(of_features.to(dtype), bias.to(dtype))
        self._skip_of_features = FusedConv(skip_of_features.to(dtype), skip_bias.to(dtype))
        self._blocks = [_Block(block, dtype=dtype) for block in _blocks(stage)]

    def share(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the features add to the first convolution and to the skip."""
        return self._first_of_features(F.relu(features)), self._skip_of_features(features)

    def __call__(self, x: Tensor, *, residual: Tensor, skip: Tensor) -> Tensor:
        """The scale's output, from x of the scale below and what its features add."""
        first, *others = self._blocks
        residual = F.conv_transpose2d(F.relu(x), self._first, stride=2, padding=1).add_(residual).relu_()
        return _run(others, first.after_first_conv(residual, upsample_nearest(self._skip(x)).add_(skip)))


def _run(blocks: Sequence[_Block], x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def _blocks(stage: nn.Module) -> list[ResidualBlock]:
    return list(stage.children())  # type: ignore[arg-type]


def _fused(layer: nn.Module, *, dtype: torch.dtype) -> FusedConv:
    return FusedConv(*(parameter.to(dtype) for parameter in _parameters(layer)))


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution, without gradients."""
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    return layer.weight.detach(), layer.bias.detach()
