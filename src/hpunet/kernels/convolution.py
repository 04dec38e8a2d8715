"""3×3 convolutions as matrix products in Triton, with what surrounds them in a residual block fused in.

Maps are NHWC and dense. In that layout the three neighbours of a pixel in a row, with all their channels, are one
contiguous run of 3·C numbers. So a 3×3 convolution is three matrix products (one a row) of such runs with weights
(3·C, out): no copy is made, and the gradient of the weights has the same form.

Widths are multiples of 8, so that loads are 16 bytes wide; `fused.py` pads weights and inputs with zeros.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


@triton.jit
def _tile_pixels(B, H: tl.constexpr, W: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr):
    """Image, row and column of each pixel of this program's tile; a tile larger than an image holds several."""
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
    return (b * H + y) * W + x, y, x, inside


@triton.jit
def _positive(a):
    return tl.where(a > 0, a, 0.0).to(a.dtype)


@triton.jit
def _convolve(
    x, weight, bias, out, gate, residual, skip, skip_weight, sums, B,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SKIP: tl.constexpr,
    RELU_IN: tl.constexpr, RELU_OUT: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_Y: tl.constexpr, TILE_X: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """See `convolve`."""
    pixel, y, column, inside = _tile_pixels(B, H, W, TILE_Y, TILE_X)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((TILE_Y * TILE_X, BN), tl.float32)
    CHUNKS: tl.constexpr = (3 * IN + BK - 1) // BK
    for step in tl.range(3 * CHUNKS):
        dy = step // CHUNKS - 1
        kk = (step % CHUNKS) * BK + k
        neighbour = column[:, None] + (kk // IN)[None, :] - 1
        there = (inside & (y + dy >= 0) & (y + dy < H))[:, None] & (neighbour >= 0) & (neighbour < W)
        if CHUNKS * BK != 3 * IN:
            there = there & (kk < 3 * IN)[None, :]
        a = tl.load(x + (pixel + dy * W - 1)[:, None] * IN + kk[None, :], mask=there, other=0.0)
        if RELU_IN:
            a = _positive(a)
        w = tl.load(weight + (step * BK + k)[:, None] * OUT + n[None, :], mask=(n < OUT)[None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + n, mask=n < OUT, other=0.0)[None, :]
    kept = inside[:, None] & (n < OUT)[None, :]
    place = pixel[:, None] * OUT + n[None, :]
    if GATE:
        total = tl.where(tl.load(gate + place, mask=kept, other=0.0) > 0, total, 0.0)
    if SKIP > 0:
        SKIP_CHUNKS: tl.constexpr = (SKIP + BK - 1) // BK
        for step in tl.range(SKIP_CHUNKS):
            kk = step * BK + k
            known = (kk < SKIP)[None, :]
            a = tl.load(skip + pixel[:, None] * SKIP + kk[None, :], mask=inside[:, None] & known, other=0.0)
            rows = (kk < SKIP)[:, None] & (n < OUT)[None, :]
            w = tl.load(skip_weight + kk[:, None] * OUT + n[None, :], mask=rows, other=0.0)
            total = tl.dot(a, w, total, input_precision=PRECISION)
    if RESIDUAL:
        total += tl.load(residual + place, mask=kept, other=0.0).to(tl.float32)
    if RELU_OUT:
        total = tl.maximum(total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=kept)
    if SUMS:
        tl.atomic_add(sums + n, tl.sum(tl.where(kept, total, 0.0), axis=0), mask=n < OUT, sem="relaxed")


def chunk(channels: int) -> int:
    """How many of the 3·`channels` numbers of a row are multiplied at once."""
    for size in (64, 32):
        if channels % size == 0:
            return size
    return 16 if channels == 16 else 64 if channels >= 64 else 32


def row_length(channels: int) -> int:
    """Rows of `convolve`'s weights for one dy: 3·`channels`, with zeros up to a multiple of the chunk."""
    return -(-3 * channels // chunk(channels)) * chunk(channels)


def convolve(
    x: Float[Tensor, "b h w i"],
    *,
    weight: Float[Tensor, "3 r o"],
    bias: Float[Tensor, " o"] | None = None,
    relu_input: bool = False,
    relu_output: bool = False,
    gate: Float[Tensor, "b h w o"] | None = None,
    residual: Float[Tensor, "b h w o"] | None = None,
    skip: tuple[Float[Tensor, "b h w s"], Float[Tensor, "s o"]] | None = None,
    sums: Float[Tensor, " o"] | None = None,
) -> Float[Tensor, "b h w o"]:
    """relu?((gate > 0 ? conv(relu?(x)) + bias : 0) + skip[0] · skip[1] + residual), with zeros outside the image.

    `weight` has the rows of `row_length`: [dy, (dx, in), out]. `sums` gets the result added, summed over all pixels.
    Sums are in float32.
    """
    b, h, w, channels = x.shape
    width = weight.shape[2]
    out = torch.empty(b, h, w, width, device=x.device, dtype=x.dtype)
    small = h * w <= 64
    bn = max(16, min(triton.next_power_of_2(width), (32 if h * w > 16 else 16) if small else 128))
    bm = (64 if h * w > 16 else 32) if small else 64 if h * w <= 256 else 128
    if h * w < bm:
        tile_y, tile_x = 1, bm
        tiles = triton.cdiv(b, bm // (h * w))
    else:
        tile_x = min(triton.next_power_of_2(w), 16)
        tile_y = bm // tile_x
        tiles = b * triton.cdiv(h, tile_y) * triton.cdiv(w, tile_x)
    _convolve[(tiles, triton.cdiv(width, bn))](
        x, weight, weight if bias is None else bias, out, x if gate is None else gate,
        x if residual is None else residual, x if skip is None else skip[0], weight if skip is None else skip[1],
        out if sums is None else sums, b,
        H=h, W=w, IN=channels, OUT=width, SKIP=0 if skip is None else skip[0].shape[3],
        RELU_IN=relu_input, RELU_OUT=relu_output, BIAS=bias is not None, GATE=gate is not None,
        RESIDUAL=residual is not None, SUMS=sums is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        TILE_Y=tile_y, TILE_X=tile_x, BN=bn, BK=chunk(channels),
        num_warps=8 if bm * bn >= 128 * 128 else 4, num_stages=4 if bn >= 64 else 3,
    )  # fmt: skip
    return out


@triton.jit
def _correlate(
    rows, columns, out, column_sums, B,
    H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    RELU_ROWS: tl.constexpr, RELU_COLUMNS: tl.constexpr, COLUMN_SUMS: tl.constexpr,
    PRECISION: tl.constexpr, ROUNDS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """See `correlate`. A program takes one dy, BM of the 3·R rows, BN of the N columns, and some of the pixels."""
    BLOCKS: tl.constexpr = (3 * R + BM - 1) // BM
    dy = tl.program_id(1) // BLOCKS - 1
    m = (tl.program_id(1) % BLOCKS) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    dx = m // R - 1
    total = tl.zeros((BM, BN), tl.float32)
    column_total = tl.zeros((BN,), tl.float32)
    for step in tl.range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BP + tl.arange(0, BP)
        inside = p < B * H * W
        y = (p // W) % H + dy
        x = (p % W)[:, None] + dx[None, :]
        there = (inside & (y >= 0) & (y < H))[:, None] & (x >= 0) & (x < W) & (m < 3 * R)[None, :]
        a = tl.load(rows + (p + dy * W - 1)[:, None] * R + m[None, :], mask=there, other=0.0)
        if RELU_ROWS:
            a = _positive(a)
        g = tl.load(columns + p[:, None] * N + n[None, :], mask=inside[:, None] & (n < N)[None, :], other=0.0)
        if COLUMN_SUMS:
            column_total += tl.sum(g.to(tl.float32), axis=0)
        if RELU_COLUMNS:
            g = _positive(g)
        total = tl.dot(tl.trans(a), g, total, input_precision=PRECISION)
    place = ((dy + 1) * 3 * R + m)[:, None] * N + n[None, :]
    tl.atomic_add(out + place, total, mask=(m < 3 * R)[:, None] & (n < N)[None, :], sem="relaxed")
    if COLUMN_SUMS:
        if tl.program_id(1) == 0:
            tl.atomic_add(column_sums + n, column_total, mask=n < N, sem="relaxed")


def correlate(
    rows: Float[Tensor, "b h w r"],
    columns: Float[Tensor, "b h w n"],
    *,
    out: Float[Tensor, "3 3r n"],
    relu_rows: bool = False,
    relu_columns: bool = False,
    column_sums: Float[Tensor, " n"] | None = None,
) -> None:
    """Add the products of neighbours to `out`, in float32: the gradient of a convolution's weights.

    out[dy, (dx, r), n] += Σ over pixels p of rows[p + (dy, dx), r] · columns[p, n]. With a convolution's input as
    rows and the gradient of its output as columns this is the gradient of its weights; with the two exchanged it is
    the same for mirrored taps. Fewer channels in `rows` is faster. `column_sums` gets Σ columns[p] added.
    """
    b, h, w, r = rows.shape
    n = columns.shape[3]
    bm = min(128 if 3 * r > 64 and 3 * r <= 128 else 64, max(16, triton.next_power_of_2(3 * r)))
    bn = max(16, min(triton.next_power_of_2(n), 128 if h * w > 64 else 32))
    bp = 64 if r <= 32 else 128
    blocks = 3 * triton.cdiv(3 * r, bm) * triton.cdiv(n, bn)
    pieces = max(1, min(triton.cdiv(b * h * w, bp), triton.cdiv(4 * 132, blocks)))
    rounds = triton.cdiv(triton.cdiv(b * h * w, pieces), bp)
    _correlate[(triton.cdiv(b * h * w, rounds * bp), 3 * triton.cdiv(3 * r, bm), triton.cdiv(n, bn))](
        rows, columns, out, out if column_sums is None else column_sums, b,
        H=h, W=w, R=r, N=n, RELU_ROWS=relu_rows, RELU_COLUMNS=relu_columns,
        COLUMN_SUMS=column_sums is not None, PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        ROUNDS=rounds, BM=bm, BN=bn, BP=bp, num_warps=4, num_stages=3,
    )  # fmt: skip


@triton.jit
def _gather(source, index, out, COUNT, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(index + i, mask=i < COUNT, other=0)
    tl.store(out + i, tl.load(source + place, mask=i < COUNT, other=0.0).to(out.dtype.element_ty), mask=i < COUNT)


def gather(source: Tensor, index: Tensor, *, out: Tensor) -> None:
    """out[i] = source[index[i]], in the precision of `out`."""
    _gather[(triton.cdiv(len(index), 1024),)](source, index, out, len(index), BLOCK=1024)
