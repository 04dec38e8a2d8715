"""Convolutions in CUDA C++ for compute capability 9.0, whose input is read once; see `cuda/convolution.cu`.

They take the place of the Triton kernel of `triton_convolution.py` for 3×3 convolutions in bfloat16. The source is
also tested without a GPU (`tests/kernels/test_cuda_convolution.py`).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.cuda_kernels import SOURCE, defines, kernel_of, product_function
from hpunet.kernels.cuda_tiling import FUSED, HaloTiling


@dataclass(frozen=True)
class HaloWeights:
    """Weights as the kernel reads them: (groups, column blocks, slices, products, half, column, 8 channels)."""

    data: Tensor
    out: int
    taps: int


def halo_weights(kernel: Int[Tensor, "o i t t"], tiling: HaloTiling, *, padding: int) -> Int[Tensor, "n s h c e"]:
    """The layout of packed weights, from the index map of a kernel."""
    out, channels, taps, _ = kernel.shape
    wide, px, planes = tiling.columns, tiling.px, tiling.slice // 8
    split = kernel.permute(2, 3, 1, 0).reshape(taps, taps, channels // tiling.slice, planes, 8, out // wide, wide)
    split = split.permute(0, 1, 3, 5, 2, 6, 4)  # row, column of the tap, plane, block, slice, output, 8 channels
    parts = []
    for half in (half for pair in tiling.products(taps) for half in pair):
        columns = split.new_full((out // wide, channels // tiling.slice, px, wide, 8), padding)
        if half is not None:
            y, x, plane = half
            for pixel in range(max(0, x - taps + 1), min(px, x + 1)):
                columns[:, :, pixel] = split[y, x - pixel, plane]
        parts.append(columns.flatten(2, 3))
    # A thread gets the columns 2q, 2q + 1, 2q + 8 and 2q + 9 of 16 from a product: they are neighbouring channels.
    order = torch.arange(px * wide, device=kernel.device)
    whole = order[: len(order) // 16 * 16].view(-1, 4, 2, 2).transpose(1, 2).flatten()
    order = torch.cat([whole, order[len(whole) :]])
    return torch.stack(parts, dim=2)[:, :, :, order]


@dataclass(frozen=True)
class ConvVariant:
    """What a kernel is compiled for."""

    tiling: HaloTiling
    channels: int
    out: int
    taps: int
    fused: tuple[str, ...]

    name = "convolve"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program."""
        return self.tiling.shared_bytes(self.channels, taps=self.taps)

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return 128 * self.tiling.warpgroups

    def constants(self) -> str:
        """The lines before the kernel's source."""
        places = self.tiling.places(self.taps)
        constants = self.tiling.constants(self.channels, self.out, taps=self.taps, fused=self.fused)
        text = defines({**constants, "PRODUCTS": len(places)})
        for name, numbers in zip(("STARTS", "DISTANCES"), zip(*places, strict=True), strict=True):
            text += f"__device__ constexpr int {name}[] = {{{', '.join(map(str, numbers))}}};\n"
        return text

    def source(self) -> str:
        """CUDA C++."""
        hardware, tiles, kernel = (
            (SOURCE / name).read_text() for name in ("hopper.cuh", "tiles.cuh", "convolution.cu")
        )
        return self.constants() + hardware + product_function(self.tiling.columns * self.tiling.px) + tiles + kernel


def convolve_halo(
    x: Float[Tensor, "g b h w i"], *, weight: HaloWeights, tiling: HaloTiling,
    bias: Float[Tensor, "g o"] | None = None, relu_input: bool = False, relu_output: bool = False,
    gate: Float[Tensor, "g b h w o"] | None = None, residual: Float[Tensor, "g b h w o"] | None = None,
    sums: Float[Tensor, "g o"] | None = None,
) -> Float[Tensor, "g b h w o"]:  # fmt: skip
    """As `triton_convolution.convolve`."""
    groups, images, height, width, channels = x.shape
    out = torch.empty(groups, images, height, width, weight.out, device=x.device, dtype=x.dtype)
    uses = bias is not None, relu_input, relu_output, gate is not None, residual is not None, sums is not None
    fused = tuple(name for name, used in zip(FUSED, uses, strict=True) if used)
    kernel = kernel_of(ConvVariant(tiling, channels, weight.out, weight.taps, fused))
    if kernel is None:
        return out
    blocks, tiles = weight.out // tiling.columns, tiling.tiles(images, height, width)
    rounds = -(-tiles // max(1, kernel.max_programs // (blocks * groups)))
    kernel(
        (-(-tiles // rounds), blocks, groups), x, weight.data, bias, out, gate, residual, sums, images, height, width
    )
    return out
