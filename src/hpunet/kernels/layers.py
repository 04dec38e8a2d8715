"""Layers of convolutions, as the kernels run them, and which numbers of the line of parameters their weights are.

A layer has one convolution of a name for each group: networks of the same shape that run side by side. Where weights
lie is said by places: numbers of the line, or `NOWHERE`, in the shape of the weight.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.triton_convolution import GradientView, KernelView, Tiling
from hpunet.models.blocks import ResidualBlock

NOWHERE = -1
"""In index maps: a number that is padding."""


def padded(channels: int) -> int:
    """Channels as the kernels have them: a multiple of 8."""
    return -(-channels // 8) * 8


Places = dict[object, Tensor]
"""For every parameter and product, in its own shape, where in the line its numbers are."""


class Convolution(NamedTuple):
    """A convolution of each group: kernels (out, in, taps, taps), biases and gradients of kernels, as places."""

    name: str
    kernels: list[Tensor]
    biases: list[Tensor]
    gradients: list[Tensor] | None = None
    """Where they are not laid out as the kernels are."""


class Convolutions:
    """Convolutions, by name, of networks that run side by side (one a group) on maps of a size: where weights are.

    With "_back", a name is that of the convolution that gives the gradient of the input. Biases are (groups, out).
    """

    has_skip = False

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.weights: dict[str, KernelView] = {}
        self.biases: dict[str, Tensor] = {}
        self.tilings: dict[str, Tiling] = {}
        self.weight_gradients: dict[str, GradientView] = {}
        self.bias_gradients: dict[str, Tensor] = {}
        self.mirrored: dict[str, bool] = {}
        """Whether the gradient of weights is taken with input and output exchanged: fewer channels in its rows."""
        self.taps = 3 if height * width > 1 else 1
        """Of one pixel a 3×3 convolution sees the centre alone."""

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """Those that are not folded."""
        raise NotImplementedError

    def convolutions(self, places: Places) -> Iterator[Convolution]:
        """All of them."""
        raise NotImplementedError

    def seen(self, kernels: Iterable[Tensor]) -> list[Tensor]:
        """The taps of 3×3 kernels that see something."""
        return [kernel if self.taps == 3 else kernel[..., 1:2, 1:2] for kernel in kernels]


class Layer(Convolutions):
    """Residual blocks: `first`, `second` and `third` (the folded one), and `skip` where the blocks have one.

    `inputs` says for each block which of its input channels each channel of the map is.
    """

    def __init__(
        self, blocks: Sequence[ResidualBlock], height: int, width: int, inputs: Sequence[Int[Tensor, " c"]]
    ) -> None:
        super().__init__(height, width)
        self.blocks, self.inputs = blocks, inputs
        project = blocks[0].project
        self.half: int = project.in_channels
        self.out_channels: int = project.out_channels
        self.widths = len(inputs[0]), padded(self.half), padded(self.out_channels)
        self.has_skip = blocks[0].skip is not None
        first, half, out = self.widths
        self.mirrored = {"first": half <= first, "second": True, "third": False, "skip": out <= first}

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """Those that are not folded."""
        for block in self.blocks:
            for conv in (*block.convs[:2], block.skip):
                if conv is not None:
                    yield from (conv.weight, conv.bias)

    def convolutions(self, places: Places) -> Iterator[Convolution]:
        """All of them."""
        _, half, out = self.widths
        inner = [channel_order((0, self.half))] * len(self.blocks)
        for i, (name, inputs) in enumerate((("first", self.inputs), ("second", inner))):
            convs = [block.convs[i] for block in self.blocks]
            kernels = [arranged(places[c.weight], half, order) for c, order in zip(convs, inputs, strict=True)]
            yield Convolution(name, self.seen(kernels), [places[conv.bias] for conv in convs])
        third, gradients = (
            self.seen(arranged(places[block, name], out, inner[0]) for block in self.blocks)
            for name in ("product", "product_gradient")
        )
        yield Convolution("third", third, [places[block, "product_bias"] for block in self.blocks], gradients)
        if self.has_skip:
            skips = [block.skip for block in self.blocks if block.skip is not None]
            kernels = [arranged(places[s.weight], out, i) for s, i in zip(skips, self.inputs, strict=True)]
            yield Convolution("skip", kernels, [places[skip.bias] for skip in skips])


class PlainLayer(Convolutions):
    """A convolution a group, called `conv`; `inputs` as in `Layer`."""

    def __init__(
        self, convs: Sequence[nn.Conv2d], height: int, width: int, inputs: Sequence[Int[Tensor, " c"]]
    ) -> None:
        super().__init__(height, width)
        self.convs, self.inputs = convs, inputs
        self.out_channels: int = convs[0].out_channels
        self.widths = len(inputs[0]), padded(self.out_channels)
        self.taps = self.taps if convs[0].kernel_size == (3, 3) else 1
        self.mirrored = {"conv": self.widths[1] <= self.widths[0]}

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """All of them."""
        for conv in self.convs:
            yield from (conv.weight, conv.bias)  # type: ignore[misc]

    def convolutions(self, places: Places) -> Iterator[Convolution]:
        """The one."""
        pairs = zip(self.convs, self.inputs, strict=True)
        kernels = [arranged(places[c.weight], self.widths[1], order) for c, order in pairs]
        kernels = self.seen(kernels) if self.convs[0].kernel_size == (3, 3) else kernels
        yield Convolution("conv", kernels, [places[conv.bias] for conv in self.convs])


def channel_order(*parts: tuple[int, int]) -> Int[Tensor, " c"]:
    """Which input channels a map's channels are, from (first, count) of its parts, each of them padded."""
    return torch.cat([torch.cat([torch.arange(a, a + n), torch.full((-n % 8,), NOWHERE)]) for a, n in parts])


def arranged(places: Int[Tensor, "o i y x"], out: int, inputs: Int[Tensor, " c"]) -> Int[Tensor, "o2 c y x"]:
    """With room for so many outputs, and with these inputs."""
    inputs = inputs.to(places.device)
    chosen = torch.where((inputs >= 0).view(1, -1, 1, 1), places[:, inputs.clamp(min=0)], NOWHERE)
    return F.pad(chosen, (0, 0, 0, 0, 0, 0, 0, out - places.shape[0]), value=NOWHERE)
