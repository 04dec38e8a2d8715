"""Data movement between convolutions and its gradients: inputs, pooling, upsampling, concatenation, parameters.

Maps are (groups, batch, height, width, channels) as in `triton_convolution.py`. A decoder's input is [features from
below, features of the encoder, latents], each part padded to a multiple of 8 channels: loads stay aligned.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.launch import launch

BLOCK = 2048  # elements per program


@triton.jit
def _pack_inputs(
    prior, image, labels, out, COUNT, HW,
    COPIES: tl.constexpr, PRIOR: tl.constexpr, IMAGE: tl.constexpr, CLASSES: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    b, position = pixel // HW, pixel % HW
    there = i < COUNT
    group = tl.program_id(1)
    out += group * COUNT
    if group < COPIES:
        value = tl.load(prior + (b * PRIOR + c) * HW + position, mask=there & (c < PRIOR), other=0.0).to(tl.float32)
    else:
        value = (tl.load(labels + pixel, mask=there & (c < CLASSES), other=-1) == c).to(tl.float32)
        c -= CLASSES
        place = image + (b * IMAGE + c) * HW + position
        value += tl.load(place, mask=there & (c >= 0) & (c < IMAGE), other=0.0).to(tl.float32)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=there)


def pack_inputs(
    prior_input: Float[Tensor, "b s h w"], *, width: int, dtype: torch.dtype, copies: int = 1, num_classes: int = 0,
    pair: tuple[Float[Tensor, "b i h w"], Int[Tensor, "b h w"]] | None = None,
) -> Float[Tensor, "g b h w c"]:  # fmt: skip
    """NHWC maps of `width` channels: `copies` of the prior's input, then for a `pair` [one-hot labels, image]."""
    b, channels, h, w = prior_input.shape
    image, labels = pair or (prior_input, prior_input)
    out = torch.empty(copies + (pair is not None), b, h, w, width, device=prior_input.device, dtype=dtype)
    launch(
        _pack_inputs, (triton.cdiv(out[0].numel(), BLOCK), len(out)),
        prior_input.contiguous(), image.contiguous(), labels.contiguous(), out, out[0].numel(), h * w,
        COPIES=copies, PRIOR=channels, IMAGE=image.shape[1], CLASSES=num_classes, C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _sum_pool(
    x, out, COUNT, FACTOR: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the first OUT_C channels. W is the output's; the rows of all images follow each other."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // OUT_C, i % OUT_C
    corner = x + ((pixel // W * 2) * (2 * W) + pixel % W * 2) * C + c
    there = i < COUNT
    total = tl.load(corner, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + C, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + 2 * W * C, mask=there, other=0.0).to(tl.float32)
    total += tl.load(corner + 2 * W * C + C, mask=there, other=0.0).to(tl.float32)
    tl.store(out + i, (total * FACTOR).to(out.dtype.element_ty), mask=there)


def _pool(x: Tensor, *, width: int, factor: float) -> Tensor:
    """The sum of each 2×2 pixels times `factor`, for the first `width` channels."""
    g, b, h, w, c = x.shape
    out = torch.empty(g, b, h // 2, w // 2, width, device=x.device, dtype=x.dtype)
    launch(
        _sum_pool, (triton.cdiv(out.numel(), BLOCK),),
        x, out, out.numel(), FACTOR=factor, W=w // 2, C=c, OUT_C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def downsample(x: Float[Tensor, "g b h w c"]) -> Float[Tensor, "g b h2 w2 c"]:
    """2×2 average pooling."""
    return _pool(x, width=x.shape[4], factor=0.25)


@triton.jit
def _add_pixel_sums(x, out, PIXELS, ROUNDS: tl.constexpr, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    group, c = tl.program_id(1), tl.arange(0, BC)
    total = tl.zeros((BP, BC), out.dtype.element_ty)
    for step in tl.range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BP + tl.arange(0, BP)
        there = (p < PIXELS)[:, None] & (c < C)[None, :]
        total += tl.load(x + (group * PIXELS + p)[:, None] * C + c[None, :], mask=there, other=0.0)
    tl.atomic_add(out + group * C + c, tl.sum(total, axis=0), mask=c < C, sem="relaxed")


def add_pixel_sums(x: Float[Tensor, "g b h w c"], *, out: Float[Tensor, "g c"]) -> None:
    """Add the sum over the pixels of all images to `out`."""
    groups, b, h, w, c = x.shape
    width = triton.next_power_of_2(c)
    pixels, at_once = b * h * w, max(1, 4 * BLOCK // width)
    rounds = triton.cdiv(pixels, at_once * 512)
    launch(
        _add_pixel_sums, (triton.cdiv(pixels, at_once * rounds), groups),
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
    pooled: Float[Tensor, "g b h2 w2 c"], joined: Float[Tensor, "j b h w d"], *, offset: int,
    gate: Float[Tensor, "g b h w c"] | None = None,
) -> Float[Tensor, "g b h w c"]:  # fmt: skip
    """The gradient of encoder features: from their pooled version and, for the first groups, their concatenation.

    With `gate` it is 0 where `gate` is not positive.
    """
    g, b, h, w, c = pooled.shape
    out = torch.empty(g, b, 2 * h, 2 * w, c, device=pooled.device, dtype=pooled.dtype)
    launch(
        _feature_gradient, (triton.cdiv(out.numel(), BLOCK),),
        pooled, joined, out if gate is None else gate, out, out.numel(), len(joined) * out[0].numel(),
        GATE=gate is not None, W=2 * w, C=c, JOINED_C=joined.shape[4], OFFSET=offset, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _upsample_concat(
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


def upsample_concat(
    below: Float[Tensor, "g b h2 w2 c0"], features: Float[Tensor, "g b h w c1"], *,
    latents: Float[Tensor, "b z h2 w2"] | None, width: int,
) -> Float[Tensor, "g b h w c"]:  # fmt: skip
    """Nearest-upsample `below` and the latents; concatenate [below, features, latents, zeros up to `width`]."""
    g, b, h, w, c1 = features.shape
    c0, z = below.shape[4], 0 if latents is None else latents.shape[1]
    out = torch.empty(g, b, h, w, width, device=below.device, dtype=below.dtype)
    launch(
        _upsample_concat, (triton.cdiv(out.numel(), BLOCK),),
        below, features, below if latents is None else latents, out, out.numel(), b * (h // 2) * (w // 2),
        0 if latents is None else latents.stride(0), W=w, H=h, C0=c0, C1=c1, Z=z, C=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def upsample_gradient(joined: Float[Tensor, "g b h w c"], *, width: int) -> Float[Tensor, "g b h2 w2 c0"]:
    """The gradient of `below` (the first channels) from that of the concatenated map."""
    return _pool(joined, width=width, factor=1.0)


@triton.jit
def _gather_scatter(source, from_index, out, to_index, COUNT, SCATTER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < COUNT
    value = tl.load(source + tl.load(from_index + i, mask=there, other=0), mask=there, other=0.0)
    place = tl.load(to_index + i, mask=there, other=0) if SCATTER else i
    tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


def gather_scatter(source: Tensor, from_index: Tensor, *, out: Tensor, to_index: Tensor | None = None) -> None:
    """out[to_index[i]] = source[from_index[i]], in the precision of `out`; without `to_index`, out[i]."""
    count = len(from_index)
    launch(
        _gather_scatter, (triton.cdiv(count, 1024),),
        source, from_index, out, from_index if to_index is None else to_index, count,
        SCATTER=to_index is not None, BLOCK=1024,
    )  # fmt: skip
