"""Convolutions as matrix products in Triton, fused with bias, ReLU, gate and residual, and their weight gradients.

Maps are dense (groups, batch, height, width, channels): the horizontal neighbours of a pixel are one contiguous run,
so a 3×3 convolution is three matrix products (one per row) of runs with weights (3·in, out), without copies. Groups
are networks of the same shape side by side, each with its own weights. Channels are multiples of 8.

Narrow layers are bound by memory reads. So a matrix row stands for a *patch* of py × px output pixels: it reads a run
of (px + 2)·in elements from each of py + 2 rows, and the weights hold the kernel once per pixel of the patch,
shifted, with zeros between. Tensor cores multiply the zeros for free; a 2×4 patch reads each element 3, not 9 times.

bfloat16 is accumulated in float32, float32 in float64 (chunk by chunk, as are `sums` and weight gradients).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hpunet.kernels.launch import launch


@dataclass(frozen=True)
class ConvTiling:
    """Tile sizes of a convolution; matrix rows are patches of `py` × `px` pixels."""

    py: int
    px: int
    patches: int  # matrix rows per program
    columns: int  # matrix columns (pixels of a patch × output channels) per program
    chunk: int  # elements of a run multiplied at once
    warps: int = 4
    stages: int = 3

    def run(self, channels: int, *, taps: int = 3) -> int:
        """Length of a run (the weight rows per image row), zero-padded to a multiple of the chunk."""
        return -(-(self.px + taps - 1) * channels // self.chunk) * self.chunk


@dataclass(frozen=True)
class WeightView:
    """Strided view of a convolution's weights: (row, tap of the row, input, output) is data[Σ index · stride]."""

    data: Tensor
    group: int  # stride between groups
    row: int
    tap: int
    channel: int
    out: int
    width: int  # outputs of all pixels of a patch


@triton.jit
def _patches(B, H: tl.constexpr, W: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr):
    """Image, row and column of each patch of this program on the H × W grid; a tile may hold several images."""
    pid = tl.program_id(0)
    i = tl.arange(0, TILE_Y * TILE_X)
    if TILE_Y * TILE_X > H * W:
        IMAGES: tl.constexpr = (TILE_Y * TILE_X) // (H * W)
        b = pid * IMAGES + i // (H * W)
        y = (i % (H * W)) // W
        x = i % W
        inside = (i < IMAGES * H * W) & (b < B)
    else:
        TILES_X: tl.constexpr = (W + TILE_X - 1) // TILE_X
        TILES_Y: tl.constexpr = (H + TILE_Y - 1) // TILE_Y
        b = pid // (TILES_X * TILES_Y) + tl.zeros_like(i)
        y = ((pid // TILES_X) % TILES_Y) * TILE_Y + i // TILE_X
        x = (pid % TILES_X) * TILE_X + i % TILE_X
        inside = (y < H) & (x < W)
    return b, y, x, inside


@triton.jit
def _positive(a):
    return tl.where(a > 0, a, 0.0).to(a.dtype)


@triton.jit
def _add_product(total, a, b, PRECISION: tl.constexpr):
    """total + a·b. Without tensor cores ("ieee") the product is in float32 and the total in float64."""
    if PRECISION == "ieee":
        total += tl.dot(a, b, input_precision=PRECISION)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _convolve(
    x, weight, bias, out, gate, residual, sums, B, WEIGHT_GROUP,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
    PY: tl.constexpr, PX: tl.constexpr,
    W_ROW: tl.constexpr, W_TAP: tl.constexpr, W_IN: tl.constexpr, W_OUT: tl.constexpr,
    RELU_IN: tl.constexpr, RELU_OUT: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_Y: tl.constexpr, TILE_X: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    PAD: tl.constexpr = TAPS // 2
    ROWS: tl.constexpr = PY + TAPS - 1
    CHUNKS: tl.constexpr = ((PX + TAPS - 1) * IN + BK - 1) // BK
    N: tl.constexpr = PY * PX * OUT
    group = tl.program_id(2)
    x += group * B * H * W * IN
    weight += group * WEIGHT_GROUP
    b, patch_y, patch_x, inside = _patches(B, H // PY, W // PX, TILE_Y, TILE_X)
    top = patch_y * PY - PAD
    start = ((b * H + top) * W + patch_x * PX - PAD) * IN
    leftmost, rightmost = patch_x == 0, patch_x == W // PX - 1
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    channel = n % OUT
    kept = inside[:, None] & (n < N)[None, :]
    corner = (((group * B + b) * H + patch_y * PY) * W + patch_x * PX) * OUT
    place = corner[:, None] + (n // (PX * OUT) * (W * OUT) + n % (PX * OUT))[None, :]
    if GATE:  # prefetched
        is_open = tl.load(gate + place, mask=kept, other=0.0) > 0
    EXACT: tl.constexpr = PRECISION == "ieee"
    START: tl.constexpr = RESIDUAL and not GATE and not EXACT
    if START:
        total = tl.load(residual + place, mask=kept, other=0.0).to(tl.float32)
    else:
        total = tl.zeros((TILE_Y * TILE_X, BN), tl.float64 if EXACT else tl.float32)
    for step in tl.range(ROWS * CHUNKS):
        row = step // CHUNKS
        kk = (step % CHUNKS) * BK + k
        there = (inside & (top + row >= 0) & (top + row < H))[:, None]
        if PAD > 0:
            there = there & ~(leftmost[:, None] & (kk < PAD * IN)[None, :])
            there = there & ~(rightmost[:, None] & (kk >= (PX + PAD) * IN)[None, :])
        if CHUNKS * BK != (PX + TAPS - 1) * IN:
            there = there & (kk < (PX + TAPS - 1) * IN)[None, :]
        a = tl.load(x + (start + row * W * IN)[:, None] + kk[None, :], mask=there, other=0.0)
        if RELU_IN:
            a = _positive(a)
        k_place = kk * W_IN if W_TAP == IN * W_IN else kk // IN * W_TAP + kk % IN * W_IN
        w_place = row * W_ROW + k_place[:, None] + n[None, :] * W_OUT
        w = tl.load(weight + w_place, mask=(n < N)[None, :], other=0.0)
        total = _add_product(total, a, w, PRECISION)
    if BIAS:
        total += tl.load(bias + group * OUT + channel, mask=n < N, other=0.0)[None, :]
    if GATE:
        total = tl.where(is_open, total, 0.0)
    if RESIDUAL and not START:
        total += tl.load(residual + place, mask=kept, other=0.0)
    if RELU_OUT:
        total = tl.maximum(total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=kept)
    if SUMS:
        column_sums = tl.sum(tl.where(kept, total, 0.0), axis=0)
        tl.atomic_add(sums + group * OUT + channel, column_sums, mask=n < N, sem="relaxed")


def convolve(
    x: Float[Tensor, "g b h w i"], *, weight: WeightView, tiling: ConvTiling, taps: int = 3,
    bias: Float[Tensor, "g o"] | None = None, relu_input: bool = False, relu_output: bool = False,
    gate: Float[Tensor, "g b h w o"] | None = None, residual: Float[Tensor, "g b h w o"] | None = None,
    sums: Float[Tensor, "g o"] | None = None, out_dtype: torch.dtype | None = None,
) -> Float[Tensor, "g b h w o"]:  # fmt: skip
    """relu?((gate > 0 ? conv(relu?(x)) + bias : 0) + residual); adds the sum of all pixels to `sums`."""
    groups, b, h, w, channels = x.shape
    width = weight.width // (tiling.py * tiling.px)
    out = torch.empty(groups, b, h, w, width, device=x.device, dtype=out_dtype or x.dtype)
    patches_y, patches_x = h // tiling.py, w // tiling.px
    if patches_y * patches_x < tiling.patches:
        tile_y, tile_x = 1, tiling.patches
        tiles = triton.cdiv(b, tiling.patches // (patches_y * patches_x))
    else:
        tile_x = min(triton.next_power_of_2(patches_x), 16, tiling.patches)
        tile_y = tiling.patches // tile_x
        tiles = b * triton.cdiv(patches_y, tile_y) * triton.cdiv(patches_x, tile_x)
    launch(
        _convolve, (tiles, triton.cdiv(weight.width, tiling.columns), groups),
        x, weight.data, x if bias is None else bias, out, x if gate is None else gate,
        x if residual is None else residual, out if sums is None else sums, b, weight.group,
        H=h, W=w, IN=channels, OUT=width, TAPS=taps, PY=tiling.py, PX=tiling.px,
        W_ROW=weight.row, W_TAP=weight.tap, W_IN=weight.channel, W_OUT=weight.out,
        RELU_IN=relu_input, RELU_OUT=relu_output, BIAS=bias is not None, GATE=gate is not None,
        RESIDUAL=residual is not None, SUMS=sums is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        TILE_Y=tile_y, TILE_X=tile_x, BN=tiling.columns, BK=tiling.chunk,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class CorrelationTiling:
    """Tile sizes of a weight gradient; patches are 1 × `px` pixels, `py` rows of them at a time."""

    py: int
    px: int
    rows: int
    columns: int
    patches: int  # patches (times `py`) multiplied at once
    programs: int  # approximate number of programs; each adds its result atomically
    together: bool = True  # whether a program computes all three rows of taps: fewer reads, more accumulators
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class GradientView:
    """Strided view of a weight gradient: (tap, row, column) is data[Σ index · stride]."""

    data: Tensor
    group: int
    tap: int
    row: int
    column: int


@triton.jit
def _correlate(
    rows, columns, out, B, OUT_GROUP,
    H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr,
    PY: tl.constexpr, PX: tl.constexpr, TOGETHER: tl.constexpr,
    OUT_TAP: tl.constexpr, OUT_ROW: tl.constexpr, OUT_COLUMN: tl.constexpr,
    RELU_ROWS: tl.constexpr, RELU_COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, ROUNDS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """A program takes BM elements of a run, BN columns of a patch, and some of the patches.

    Operands of products must not be used anywhere else: Triton (3.6) would keep too few copies of them in shared
    memory and load the next ones over operands that tensor cores still read.
    """
    PAD: tl.constexpr = TAPS // 2
    RUN: tl.constexpr = (PX + TAPS - 1) * R
    N: tl.constexpr = PX * C
    M_BLOCKS: tl.constexpr = (RUN + BM - 1) // BM
    N_BLOCKS: tl.constexpr = (N + BN - 1) // BN
    PATCHES_X: tl.constexpr = W // PX
    PATCHES_Y: tl.constexpr = H // PY
    block = tl.program_id(1)
    group = tl.program_id(2)
    rows += group * B * H * W * R
    columns += group * B * H * W * C
    m = (block % M_BLOCKS) * BM + tl.arange(0, BM)
    n = (block // M_BLOCKS % N_BLOCKS) * BN + tl.arange(0, BN)
    first = 0 if TOGETHER else block // (M_BLOCKS * N_BLOCKS)  # row of taps
    SUM: tl.constexpr = tl.float64 if PRECISION == "ieee" else tl.float32
    total0 = tl.zeros((BM, BN), SUM)
    total1 = tl.zeros((BM, BN), SUM)
    total2 = tl.zeros((BM, BN), SUM)
    for step in tl.range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BP + tl.arange(0, BP)
        inside = p < B * PATCHES_Y * PATCHES_X
        patch_x = p % PATCHES_X
        patch_y = p // PATCHES_X % PATCHES_Y
        pixel = (p // PATCHES_X * PY) * W + patch_x * PX
        there = inside[:, None] & (m < RUN)[None, :]
        if PAD > 0:
            there = there & ~((patch_x == 0)[:, None] & (m < PAD * R)[None, :])
            there = there & ~((patch_x == PATCHES_X - 1)[:, None] & (m >= (PX + PAD) * R)[None, :])
        known = inside[:, None] & (n < N)[None, :]
        run = rows + ((pixel - PAD) * R)[:, None] + m[None, :]
        patch = columns + (pixel * C)[:, None] + n[None, :]
        g0 = tl.load(patch, mask=known, other=0.0)
        if PY == 2:
            g1 = tl.load(patch + W * C, mask=known, other=0.0)
        y = patch_y * PY - PAD + first
        a0 = _row(run, y, first - PAD, there, H, W * R, RELU_ROWS)
        if (TOGETHER and TAPS == 3) or PY == 2:
            a1 = _row(run, y + 1, first - PAD + 1, there, H, W * R, RELU_ROWS)
        if TOGETHER and TAPS == 3:
            a2 = _row(run, y + 2, first - PAD + 2, there, H, W * R, RELU_ROWS)
            if PY == 2:
                a3 = _row(run, y + 3, first - PAD + 3, there, H, W * R, RELU_ROWS)
        if RELU_COLUMNS:
            g0 = _positive(g0)
            if PY == 2:
                g1 = _positive(g1)
        total0 = _add_product(total0, tl.trans(a0), g0, PRECISION)
        if PY == 2:
            total0 = _add_product(total0, tl.trans(a1), g1, PRECISION)
        if TOGETHER and TAPS == 3:
            total1 = _add_product(total1, tl.trans(a1), g0, PRECISION)
            total2 = _add_product(total2, tl.trans(a2), g0, PRECISION)
            if PY == 2:
                total1 = _add_product(total1, tl.trans(a2), g1, PRECISION)
                total2 = _add_product(total2, tl.trans(a3), g1, PRECISION)
    dx = (m // R)[:, None] - (n // C)[None, :]  # the tap, if within the kernel
    kept = (m < RUN)[:, None] & (n < N)[None, :] & (dx >= 0) & (dx < TAPS)
    place = out + group * OUT_GROUP + (first * TAPS + dx) * OUT_TAP + (m % R * OUT_ROW)[:, None]
    place += (n % C * OUT_COLUMN)[None, :]
    tl.atomic_add(place, total0, mask=kept, sem="relaxed")
    if TOGETHER and TAPS == 3:
        tl.atomic_add(place + TAPS * OUT_TAP, total1, mask=kept, sem="relaxed")
        tl.atomic_add(place + 2 * TAPS * OUT_TAP, total2, mask=kept, sem="relaxed")


@triton.jit
def _row(run, y, dy, there, H: tl.constexpr, STRIDE: tl.constexpr, RELU: tl.constexpr):
    a = tl.load(run + dy * STRIDE, mask=there & ((y >= 0) & (y < H))[:, None], other=0.0)
    if RELU:
        a = _positive(a)
    return a


def correlate(
    rows: Float[Tensor, "g b h w r"], columns: Float[Tensor, "g b h w c"], *, out: GradientView,
    tiling: CorrelationTiling, taps: int = 3, relu_rows: bool = False, relu_columns: bool = False,
) -> None:  # fmt: skip
    """Accumulate a weight gradient: out[(dy, dx), r, c] += Σ over pixels p of rows[p + (dy, dx), r] · columns[p, c].

    `rows` is the convolution's input and `columns` the gradient of its output; exchanged, they give the gradient for
    mirrored taps. Fewer channels in `rows` is faster.
    """
    (groups, b, h, w, r), c, t = rows.shape, columns.shape[4], tiling
    patches = b * (h // t.py) * (w // t.px)
    blocks = triton.cdiv((t.px + taps - 1) * r, t.rows) * triton.cdiv(t.px * c, t.columns)
    blocks *= 1 if t.together else taps
    pieces = max(1, min(triton.cdiv(patches, t.patches), t.programs // (blocks * groups)))
    rounds = triton.cdiv(triton.cdiv(patches, pieces), t.patches)
    launch(
        _correlate, (triton.cdiv(patches, rounds * t.patches), blocks, groups), rows, columns, out.data, b, out.group,
        H=h, W=w, R=r, C=c, TAPS=taps, PY=t.py, PX=t.px, TOGETHER=t.together,
        OUT_TAP=out.tap, OUT_ROW=out.row, OUT_COLUMN=out.column,
        RELU_ROWS=relu_rows, RELU_COLUMNS=relu_columns, PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        ROUNDS=rounds, BM=t.rows, BN=t.columns, BP=t.patches, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
