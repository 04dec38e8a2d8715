"""The CUDA weight gradient against plain torch: compiled for the CPU, with the GPU's part in `emulation.h`."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from emulated import compile_emulated, distance, pointer

from hpunet.kernels.cuda_gradient_tiling import GradientTiling, gradient_candidates
from hpunet.kernels.cuda_kernels import SOURCE
from hpunet.kernels.cuda_tiling import SHARED_BYTES
from hpunet.kernels.cuda_weight_gradient import GradientVariant

RUN = """
extern "C" void run(int x, int y, int z, const bf16* a, const bf16* b, float* out, int images, int height, int width,
                    int out_group, int out_tap, int out_a, int out_b, int shared_bytes) {
    if ((STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES) != shared_bytes) abort();
    run_grid(x, y, z, THREADS, [=] {
        weight_gradient(a, b, out, images, height, width, out_group, out_tap, out_a, out_b);
    });
}
"""
CASES = [  # groups, images, height, width, rows, columns, programs, tiling
    (2, 2, 16, 16, 16, 24, 2, GradientTiling(16, 24, rows=4, tile_y=8, tile_x=16)),
    (1, 2, 9, 15, 24, 16, 2, GradientTiling(24, 16, rows=2, tile_y=4, tile_x=16, stages=3)),
    (2, 1, 8, 20, 48, 24, 1, GradientTiling(48, 24, rows=1, tile_y=4, tile_x=8, stages=5)),
    (1, 2, 8, 8, 72, 40, 1, GradientTiling(40, 24, rows=1, tile_y=8, tile_x=8, warpgroups=1)),
    (1, 1, 16, 32, 8, 16, 1, GradientTiling(8, 16, rows=8, tile_y=8, tile_x=32)),
    (2, 11, 4, 4, 24, 40, 2, GradientTiling(40, 24, rows=1, tile_y=2, tile_x=4, swapped=True, images=8)),
    (1, 9, 5, 3, 16, 8, 1, GradientTiling(16, 8, rows=4, tile_y=4, tile_x=4, images=8, stages=3)),
    (1, 3, 16, 16, 64, 16, 2, GradientTiling(16, 64, rows=2, tile_y=4, tile_x=16, swapped=True, stages=3)),
]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("groups", "images", "height", "width", "rows", "columns", "programs", "tiling"), CASES)
def test_weight_gradient_equals_that_of_conv2d(
    tmp_path: Path, groups: int, images: int, height: int, width: int, rows: int, columns: int, programs: int,
    tiling: GradientTiling, late: bool,
) -> None:  # fmt: skip
    torch.manual_seed(1)
    x, g = (torch.randn(groups, images, height, width, c).bfloat16() for c in (rows, columns))
    relus = (late, not late)
    variant = GradientVariant(tiling, rows, columns, *relus)
    assert tiling.fits()
    text = (
        f'{variant.constants()}#include "{SOURCE / "tiles.cuh"}"\n#include "{SOURCE / "weight_gradient.cu"}"\n{RUN}'
    )
    run = compile_emulated(text, tmp_path, late_copies=late).run
    a, b = (g, x) if tiling.swapped else (x, g)
    start = torch.randn(groups, 9, rows, columns)
    contiguous = (9 * rows * columns, rows * columns, columns, 1)
    transposed = (9 * rows * columns, rows * columns, 1, rows)
    expected = start + gradient(*(t.double().relu() if r else t.double() for t, r in zip((x, g), relus, strict=True)))
    for strides in (contiguous, transposed):
        around = torch.full((start.numel() + 64,), -7.0)
        out = around[32:-32].as_strided(start.shape, strides, 32).copy_(start)
        along = strides[3:1:-1] if tiling.swapped else strides[2:]
        blocks = tiling.blocks(a.shape[4], b.shape[4])
        run(
            programs, blocks, groups, pointer(a), pointer(b), pointer(out), images, height, width, *strides[:2],
            *along, tiling.shared_bytes,
        )  # fmt: skip
        assert distance(out, expected) < 1e-5
        assert torch.cat([around[:32], around[-32:]]).eq(-7).all()


def gradient(x: Tensor, g: Tensor) -> Tensor:
    """(groups, tap, rows, columns), by a loop over taps."""
    _, _, height, width, _ = x.shape
    around = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    taps = [around[:, :, dy : dy + height, dx : dx + width] for dy in range(3) for dx in range(3)]
    return torch.stack([torch.einsum("gbyxr,gbyxc->grc", tap, g) for tap in taps], dim=1)


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(128, 128, 16, 24), (128, 128, 8, 16), (64, 64, 16, 392), (9, 300, 72, 16), (8, 8, 392, 96), (2, 2, 96, 192)],
)
def test_candidates_fit_into_a_program(height: int, width: int, rows: int, columns: int) -> None:
    found = gradient_candidates(height, width, rows, columns, groups=2, images=32)
    assert found
    for tiling in found:
        assert tiling.fits()
        assert tiling.shared_bytes <= SHARED_BYTES
        assert tiling.at_once * tiling.warpgroups <= 16
