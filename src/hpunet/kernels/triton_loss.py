"""The reconstruction term (`objectives/cross_entropy.py`) in eight launches instead of some fifty.

The k-th largest key is found by a radix select over the whole batch: four passes count a digit of 8 bits each, those
after the first only of keys that share the leading digits found so far. Nothing is read back from the device.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpunet.kernels.launch import launch

BLOCK = 2048  # keys per program
DIGIT, DIGITS = tl.constexpr(256), tl.constexpr(4)
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def _exp(x):
    """CUDA's expf for x ≤ 0, to the bit: `tl.exp` would give other keys than torch."""
    x = tl.where(x < -150.0, -150.0, x)  # NaN stays
    whole = tl.floor(x * 1.44269502)
    rest = tl.fma(x, 1.925963033e-8, tl.fma(x, 1.44269502, -whole))
    return tl.exp2(rest) * tl.exp2(whole)


@triton.jit
def _class_scores(logits, p, loaded, HW: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Classes, where their logits lie, and logits minus the pixel's largest one, as (class, pixel)."""
    c = tl.arange(0, BK)[:, None]
    place = ((p // HW).to(tl.int64) * (K * HW) + p % HW)[None, :] + c * HW
    x = tl.load(logits + place, mask=loaded[None, :] & (c < K), other=0.0)
    x = tl.where(c < K, x, float("-inf"))
    return c, place, x - tl.max(x, axis=0)[None, :]


@triton.jit
def _add_counts(counts, digits, mask):
    """Count digits; returns this program's own counts."""
    found = tl.histogram(digits.to(tl.int32), DIGIT, mask)
    tl.atomic_add(counts + tl.arange(0, DIGIT), found, mask=found > 0, sem="relaxed")
    return found


@triton.jit
def _leading_digits(counts, k, NUMBER: tl.constexpr):
    """The first digits of the k-th largest key, and which of the keys that share them it is."""
    prefix = tl.zeros((), tl.uint32)
    d = tl.arange(0, DIGIT)
    for i in tl.static_range(NUMBER):
        count = tl.load(counts + i * DIGIT + d)
        at_least = tl.cumsum(count, axis=0, reverse=True)
        digit = tl.sum((at_least >= k).to(tl.int32), axis=0) - 1
        k -= tl.sum(tl.where(d > digit, count, 0), axis=0)
        prefix = (prefix << 8) | digit.to(tl.uint32)
    return prefix, k


@triton.jit
def _cross_entropy(
    logits, labels, valid, uniform, ce, keys, counts, PIXELS, HW: tl.constexpr, K: tl.constexpr,
    TOP_K: tl.constexpr, STOCHASTIC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Cross-entropy, and for top-k the keys: unsigned integers in the order of the scores of `top_k_pixels`."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = p < PIXELS
    c, _, x = _class_scores(logits, p, inside, HW, K, BK)
    label = tl.load(labels + p, mask=inside, other=0)
    own = tl.sum(tl.where(c == label[None, :], x, 0.0), axis=0)
    loss = tl.log(tl.sum(_exp(x), axis=0)) - own
    loss = tl.where((label >= 0) & (label < K), loss, float("nan"))  # no such class: the step is skipped
    usable = tl.load(valid + p, mask=inside, other=0) != 0
    loss = tl.where(usable, loss, 0.0)
    tl.store(ce + p, loss, mask=inside)
    if TOP_K:
        score = tl.log(tl.where(loss < TINY, TINY, loss))
        if STOCHASTIC:
            exponential = -tl.log(tl.load(uniform + p, mask=inside, other=0.5) + 2.0**-25)
            score -= tl.log(tl.maximum(exponential, 2.0**-25))
        score = tl.where(usable, score, float("-inf"))
        bits = score.to(tl.uint32, bitcast=True)
        key = bits ^ tl.where((bits >> 31) != 0, 0xFFFFFFFF, 0x80000000)
        key = tl.where(score == score, key, 0xFFFFFFFF)  # NaN is the largest, as in torch.topk
        tl.store(keys + p, key.to(tl.int32, bitcast=True), mask=inside)
        _add_counts(counts, key >> 24, inside)


@triton.jit(do_not_specialize=["k"])
def _count_next_digit(keys, counts, counts_of_block, k, PIXELS, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    """Count the digit after the first `NUMBER` ones."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + p, mask=p < PIXELS, other=0).to(tl.uint32, bitcast=True)
    prefix, _ = _leading_digits(counts, k, NUMBER)
    shares = (p < PIXELS) & ((key >> (32 - 8 * NUMBER)) == prefix)
    found = tl.zeros((DIGIT,), tl.int32)
    if tl.max(shares.to(tl.int32), axis=0) > 0:  # few programs have such keys, after the second digit
        found = _add_counts(counts + NUMBER * DIGIT, (key >> (24 - 8 * NUMBER)) & 255, shares)
    if NUMBER == DIGITS - 1:
        tl.store(counts_of_block + tl.program_id(0) * DIGIT + tl.arange(0, DIGIT), found)


@triton.jit(do_not_specialize=["k"])
def _keep(
    ce, keys, valid, counts, counts_of_block, kept, sums, num_kept, k, PIXELS, B,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Mask, number and cross-entropy of the kept pixels; of equal keys those of the first pixels are kept."""
    block = tl.program_id(0)
    p = block * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(valid + p, mask=p < PIXELS, other=0) != 0
    if TOP_K:
        key = tl.load(keys + p, mask=p < PIXELS, other=0).to(tl.uint32, bitcast=True)
        last, needed = _leading_digits(counts, k, DIGITS)
        digit = (last & 255).to(tl.int32)
        equal = (p < PIXELS) & (key == last)
        rank = tl.cumsum(equal.to(tl.int32), axis=0)
        if needed < tl.load(counts + (DIGITS - 1) * DIGIT + digit):  # else all of them are kept
            b = tl.arange(0, BLOCKS)
            rank += tl.sum(tl.load(counts_of_block + b * DIGIT + digit, mask=b < block, other=0), axis=0)
        keep = keep & ((key > last) | (equal & (rank <= needed)))
    tl.store(kept + p, keep.to(tl.int8), mask=p < PIXELS)
    tl.store(sums + block, tl.sum(tl.load(ce + p, mask=keep, other=0.0), axis=0) / B)
    tl.atomic_add(num_kept, tl.sum(keep.to(tl.int32), axis=0).to(tl.int64), sem="relaxed")


@triton.jit
def _logits_gradient(
    logits, labels, kept, gradient, out, PIXELS, B, HW: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """(softmax − one-hot) · gradient / b at kept pixels, else 0. Logits of other pixels are not read."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = p < PIXELS
    keep = tl.load(kept + p, mask=inside, other=0) != 0
    c, place, x = _class_scores(logits, p, keep, HW, K, BK)
    label = tl.load(labels + p, mask=inside, other=0)
    exponentials = _exp(x)
    softmax = exponentials / tl.sum(exponentials, axis=0)[None, :]
    scaled = (softmax - (c == label[None, :]).to(tl.float32)) * (tl.load(gradient) / B)
    tl.store(out + place, tl.where(keep[None, :], scaled, 0.0), mask=inside[None, :] & (c < K))


def _pixel_blocks(logits: Float32[Tensor, "b k h w"]) -> tuple[tuple[int], dict[str, int]]:
    """Grid and constants of the kernels that read logits."""
    b, k, h, w = logits.shape
    classes = triton.next_power_of_2(k)
    pixels = max(32, min(1024, 8192 // classes))
    return (triton.cdiv(b * h * w, pixels),), {"HW": h * w, "K": k, "BK": classes, "BP": pixels}


class _Reconstruction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, valid: Tensor, uniform: Tensor | None, k: int | None
    ) -> tuple[Tensor, Tensor]:
        (b, n), device, top_k = (len(labels), labels.numel()), logits.device, k is not None
        grid, sizes = _pixel_blocks(logits)
        blocks = triton.cdiv(n, BLOCK)
        zeros = torch.zeros(2 * 256 + 1, dtype=torch.int64, device=device)  # one launch
        counts, num_kept = zeros[:-1].view(torch.int32), zeros[-1]
        counts_of_block = torch.empty(blocks, 256, dtype=torch.int32, device=device)
        keys = torch.empty(n, dtype=torch.int32, device=device)
        ce, sums = torch.empty(n, device=device), torch.empty(blocks, device=device)
        kept = torch.empty(labels.shape, dtype=torch.bool, device=device)
        launch(
            _cross_entropy, grid, logits, labels, valid, ce if uniform is None else uniform, ce, keys, counts, n,
            **sizes, TOP_K=top_k, STOCHASTIC=uniform is not None,
        )  # fmt: skip
        for number in range(1, 4) if top_k else ():
            launch(_count_next_digit, (blocks,), keys, counts, counts_of_block, k, n, NUMBER=number, BLOCK=BLOCK)
        launch(
            _keep, (blocks,), ce, keys, valid, counts, counts_of_block, kept, sums, num_kept, k or 0, n, b,
            TOP_K=top_k, BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(blocks),
        )  # fmt: skip
        ctx.save_for_backward(logits, labels, kept)
        ctx.mark_non_differentiable(num_kept)
        return sums.sum(), num_kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _num_kept: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, kept = ctx.saved_tensors
        out = torch.empty_like(logits)
        grid, sizes = _pixel_blocks(logits)
        launch(_logits_gradient, grid, logits, labels, kept, gradient, out, labels.numel(), len(labels), **sizes)
        return out, None, None, None, None


def reconstruction(
    logits: Float32[Tensor, "b k h w"], *, labels: Int[Tensor, "b h w"], valid: Bool[Tensor, "b h w"] | None,
    uniform: Float32[Tensor, "b h w"] | None, k: int | None,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:  # fmt: skip
    """Cross-entropy summed over kept pixels, divided by the batch size, and the number of those pixels.

    Kept are the k valid pixels of the batch with the largest scores, or all valid ones if k is None; with `uniform`
    numbers, Gumbel noise from them is part of the scores.
    """
    if valid is None:
        valid = torch.ones(labels.shape, dtype=torch.bool, device=labels.device)
    uniform = None if uniform is None else uniform.contiguous()
    tensors = logits.contiguous(), labels.contiguous(), valid.contiguous(), uniform
    return _Reconstruction.apply(*tensors, k)  # type: ignore[no-any-return, no-untyped-call]
