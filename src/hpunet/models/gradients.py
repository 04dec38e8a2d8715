"""Numbers whose gradient is not that of how they were computed."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def with_value(gradient_of: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Exactly `value` in value, exactly `gradient_of` in gradient (x − x is 0)."""
    return value.detach() + (gradient_of - gradient_of.detach())


def leading_back(
    gradient: Float[Tensor, "*shape"], x: Float[Tensor, "*shape"], *, low: float, high: float
) -> Float[Tensor, "*shape"]:
    """The gradient of x, but 0 where descending it would lead further out of the range."""
    return torch.where((x < low) & (gradient > 0) | (x > high) & (gradient < 0), 0, gradient)


def keep_in_range(x: Float[Tensor, "*shape"], *, low: float, high: float) -> Float[Tensor, "*shape"]:
    """x clamped; outside of the range it has the gradient that leads back.

    A clamp alone has none out there: what one large step threw out would stay there for ever.
    """
    return _KeepInRange.apply(x, low, high)  # type: ignore[no-any-return, no-untyped-call]


class _KeepInRange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return leading_back(gradient, x, low=ctx.low, high=ctx.high), None, None


def scaled_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """x, whose gradient is multiplied by a constant."""
    return _ScaleGradient.apply(x, factor)  # type: ignore[no-any-return, no-untyped-call]


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
