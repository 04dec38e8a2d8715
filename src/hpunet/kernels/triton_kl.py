"""The KL of each latent scale from the heads' outputs: one kernel each way instead of some twenty."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpunet.kernels.launch import launch
from hpunet.models.gaussian import LOG_SIGMA_RANGE

BLOCK = 512  # Gaussians per program


@triton.jit
def _log_sigma(raw, there, LOW: tl.constexpr, HIGH: tl.constexpr):
    x = tl.load(raw, mask=there, other=0.0)
    return tl.where(x < LOW, LOW, tl.where(x > HIGH, HIGH, x))  # NaN stays


@triton.jit
def _gaussian_pairs(raw, i, there, GAUSSIANS, LOW: tl.constexpr, HIGH: tl.constexpr):
    """σ ratio squared, logarithm of the ratio, distance of the means in σ of the prior, and 1 / that σ."""
    prior_log_sigma = _log_sigma(raw + GAUSSIANS + i, there, LOW, HIGH)
    log_ratio = _log_sigma(raw + 3 * GAUSSIANS + i, there, LOW, HIGH) - prior_log_sigma
    prior_mean = tl.load(raw + i, mask=there, other=0.0)
    difference = tl.load(raw + 2 * GAUSSIANS + i, mask=there, other=0.0) - prior_mean
    precision = tl.exp(-prior_log_sigma)
    return tl.exp(2 * log_ratio), log_ratio, difference * precision, precision


@triton.jit
def _kl(
    raw, out, GAUSSIANS, B, N: tl.constexpr, ENDS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`raw` is (prior or posterior, mean or log σ, batch, n); scale s ends before number ENDS[s] of n."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < GAUSSIANS
    ratio, log_ratio, shift, _ = _gaussian_pairs(raw, i, there, GAUSSIANS, LOW, HIGH)
    kl = tl.where(there, 0.5 * (ratio + shift * shift - 1) - log_ratio, 0.0)
    for s in tl.static_range(len(ENDS)):
        here = (i % N < ENDS[s]) & (i % N >= (ENDS[s - 1] if s > 0 else 0))
        place = s * tl.num_programs(0) + tl.program_id(0)
        tl.store(out + place, tl.sum(tl.where(here, kl, 0.0), axis=0) / B)


@triton.jit
def _kl_gradient(
    raw, gradient, out, GAUSSIANS, B, N: tl.constexpr, ENDS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients pass log σ as if it was not clamped: the heads gate them (`heads_gradient`)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < GAUSSIANS
    ratio, _, shift, precision = _gaussian_pairs(raw, i, there, GAUSSIANS, LOW, HIGH)
    g = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(len(ENDS)):
        here = (i % N < ENDS[s]) & (i % N >= (ENDS[s - 1] if s > 0 else 0))
        g = tl.where(here, tl.load(gradient + s) / B, g)
    by_mean = g * shift * precision
    tl.store(out + i, -by_mean, mask=there)
    tl.store(out + GAUSSIANS + i, g * (1 - ratio - shift * shift), mask=there)
    tl.store(out + 2 * GAUSSIANS + i, by_mean, mask=there)
    tl.store(out + 3 * GAUSSIANS + i, g * (ratio - 1), mask=there)


class _KL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, ends: tuple[int, ...]) -> Tensor:
        _, _, b, n = raw.shape
        grid = (triton.cdiv(b * n, BLOCK),)
        ctx.how = {"N": n, "ENDS": ends, "LOW": LOG_SIGMA_RANGE[0], "HIGH": LOG_SIGMA_RANGE[1], "BLOCK": BLOCK}
        partial = torch.empty(len(ends), *grid, device=raw.device)
        launch(_kl, grid, raw, partial, b * n, b, **ctx.how)
        ctx.save_for_backward(raw)
        return partial.sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (raw,) = ctx.saved_tensors
        _, _, b, n = raw.shape
        out = torch.empty_like(raw)
        launch(_kl_gradient, (triton.cdiv(b * n, BLOCK),), raw, gradient.contiguous(), out, b * n, b, **ctx.how)
        return out, None


def kl_per_scale(raw: Float32[Tensor, "2 2 b n"], shapes: Sequence[tuple[int, ...]]) -> Float[Tensor, " scales"]:
    """KL(posterior ‖ prior) of each scale, the batch's mean; `raw` holds (prior, posterior) × (mean, log σ)."""
    ends = tuple(accumulate(prod(shape) for shape in shapes))
    return _KL.apply(raw.contiguous(), ends)  # type: ignore[no-any-return, no-untyped-call]
