"""Weight gradients in CUDA C++ for compute capability 9.0, which read their maps once; see `cuda/weight_gradient.cu`.

They take the place of the Triton kernel of `triton_convolution.py` for 3×3 convolutions in bfloat16. The source is
also tested without a GPU (`tests/kernels/test_cuda_weight_gradient.py`).
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from hpunet.kernels.cuda_gradient_tiling import GradientTiling
from hpunet.kernels.cuda_kernels import SOURCE, defines, kernel_of, product_function
from hpunet.kernels.triton_convolution import GradientView


@dataclass(frozen=True)
class GradientVariant:
    """What a kernel is compiled for."""

    tiling: GradientTiling
    rows: int
    columns: int
    relu_rows: bool
    relu_columns: bool

    name = "weight_gradient"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program."""
        return self.tiling.shared_bytes

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return 128 * self.tiling.warpgroups

    def constants(self) -> str:
        """The lines before the kernel's source."""
        sides = (self.rows, self.relu_rows), (self.columns, self.relu_columns)
        (a, relu_a), (b, relu_b) = reversed(sides) if self.tiling.swapped else sides
        return defines({**self.tiling.constants(a, b), "RELU_A": int(relu_a), "RELU_B": int(relu_b)})

    def source(self) -> str:
        """CUDA C++."""
        hardware, tiles, kernel = (
            (SOURCE / name).read_text() for name in ("hopper.cuh", "tiles.cuh", "weight_gradient.cu")
        )
        return self.constants() + hardware + product_function(self.tiling.columns, transposed=True) + tiles + kernel


def correlate_halo(
    rows: Float[Tensor, "g b h w r"], columns: Float[Tensor, "g b h w c"], *, out: GradientView,
    tiling: GradientTiling, relu_rows: bool = False, relu_columns: bool = False,
) -> None:  # fmt: skip
    """As `triton_convolution.correlate` for 3×3 convolutions."""
    (groups, images, height, width, r), c = rows.shape, columns.shape[4]
    kernel = kernel_of(GradientVariant(tiling, r, c, relu_rows, relu_columns))
    if kernel is None:
        return
    a, b, out_a, out_b = (
        (columns, rows, out.column, out.row) if tiling.swapped else (rows, columns, out.row, out.column)
    )
    if out_b == 1 and (out_a % 2 or out.tap % 2 or out.group % 2 or out.data.data_ptr() % 8):
        raise ValueError("weight gradients must start at even numbers of elements")
    blocks, tiles = tiling.blocks(a.shape[4], b.shape[4]), tiling.tiles(images, height, width)
    rounds = -(-tiles // max(1, kernel.max_programs // (blocks * groups)))
    sizes, strides = (images, height, width), (out.group, out.tap, out_a, out_b)
    kernel((-(-tiles // rounds), blocks, groups), a, b, out.data, *sizes, *strides, early=False)
