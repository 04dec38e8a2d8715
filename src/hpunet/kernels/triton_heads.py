"""Gaussian heads and logits: 1×1 convolutions from maps to float32, each one kernel, and their gradients."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hpunet.kernels.launch import launch
from hpunet.models.gaussian import LOG_SIGMA_RANGE


@triton.jit
def _head_pixels(B, HW: tl.constexpr, BP: tl.constexpr):
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    return p, p < B * HW, p // HW, p % HW


@triton.jit
def _heads(
    x, weight, bias, noise, raw, latents, B, RAW_STRIDE, NOISE_STRIDE, LATENT_STRIDE,
    HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, Z: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    GROUPS: tl.constexpr, DRAW: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """`raw` is (group, mean or log σ, batch, z·h·w)."""
    p, inside, image, position = _head_pixels(B, HW, BP)
    c = tl.arange(0, BC)
    for group in tl.static_range(GROUPS):
        features = x + (group * B * HW + p)[:, None] * C + c[None, :]
        a = tl.load(features, mask=inside[:, None] & (c < REAL)[None, :], other=0.0).to(tl.float32)
        for z in range(Z):  # not unrolled: the paper's global model has 85
            row = weight + (group * 2 * Z + z) * REAL + c
            mean = tl.sum(a * tl.load(row, mask=c < REAL, other=0.0)[None, :], axis=1)
            mean += tl.load(bias + group * 2 * Z + z)
            log_sigma = tl.sum(a * tl.load(row + Z * REAL, mask=c < REAL, other=0.0)[None, :], axis=1)
            log_sigma += tl.load(bias + group * 2 * Z + Z + z)
            place = image * RAW_STRIDE + z * HW + position
            tl.store(raw + (2 * group * B) * RAW_STRIDE + place, mean, mask=inside)
            tl.store(raw + ((2 * group + 1) * B) * RAW_STRIDE + place, log_sigma, mask=inside)
            if DRAW and group == GROUPS - 1:
                drawn = tl.load(noise + image * NOISE_STRIDE + z * HW + position, mask=inside, other=0.0)
                sigma = tl.exp(tl.minimum(tl.maximum(log_sigma, LOW), HIGH))
                tl.store(latents + image * LATENT_STRIDE + z * HW + position, mean + sigma * drawn, mask=inside)


def heads(
    x: Float[Tensor, "g b h w c"], *, weight: Float[Tensor, "g zz f"], bias: Float[Tensor, "g zz"],
    noise: Float[Tensor, "b n"] | None, raw: Float[Tensor, "g 2 b n"], latents: Float[Tensor, "b n"],
) -> None:  # fmt: skip
    """Write means and log σ (not clamped) to `raw`, and with `noise` a draw from the last group to `latents`.

    `noise`, `raw` and `latents` are this scale's slices of those of all scales; n is z·h·w.
    """
    groups, b, h, w, c = x.shape
    launch(
        _heads, (triton.cdiv(b * h * w, 16),), x, weight, bias, latents if noise is None else noise, raw, latents, b,
        raw.stride(2), 0 if noise is None else noise.stride(0), latents.stride(0),
        HW=h * w, C=c, REAL=weight.shape[2], Z=weight.shape[1] // 2, LOW=LOG_SIGMA_RANGE[0], HIGH=LOG_SIGMA_RANGE[1],
        GROUPS=groups, DRAW=noise is not None, BC=triton.next_power_of_2(c), BP=16,
    )  # fmt: skip


@triton.jit
def _heads_gradient(
    x, weight, noise, raw, raw_gradient, joined, below, out, weight_gradient, bias_gradient, B,
    RAW_STRIDE, NOISE_STRIDE, GROUPS: tl.constexpr, BELOW_GROUPS: tl.constexpr,
    W: tl.constexpr, HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, Z: tl.constexpr,
    JOINED_C: tl.constexpr, OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    p, inside, image, position = _head_pixels(B, HW, BP)
    c = tl.arange(0, BC)
    for group in tl.static_range(GROUPS):
        here = (group * B * HW + p)[:, None] * C + c[None, :]
        there = inside[:, None] & (c < C)[None, :]
        a = tl.load(x + here, mask=there, other=0.0).to(tl.float32)
        total = tl.zeros((BP, BC), tl.float32)
        if group < BELOW_GROUPS:
            total += tl.load(below + here, mask=there, other=0.0).to(tl.float32)
        for z in range(Z):  # not unrolled: the paper's global model has 85
            place = image * RAW_STRIDE + z * HW + position
            mean = tl.load(raw_gradient + (2 * group * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            log_sigma = tl.load(raw_gradient + ((2 * group + 1) * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            value = tl.load(raw + ((2 * group + 1) * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            if group == GROUPS - 1:  # through the latents, which all groups upsampled
                drawn = tl.zeros((BP,), tl.float32)
                for other in tl.static_range(BELOW_GROUPS):
                    y, column = (other * B + image) * (2 * HW // W) + position // W * 2, position % W * 2
                    corner = joined + (y * 2 * W + column) * JOINED_C + OFFSET + z
                    drawn += tl.load(corner, mask=inside, other=0.0).to(tl.float32)
                    drawn += tl.load(corner + JOINED_C, mask=inside, other=0.0).to(tl.float32)
                    drawn += tl.load(corner + 2 * W * JOINED_C, mask=inside, other=0.0).to(tl.float32)
                    drawn += tl.load(corner + (2 * W + 1) * JOINED_C, mask=inside, other=0.0).to(tl.float32)
                mean += drawn
                sigma = tl.exp(tl.minimum(tl.maximum(value, LOW), HIGH))
                noise_here = tl.load(noise + image * NOISE_STRIDE + z * HW + position, mask=inside, other=0.0)
                log_sigma += drawn * sigma * noise_here
            leads_out = ((value < LOW) & (log_sigma > 0)) | ((value > HIGH) & (log_sigma < 0))
            log_sigma = tl.where(leads_out, 0.0, log_sigma)
            row = (group * 2 * Z + z) * REAL + c
            w_mean = tl.load(weight + row, mask=c < REAL, other=0.0)
            w_sigma = tl.load(weight + row + Z * REAL, mask=c < REAL, other=0.0)
            total += mean[:, None] * w_mean[None, :] + log_sigma[:, None] * w_sigma[None, :]
            tl.atomic_add(weight_gradient + row, tl.sum(a * mean[:, None], axis=0), mask=c < REAL, sem="relaxed")
            by_sigma = tl.sum(a * log_sigma[:, None], axis=0)
            tl.atomic_add(weight_gradient + row + Z * REAL, by_sigma, mask=c < REAL, sem="relaxed")
            tl.atomic_add(bias_gradient + group * 2 * Z + z, tl.sum(mean, axis=0), sem="relaxed")
            tl.atomic_add(bias_gradient + group * 2 * Z + Z + z, tl.sum(log_sigma, axis=0), sem="relaxed")
        tl.store(out + here, total.to(out.dtype.element_ty), mask=there)


def heads_gradient(
    x: Float[Tensor, "g b h w c"], *, weight: Float[Tensor, "g zz f"], noise: Float[Tensor, "b n"],
    raw: Float[Tensor, "g 2 b n"], raw_gradient: Float[Tensor, "g 2 b n"],
    joined: Float[Tensor, "j b h2 w2 d"], offset: int, below: Float[Tensor, "j b h w c"],
    weight_gradient: Float[Tensor, "g zz f"], bias_gradient: Float[Tensor, "g zz"],
) -> Float[Tensor, "g b h w c"]:  # fmt: skip
    """The gradient of x: from the heads, from the last group's latents (via `joined`), and from upsampling (`below`).

    Out of its range, log σ only gets the part that leads back (`models.gradients.inward_gradient`).
    """
    _, b, h, w, c = x.shape
    out = torch.empty_like(x)
    launch(
        _heads_gradient, (triton.cdiv(b * h * w, 16),),
        x, weight, noise, raw, raw_gradient, joined, below, out, weight_gradient, bias_gradient, b,
        raw.stride(2), noise.stride(0), GROUPS=x.shape[0], BELOW_GROUPS=below.shape[0],
        W=w, HW=h * w, C=c, REAL=weight.shape[2], Z=weight.shape[1] // 2, JOINED_C=joined.shape[4], OFFSET=offset,
        LOW=LOG_SIGMA_RANGE[0], HIGH=LOG_SIGMA_RANGE[1], BC=triton.next_power_of_2(c), BP=16,
    )  # fmt: skip
    return out


@triton.jit
def _logits(
    x, weight, bias, out, PIXELS,
    HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    a = tl.load(x + p[:, None] * C + c[None, :], mask=(p < PIXELS)[:, None] & (c < REAL)[None, :], other=0.0)
    known = (c < REAL)[:, None] & (k < K)[None, :]
    w = tl.load(weight + k[None, :] * REAL + c[:, None], mask=known, other=0.0).to(a.dtype)
    total = tl.dot(a, w, input_precision=PRECISION) + tl.load(bias + k, mask=k < K, other=0.0)[None, :]
    place = (p // HW * K * HW + p % HW)[:, None] + k[None, :] * HW
    tl.store(out + place, total, mask=(p < PIXELS)[:, None] & (k < K)[None, :])


def logits(
    x: Float[Tensor, "b h w c"], *, weight: Float[Tensor, "k f"], bias: Float[Tensor, " k"]
) -> Float[Tensor, "b k h w"]:
    """A 1×1 convolution to float32 NCHW."""
    (b, h, w, c), (k, real) = x.shape, weight.shape
    out = torch.empty(b, k, h, w, device=x.device)
    launch(
        _logits, (triton.cdiv(b * h * w, 128),), x, weight, bias, out, b * h * w, HW=h * w, C=c, REAL=real, K=k,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        BC=max(16, triton.next_power_of_2(c)), BK=max(16, triton.next_power_of_2(k)), BP=128,
    )  # fmt: skip
    return out


@triton.jit
def _logits_gradient(
    x, weight, gradient, out, weight_gradient, bias_gradient, PIXELS,
    HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
    GATE: tl.constexpr, ROUNDS: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    known = (k < K)[:, None] & (c < REAL)[None, :]
    w = tl.load(weight + k[:, None] * REAL + c[None, :], mask=known, other=0.0).to(x.dtype.element_ty)
    total = tl.zeros((BK, BC), tl.float32)
    bias_total = tl.zeros((BK,), tl.float32)
    for step in tl.range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BP + tl.arange(0, BP)
        a = tl.load(x + p[:, None] * C + c[None, :], mask=(p < PIXELS)[:, None] & (c < C)[None, :], other=0.0)
        place = (p // HW * K * HW + p % HW)[:, None] + k[None, :] * HW
        g = tl.load(gradient + place, mask=(p < PIXELS)[:, None] & (k < K)[None, :], other=0.0)
        bias_total += tl.sum(g, axis=0)
        g = g.to(a.dtype)
        total = tl.dot(tl.trans(g), a, total, input_precision=PRECISION)
        back = tl.dot(g, w, input_precision=PRECISION).to(a.dtype)
        if GATE:
            back = tl.where(a > 0, back, 0.0).to(a.dtype)
        tl.store(out + p[:, None] * C + c[None, :], back, mask=(p < PIXELS)[:, None] & (c < C)[None, :])
    tl.atomic_add(weight_gradient + k[:, None] * REAL + c[None, :], total, mask=known, sem="relaxed")
    tl.atomic_add(bias_gradient + k, bias_total, mask=k < K, sem="relaxed")


def logits_gradient(
    x: Float[Tensor, "b h w c"], gradient: Float[Tensor, "b k h w"], *, weight: Float[Tensor, "k f"],
    weight_gradient: Float[Tensor, "k f"], bias_gradient: Float[Tensor, " k"], gate: bool = False,
) -> Float[Tensor, "b h w c"]:  # fmt: skip
    """The gradient of x (with `gate`, 0 where x is not positive); those of weight and bias are accumulated."""
    (b, h, w, c), (k, real) = x.shape, weight.shape
    out, pixels = torch.empty_like(x), b * h * w
    rounds = max(1, triton.cdiv(pixels, 128 * 1024))
    launch(
        _logits_gradient, (triton.cdiv(pixels, 128 * rounds),),
        x, weight, gradient, out, weight_gradient, bias_gradient, pixels, HW=h * w, C=c, REAL=real, K=k,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", GATE=gate, ROUNDS=rounds,
        BC=max(16, triton.next_power_of_2(c)), BK=max(16, triton.next_power_of_2(k)), BP=128,
    )  # fmt: skip
    return out
