from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from hpunet.kernels import tile_sizes
from hpunet.kernels.tile_sizes import convolution_tiling, correlation_tiling

BF16: dict[str, Any] = {"taps": 3, "dtype": torch.bfloat16, "device": torch.device("cpu")}
LARGE = (64, 64, 48, 32)  # convolution: 128 patches × 128 columns, 128 sums per thread of four warps
SMALL = (4, 4, 96, 96)  # 32 × 32
WIDE = (16, 16, 96, 96)  # weight gradient: three rows of taps × 64 × 64


def test_measured_gpus_use_four_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_sizes, "capability", lambda _device: (9, 0))
    assert {convolution_tiling(*shape, **BF16).warps for shape in (LARGE, SMALL)} == {4}
    assert correlation_tiling(*WIDE, relu=False, **BF16).warps == 4


@pytest.mark.parametrize("found", [(8, 0), (8, 6), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_use_more_warps_for_large_tiles(found: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    measured = convolution_tiling(*LARGE, **BF16), correlation_tiling(*WIDE, relu=False, **BF16)
    small = convolution_tiling(*SMALL, **BF16)
    monkeypatch.setattr(tile_sizes, "capability", lambda _device: found)
    here = convolution_tiling(*LARGE, **BF16), correlation_tiling(*WIDE, relu=False, **BF16)
    assert (measured[0].patches, measured[0].columns) == (128, 128)
    assert here == tuple(replace(tiling, warps=8) for tiling in measured)
    assert convolution_tiling(*SMALL, **BF16) == small
