"""Convolutions in CUDA C++ for compute capability 9.0, whose input is read once; see `cuda/convolution.cu`.

They take the place of the Triton kernel of `triton_convolution.py` for 3×3 convolutions in bfloat16. The source is
also tested without a GPU (`tests/kernels/test_cuda_convolution.py`).
"""

from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.kernels.cuda_tiling import FUSED, HaloTiling
from hpunet.kernels.launch import compiling_executor
from hpunet.kernels.nvrtc import Kernel, compile_source, is_available

SOURCE = Path(__file__).parent / "cuda"
ARCHITECTURE = "sm_90a"


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
class _Variant:
    """What a kernel is compiled for."""

    tiling: HaloTiling
    channels: int
    out: int
    taps: int
    fused: tuple[str, ...]

    def constants(self) -> str:
        """The lines before the kernel's source."""
        places = self.tiling.places(self.taps)
        values = {
            **self.tiling.constants(self.channels, self.out, taps=self.taps, fused=self.fused),
            "PRODUCTS": len(places),
        }
        lines = [f"#define {name} {value}" for name, value in values.items()]
        for name, numbers in zip(("STARTS", "DISTANCES"), zip(*places, strict=True), strict=True):
            lines.append(f"__device__ constexpr int {name}[] = {{{', '.join(map(str, numbers))}}};")
        return "\n".join(lines) + "\n"

    def source(self) -> str:
        """CUDA C++."""
        hardware, kernel = ((SOURCE / name).read_text() for name in ("hopper.cuh", "convolution.cu"))
        return self.constants() + hardware + _multiply(self.tiling.columns * self.tiling.px) + kernel

    def compile(self) -> bytes:
        """Machine code."""
        return compile_source(self.source(), architecture=ARCHITECTURE)


def _multiply(columns: int) -> str:
    """total += a·b for 64×16 and 16×`columns` elements in shared memory; without `add`, total = a·b."""
    count = columns // 2
    totals = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(total[{i}])' for i in range(count))
    return f"""
__device__ inline void multiply(float (&total)[{count}], u64 a, u64 b, int add) {{
    asm volatile("{{ .reg .pred add; setp.ne.b32 add, %{count + 2}, 0; "
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        "{{{totals}}}, %{count}, %{count + 1}, add, 1, 1, 0, 0; }}"
        : {outputs} : "l"(a), "l"(b), "r"(add));
}}
"""


def can_convolve_halo(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel runs on this device; where it does not, the Triton kernel takes its place."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0) and is_available(ARCHITECTURE)


_codes: dict[_Variant, Future[bytes]] = {}


@cache
def _kernel(variant: _Variant, _device: int) -> tuple[Kernel, int]:
    """The kernel for the current device, and how many of its programs run at once."""
    code = _codes[variant].result() if variant in _codes else variant.compile()
    tiling = variant.tiling
    kernel = Kernel(code, name="convolve", shared_bytes=tiling.shared_bytes(variant.channels, taps=variant.taps))
    return kernel, kernel.max_programs(128 * tiling.warpgroups)


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
    variant = _Variant(tiling, channels, weight.out, weight.taps, fused)
    if (executor := compiling_executor()) is not None:
        if variant not in _codes:
            _codes[variant] = executor.submit(variant.compile)
        return out
    kernel, at_once = _kernel(variant, torch.cuda.current_device())
    blocks, tiles = weight.out // tiling.columns, tiling.tiles(images, height, width)
    rounds = -(-tiles // max(1, at_once // (blocks * groups)))
    kernel(
        (-(-tiles // rounds), blocks, groups), 128 * tiling.warpgroups,
        x, weight.data, bias, out, gate, residual, sums, images, height, width,
    )  # fmt: skip
    return out
