"""What lies around convolutions, each as one kernel: input, pooling, joining, Gaussian heads, logits; and back.

Maps are (groups, batch, height, width, channels) as in `convolution.py`. A decoder's input is laid out as [features
from below, features of the encoder, latents], each part with its padding: vectors stay aligned.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.launch import launch
from hpunet.models.gaussian import LOG_SIGMA_RANGE

BLOCK = 2048
"""Numbers a program moves."""


@triton.jit
def _lay_out(
    seen, image, labels, out, COUNT, HW,
    COPIES: tl.constexpr, SEEN: tl.constexpr, IMAGE: tl.constexpr, CLASSES: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    b, position = pixel // HW, pixel % HW
    there = i < COUNT
    group = tl.program_id(1)
    out += group * COUNT
    if group < COPIES:
        value = tl.load(seen + (b * SEEN + c) * HW + position, mask=there & (c < SEEN), other=0.0).to(tl.float32)
    else:
        value = (tl.load(labels + pixel, mask=there & (c < CLASSES), other=-1) == c).to(tl.float32)
        c -= CLASSES
        place = image + (b * IMAGE + c) * HW + position
        value += tl.load(place, mask=there & (c >= 0) & (c < IMAGE), other=0.0).to(tl.float32)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=there)


def lay_out(
    seen: Float[Tensor, "b s h w"],
    *,
    pair: tuple[Float[Tensor, "b i h w"], Int[Tensor, "b h w"]] | None = None,
    num_classes: int = 0,
    width: int,
    dtype: torch.dtype,
    copies: int = 1,
) -> Float[Tensor, "g b h w c"]:
    """Maps of `width` channels: what the prior sees, so many times; then, of a pair, [one-hot labels, image]."""
    b, channels, h, w = seen.shape
    image, labels = pair or (seen, seen)
    out = torch.empty(copies + (pair is not None), b, h, w, width, device=seen.device, dtype=dtype)
    launch(
        _lay_out, (triton.cdiv(out[0].numel(), BLOCK), len(out)),
        seen.contiguous(), image.contiguous(), labels.contiguous(), out, out[0].numel(), h * w,
        COPIES=copies, SEEN=channels, IMAGE=image.shape[1], CLASSES=num_classes, C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _add_up_four(
    x, out, COUNT, FACTOR: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, OUT_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the first OUT_C channels; W is the output's, and rows of all images follow each other."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // OUT_C, i % OUT_C
    corner = x + ((pixel // W * 2) * (2 * W) + pixel % W * 2) * C + c
    there = i < COUNT
    total = tl.load(corner, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + C, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + 2 * W * C, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + 2 * W * C + C, mask=there, other=0.0).to(tl.float32)
    tl.store(out + i, (total * FACTOR).to(out.dtype.element_ty), mask=there)


def _halved(x: Tensor, *, width: int, factor: float) -> Tensor:
    """The sum of every 2×2 pixels, times a factor, of the first channels."""
    g, b, h, w, c = x.shape
    out = torch.empty(g, b, h // 2, w // 2, width, device=x.device, dtype=x.dtype)
    launch(
        _add_up_four, (triton.cdiv(out.numel(), BLOCK),),
        x, out, out.numel(), FACTOR=factor, W=w // 2, C=c, OUT_C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def halve(x: Float[Tensor, "g b h w c"]) -> Float[Tensor, "g b h2 w2 c"]:
    """2×2 average pooling."""
    return _halved(x, width=x.shape[4], factor=0.25)


@triton.jit
def _add_up_pixels(x, out, PIXELS, ROUNDS: tl.constexpr, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    group, c = tl.program_id(1), tl.arange(0, BC)
    total = tl.zeros((BP, BC), out.dtype.element_ty)
    for step in tl.range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BP + tl.arange(0, BP)
        there = (p < PIXELS)[:, None] & (c < C)[None, :]
        total += tl.load(x + (group * PIXELS + p)[:, None] * C + c[None, :], mask=there, other=0.0)
    tl.atomic_add(out + group * C + c, tl.sum(total, axis=0), mask=c < C, sem="relaxed")


def add_up_pixels(x: Float[Tensor, "g b h w c"], *, out: Float[Tensor, "g c"]) -> None:
    """Add the sum over all pixels of all images to `out`."""
    groups, b, h, w, c = x.shape
    width = triton.next_power_of_2(c)
    pixels, at_once = b * h * w, max(1, 4 * BLOCK // width)
    rounds = triton.cdiv(pixels, at_once * 512)
    launch(
        _add_up_pixels, (triton.cdiv(pixels, at_once * rounds), groups),
        x, out, pixels, ROUNDS=rounds, C=c, BP=at_once, BC=width,
    )  # fmt: skip


@triton.jit
def _feature_gradient(
    pooled, joined, gate, out, COUNT, JOINED_COUNT, GATE: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, JOINED_C: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    parent = (pixel // (2 * W)) * (W // 2) + pixel % W // 2
    total = tl.load(pooled + parent * C + c, mask=i < COUNT, other=0.0).to(tl.float32) * 0.25
    total += tl.load(joined + pixel * JOINED_C + OFFSET + c, mask=i < JOINED_COUNT, other=0.0).to(tl.float32)
    if GATE:
        total = tl.where(tl.load(gate + i, mask=i < COUNT, other=0.0) > 0, total, 0.0)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=i < COUNT)


def feature_gradient(
    pooled: Float[Tensor, "g b h2 w2 c"],
    joined: Float[Tensor, "j b h w d"] | None,
    *,
    offset: int,
    gate: Float[Tensor, "g b h w c"] | None = None,
) -> Float[Tensor, "g b h w c"]:
    """The gradient of encoder features, from that of their pooled version and, of the first groups, of the join.

    With a gate it is 0 where that is not positive.
    """
    g, b, h, w, c = pooled.shape
    out = torch.empty(g, b, 2 * h, 2 * w, c, device=pooled.device, dtype=pooled.dtype)
    count = 0 if joined is None else joined.shape[0] * out[0].numel()
    launch(
        _feature_gradient, (triton.cdiv(out.numel(), BLOCK),),
        pooled, pooled if joined is None else joined, out if gate is None else gate, out, out.numel(), count,
        GATE=gate is not None,
        W=2 * w, C=c, JOINED_C=c if joined is None else joined.shape[4], OFFSET=offset, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _join(
    below, features, latents, out, COUNT, PIXELS, LATENT_STRIDE,
    W: tl.constexpr, H: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, Z: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    there = i < COUNT
    parent = (pixel // (2 * W)) * (W // 2) + pixel % W // 2
    value = tl.load(below + parent * C0 + c, mask=there & (c < C0), other=0.0)
    value += tl.load(features + pixel * C1 + c - C0, mask=there & (c >= C0) & (c < C0 + C1), other=0.0)
    if Z > 0:
        z = c - (C0 + C1)
        HW: tl.constexpr = (H // 2) * (W // 2)
        image, position = parent % PIXELS // HW, parent % HW
        place = latents + image * LATENT_STRIDE + z * HW + position
        value += tl.load(place, mask=there & (z >= 0) & (z < Z), other=0.0).to(value.dtype)
    tl.store(out + i, value, mask=there)


def join(
    below: Float[Tensor, "g b h2 w2 c0"],
    features: Float[Tensor, "g b h w c1"],
    *,
    latents: Float[Tensor, "b z h2 w2"] | None,
    width: int,
) -> Float[Tensor, "g b h w c"]:
    """[below and latents at twice the size, features] as [below, features, latents, zeros]."""
    g, b, h, w, c1 = features.shape
    c0, z = below.shape[4], 0 if latents is None else latents.shape[1]
    out = torch.empty(g, b, h, w, width, device=below.device, dtype=below.dtype)
    launch(
        _join, (triton.cdiv(out.numel(), BLOCK),),
        below, features, below if latents is None else latents, out, out.numel(), b * (h // 2) * (w // 2),
        0 if latents is None else latents.stride(0), W=w, H=h, C0=c0, C1=c1, Z=z, C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def below_gradient(joined: Float[Tensor, "g b h w c"], *, width: int) -> Float[Tensor, "g b h2 w2 c0"]:
    """The gradient of what came from below (its first channels), from that of the join."""
    return _halved(joined, width=width, factor=1.0)


@triton.jit
def _heads(
    x, weight, bias, noise, raw, latents, B, RAW_STRIDE, NOISE_STRIDE, LATENT_STRIDE,
    HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, Z: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    GROUPS: tl.constexpr, DRAW: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """`raw` is (group, mean or log σ, batch, z·h·w)."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.arange(0, BC)
    inside = p < B * HW
    image, position = p // HW, p % HW
    for group in tl.static_range(GROUPS):
        features = x + (group * B * HW + p)[:, None] * C + c[None, :]
        a = tl.load(features, mask=inside[:, None] & (c < REAL)[None, :], other=0.0).to(tl.float32)
        for z in range(Z):  # not unrolled: the global model has 85
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
    x: Float[Tensor, "g b h w c"],
    *,
    weight: Float[Tensor, "g zz f"],
    bias: Float[Tensor, "g zz"],
    noise: Float[Tensor, "b n"] | None,
    raw: Float[Tensor, "g 2 b n"],
    latents: Float[Tensor, "b n"],
) -> None:
    """Means and log σ (not clamped) into `raw`, and with `noise` a draw of the last group's into `latents`.

    The last three are this scale's slices of what all scales have; n is z·h·w.
    """
    groups, b, h, w, c = x.shape
    launch(
        _heads, (triton.cdiv(b * h * w, 16),),
        x, weight, bias, latents if noise is None else noise, raw, latents, b,
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
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.arange(0, BC)
    inside = p < B * HW
    image, position = p // HW, p % HW
    for group in tl.static_range(GROUPS):
        here = (group * B * HW + p)[:, None] * C + c[None, :]
        there = inside[:, None] & (c < C)[None, :]
        a = tl.load(x + here, mask=there, other=0.0).to(tl.float32)
        total = tl.zeros((BP, BC), tl.float32)
        if group < BELOW_GROUPS:
            total += tl.load(below + here, mask=there, other=0.0).to(tl.float32)
        for z in range(Z):  # not unrolled: the global model has 85
            place = image * RAW_STRIDE + z * HW + position
            mean = tl.load(raw_gradient + (2 * group * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            log_sigma = tl.load(raw_gradient + ((2 * group + 1) * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            value = tl.load(raw + ((2 * group + 1) * B) * RAW_STRIDE + place, mask=inside, other=0.0)
            if group == GROUPS - 1:  # through the latents, which all groups used at twice the size
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
    x: Float[Tensor, "g b h w c"],
    *,
    weight: Float[Tensor, "g zz f"],
    noise: Float[Tensor, "b n"],
    raw: Float[Tensor, "g 2 b n"],
    raw_gradient: Float[Tensor, "g 2 b n"],
    joined: Float[Tensor, "j b h2 w2 d"],
    offset: int,
    below: Float[Tensor, "j b h w c"],
    weight_gradient: Float[Tensor, "g zz f"],
    bias_gradient: Float[Tensor, "g zz"],
) -> Float[Tensor, "g b h w c"]:
    """The gradient of x: from the heads, from the latents that the last group drew (via `joined`), and `below`.

    `raw_gradient` is that of means and of log σ in its range; of the latter goes on what leads back into the range.
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
    """A 1×1 convolution to float32, in torch's layout."""
    b, h, w, c = x.shape
    k, real = weight.shape
    out = torch.empty(b, k, h, w, device=x.device)
    launch(
        _logits, (triton.cdiv(b * h * w, 128),),
        x, weight, bias, out, b * h * w, HW=h * w, C=c, REAL=real, K=k,
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
    x: Float[Tensor, "b h w c"],
    gradient: Float[Tensor, "b k h w"],
    *,
    weight: Float[Tensor, "k f"],
    weight_gradient: Float[Tensor, "k f"],
    bias_gradient: Float[Tensor, " k"],
    gate: bool = False,
) -> Float[Tensor, "b h w c"]:
    """The gradient of x (with `gate`, where x is positive); those of weight and bias are added to what is there."""
    b, h, w, c = x.shape
    k, real = weight.shape
    out, pixels = torch.empty_like(x), b * h * w
    rounds = max(1, triton.cdiv(pixels, 128 * 1024))
    launch(
        _logits_gradient, (triton.cdiv(pixels, 128 * rounds),),
        x, weight, gradient, out, weight_gradient, bias_gradient, pixels, HW=h * w, C=c, REAL=real, K=k,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", GATE=gate, ROUNDS=rounds,
        BC=max(16, triton.next_power_of_2(c)), BK=max(16, triton.next_power_of_2(k)), BP=128,
    )  # fmt: skip
    return out
