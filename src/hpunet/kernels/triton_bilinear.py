"""Bilinear upsampling (aligned corners) concatenated with encoder features, and its gradient."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hpunet.kernels.launch import launch

BLOCK = 1024  # elements per program


@triton.jit
def _corner(place, there):
    return tl.load(place, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _bilinear_concat(
    features, below, out, COUNT,
    H: tl.constexpr, W: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, SCALE_Y, SCALE_X, BLOCK: tl.constexpr,
):  # fmt: skip
    """H and W are those of `below`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // (C0 + C1), i % (C0 + C1)
    there = i < COUNT
    value = tl.load(features + pixel * C0 + c, mask=there & (c < C0), other=0.0).to(tl.float32)
    is_below = there & (c >= C0)
    y, x = (pixel // (2 * W) % (2 * H)).to(tl.float32) * SCALE_Y, (pixel % (2 * W)).to(tl.float32) * SCALE_X
    top, left = y.to(tl.int32), x.to(tl.int32)
    bottom, right = tl.minimum(top + 1, H - 1), tl.minimum(left + 1, W - 1)
    down, across = y - top.to(tl.float32), x - left.to(tl.float32)
    start = below + pixel // (4 * H * W) * (H * W * C1) + c - C0
    value += (1 - down) * (1 - across) * _corner(start + (top * W + left) * C1, is_below)
    value += (1 - down) * across * _corner(start + (top * W + right) * C1, is_below)
    value += down * (1 - across) * _corner(start + (bottom * W + left) * C1, is_below)
    value += down * across * _corner(start + (bottom * W + right) * C1, is_below)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=there)


def upsample_bilinear_concat(
    features: Float[Tensor, "g b h2 w2 c0"], below: Float[Tensor, "g b h w c1"]
) -> Float[Tensor, "g b h2 w2 c"]:
    """[features, upsampled below]."""
    g, b, h, w, c1 = below.shape
    c0 = features.shape[4]
    out = torch.empty(g, b, 2 * h, 2 * w, c0 + c1, device=below.device, dtype=below.dtype)
    launch(
        _bilinear_concat, (triton.cdiv(out.numel(), BLOCK),), features, below, out, out.numel(),
        H=h, W=w, C0=c0, C1=c1, SCALE_Y=_scale(h), SCALE_X=_scale(w), BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _bilinear_gradient(
    joined, gate, out, COUNT,
    H: tl.constexpr, W: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, SCALE_Y, SCALE_X, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C1, i % C1
    there = i < COUNT
    y, x = pixel // W % H, pixel % W
    start = joined + pixel // (H * W) * (4 * H * W * (C0 + C1)) + C0 + c
    total = tl.zeros((BLOCK,), tl.float32)
    for dy in tl.static_range(-2, 4):  # pixels of the large map less than one small pixel away
        row = 2 * y + dy
        share_y = 1 - tl.abs(row.to(tl.float32) * SCALE_Y - y.to(tl.float32))
        near = there & (row >= 0) & (row < 2 * H) & (share_y > 0)
        for dx in tl.static_range(-2, 4):
            column = 2 * x + dx
            share_x = 1 - tl.abs(column.to(tl.float32) * SCALE_X - x.to(tl.float32))
            seen = near & (column >= 0) & (column < 2 * W) & (share_x > 0)
            g = tl.load(start + (row * 2 * W + column) * (C0 + C1), mask=seen, other=0.0).to(tl.float32)
            total += tl.where(seen, share_y * share_x * g, 0.0)
    is_open = tl.load(gate + i, mask=there, other=0.0) > 0
    tl.store(out + i, tl.where(is_open, total, 0.0).to(out.dtype.element_ty), mask=there)


def upsample_bilinear_gradient(
    joined: Float[Tensor, "g b h2 w2 c"], *, gate: Float[Tensor, "g b h w c1"]
) -> Float[Tensor, "g b h w c1"]:
    """The gradient of `below`, before its ReLU, from that of the concatenated map; `gate` is `below` itself."""
    _, _, h, w, c1 = gate.shape
    out = torch.empty_like(gate)
    launch(
        _bilinear_gradient, (triton.cdiv(out.numel(), BLOCK),), joined, gate, out, out.numel(),
        H=h, W=w, C0=joined.shape[4] - c1, C1=c1, SCALE_Y=_scale(h), SCALE_X=_scale(w), BLOCK=BLOCK,
    )  # fmt: skip
    return out


def _scale(size: int) -> float:
    """From positions in the upsampled map to positions in the map."""
    return (size - 1) / (2 * size - 1)
