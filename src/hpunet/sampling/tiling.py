"""Exact tiling: large images in little memory, with the result of the whole image and no seams.

The receptive field of the network is too wide for a margin, but the convolutions of one scale (a stage) see only a
few pixels. So each stage is tiled by itself: a tile is computed from a window that is wider by the receptive field of
the stage. Windows stop at the border of the image, where zero padding belongs. Latents are drawn for the whole image.
At full size only image and logits exist: the features of the finest scale are most of the memory, and are computed
again for each tile of the decoder.
"""

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.base import PerScale, SamplingProxy, SegmentationModel, check_model_image, posterior_input
from hpunet.models.blocks import concat_latent, downsample, match_memory_format, upsample_nearest
from hpunet.models.gaussian import Gaussian
from hpunet.models.hpunet import HPUNet, LatentUNet
from hpunet.models.punet import GlobalGaussian, ProbUNet

MIN_TILE = 16
DEFAULT_TILE = 512
MAX_UNTILED_PIXELS = 2**20
"""Larger images are computed in tiles by default; this many pixels take 0.8 GB with the LIDC model."""


class Window(NamedTuple):
    """A rectangle of a feature map. Its bounds are even or the map's own, so it can be halved."""

    rows: slice
    columns: slice

    def of(self, x: Tensor) -> Tensor:
        """The window's part of a map."""
        return x[:, :, self.rows, self.columns]

    def scaled(self, factor: float) -> "Window":
        """The same rectangle on a map `factor` times as large."""
        rows, columns = (slice(int(s.start * factor), int(s.stop * factor)) for s in self)
        return Window(rows, columns)


Source = Callable[[Window], Tensor]
"""Gives a map's values in a window."""


class Padding(NamedTuple):
    """Makes an image as large as a model needs; its border pixels repeat."""

    rows: Int64[Tensor, " h2"]
    columns: Int64[Tensor, " w2"]
    inside: tuple[EllipsisType, slice, slice]
    """Where the image is in the padded one."""

    @classmethod
    def of(cls, height: int, width: int, *, multiple: int) -> "Padding":
        """The padding on all sides to the next multiple."""
        parts = [(-side % multiple // 2, side, side + -side % multiple) for side in (height, width)]
        numbers = [(torch.arange(padded) - before).clamp(0, side - 1) for before, side, padded in parts]
        inside = [slice(before, before + side) for before, side, _ in parts]
        return cls(numbers[0], numbers[1], (..., inside[0], inside[1]))

    def add(self, maps: Tensor) -> Tensor:
        """Maps (..., h, w), padded."""
        if maps.shape[-2:] == (len(self.rows), len(self.columns)):
            return maps
        return maps.index_select(-2, self.rows.to(maps.device)).index_select(-1, self.columns.to(maps.device))


class Tiled(SamplingProxy[HPUNet | ProbUNet]):
    """An `HPUNet` or `ProbUNet` whose stages compute at most `tile`×`tile` pixels of their own map at a time."""

    def __init__(self, model: HPUNet | ProbUNet, *, tile: int) -> None:
        if tile < MIN_TILE or tile % 2:
            raise ConfigError(f"tile: expected an even number of pixels of at least {MIN_TILE}, got {tile}")
        if model.cond_channels:
            raise ConfigError("tile: models with extra input channels (extrapolation) cannot be tiled")
        super().__init__(model)
        self.tile, self.infer = tile, self._infer

    def encode(self, *, image: Float[Tensor, "b c h w"], cond: Tensor | None = None) -> list[Tensor]:
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
    ) -> tuple[Float[Tensor, "b k h w"], list[Tensor], list[Gaussian]]:
        """See the model's `decode`."""
        none: PerScale = [None] * len(self.latent_dims)
        if isinstance(self.model, HPUNet):
            how: dict[str, Any] = {"noise": noise or none, "given": given or none}
            return self._decode_hpunet(self.model.prior, features, **how, last=self.model.logits)
        return self._decode_punet(features, noise=noise or none, given=given or none)

    def _infer(
        self, *, image: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"], noise: PerScale | None = None
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

            def joined(window: Window, x: Tensor = x, skip: Source = skip) -> Tensor:
                return torch.cat([upsample_nearest(window.scaled(0.5).of(x)), skip(window)], dim=1)

            stage = net.decoder[i]
            if last is not None and i + 1 == len(net.decoder):
                stage = nn.Sequential(stage, last)
            x = self._run(stage, joined, like=features[i + 1])
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
            return torch.cat([part, z.to(x.dtype).expand(-1, -1, *part.shape[-2:])], dim=1)

        return self._run(nn.Sequential(model.combine, model.logits), joined, like=x), [z], [prior]

    def _encode(self, stages: nn.ModuleList, x: Tensor, *, keep: bool = True) -> list[Tensor]:
        """The input, then the maps of an encoder's stages after the finest; without `keep` only the last one."""
        features, source = [x], self._computed(stages[0], as_source(x), like=x)
        for stage in list(stages)[1:]:

            def halved(window: Window, source: Source = source) -> Tensor:
                return downsample(source(window.scaled(2.0)))

            x = self._run(stage, halved, like=x[:, :, ::2, ::2])
            source = as_source(x)
            features = [*features, x] if keep else [x]
        return features

    def _skip(self, encoder: nn.ModuleList, features: Tensor, *, is_finest: bool) -> Source:
        """What a decoder stage gets from the encoder: features, or at the finest scale those of the input."""
        source = as_source(features)
        return self._computed(encoder[0], source, like=features) if is_finest else source

    def _global_gaussian(self, prior: GlobalGaussian, x: Tensor) -> Gaussian:
        """The prior net, with its mean over the positions of the whole image."""
        (coarsest,) = self._encode(prior.encoder.stages, x, keep=False)
        return prior.head(coarsest.mean(dim=(2, 3), keepdim=True))  # type: ignore[no-any-return]

    def _unet(self, model: ProbUNet, x: Tensor) -> Tensor:
        *skips, x = self._encode(model.encoder.stages, x)
        for stage in model.decoder:
            features = skips.pop()
            skip = self._skip(model.encoder.stages, features, is_finest=not skips)

            def joined(window: Window, x: Tensor = x, skip: Source = skip) -> Tensor:
                return torch.cat([skip(window), upsample_bilinear_window(x, window)], dim=1)

            x = self._run(stage, joined, like=features)
        return x

    def _computed(self, stage: nn.Module, source: Source, *, like: Tensor) -> Source:
        """The stage's output in a window, computed when asked for; its map has the size of `like`."""
        size, margin = (like.shape[2], like.shape[3]), receptive_margin(stage)

        def compute(window: Window) -> Tensor:
            outer = _widened(window, by=margin + margin % 2, size=size)
            piece: Tensor = stage(source(outer))
            starts = window.rows.start - outer.rows.start, window.columns.start - outer.columns.start
            sides = window.rows.stop - window.rows.start, window.columns.stop - window.columns.start
            rows, columns = (slice(start, start + side) for start, side in zip(starts, sides, strict=True))
            return Window(rows, columns).of(piece)

        return compute

    def _run(self, stage: nn.Module, source: Source, *, like: Tensor) -> Tensor:
        """Run a stage tile by tile; the result has the size of `like`, and `source` gives the input for a window."""
        (height, width), compute, side = like.shape[-2:], self._computed(stage, source, like=like), self._side(stage)
        out: Tensor | None = None
        for top in range(0, height, side):
            for left in range(0, width, side):
                window = Window(*(slice(i, min(i + side, n)) for i, n in ((top, height), (left, width))))
                piece = compute(window)
                if out is None:
                    layout = torch.channels_last if self.model.channels_last else torch.contiguous_format
                    shape = (*piece.shape[:2], height, width)
                    out = torch.empty(shape, dtype=piece.dtype, device=piece.device, memory_format=layout)
                window.of(out).copy_(piece)
        assert out is not None
        return out

    def _side(self, stage: nn.Module) -> int:
        """The side of a stage's tiles: with more channels they are smaller, so that they take the same memory."""
        channels = next(conv.in_channels for conv in stage.modules() if isinstance(conv, nn.Conv2d))
        side = self.tile * min(1.0, sum(self.model.channels[:2]) / channels) ** 0.5
        return max(MIN_TILE, int(side) // 2 * 2)


def as_source(x: Tensor) -> Source:
    """The windows of a map."""
    return lambda window: window.of(x)


def _widened(window: Window, *, by: int, size: tuple[int, ...]) -> Window:
    sides = zip(window, size, strict=True)
    rows, columns = (slice(max(0, s.start - by), min(side, s.stop + by)) for s, side in sides)
    return Window(rows, columns)


def receptive_margin(stage: nn.Module) -> int:
    """How many pixels a stage sees to each side; its convolutions form a chain, or are 1×1."""
    return sum(conv.kernel_size[0] // 2 for conv in stage.modules() if isinstance(conv, nn.Conv2d))


def upsample_bilinear_window(x: Float[Tensor, "b f h w"], window: Window) -> Float[Tensor, "b f h2 w2"]:
    """A window of `blocks.upsample_bilinear(x)`; the weights depend on the position in the whole map."""
    for dim, part in ((2, window.rows), (3, window.columns)):
        size = x.shape[dim]
        # In float32, as in torch: in large maps the difference would show.
        step = torch.tensor(size - 1, dtype=torch.float32) / (2 * size - 1)
        position = (torch.arange(part.start, part.stop, dtype=torch.float32) * step).to(x.device)
        low = position.long()
        weight = (position - low).to(x.dtype).view(-1, *[1] * (3 - dim))
        above = (low + 1).clamp(max=size - 1)
        x = x.index_select(dim, low) * (1 - weight) + x.index_select(dim, above) * weight
    return x


def choose_sampler(
    model: HPUNet | ProbUNet, *, size: tuple[int, ...], tile: str = "auto", sampler: SegmentationModel | None = None
) -> SegmentationModel:
    """The model, its `sampler` on fused kernels if there is one, or, for large images, the model tile by tile.

    Tiles are always computed by the model itself: in float32 they give the result of the whole image.
    """
    if tile == "whole" or (tile == "auto" and size[0] * size[1] <= MAX_UNTILED_PIXELS):
        return sampler or model
    if tile != "auto" and not tile.isdecimal():
        raise ConfigError(f"tile: expected auto, whole or a number of pixels, got {tile!r}")
    return Tiled(model, tile=DEFAULT_TILE if tile == "auto" else int(tile))
