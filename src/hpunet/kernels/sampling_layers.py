"""The first block of a decoder scale, of which sampling computes the encoder's share once per image."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from hpunet.kernels.layers import (
    ConvIndices,
    FusedLayer,
    IndexMaps,
    ResidualLayer,
    channel_order,
    padded,
    select_channels,
)
from hpunet.kernels.triton_sampling import add_shared
from hpunet.models.blocks import ResidualBlock


class BelowLayer(FusedLayer):
    """What [features from below, latents] add to the first block of a decoder scale, from maps of half the size.

    A 3×3 convolution of a map that is upsampled by 2 sees 2×2 pixels of the small one, which ones depends on the
    position of the pixel in its square. So `first` is a 3×3 convolution of the small map with four outputs, for the
    four pixels; its weights are sums (`phases`). `skip` is the block's, before upsampling.
    """

    def __init__(self, block: ResidualBlock, height: int, width: int, *, z: int, below: int) -> None:
        super().__init__(height, width, 1)
        self.block, self.inputs = block, channel_order((z, below), *([(0, z)] if z else []))
        first: Any = block.convs[0].weight
        self.phases = nn.Parameter(
            torch.zeros(4 * len(first), z + below, 3, 3, device=first.device).to(memory_format=torch.channels_last),
            requires_grad=False,
        )
        self.widths = len(self.inputs), padded(4 * len(first)), padded(block.project.out_channels)

    def update(self) -> None:
        """Compute `phases` from the block's weights."""
        conv: Any = self.block.convs[0]
        weight = conv.weight.detach()[:, : self.phases.shape[1]]
        of_pixels = _on_small_map(_on_small_map(weight, dim=3), dim=3)  # y, x, out, in, taps, taps
        # Through `data`, which no version counts: only changes of the model's own parameters matter.
        self.phases.data.copy_(of_pixels.flatten(0, 2))

    def unfolded_parameters(self) -> Iterator[nn.Parameter]:
        """The sums: the weights themselves are `JoinLayer`'s."""
        yield self.phases

    def convolutions(self, maps: IndexMaps) -> Iterator[ConvIndices]:
        """The index maps of all convolutions; they have no bias."""
        module: Any = self.block.skip
        first = select_channels(maps[self.phases], self.widths[1], self.inputs)
        skip = select_channels(maps[module.weight], self.widths[2], self.inputs)
        yield ConvIndices("first", self.effective_taps([first]), [first.new_zeros(0)])
        yield ConvIndices("skip", [skip], [skip.new_zeros(0)])


def _on_small_map(weight: Tensor, *, dim: int) -> Tensor:
    """For the first and second pixel of a square: the sums of taps that fall on the same pixel of the small map."""
    first, middle, last = weight.unbind(dim)
    none = torch.zeros_like(first)
    pixels = ([first, middle + last, none], [none, first + middle, last])
    return torch.stack([torch.stack(taps, dim=dim) for taps in pixels])


class JoinLayer(ResidualLayer):
    """The rest of that block: `first_shared` and `skip_shared`, of the encoder's features, `second` and `third`."""

    def __init__(self, block: ResidualBlock, height: int, width: int, *, below: int, features: int) -> None:
        super().__init__([block], height, width, [channel_order((below, features))])

    def convolutions(self, maps: IndexMaps) -> Iterator[ConvIndices]:
        """As in `ResidualLayer`, with the names above."""
        for indices in super().convolutions(maps):
            yield indices._replace(name=f"{indices.name}_shared") if indices.name in ("first", "skip") else indices

    def shared(self, features: Tensor) -> list[Tensor]:
        """What the encoder's features add to the first convolution and to the skip, with the biases, in float32."""
        how: dict[str, Any] = {"out_dtype": torch.float32}
        return [
            self.convolve("first_shared", features, relu_input=True, **how),
            self.convolve("skip_shared", features, **how),
        ]


def run_first_block(
    below: BelowLayer, join: JoinLayer, x: Tensor, *, shared: Sequence[Tensor], entries: Int[Tensor, " n"]
) -> Tensor:
    """The block's output from the small maps x; hypothesis i belongs to entry `entries[i]` of `shared`."""
    first = below.convolve("first", x, relu_input=True, out_dtype=torch.float32)
    skip = below.convolve("skip", x, out_dtype=torch.float32)
    h1, skip = add_shared(first[0], skip[0], shared=shared, entries=entries, half=join.half, dtype=x.dtype)
    return join.convolve("third", join.convolve("second", h1, relu_output=True), residual=skip)
