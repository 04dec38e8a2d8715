"""A decoder stage on [upsampled x, features] without the upsampled map: the same result, faster on CPUs.

The first convolutions are split by channels: the share of x runs at its own size, that of the features as usual.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hpunet.models.blocks import ResidualBlock, is_channels_last, upsample_nearest

MIN_OUTPUT_PIXELS = 64 * 64  # on smaller maps, preparing the weights takes as long as the convolution saves


def run_upsampled(
    stage: nn.Module,
    x: Float[Tensor, "b low *s"],
    features: Float[Tensor, "b high *t"],
    stride: Sequence[int] = (2, 2),
) -> Float[Tensor, "b out *t"]:
    """`stage(cat([upsample_nearest(x), features]))`, by the faster of two ways for this device and size.

    Volumes have one way.
    """
    on_cpu = features.device.type == "cpu" and features.ndim == 4 and is_channels_last(features)
    is_small = features.shape[-2] * features.shape[-1] < MIN_OUTPUT_PIXELS
    if not on_cpu or is_small or torch.compiler.is_compiling():  # `_InterleavePhases` cannot be compiled
        return stage(torch.cat([upsample_nearest(x, stride), features], dim=1))  # type: ignore[no-any-return]
    first, *others = stage.children()
    assert isinstance(first, ResidualBlock)
    x = _run_block(first, x, features)
    for block in others:
        x = block(x)
    return x


def _run_block(block: ResidualBlock, x: Tensor, features: Tensor) -> Tensor:
    """A residual block on [upsampled x, features]."""
    first, skip, n = block.convs[0], block.skip, x.shape[1]
    assert isinstance(first, nn.Conv2d)
    assert skip is not None
    # With slices instead of `split`, gradients would be laid out differently from the weights.
    (first_of_x, first_weight), (skip_of_x, skip_weight) = (
        conv.weight.split((n, conv.in_channels - n), dim=1) for conv in (first, skip)
    )
    residual = F.conv2d(F.relu(features), first_weight, first.bias, padding=1)
    residual = block.after_first_conv(residual.add_(conv_upsampled(F.relu(x), first_of_x)))
    residual.add_(F.conv2d(features, skip_weight, skip.bias))
    return residual.add_(upsample_nearest(F.conv2d(x, skip_of_x)))


def conv_upsampled(x: Float[Tensor, "b f h w"], weight: Float[Tensor, "o f 3 3"]) -> Float[Tensor, "b o h2 w2"]:
    """3×3 convolution of the nearest-upsampled map, with 4 instead of 9 products per output.

    Three neighbouring rows of the upsampled map lie in two rows of `x`, and so do columns. So each of the four phases
    (pixels in even or odd rows, even or odd columns) is a 2×2 convolution of `x`.
    """
    o, f = weight.shape[:2]
    taps = torch.tensor([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], dtype=weight.dtype)
    phases = torch.stack([torch.kron(row, column) for row in taps for column in taps])
    kernels = phases.unsqueeze(1) @ weight.permute(0, 2, 3, 1).reshape(o, 9, f)  # (4, o, 2×2, f)
    kernels = kernels.view(4 * o, 2, 2, f).permute(0, 3, 1, 2)
    return _InterleavePhases.apply(F.conv2d(x, kernels, padding=1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return,no-untyped-call]


class _InterleavePhases(torch.autograd.Function):
    """(b, 4·o, h + 1, w + 1), the four phases of `conv_upsampled`, to the map (b, 2h, 2w, o)."""

    @staticmethod
    def forward(ctx: Any, phases: Tensor) -> Tensor:
        ctx.shape = phases.permute(0, 2, 3, 1).shape
        return _as_pixels(phases).flatten(3, 4).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        phases = gradient.new_zeros(ctx.shape).permute(0, 3, 1, 2)
        _as_pixels(phases).copy_(gradient.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)))
        return phases


def _as_pixels(phases: Tensor) -> Tensor:
    """A view (b, h, 2, w, 2, o) of the phases; those of odd rows (2 and 3) and columns (1 and 3) start one later."""
    b, channels, h, w = phases.shape
    image, channel, row, column = phases.stride()
    phase = channels // 4 * channel
    return phases.as_strided(
        (b, h - 1, 2, w - 1, 2, channels // 4), (image, row, row + 2 * phase, column, column + phase, channel)
    )
