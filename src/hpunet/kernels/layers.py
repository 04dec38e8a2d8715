"""Layers of convolutions as the kernels run them, and where their weights lie in the flat parameter buffer.

A layer holds convolutions by name, one of each per group. Index maps say where weights lie: positions in the flat
buffer, or `PADDING`, in the shape of the weight.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.cuda_convolution import HaloWeights, convolve_halo
from hpunet.kernels.cuda_gradient_tiling import gradient_candidates, is_faster_than_triton
from hpunet.kernels.cuda_kernels import can_use_cuda_kernels
from hpunet.kernels.cuda_tiling import HaloTiling, candidates
from hpunet.kernels.cuda_weight_gradient import correlate_halo
from hpunet.kernels.tile_sizes import correlation_tiling
from hpunet.kernels.triton_convolution import ConvTiling, GradientView, WeightView, convolve, correlate
from hpunet.models.blocks import ResidualBlock

PADDING = -1  # in index maps: an element that is zero, not a parameter

FUSED_WITH = {  # by the name of a 3×3 convolution, what the CUDA convolution has registers for
    "first": ("BIAS", "RELU_IN", "RELU_OUT"),
    "second": ("BIAS", "RELU_OUT"),
    "third": ("BIAS", "RESIDUAL"),
    "first_back": ("GATE", "RESIDUAL", "SUMS"),
    "second_back": ("GATE", "SUMS"),
    "third_back": ("GATE", "SUMS"),
    "conv": ("BIAS", "RELU_OUT"),
    "conv_back": ("GATE", "SUMS"),
}

IndexMaps = dict[object, Tensor]  # for each parameter and each folded product


def padded(channels: int) -> int:
    """Channels of a map: rounded up to a multiple of 8."""
    return -(-channels // 8) * 8


class ConvIndices(NamedTuple):
    """Index maps of one convolution per group: kernels (out, in, taps, taps), biases, gradients of kernels."""

    name: str
    kernels: list[Tensor]
    biases: list[Tensor]
    gradients: list[Tensor] | None = None  # only if they are not laid out as the kernels are


class FusedLayer:
    """Convolutions by name, for maps of one size, and views of their weights, biases (groups, out) and gradients.

    The name of a convolution plus "_back" is the convolution that computes the gradient of its input.
    """

    has_skip = False
    widths: tuple[int, ...]  # channels of the maps

    def __init__(self, height: int, width: int, num_groups: int) -> None:
        self.height, self.width, self.num_groups = height, width, num_groups
        self.weights: dict[str, WeightView | HaloWeights] = {}
        self.biases: dict[str, Tensor] = {}
        self.tilings: dict[str, ConvTiling | HaloTiling] = {}
        self.weight_gradients: dict[str, GradientView] = {}
        self.bias_gradients: dict[str, Tensor] = {}
        self.mirrored: dict[str, bool] = {}  # whether the weight gradient exchanges input and output, for narrow rows
        self.taps = 3 if height * width > 1 else 1  # on maps of one pixel, a 3×3 convolution uses only its centre

    def unfolded_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that are used as they are, not multiplied with others."""
        raise NotImplementedError

    def convolutions(self, maps: IndexMaps) -> Iterator[ConvIndices]:
        """The index maps of all convolutions."""
        raise NotImplementedError

    def effective_taps(self, kernels: Iterable[Tensor]) -> list[Tensor]:
        """3×3 kernels without the taps that only see zero padding."""
        return [kernel if self.taps == 3 else kernel[..., 1:2, 1:2] for kernel in kernels]

    def convolve(self, name: str, x: Tensor, **fused: Any) -> Tensor:
        """A convolution with its bias; `fused` as in `triton_convolution.convolve`."""
        taps = 1 if name.startswith("skip") else self.taps
        return self._convolve(name, x, taps=taps, bias=self.biases[name], **fused)

    def input_gradient(self, name: str, g: Tensor, **fused: Any) -> Tensor:
        """The gradient of a convolution's input from that of its output."""
        return self._convolve(f"{name}_back", g, taps=1 if name == "skip" else self.taps, **fused)

    def _convolve(self, name: str, x: Tensor, *, taps: int, **fused: Any) -> Tensor:
        weight, tiling = self.weights[name], self.tilings[name]
        if isinstance(weight, HaloWeights):
            assert isinstance(tiling, HaloTiling)
            return convolve_halo(x, weight=weight, tiling=tiling, **fused)
        assert isinstance(tiling, ConvTiling)
        return convolve(x, weight=weight, tiling=tiling, taps=taps, **fused)

    def halo_tilings(self, name: str, channels: int, out: int, *, taps: int, images: int) -> list[HaloTiling]:
        """Tile sizes for the CUDA convolution, the fastest first; none where Triton's is to be used."""
        if taps == 1 or name not in FUSED_WITH:
            return []
        how: dict[str, Any] = {"groups": self.num_groups, "images": images, "fused": FUSED_WITH[name]}
        return candidates(self.height, self.width, channels, out, **how)

    def add_weight_gradient(self, name: str, x: Tensor, g: Tensor, *, relu: bool = False) -> None:
        """Accumulate the weight gradient of a convolution of x, or of relu(x)."""
        mirrored, taps = self.mirrored[name], 1 if name == "skip" else self.taps
        rows, columns = (g, x) if mirrored else (x, g)
        size = self.height, self.width, rows.shape[4], columns.shape[4]
        relus = {"relu_rows": relu and not mirrored, "relu_columns": relu and mirrored}
        out = self.weight_gradients[name]
        if taps == 3 and is_faster_than_triton(*size) and can_use_cuda_kernels(x.device, x.dtype):
            halo_tiling = gradient_candidates(*size, groups=x.shape[0], images=x.shape[1])[0]
            correlate_halo(rows, columns, out=out, tiling=halo_tiling, **relus)
            return
        tiling = correlation_tiling(*size, taps=taps, relu=relu, dtype=x.dtype, device=x.device)
        correlate(rows, columns, out=out, taps=taps, tiling=tiling, **relus)


class ResidualLayer(FusedLayer):
    """Residual blocks: convolutions `first`, `second`, `third` (folded with the projection), and `skip` if any.

    `inputs` gives, per block, the input channel of each channel of the map (`channel_order`).
    """

    def __init__(self, blocks: Sequence[ResidualBlock], height: int, width: int, inputs: list[Tensor]) -> None:
        super().__init__(height, width, len(blocks))
        self.blocks, self.inputs = blocks, inputs
        project = blocks[0].project
        self.half: int = project.in_channels
        self.out_channels: int = project.out_channels
        self.widths = len(inputs[0]), padded(self.half), padded(self.out_channels)
        self.has_skip = blocks[0].skip is not None
        first, half, out = self.widths
        self.mirrored = {"first": half <= first, "second": True, "third": False, "skip": out <= first}

    def unfolded_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the first two convolutions and the skip."""
        for block in self.blocks:
            for conv in (*block.convs[:2], block.skip):
                if conv is not None:
                    yield from (conv.weight, conv.bias)

    def convolutions(self, maps: IndexMaps) -> Iterator[ConvIndices]:
        """The index maps of all convolutions."""
        _, half, out = self.widths
        inner = [channel_order((0, self.half))] * len(self.blocks)
        for i, (name, inputs) in enumerate((("first", self.inputs), ("second", inner))):
            convs = [block.convs[i] for block in self.blocks]
            kernels = [select_channels(maps[c.weight], half, order) for c, order in zip(convs, inputs, strict=True)]
            yield ConvIndices(name, self.effective_taps(kernels), [maps[conv.bias] for conv in convs])
        third, gradients = (
            self.effective_taps(select_channels(maps[block, name], out, inner[0]) for block in self.blocks)
            for name in ("product", "product_gradient")
        )
        yield ConvIndices("third", third, [maps[block, "product_bias"] for block in self.blocks], gradients)
        if self.has_skip:
            skips = [block.skip for block in self.blocks if block.skip is not None]
            kernels = [select_channels(maps[s.weight], out, i) for s, i in zip(skips, self.inputs, strict=True)]
            yield ConvIndices("skip", kernels, [maps[skip.bias] for skip in skips])


class ConvLayer(FusedLayer):
    """One convolution per group, named `conv`; `inputs` as in `ResidualLayer`."""

    def __init__(self, convs: Sequence[nn.Conv2d], height: int, width: int, inputs: list[Tensor]) -> None:
        super().__init__(height, width, len(convs))
        self.convs, self.inputs = convs, inputs
        self.out_channels: int = convs[0].out_channels
        self.widths = len(inputs[0]), padded(self.out_channels)
        self.taps = self.taps if convs[0].kernel_size == (3, 3) else 1
        self.mirrored = {"conv": self.widths[1] <= self.widths[0]}

    def unfolded_parameters(self) -> Iterator[nn.Parameter]:
        """All of them."""
        for conv in self.convs:
            yield from (conv.weight, conv.bias)  # type: ignore[misc]

    def convolutions(self, maps: IndexMaps) -> Iterator[ConvIndices]:
        """The index maps of the convolution."""
        pairs = zip(self.convs, self.inputs, strict=True)
        kernels = [select_channels(maps[c.weight], self.widths[1], order) for c, order in pairs]
        kernels = self.effective_taps(kernels) if self.convs[0].kernel_size == (3, 3) else kernels
        yield ConvIndices("conv", kernels, [maps[conv.bias] for conv in self.convs])


def channel_order(*parts: tuple[int, int], width: int = 0) -> Int[Tensor, " c"]:
    """The input channel of each channel of a map, from (first, count) of parts, each padded to 8s."""
    order = torch.cat([torch.cat([torch.arange(a, a + n), torch.full((-n % 8,), PADDING)]) for a, n in parts])
    return F.pad(order, (0, max(0, width - len(order))), value=PADDING)


def select_channels(indices: Int[Tensor, "o i y x"], out: int, inputs: Int[Tensor, " c"]) -> Int[Tensor, "o2 c y x"]:
    """The index map with these input channels, and its outputs padded to `out`."""
    inputs = inputs.to(indices.device)
    chosen = torch.where((inputs >= 0).view(1, -1, 1, 1), indices[:, inputs.clamp(min=0)], PADDING)
    return F.pad(chosen, (0, 0, 0, 0, 0, 0, 0, out - indices.shape[0]), value=PADDING)
