"""The kernels compiled for an H100 or H200 without one, as they would be launched: the interpreter allows more.

Run by `test_kernels.py` in a process of its own: python tests/kernels/compiled.py
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpunet.kernels import convolution

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
BATCH = 32
SHAPES = [(128, 8, 16), (128, 16, 24), (16, 384, 96), (8, 392, 96), (1, 96, 192)]  # height, in, out: LIDC's extremes


class Recorder:
    """Takes a kernel's place and compiles what it would launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.compiled = kernel, []

    def __getitem__(self, _grid: object) -> Any:
        return self.launch

    def launch(self, *args: Any, **options: Any) -> None:
        how = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
        names = self.kernel.arg_names
        given = dict(zip(names, args, strict=False))
        signature = {name: "constexpr" if name in options else kind(given[name]) for name in names}
        source = ASTSource(
            fn=self.kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in options.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*"},
        )
        self.compiled.append(triton.compile(source, target=HOPPER, options=how))


def kind(value: Any) -> str:
    return TYPES[value.dtype] if isinstance(value, Tensor) else "i32"


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def main() -> None:
    recorders = {name: Recorder(getattr(convolution, name)) for name in ("_convolve", "_correlate", "_gather")}
    for name, recorder in recorders.items():
        setattr(convolution, name, recorder)
    for height, channels, width in SHAPES:
        x, y = empty(BATCH, height, height, channels), empty(BATCH, height, height, width)
        weight, bias = empty(3, convolution.row_length(channels), width), empty(width, dtype=torch.float32)
        convolution.convolve(x, weight=weight, bias=bias, relu_input=True, relu_output=True)
        skip = (x, empty(channels, width))
        convolution.convolve(x, weight=weight, gate=y, residual=y, skip=skip, sums=bias)
        out = empty(3, 3 * channels, width, dtype=torch.float32)
        convolution.correlate(x, y, out=out, relu_rows=True, column_sums=bias)
    convolution.gather(empty(9, dtype=torch.float32), empty(9, dtype=torch.int32), out=empty(9))
    for recorder in recorders.values():
        assert recorder.compiled
    for kernel in recorders["_convolve"].compiled:
        assert "mma" in kernel.asm["ptx"]  # on tensor cores
        assert "cp.async" in kernel.asm["ptx"]  # loads overlap with them
    print("the kernels compile")


if __name__ == "__main__":
    main()
