"""Kernels of sampling alone: turned inputs, drawn or given latents, and labels of upright maps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.launch import launch
from hpunet.models.gaussian import LOG_SIGMA_RANGE

PIXELS = 128  # per program


@triton.jit
def _upright(position, orientation, H: tl.constexpr, W: tl.constexpr):
    """Where a position of a turned map (`sampling.orientations.orient`) lies in the upright one, of H × W pixels."""
    y, x = position // W, position % W
    transposed = (orientation & 4) != 0
    row, column = tl.where(transposed, x, y), tl.where(transposed, y, x)
    row = tl.where((orientation & 2) != 0, H - 1 - row, row)
    column = tl.where((orientation & 1) != 0, W - 1 - column, column)
    return row * W + column


@triton.jit
def _pack_orientations(
    image, out, COUNT,
    ORIENTATIONS: tl.constexpr, CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    entry, position = pixel // (H * W), pixel % (H * W)
    place = (entry // ORIENTATIONS * CHANNELS + c) * (H * W) + _upright(position, entry % ORIENTATIONS, H, W)
    value = tl.load(image + place, mask=(i < COUNT) & (c < CHANNELS), other=0.0)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < COUNT)


def pack_orientations(
    image: Float[Tensor, "b i h w"], *, count: int, width: int, dtype: torch.dtype
) -> Float[Tensor, "1 bo h w c"]:
    """NHWC maps of `width` channels: of each image its first `count` orientations."""
    b, channels, h, w = image.shape
    out = torch.empty(1, b * count, h, w, width, device=image.device, dtype=dtype)
    launch(
        _pack_orientations, (triton.cdiv(out.numel(), 1024),), image.contiguous(), out, out.numel(),
        ORIENTATIONS=count, CHANNELS=channels, H=h, W=w, C=width, BLOCK=1024,
    )  # fmt: skip
    return out


@triton.jit
def _draw_latents(
    x, weight, bias, noise, given, raw, latents, B, LOG_SIGMA, RAW_STRIDE, NOISE_STRIDE, GIVEN_STRIDE, LATENT_STRIDE,
    HW: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, Z: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    NOISE: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside, image, position = p < B * HW, p // HW, p % HW
    c = tl.arange(0, BC)
    there = inside[:, None] & (c < REAL)[None, :]
    a = tl.load(x + p[:, None] * C + c[None, :], mask=there, other=0.0).to(tl.float32)
    for z in range(Z):  # not unrolled: the paper's global model has 85
        row = weight + z * REAL + c
        mean = tl.sum(a * tl.load(row, mask=c < REAL, other=0.0)[None, :], axis=1) + tl.load(bias + z)
        log_sigma = tl.sum(a * tl.load(row + Z * REAL, mask=c < REAL, other=0.0)[None, :], axis=1)
        log_sigma += tl.load(bias + Z + z)
        place = z * HW + position
        tl.store(raw + image * RAW_STRIDE + place, mean, mask=inside)
        tl.store(raw + LOG_SIGMA + image * RAW_STRIDE + place, log_sigma, mask=inside)
        value = mean
        if NOISE:
            drawn = tl.load(noise + image * NOISE_STRIDE + place, mask=inside, other=0.0).to(tl.float32)
            value += tl.exp(tl.minimum(tl.maximum(log_sigma, LOW), HIGH)) * drawn
        if GIVEN:
            fixed = tl.load(given + image * GIVEN_STRIDE + place, mask=inside, other=0.0).to(tl.float32)
            value = tl.where(fixed != fixed, value, fixed) if NOISE else fixed  # drawn where it is NaN
        tl.store(latents + image * LATENT_STRIDE + place, value, mask=inside)


def draw_latents(
    x: Float[Tensor, "b h w c"], *, weight: Float[Tensor, "zz f"], bias: Float[Tensor, " zz"],
    noise: Float[Tensor, "b n"] | None, given: Float[Tensor, "b n"] | None,
    raw: Float[Tensor, "2 b n"], latents: Float[Tensor, "b n"],
) -> None:  # fmt: skip
    """Write means and log σ (not clamped) to `raw`, and to `latents` what `Gaussian.latent` gives.

    `noise`, `given`, `raw` and `latents` are this scale's slices of those of all scales; n is z·h·w.
    """
    b, h, w, c = x.shape
    launch(
        _draw_latents, (triton.cdiv(b * h * w, 16),), x, weight, bias,
        latents if noise is None else noise, latents if given is None else given, raw, latents, b,
        raw.stride(0), raw.stride(1), *(0 if t is None else t.stride(0) for t in (noise, given)), latents.stride(0),
        HW=h * w, C=c, REAL=weight.shape[1], Z=weight.shape[0] // 2, LOW=LOG_SIGMA_RANGE[0], HIGH=LOG_SIGMA_RANGE[1],
        NOISE=noise is not None, GIVEN=given is not None, BC=triton.next_power_of_2(c), BP=16,
    )  # fmt: skip


@triton.jit
def _append_latents(
    x, latents, out, COUNT, LATENT_STRIDE,
    HW: tl.constexpr, C0: tl.constexpr, Z: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // C, i % C
    there, z = i < COUNT, c - C0
    value = tl.load(x + pixel * C0 + c, mask=there & (c < C0), other=0.0)
    place = latents + pixel // HW * LATENT_STRIDE + z * HW + pixel % HW
    value += tl.load(place, mask=there & (z >= 0) & (z < Z), other=0.0).to(value.dtype)
    tl.store(out + i, value, mask=there)


def append_latents(
    x: Float[Tensor, "1 b h w c0"], latents: Float[Tensor, "b z h w"], *, width: int
) -> Float[Tensor, "1 b h w c"]:
    """[x, latents, zeros up to `width`]."""
    _, b, h, w, c0 = x.shape
    out = torch.empty(1, b, h, w, width, device=x.device, dtype=x.dtype)
    launch(
        _append_latents, (triton.cdiv(out.numel(), 1024),), x, latents, out, out.numel(), latents.stride(0),
        HW=h * w, C0=c0, Z=latents.shape[1], C=width, BLOCK=1024,
    )  # fmt: skip
    return out


@triton.jit
def _add_shared(
    first, skip, first_shared, skip_shared, entries, h1, out, COUNT,
    H: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, PHASES: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The first C1 channels are those of `h1`, the others those of the skip."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = i // (C1 + C2), i % (C1 + C2)
    image, position = pixel // (H * W), pixel % (H * W)
    y, x = position // W, position % W
    parent = (image * (H // 2) + y // 2) * (W // 2) + x // 2
    phase = y % 2 * 2 + x % 2
    there, s = i < COUNT, c - C1
    source = tl.load(entries + image, mask=there, other=0).to(tl.int32) * (H * W) + position
    is_first, is_skip = there & (s < 0), there & (s >= 0)
    value = tl.load(first + parent * PHASES + phase * HALF + c, mask=there & (c < HALF), other=0.0)
    value += tl.load(first_shared + source * C1 + c, mask=is_first, other=0.0)
    tl.store(h1 + pixel * C1 + c, tl.maximum(value, 0.0).to(h1.dtype.element_ty), mask=is_first)
    value = tl.load(skip + parent * C2 + s, mask=is_skip, other=0.0)
    value += tl.load(skip_shared + source * C2 + s, mask=is_skip, other=0.0)
    tl.store(out + pixel * C2 + s, value.to(out.dtype.element_ty), mask=is_skip)


def add_shared(
    first: Float[Tensor, "n h2 w2 p"], skip: Float[Tensor, "n h2 w2 o"], *, shared: Sequence[Tensor],
    entries: Int[Tensor, " n"], half: int, dtype: torch.dtype,
) -> tuple[Float[Tensor, "1 n h w c"], Float[Tensor, "1 n h w o"]]:  # fmt: skip
    """relu(first + its shared part) and skip + its shared part, at full size.

    `first` has `half` channels for each pixel of a 2×2 square, `skip` the same value for all of them. Hypothesis i
    takes the shared maps (e, h, w, c) and (e, h, w, o) of entry `entries[i]`.
    """
    n, (_, h, w, c), o = len(entries), shared[0].shape, skip.shape[3]
    h1, out = (torch.empty(1, n, h, w, width, device=skip.device, dtype=dtype) for width in (c, o))
    count = n * h * w * (c + o)
    launch(
        _add_shared, (triton.cdiv(count, 1024),), first, skip, *shared, entries, h1, out, count,
        H=h, W=w, HALF=half, PHASES=first.shape[3], C1=c, C2=o, BLOCK=1024,
    )  # fmt: skip
    return h1, out


@triton.jit
def _label(
    x, weight, bias, orientation_ids, logits, labels, sums,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, REAL: tl.constexpr, K: tl.constexpr,
    TURNED: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (H * W + BP - 1) // BP
    entry = tl.program_id(0) // BLOCKS
    p = tl.program_id(0) % BLOCKS * BP + tl.arange(0, BP)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    inside, known = p < H * W, k < K
    here = (entry * (H * W) + p)[:, None] * C + c[None, :]
    a = tl.load(x + here, mask=inside[:, None] & (c < REAL)[None, :], other=0.0)
    w = tl.load(weight + k[None, :] * REAL + c[:, None], mask=(c < REAL)[:, None] & known[None, :], other=0.0)
    total = tl.dot(a, w.to(a.dtype), input_precision=PRECISION)
    total += tl.load(bias + k, mask=known, other=0.0)[None, :]
    place = p
    if TURNED:
        place = _upright(p, tl.load(orientation_ids + entry).to(tl.int32), H, W)
    kept = inside[:, None] & known[None, :]
    if KEEP:
        tl.store(logits + (entry * K + k)[None, :] * (H * W) + place[:, None], total, mask=kept)
    best = tl.argmax(tl.where(known[None, :], total, float("-inf")), axis=1)
    tl.store(labels + entry * (H * W) + place, best.to(tl.int64), mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(kept, total, 0.0)))


@dataclass(frozen=True)
class Labels:
    """Classes of maps, their logits if they are kept, and sums of logits over blocks of pixels."""

    classes: Int[Tensor, "b h w"]
    logits: Float[Tensor, "b k h w"] | None
    sums: Float[Tensor, "b blocks"]

    @classmethod
    def empty(
        cls, count: int, height: int, width: int, *, num_classes: int, keep_logits: bool, device: torch.device
    ) -> "Labels":
        """For `label` to fill."""
        return cls(
            torch.empty(count, height, width, device=device, dtype=torch.int64),
            torch.empty(count, num_classes, height, width, device=device) if keep_logits else None,
            torch.empty(count, triton.cdiv(height * width, PIXELS), device=device),
        )

    def of(self, rows: slice) -> "Labels":
        """Those of some maps."""
        return Labels(self.classes[rows], None if self.logits is None else self.logits[rows], self.sums[rows])


def label(
    x: Float[Tensor, "b h w c"], *, weight: Float[Tensor, "k f"], bias: Float[Tensor, " k"],
    orientation_ids: Int[Tensor, " b"] | None, out: Labels,
) -> None:  # fmt: skip
    """Write the class with the highest logit at every pixel, the logits, and their sums.

    With `orientation_ids` the maps are turned, and what is written is upright.
    """
    (_, h, w, c), (k, real), keep = x.shape, weight.shape, out.logits is not None
    launch(
        _label, (out.sums.numel(),), x, weight, bias, out.classes if orientation_ids is None else orientation_ids,
        out.logits if keep else out.sums, out.classes, out.sums, H=h, W=w, C=c, REAL=real, K=k,
        TURNED=orientation_ids is not None, KEEP=keep, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        BC=max(16, triton.next_power_of_2(c)), BK=max(16, triton.next_power_of_2(k)), BP=PIXELS,
    )  # fmt: skip
