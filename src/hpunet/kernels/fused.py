"""Residual blocks on fused kernels: the same function of the same parameters in three kernels instead of a dozen.

ReLUs, biases, the skip and the gradients' gates are part of the convolutions; the third convolution and the
projection are one. Weights are laid out for all blocks together before a forward pass, and gradients are handed to
the parameters together, after the last block's backward pass. Everything else of a model stays as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpunet.kernels.convolution import convolve, correlate
from hpunet.kernels.weights import BlockWeights, Weights
from hpunet.models.blocks import ResidualBlock


class _Prepare(torch.autograd.Function):
    """From all parameters to a token that every block depends on; so its backward pass comes after all of theirs."""

    @staticmethod
    def forward(ctx: Any, weights: Weights, *_parameters: Tensor) -> Tensor:
        weights.prepare()
        ctx.weights = weights
        return torch.zeros((), device=weights.device)

    @staticmethod
    def backward(ctx: Any, _token: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.weights.collect()


class _Block(torch.autograd.Function):
    """A residual block of NHWC maps; it adds the gradients of its weights to `BlockWeights.gradients`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _token: Tensor, member: BlockWeights) -> Tensor:
        w = member.values
        h1 = convolve(x, weight=w["first"], bias=w["first_bias"], relu_input=True, relu_output=True)
        h2 = convolve(h1, weight=w["second"], bias=w["second_bias"], relu_output=True)
        ctx.member = member
        ctx.save_for_backward(x, h1, h2)
        if member.block.skip is None:
            return convolve(h2, weight=w["third"], bias=w["third_bias"], residual=x)
        return convolve(h2, weight=w["third"], bias=w["third_bias"] + w["skip_bias"], skip=(x, w["skip"]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        x, h1, h2 = ctx.saved_tensors
        member: BlockWeights = ctx.member
        w, to, g = member.values, member.gradients, gradient.contiguous()
        correlate(h2, g, out=to["third"], column_sums=to["third_bias"])
        g2 = convolve(g, weight=w["third_back"], gate=h2, sums=to["second_bias"])
        correlate(h1, g2, out=to["second"])
        g1 = convolve(g2, weight=w["second_back"], gate=h1, sums=to["first_bias"])
        if member.mirrored:
            correlate(g1, x, out=to["first"], relu_columns=True)
        else:
            correlate(x, g1, out=to["first"], relu_rows=True)
        has_skip = member.block.skip is not None
        if has_skip:
            to["skip"] += x.flatten(0, 2).t() @ g.flatten(0, 2)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        way = {"skip": (g, w["skip_back"])} if has_skip else {"residual": g}
        return convolve(g1, weight=w["first_back"], gate=x, **way), None, None


class FusedBlocks:
    """The residual blocks of a model on fused kernels. `prepare` comes before every forward pass."""

    def __init__(self, model: nn.Module, *, dtype: torch.dtype) -> None:
        self.weights = Weights(model, dtype=dtype)
        self._members = {member.block: member for member in self.weights.blocks}
        self._token: Tensor | None = None

    def prepare(self) -> None:
        """Take the parameters as they are now."""
        self._token = _Prepare.apply(self.weights, *self.weights.parameters)  # type: ignore[no-untyped-call]

    def run(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """A block's output (b, c, h, w), channels-last in memory."""
        member = self._members[block]
        maps = x.permute(0, 2, 3, 1).to(self.weights.dtype)
        room = member.widths[0] - maps.shape[3]
        maps = F.pad(maps, (0, room)) if room else maps.contiguous()
        out: Tensor = _Block.apply(maps, self._token, member)  # type: ignore[no-untyped-call]
        return out[..., : member.out_channels].permute(0, 3, 1, 2)


@contextmanager
def fused_blocks(model: nn.Module, *, dtype: torch.dtype) -> Iterator[FusedBlocks]:
    """The model on fused kernels, computing in `dtype`, for as long as this lasts."""
    fused = FusedBlocks(model, dtype=dtype)
    blocks = [member.block for member in fused.weights.blocks]
    for block in blocks:
        block.forward = lambda x, block=block: fused.run(block, x)  # type: ignore[method-assign,misc]
    try:
        yield fused
    finally:
        for block in blocks:
            del block.forward
