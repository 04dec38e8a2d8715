"""Tile sizes of the convolution kernels by shape and GPU; small in float32.

They were measured on an H200 (docs/lab/speed.md). Other GPUs use the same with more threads for large tiles: not
measured, but they fit shared memory and hardly spill registers (`tests/kernels/compiled.py`). `benchmarks/tiles.py`
measures neighbours of the tiles in use.
"""

from dataclasses import replace
from typing import TypeVar

import torch

from hpunet.kernels.triton_convolution import ConvTiling, CorrelationTiling

PATCHES = ((2, 4), (2, 2), (1, 2), (1, 1))
MAX_COLUMNS = 128
MEASURED = (9, 0)
"""Compute capability where tiles were measured. Only its tensor cores read operands that are not in registers."""
FEW_SUMS = 48  # per thread; tiles with more than that get twice the threads

TilingT = TypeVar("TilingT", ConvTiling, CorrelationTiling)


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability to choose tiles for."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else MEASURED


def _spread(tiling: TilingT, *, sums: int, device: torch.device) -> TilingT:
    """The tiling with enough threads for the sums that a program keeps in registers."""
    if capability(device) == MEASURED or sums <= 32 * tiling.warps * FEW_SUMS:
        return tiling
    return replace(tiling, warps=8)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def convolution_tiling(
    height: int, width: int, channels: int, out: int, *, taps: int, dtype: torch.dtype, device: torch.device
) -> ConvTiling:
    """For `convolve`: the largest patch whose outputs fill at most 128 columns."""
    if dtype == torch.float32:
        return ConvTiling(py=1, px=1, patches=32, columns=32, chunk=16, stages=2)
    pixels = height * width
    py, px = 1, 1
    if taps == 3 and pixels >= 32 * 32:
        py, px = next(
            (y, x)
            for y, x in PATCHES
            if (y * x * out <= MAX_COLUMNS or y * x == 1)
            and (height % y, width % x) == (0, 0)
            and (y == 1 or pixels >= 64 * 64)
            and (x < 4 or channels == 24 or channels >= 64)
        )
        if out % 64 == 0 and (channels < 64 or out > MAX_COLUMNS):
            py = px = 1
        elif out > MAX_COLUMNS and channels <= 64 and width % 2 == 0:
            px = 2
    run = (px + taps - 1) * channels
    largest = 32 if channels <= 16 else 64
    fits = [c for c in (largest, 32) if run % c == 0] or [c for c in (largest, 32) if -(-run // c) * c <= 1.15 * run]
    chunk = fits[0] if fits else 16
    most = 32 if pixels <= 16 else 64 if pixels <= 64 else 128 if px * out > 256 or out % 128 == 0 else 256
    columns = max(16, min(_power_of_2(py * px * out), most))
    if pixels > 256 and out == 192:
        columns = 64
    patches = 32 if pixels <= 16 else 64 if pixels <= 256 or px * out > 256 or channels >= 384 else 128
    stages = (4 if chunk == 64 else 6) if pixels <= 64 else 3 if chunk == 64 else 4
    return _spread(ConvTiling(py, px, patches, columns, chunk, stages=stages), sums=patches * columns, device=device)


def correlation_tiling(
    height: int,
    width: int,
    rows: int,
    columns: int,
    *,
    taps: int,
    relu: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> CorrelationTiling:
    """For `correlate`; `relu` says whether one operand passes through a ReLU."""
    if dtype == torch.float32:
        return CorrelationTiling(py=1, px=1, rows=32, columns=32, patches=16, programs=1024, together=False, stages=2)
    pixels = height * width
    if taps == 1:
        bm, bn = 16 if rows <= 16 else 64, max(16, min(_power_of_2(columns), 128 if pixels >= 64 * 64 else 64))
        patches = 256 if bm == 16 else 128 if bn <= 64 and pixels >= 64 * 64 else 64
        tiling = CorrelationTiling(1, 1, bm, bn, patches, programs=528 if bm == 16 else 264)
        return _spread(tiling, sums=bm * bn, device=device)
    py = px = 1
    if pixels >= 32 * 32:
        px = 2 if width % 2 == 0 and rows < 64 else 1
        py = 2 if rows <= 16 and pixels == 128 * 128 and height % 2 == 0 else 1
    bm = max(16, min(_power_of_2((px + 2) * rows), 64))
    wide = rows in (32, 64, 128) and pixels >= 16 * 16 and px * columns % 128 == 0
    bn = max(16, min(_power_of_2(px * columns), 128 if wide else 64))
    patches = 32 if (py == 2 and bn == 64) or (wide and relu) else 64
    return _spread(CorrelationTiling(py, px, bm, bn, patches, programs=264), sums=3 * bm * bn, device=device)
