"""GECO's λ · constraint and its moving average (`objectives/geco.py`): one launch each way instead of some forty."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpunet.kernels.launch import launch


@triton.jit
def _softplus(w, SPEED):
    """softplus(speed · w) and its derivative by w. In float64: ln(1 + eˣ) of negative x would cancel in float32."""
    x = (tl.load(w) * SPEED).to(tl.float64)
    exponential = tl.exp(-tl.abs(x))
    value = tl.maximum(x, 0.0) + tl.where(x < -15, exponential, tl.log(1 + exponential))
    slope = tl.where(x < 0, exponential, 1.0) / (1 + exponential)
    return value.to(tl.float32), slope.to(tl.float32) * SPEED


@triton.jit
def _penalty(
    rec, num_kept, w, ema, num_updates, penalty, constraint, lambda_, BATCH, KAPPA, DECAY, REST, SPEED, MAX,
    TRAINING: tl.constexpr,
):  # fmt: skip
    value, before, updates = tl.load(rec), tl.load(ema), tl.load(num_updates)
    average = tl.where(updates == 0, value, DECAY * before + REST * value)
    if TRAINING:
        finite = tl.abs(value) < float("inf")
        tl.store(ema, tl.where(finite, average, before))
        tl.store(num_updates, updates + finite.to(tl.int64))
    average += value - value  # NaN instead of infinity, as `straight_through` has it
    off = average - KAPPA * tl.load(num_kept).to(tl.float32) / BATCH
    root, _ = _softplus(w, SPEED)
    factor = tl.minimum(root * root, MAX)
    tl.store(constraint, off)
    tl.store(lambda_, factor)
    tl.store(penalty, factor * off)


@triton.jit
def _penalty_gradient(gradient, constraint, lambda_, w, rec_gradient, w_gradient, SPEED, MAX, SCALE):
    g = tl.load(gradient)
    tl.store(rec_gradient, g * tl.load(lambda_))
    ascent = -SCALE * (g * tl.load(constraint))
    root, slope = _softplus(w, SPEED)
    leads_out = (root * root > MAX) & (ascent < 0)
    tl.store(w_gradient, tl.where(leads_out, 0.0, ascent * 2 * root * slope))


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rec: Tensor, w: Tensor, num_kept: Tensor, ema: Tensor, num_updates: Tensor, how: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        penalty, constraint, lambda_ = (torch.empty((), device=rec.device) for _ in range(3))
        launch(
            _penalty, (1,), rec, num_kept, w, ema, num_updates, penalty, constraint, lambda_, how["batch_size"],
            how["kappa"], how["decay"], 1 - how["decay"], how["speed"], how["lambda_max"], TRAINING=how["training"],
        )  # fmt: skip
        ctx.save_for_backward(constraint, lambda_, w)
        ctx.how = how
        ctx.mark_non_differentiable(constraint, lambda_)
        return penalty, constraint, lambda_

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_others: Tensor) -> tuple[Tensor | None, ...]:
        constraint, lambda_, w = ctx.saved_tensors
        rec_gradient, w_gradient = torch.empty_like(constraint), torch.empty_like(w)
        launch(
            _penalty_gradient, (1,), gradient, constraint, lambda_, w, rec_gradient, w_gradient,
            ctx.how["speed"], ctx.how["lambda_max"], ctx.how["gradient_scale"],
        )  # fmt: skip
        return rec_gradient, w_gradient, None, None, None, None


def penalty(
    rec: Float32[Tensor, ""], *, w: Float32[Tensor, ""], num_kept: Int[Tensor, ""], ema: Float32[Tensor, ""],
    num_updates: Int[Tensor, ""], batch_size: int, kappa: float, decay: float, speed: float, lambda_max: float,
    gradient_scale: float, training: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:  # fmt: skip
    """λ · constraint, the constraint and λ; when `training`, `ema` and `num_updates` are updated."""
    how = {
        "batch_size": batch_size, "kappa": kappa, "decay": decay, "speed": speed, "lambda_max": lambda_max,
        "gradient_scale": gradient_scale, "training": training,
    }  # fmt: skip
    return _Penalty.apply(rec, w, num_kept, ema, num_updates, how)  # type: ignore[no-any-return, no-untyped-call]
