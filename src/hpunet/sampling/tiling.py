"""Exact tiling: large images and volumes in little memory, with the result of the whole image and no seams.

The receptive field of the network is too wide for a margin, but the convolutions of one scale (a stage) see only a
few pixels. So each stage is tiled by itself: a tile is computed from a window that is wider by the receptive field of
the stage. Windows stop at the border of the image, where zero padding belongs. Latents are drawn for the whole image.
At full size only image and logits exist: the features of the finest scale are most of the memory, and are computed
again for each tile of the decoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import PerScale, SamplingProxy, SegmentationModel, check_model_image, posterior_input
from hpunet.models.blocks import (
    CHANNELS_LAST,
    CONVOLUTIONS,
    concat_latent,
    downsample,
    match_memory_format,
    upsample_nearest,
)
from hpunet.models.gaussian import Gaussian
from hpunet.models.hpunet import HPUNet, LatentUNet
from hpunet.models.punet import GlobalGaussian, ProbUNet, mean_over_positions
from hpunet.models.scales import Stride

MIN_TILE = 16
DEFAULT_TILE = {2: 512, 3: 64}
"""Of images and of volumes, by the number of axes: 2^18 positions."""
MAX_UNTILED_PIXELS = 2**20
"""Larger images are computed in tiles by default; this many pixels take 0.8 GB with the LIDC model."""


@dataclass(frozen=True)
class Window:
    """A rectangle, or a box, of a feature map. Its bounds are even or the map's own, so it can be halved."""

    sides: tuple[slice, ...]

    def of(self, x: Tensor) -> Tensor:
        """The window's part of a map."""
        return x[:, :, *self.sides]

    def finer(self, stride: Stride) -> "Window":
        """The same part of the map of the next finer scale."""
        return Window(tuple(slice(s.start * n, s.stop * n) for s, n in zip(self.sides, stride, strict=True)))

    def coarser(self, stride: Stride) -> "Window":
        """The same part of the map of the next coarser scale."""
        return Window(tuple(slice(s.start // n, s.stop // n) for s, n in zip(self.sides, stride, strict=True)))

    def widened(self, margin: Sequence[int], *, size: Sequence[int]) -> "Window":
        """The window with margins that keep its bounds even, within a map of this size."""
        sides = zip(self.sides, (m + m % 2 for m in margin), size, strict=True)
        return Window(tuple(slice(max(0, s.start - by), min(end, s.stop + by)) for s, by, end in sides))

    def within(self, outer: "Window") -> "Window":
        """Where the window is in a larger one."""
        pairs = zip(self.sides, outer.sides, strict=True)
        return Window(tuple(slice(s.start - o.start, s.stop - o.start) for s, o in pairs))


Source = Callable[[Window], Tensor]
"""Gives a map's values in a window."""


class Padding(NamedTuple):
    """Makes an image as large as a model needs; its border pixels repeat."""

    numbers: tuple[Int64[Tensor, " n"], ...]
    """For each axis, the pixel of the image at each position."""
    inside: tuple[Any, ...]
    """Where the image is in the padded one: `...`, then a slice for each axis."""

    @classmethod
    def of(cls, *size: int, multiples: Sequence[int]) -> "Padding":
        """The padding on all sides to the next multiple along each axis."""
        missing = [-side % multiple for side, multiple in zip(size, multiples, strict=True)]
        parts = [(more // 2, side, side + more) for side, more in zip(size, missing, strict=True)]
        numbers = [(torch.arange(padded) - before).clamp(0, side - 1) for before, side, padded in parts]
        return cls(tuple(numbers), (..., *(slice(before, before + side) for before, side, _ in parts)))

    @property
    def size(self) -> tuple[int, ...]:
        """Of the padded image."""
        return tuple(len(numbers) for numbers in self.numbers)

    def add(self, maps: Tensor) -> Tensor:
        """Maps (..., *s), padded."""
        for axis, numbers in enumerate(self.numbers, start=-len(self.numbers)):
            if maps.shape[axis] != len(numbers):
                maps = maps.index_select(axis, numbers.to(maps.device))
        return maps


class Tiled(SamplingProxy[HPUNet | ProbUNet]):
    """An `HPUNet` or `ProbUNet` whose stages compute at most `tile` pixels of each axis of their map at a time."""

    def __init__(self, model: HPUNet | ProbUNet, *, tile: int) -> None:
        if tile < MIN_TILE or tile % 2:
            raise ConfigError(f"tile: expected an even number of pixels of at least {MIN_TILE}, got {tile}")
        if model.cond_channels:
            raise ConfigError("tile: models with extra input channels (extrapolation) cannot be tiled")
        super().__init__(model)
        self.tile, self.infer = tile, self._infer

    def encode(self, *, image: Float[Tensor, "b c *s"], cond: Tensor | None = None) -> list[Tensor]:
        """See the model's `encode`."""
        if cond is not None:
            raise ConfigError("cond: tiled models take no extra input")
        check_model_image(self.model, image)
        x = match_memory_format(image, channels_last=self.model.channels_last)
        if isinstance(self.model, HPUNet):
            return self._encode(self.model.prior.encoder, x)[::-1]  # the finest is the image itself
        prior = self._global_gaussian(self.model.prior, x)  # first, because its maps are not kept
        return [self._unet(self.model, x), prior.mean, prior.log_sigma]

    def decode(
        self, features: Sequence[Tensor], *, noise: PerScale | None = None, given: PerScale | None = None
    ) -> tuple[Float[Tensor, "b k *s"], list[Tensor], list[Gaussian]]:
        """See the model's `decode`."""
        none: PerScale = [None] * len(self.latent_dims)
        if isinstance(self.model, HPUNet):
            how: dict[str, Any] = {"noise": noise or none, "given": given or none}
            return self._decode_hpunet(self.model.prior, features, **how, last=self.model.logits)
        return self._decode_punet(features, noise=noise or none, given=given or none)

    def _infer(
        self, *, image: Float[Tensor, "b c *s"], labels: Int[Tensor, " b *s"], noise: PerScale | None = None
    ) -> tuple[list[Tensor], list[Gaussian]]:
        """See the model's `infer`."""
        x = posterior_input(self.model, image=image, labels=labels)
        x = match_memory_format(x, channels_last=self.model.channels_last)
        none: PerScale = [None] * len(self.latent_dims)
        if isinstance(self.model, HPUNet):
            net = self.model.posterior
            needed = self._encode(net.encoder, x)[::-1][: len(net.decoder) + 1]
            _, latents, gaussians = self._decode_hpunet(net, needed, noise=noise or none, given=none)
            return latents, gaussians
        posterior = self._global_gaussian(self.model.posterior, x)
        return [posterior.latent(noise=(noise or none)[0], given=None)], [posterior]

    def _decode_hpunet(
        self,
        net: LatentUNet,
        features: Sequence[Tensor],
        *,
        noise: PerScale,
        given: PerScale,
        last: nn.Module | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        x, latents, gaussians = features[0], [], []
        for i in range(len(net.decoder) + 1):
            if i < len(net.heads):
                gaussian = net.heads[i](x)
                z = gaussian.latent(noise=noise[i], given=given[i])
                gaussians.append(gaussian)
                latents.append(z)
                x = concat_latent(z, x)
            if i == len(net.decoder):
                break

            skip = self._skip(net.encoder, features[i + 1], is_finest=i + 2 == len(net.encoder))
            stride = net.strides[-1 - i]

            def joined(window: Window, x: Tensor = x, skip: Source = skip, stride: Stride = stride) -> Tensor:
                return torch.cat([upsample_nearest(window.coarser(stride).of(x), stride), skip(window)], dim=1)

            stage = net.decoder[i]
            if last is not None and i + 1 == len(net.decoder):
                stage = nn.Sequential(stage, last)
            x = self._run(stage, joined, size=features[i + 1].shape[2:])
        return x, latents, gaussians

    def _decode_punet(
        self, features: Sequence[Tensor], *, noise: PerScale, given: PerScale
    ) -> tuple[Tensor, list[Tensor], list[Gaussian]]:
        model = self.model
        assert isinstance(model, ProbUNet)
        x, mean, log_sigma = features
        prior = Gaussian(mean=mean, log_sigma=log_sigma)
        z = prior.latent(noise=noise[0], given=given[0])

        def joined(window: Window) -> Tensor:
            part = window.of(x)
            return torch.cat([part, z.to(x.dtype).expand(-1, -1, *part.shape[2:])], dim=1)

        return self._run(nn.Sequential(model.combine, model.logits), joined, size=x.shape[2:]), [z], [prior]

    def _encode(self, stages: nn.ModuleList, x: Tensor, *, keep: bool = True) -> list[Tensor]:
        """The input, then the maps of an encoder's stages after the finest; without `keep` only the last one."""
        size: Sequence[int] = x.shape[2:]
        features, source = [x], self._computed(stages[0], as_source(x), size=size)
        for depth, (stage, stride) in enumerate(zip(list(stages)[1:], self.model.strides, strict=True)):

            def halved(window: Window, source: Source = source, stride: Stride = stride) -> Tensor:
                return downsample(source(window.finer(stride)), stride)

            size, source = [side // n for side, n in zip(size, stride, strict=True)], halved
            if depth == 0 and self.model.ndim == 3:  # margins of margins would be most of a volume's windows
                side = self._side(prod(stride) * self.model.channels[0])
                source = as_source(self._stitched(halved, size=size, side=side))
            x = self._run(stage, source, size=size)
            source = as_source(x)
            features = [*features, x] if keep else [x]
        return features

    def _skip(self, encoder: nn.ModuleList, features: Tensor, *, is_finest: bool) -> Source:
        """What a decoder stage gets from the encoder: features, or at the finest scale those of the input."""
        source = as_source(features)
        return self._computed(encoder[0], source, size=features.shape[2:]) if is_finest else source

    def _global_gaussian(self, prior: GlobalGaussian, x: Tensor) -> Gaussian:
        """The prior net, with its mean over the positions of the whole image."""
        (coarsest,) = self._encode(prior.encoder.stages, x, keep=False)
        return prior.head(mean_over_positions(coarsest))  # type: ignore[no-any-return]

    def _unet(self, model: ProbUNet, x: Tensor) -> Tensor:
        *skips, x = self._encode(model.encoder.stages, x)
        for stage, stride in zip(model.decoder, reversed(model.strides), strict=True):
            features = skips.pop()
            skip = self._skip(model.encoder.stages, features, is_finest=not skips)

            def joined(window: Window, x: Tensor = x, skip: Source = skip, stride: Stride = stride) -> Tensor:
                return torch.cat([skip(window), upsample_linear_window(x, window, stride)], dim=1)

            x = self._run(stage, joined, size=features.shape[2:])
        return x

    def _computed(self, stage: nn.Module, source: Source, *, size: Sequence[int]) -> Source:
        """The stage's output in a window of its map, which has this size, computed when asked for."""
        margin = receptive_margin(stage)

        def compute(window: Window) -> Tensor:
            outer = window.widened(margin, size=size)
            return window.within(outer).of(stage(source(outer)))

        return compute

    def _run(self, stage: nn.Module, source: Source, *, size: Sequence[int]) -> Tensor:
        """Run a stage tile by tile on a map of this size, of which `source` gives the input for a window."""
        channels = next(conv.in_channels for conv in stage.modules() if isinstance(conv, CONVOLUTIONS))
        return self._stitched(self._computed(stage, source, size=size), size=size, side=self._side(channels))

    def _stitched(self, source: Source, *, size: Sequence[int], side: int) -> Tensor:
        """A map of this size, tile by tile."""
        out: Tensor | None = None
        for corner in product(*(range(0, end, side) for end in size)):
            window = Window(tuple(slice(i, min(i + side, end)) for i, end in zip(corner, size, strict=True)))
            piece = source(window)
            if out is None:
                layout = CHANNELS_LAST[piece.ndim] if self.model.channels_last else torch.contiguous_format
                shape = (*piece.shape[:2], *size)
                out = torch.empty(shape, dtype=piece.dtype, device=piece.device, memory_format=layout)
            window.of(out).copy_(piece)
        assert out is not None
        return out

    def _side(self, channels: int) -> int:
        """The side of tiles of so many channels: the more, the smaller, so that they take the same memory."""
        side = self.tile * min(1.0, sum(self.model.channels[:2]) / channels) ** (1 / self.model.ndim)
        return max(MIN_TILE, int(side) // 2 * 2)


def as_source(x: Tensor) -> Source:
    """The windows of a map."""
    return lambda window: window.of(x)


def receptive_margin(stage: nn.Module) -> tuple[int, ...]:
    """How many pixels a stage sees to each side of each axis; its convolutions form a chain, or are 1×1."""
    kernels = [conv.kernel_size for conv in stage.modules() if isinstance(conv, CONVOLUTIONS)]
    return tuple(sum(width // 2 for width in of_axis) for of_axis in zip(*kernels, strict=True))


def upsample_linear_window(
    x: Float[Tensor, "b f *s"], window: Window, stride: Stride = (2, 2)
) -> Float[Tensor, "b f *t"]:
    """A window of `blocks.upsample_linear(x, stride)`; the weights depend on the position in the whole map."""
    needed, taps = [], []
    for part, factor, size in zip(window.sides, stride, x.shape[2:], strict=True):
        # In float32, as in torch: in large maps the difference would show.
        step = torch.tensor(size - 1, dtype=torch.float32) / max(1, factor * size - 1)
        position = torch.arange(part.start, part.stop, dtype=torch.float32) * step
        low = position.long()
        above = (low + 1).clamp(max=size - 1)
        needed.append(slice(int(low[0]), int(above[-1]) + 1))
        taps.append([each.to(x.device) for each in (low - low[0], above - low[0], position - low)])
    x = Window(tuple(needed)).of(x)
    for dim, (low, above, weight) in enumerate(taps, start=2):
        weight = weight.to(x.dtype).view(-1, *[1] * (x.ndim - 1 - dim))
        x = x.index_select(dim, low) * (1 - weight) + x.index_select(dim, above) * weight
    return x


def choose_sampler(
    model: HPUNet | ProbUNet, *, size: tuple[int, ...], tile: str = "auto", sampler: SegmentationModel | None = None
) -> SegmentationModel:
    """The model, its `sampler` on fused kernels if there is one, or, for large images, the model tile by tile.

    Tiles are always computed by the model itself: in float32 they give the result of the whole image.
    """
    if tile == "whole" or (tile == "auto" and prod(size) <= MAX_UNTILED_PIXELS):
        return sampler or model
    if tile != "auto" and not tile.isdecimal():
        raise ConfigError(f"tile: expected auto, whole or a number of pixels, got {tile!r}")
    return Tiled(model, tile=DEFAULT_TILE[len(size)] if tile == "auto" else int(tile))
