"""The CUDA convolution against plain torch: compiled for the CPU, with the GPU's part in `emulation.h`."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from emulated import compile_emulated, distance, pointer

from hpunet.kernels.cuda_convolution import ConvVariant, halo_weights
from hpunet.kernels.cuda_kernels import SOURCE
from hpunet.kernels.cuda_tiling import FUSED, SHARED_BYTES, HaloTiling, candidates
from hpunet.kernels.layers import FUSED_WITH

RUN = """
extern "C" void run(int x, int y, int z, const bf16* in, const bf16* weight, const float* bias, bf16* out,
                    const bf16* gate, const bf16* residual, float* sums, int images, int height, int width,
                    int shared_bytes) {
    if (RESIDENT_BYTES + STAGES * STAGE_BYTES != shared_bytes) abort();
    run_grid(x, y, z, THREADS, [=] {
        convolve(in, weight, bias, out, gate, residual, sums, images, height, width);
    });
}
"""
CASES = [  # groups, images, height, width, in, out, taps, tiling
    (2, 2, 16, 16, 24, 16, 3, HaloTiling(16, 16, columns=16, slice=24)),
    (1, 2, 24, 12, 8, 16, 3, HaloTiling(16, 16, columns=16, slice=8, stages=3)),
    (1, 1, 16, 16, 48, 24, 3, HaloTiling(16, 8, columns=24, slice=16, warpgroups=2, stages=3)),
    (2, 1, 8, 8, 40, 48, 3, HaloTiling(8, 8, columns=24, slice=40, resident=False)),
    (1, 2, 8, 8, 48, 32, 3, HaloTiling(8, 8, columns=16, slice=24, stages=3, resident=False)),
    (2, 2, 16, 32, 24, 16, 3, HaloTiling(16, 32, columns=16, slice=24, px=2)),
    (1, 1, 16, 40, 16, 16, 3, HaloTiling(16, 32, columns=16, slice=16, px=4, warpgroups=2)),
    (1, 2, 8, 64, 8, 24, 3, HaloTiling(8, 64, columns=24, slice=8, px=4)),
    (1, 1, 16, 24, 72, 24, 3, HaloTiling(16, 16, columns=24, slice=24, px=2, stages=3)),
    (2, 11, 4, 4, 40, 24, 3, HaloTiling(4, 4, columns=24, slice=40, images=8)),
    (1, 8, 2, 2, 32, 16, 3, HaloTiling(2, 2, columns=8, slice=16, resident=False, stages=3, images=8)),
    (1, 3, 2, 4, 16, 16, 3, HaloTiling(2, 4, columns=16, slice=16, images=8)),
    (1, 1, 16, 16, 24, 32, 1, HaloTiling(16, 16, columns=32, slice=24)),
    (1, 2, 16, 16, 32, 16, 1, HaloTiling(16, 8, columns=16, slice=16, stages=4, resident=False)),
]


def plain(x: Tensor, weight: Tensor) -> Tensor:
    maps = [F.conv2d(g.permute(0, 3, 1, 2), w, padding=w.shape[-1] // 2) for g, w in zip(x, weight, strict=True)]
    return torch.stack(maps).permute(0, 1, 3, 4, 2)


@pytest.mark.parametrize(("groups", "images", "height", "width", "channels", "out", "taps", "tiling"), CASES)
def test_convolution_equals_conv2d(
    tmp_path: Path, groups: int, images: int, height: int, width: int, channels: int, out: int,
    taps: int, tiling: HaloTiling,
) -> None:  # fmt: skip
    torch.manual_seed(1)
    x, gate, residual = (torch.randn(groups, images, height, width, c).bfloat16() for c in (channels, out, out))
    weight, bias = torch.randn(groups, out, channels, taps, taps).bfloat16(), torch.randn(groups, out)
    index = torch.arange(weight[0].numel()).view(weight[0].shape)
    order = halo_weights(index, tiling, padding=-1)
    packed = torch.stack([torch.where(order < 0, 0, w.flatten()[order]) for w in weight]).contiguous()
    shared = tiling.shared_bytes(channels, taps=taps)
    assert shared <= SHARED_BYTES

    def run(**how: bool) -> tuple[Tensor, Tensor]:
        fused = tuple(name for name in FUSED if name.lower() in how)
        constants = ConvVariant(tiling, channels, out, taps, fused).constants()
        text = f'{constants}#include "{SOURCE / "tiles.cuh"}"\n#include "{SOURCE / "convolution.cu"}"\n{RUN}'
        kernel = compile_emulated(text, tmp_path, name="-".join(how), late_copies="gate" in how).run
        around = torch.full((gate.numel() + 256,), -7.0).bfloat16()  # what lies before and after must stay
        result = around[128:-128].fill_(torch.nan).view(gate.shape)
        sums = torch.zeros(groups, out)
        maps = {"bias": bias, "gate": gate, "residual": residual, "sums": sums}
        given = {name: pointer(value if name in how else None) for name, value in maps.items()}
        kernel(
            2, out // tiling.columns, groups, pointer(x), pointer(packed), given["bias"], pointer(result),
            given["gate"], given["residual"], given["sums"], images, height, width, shared,
        )  # fmt: skip
        assert torch.cat([around[:128], around[-128:]]).eq(-7).all()
        return result, sums

    got, _ = run(bias=True, relu_in=True, relu_out=True)
    expected = (plain(x.double().relu(), weight.double()) + bias.double()[:, None, None, None]).relu()
    assert torch.equal(got, expected.bfloat16()) or distance(got, expected) < 2e-3
    got, sums = run(gate=True, residual=True, sums=True)
    expected = plain(x.double(), weight.double()) * (gate > 0) + residual
    assert distance(got, expected) < 2e-3
    assert distance(sums, expected.sum(dim=(1, 2, 3))) < 1e-5


@pytest.mark.parametrize(
    ("side", "channels", "out"),
    [(128, 8, 16), (64, 144, 24), (16, 96, 392), (8, 392, 96), (4, 192, 96), (2, 96, 192)],
)
@pytest.mark.parametrize("fused", FUSED_WITH.values())
def test_candidates_fit_into_a_program(side: int, channels: int, out: int, fused: tuple[str, ...]) -> None:
    found = candidates(side, side, channels, out, groups=2, images=32, fused=fused)
    assert found
    for tiling in found:
        assert tiling.shared_bytes(channels, taps=3) <= SHARED_BYTES
        assert (out % tiling.columns, channels % tiling.slice) == (0, 0)
        assert tiling.px * tiling.columns <= 256
        assert all(0 < distance < 2**14 for _, distance in tiling.places(3))


def test_tilings_of_few_pixels_take_several_images() -> None:
    # 3 lines of 5 positions and 4 of the last one are 19, three times 8; 9 images are two times 8.
    assert HaloTiling(4, 4, columns=8, slice=8, images=8).tiles(9, 4, 4) == 6
    assert HaloTiling(16, 8, columns=8, slice=8).tiles(9, 20, 20) == 9 * 2 * 3
