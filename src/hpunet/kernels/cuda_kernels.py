"""What kernels in CUDA C++ share: which GPUs run them, compilation in parallel for a whole pass, and products."""

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hpunet.kernels.launch import compiling_executor
from hpunet.kernels.nvrtc import Kernel, compile_source, is_available

SOURCE = Path(__file__).parent / "cuda"
ARCHITECTURE = "sm_90a"


@runtime_checkable
class Variant(Hashable, Protocol):
    """What a kernel is compiled for; compares by value."""

    @property
    def name(self) -> str:
        """Of the function."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program."""
        ...

    @property
    def threads(self) -> int:
        """Threads of a program."""
        ...

    def source(self) -> str:
        """CUDA C++."""
        ...


class LoadedKernel:
    """A variant's kernel on the current device."""

    def __init__(self, variant: Variant, code: bytes) -> None:
        self._kernel = Kernel(code, name=variant.name, shared_bytes=variant.shared_bytes)
        self._threads = variant.threads
        self.max_programs = self._kernel.max_programs(variant.threads)  # that run at once

    def __call__(self, grid: Sequence[int], *arguments: Tensor | int | None, early: bool = True) -> None:
        """Run on a grid of programs; `early` lets them start before earlier kernels are done."""
        self._kernel(grid, self._threads, *arguments, early=early)


def can_use_cuda_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run on this device; where they do not, Triton's take their place."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0) and is_available(ARCHITECTURE)


_codes: dict[Variant, Future[bytes]] = {}


def kernel_of(variant: Variant) -> LoadedKernel | None:
    """The kernel for the current device; None within `compiling_ahead`, where it is compiled and not run."""
    if (executor := compiling_executor()) is None:
        return _load(variant, torch.cuda.current_device())
    if variant not in _codes:
        _codes[variant] = executor.submit(_compile, variant)
    return None


@cache
def _load(variant: Variant, _device: int) -> LoadedKernel:
    return LoadedKernel(variant, _codes[variant].result() if variant in _codes else _compile(variant))


def _compile(variant: Variant) -> bytes:
    return compile_source(variant.source(), architecture=ARCHITECTURE)


def defines(values: Mapping[str, int]) -> str:
    """Constants as the lines before a kernel's source."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def product_function(columns: int, *, transposed: bool = False) -> str:
    """The source of total += a·b for 64×16 and 16×`columns` elements in shared memory; without `add`, total = a·b.

    Of transposed operands, elements of the same position in the sum are neighbours.
    """
    count = columns // 2
    totals = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(total[{i}])' for i in range(count))
    name, add, order = ("multiply_transposed", " = 1", "1, 1") if transposed else ("multiply", "", "0, 0")
    return f"""
__device__ inline void {name}(float (&total)[{count}], u64 a, u64 b, int add{add}) {{
    asm volatile("{{ .reg .pred add; setp.ne.b32 add, %{count + 2}, 0; "
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        "{{{totals}}}, %{count}, %{count + 1}, add, 1, 1, {order}; }}"
        : {outputs} : "l"(a), "l"(b), "r"(add));
}}
"""
