"""Tile sizes for few images: a convolution takes as long as its loop over the inputs, and most processors are idle.

They depend on the layer alone, not on the number of images, so that bits do not either.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import nn

from hpunet.kernels.flat_parameters import Weights
from hpunet.kernels.layers import FusedLayer
from hpunet.kernels.sampling_layers import BelowLayer
from hpunet.kernels.triton_convolution import ConvTiling

CHUNKS = ((64, 128), (256, 64))
"""For maps of at most so many pixels, the elements of a run that are multiplied at once: fewer rounds of the loop."""
SHARED_BYTES = 96 * 1024
MIN_PROGRAMS = 64
"""Programs of a convolution that runs once per image, for one image, if tiles can be so small."""


class SamplingWeights(Weights):
    """Weights without gradients; convolutions of the layers in `once_per_image` (by `id`) get smaller tiles."""

    def __init__(
        self, layers: Sequence[FusedLayer], *, others: list[list[nn.Parameter]], dtype: torch.dtype,
        once_per_image: Collection[int],
    ) -> None:  # fmt: skip
        self.once_per_image = once_per_image
        super().__init__(layers, others=others, dtype=dtype, training=False)

    @torch.no_grad()
    def prepare(self) -> None:
        """Fold, cast and pack the parameters' current values."""
        for layer in self.layers:
            if isinstance(layer, BelowLayer):
                layer.update()
        super().prepare()

    def images(self, layer: FusedLayer) -> int:
        """As in `Weights`: results that stay in float32 are Triton's."""
        return 0 if isinstance(layer, BelowLayer) else 1 if id(layer) in self.once_per_image else 16

    def choose_tiling(self, layer: FusedLayer, inputs: int, outputs: int, *, taps: int) -> ConvTiling:
        """Tile sizes of one of the layer's convolutions in Triton."""
        tiling = super().choose_tiling(layer, inputs, outputs, taps=taps)
        if self.dtype == torch.float32:
            return tiling
        pixels = layer.height * layer.width
        if id(layer) in self.once_per_image:
            tiling = smaller_tiles(tiling, pixels, outputs)
        chunk = next((chunk for most, chunk in CHUNKS if pixels <= most), 0)
        if taps == 1 or not chunk:
            return tiling
        columns = min(tiling.columns, 128)
        stages = SHARED_BYTES // (2 * chunk * (tiling.patches + columns))
        return replace(tiling, chunk=chunk, columns=columns, stages=max(2, min(4, stages)))


def smaller_tiles(tiling: ConvTiling, pixels: int, outputs: int) -> ConvTiling:
    """Halved until one image of so many pixels has `MIN_PROGRAMS`."""
    patches, columns = tiling.patches, tiling.columns
    rows, width = pixels // (tiling.py * tiling.px), tiling.py * tiling.px * outputs
    while (patches > 16 or columns > 32) and -(-rows // patches) * -(-width // columns) < MIN_PROGRAMS:
        if columns > 32 and (columns >= patches or patches == 16):
            columns //= 2
        else:
            patches //= 2
    return replace(tiling, patches=patches, columns=columns)
