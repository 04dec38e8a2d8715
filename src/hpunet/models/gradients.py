"""Functions whose gradient is not the derivative of their value."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hpunet.utils.distributed import all_reduce, world_size


def straight_through(x: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`value` in the forward pass (exactly: x − x is 0), the identity of x in the backward pass."""
    return value.detach() + (x - x.detach())


def global_mean(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The mean over all processes in the forward pass, the identity of this process's x in the backward pass."""
    return x if world_size() == 1 else straight_through(x, all_reduce(x) / world_size())


def inward_gradient(
    gradient: Float[Tensor, "*shape"], x: Float[Tensor, "*shape"], *, low: float, high: float
) -> Float[Tensor, "*shape"]:
    """The gradient, but 0 where x is out of range and descent would move it further out."""
    return torch.where((x < low) & (gradient > 0) | (x > high) & (gradient < 0), 0, gradient)


def clamp_with_inward_gradient(x: Float[Tensor, "*shape"], *, low: float, high: float) -> Float[Tensor, "*shape"]:
    """x clamped; out of range it keeps the gradient that leads back, without which it would never return."""
    return _ClampWithInwardGradient.apply(x, low, high)  # type: ignore[no-any-return, no-untyped-call]


class _ClampWithInwardGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return inward_gradient(gradient, x, low=ctx.low, high=ctx.high), None, None


def scale_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """x with its gradient multiplied by `factor`."""
    return _ScaleGradient.apply(x, factor)  # type: ignore[no-any-return, no-untyped-call]


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
