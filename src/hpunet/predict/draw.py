"""Sample one image or volume of any size: padding, tiles, and the mean and spread of the samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Integer
from torch import Tensor

from hpunet.data.io.windows import Window
from hpunet.errors import ConfigError, DataError
from hpunet.models.base import SegmentationModel, compute_type
from hpunet.predict.crop import Region
from hpunet.sampling.orientations import Features, encode_orientations
from hpunet.sampling.sample import LatentSource, stream
from hpunet.sampling.tiling import DEFAULT_TILE, Padding, choose_sampler
from hpunet.weights.load import TrainedModel

MAX_SAMPLED_PIXELS = 2**33
"""Of all samples of an image, a byte each."""


@dataclass(frozen=True)
class SamplingOptions:
    """What a `Predictor` draws, and how it groups samples."""

    num_samples: int = 16
    scales: str | Sequence[int] = "full"
    """"full", "global" (the coarsest), "local" (the finest), or "0,2" (0: coarsest); the others use their mean."""
    temperature: float | Sequence[float] = 1.0
    """Factor on the prior's σ, or one per scale, coarsest first."""
    seed: int = 0
    tile: str = "auto"
    """"whole", "auto", or the side of the tiles in pixels."""
    window: Window | None = None
    """Stored pixel values that map to 0 and 1, or a word (`data/io/windows.py`); None for those of training."""
    region: Region = field(default_factory=Region)
    same_iou: float | None = None
    """See `hypotheses.distinct_hypotheses`."""


@dataclass(frozen=True)
class ImageSamples:
    """Samples of an image or volume; mean and standard deviation of the summed probability of its stochastic classes.

    `latents` and `orientation_ids` are those of `sampling.sample.Samples`, on the CPU.
    """

    labels: Integer[np.ndarray, " n *s"]
    mean: Float32[np.ndarray, "*s"]
    std: Float32[np.ndarray, "*s"]
    latents: list[Tensor]
    orientation_ids: Tensor | None

    def maps(self) -> dict[str, Any]:
        """The fields of a `Prediction` that sampling gives."""
        found = {"samples": self.labels, "mean": self.mean, "std": self.std}
        return found | {"latents": tuple(self.latents), "orientation_ids": self.orientation_ids}


def sample_image(
    trained: TrainedModel,
    *,
    image: Float32[np.ndarray, " c *s"],
    options: SamplingOptions,
    name: str = "image",
    latents: Sequence[LatentSource] | None = None,
    orientation_ids: Tensor | None = None,
    features: Features | None = None,
    cond: Float32[np.ndarray, " e *s"] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> ImageSamples:
    """Sample an image or volume of any size; `advance` is called with the number of new samples.

    Border pixels pad the image to a size that the model can halve. The noise of sample n depends only on the seed and
    the image's size, so slices that are sampled one by one share it. `latents` replace what `options.scales` says;
    `features`, of `encode_image`, skip the encoder; `cond` goes to it, for models that extrapolate. `name` is for
    errors.
    """
    model, count = trained.model, options.num_samples
    size = image.shape[1:]
    its = "x".join(map(str, size))
    if (num_pixels := count * prod(size)) > MAX_SAMPLED_PIXELS:
        words = f"{name}: {count} samples of {its} pixels are {num_pixels:,} pixels"
        raise ConfigError(f"{words}, at most {MAX_SAMPLED_PIXELS:,} are kept; draw fewer samples")
    sampler, padded, padding = _prepared(trained, image, tile=options.tile)
    if features is None and trained.model.cond_channels:
        features = encode_image(trained, image=image, cond=cond, tile=options.tile, name=name)
    labels = np.empty((count, *size), dtype=np.min_scalar_type(model.num_classes - 1))
    order: list[int] = []
    drawn: list[list[Tensor]] = []
    ids: list[Tensor] = []
    mean = torch.zeros(size, device=trained.device)
    squares = torch.zeros_like(mean)  # of distances from the running mean (Welford)
    sources = latents or parse_scales(options.scales, latent_dims=model.latent_dims)
    how: dict[str, Any] = {
        "temperature": options.temperature,
        "generator": torch.Generator().manual_seed(options.seed),
        "orientation_ids": orientation_ids,
        "name": name,
        "features": features,
    }
    try:
        for numbers, part in stream(sampler, image=padded, num_samples=count, latents=sources, **how):
            drawn.append([scale.cpu() for scale in part.latents])
            ids += [] if part.orientation_ids is None else [part.orientation_ids.cpu()]
            each = zip(numbers, part.probs[0][padding.inside], part.labels[0][padding.inside], strict=True)
            for number, probs, chosen in each:
                labels[number] = chosen.cpu().numpy()
                order.append(number)
                marked = probs[list(trained.info.foreground)].sum(dim=0)
                before = marked - mean
                mean += before / len(order)
                squares += before * (marked - mean)
                advance(1)
            del part, each, probs, chosen, marked, before  # before the next ones are computed
    except torch.OutOfMemoryError:
        smaller = DEFAULT_TILE[len(size)] // 2
        words = f"{its} pixels do not fit the device's memory; choose smaller tiles, --tile {smaller}"
        raise DataError(words) from None
    by_number = torch.tensor(order).argsort()
    return ImageSamples(
        labels,
        mean.clamp(0, 1).cpu().numpy(),
        (squares / count).clamp(min=0).sqrt().cpu().numpy(),
        [torch.cat(scale, dim=1)[:, by_number] for scale in zip(*drawn, strict=True)],
        torch.cat(ids, dim=1)[:, by_number] if ids else None,
    )


def encode_image(
    trained: TrainedModel,
    *,
    image: Float32[np.ndarray, " c *s"],
    cond: Float32[np.ndarray, " e *s"] | None = None,
    tile: str = "auto",
    name: str = "image",
) -> Features:
    """What all samples of an image share, for `sample_image`."""
    sampler, padded, padding = _prepared(trained, image, tile=tile)
    if trained.model.cond_channels and cond is None:
        raise ConfigError(
            f"{trained.name}: continues the visible part of an image (data.extrapolate), which {name} lacks"
        )
    given = None if cond is None else padding.add(torch.from_numpy(cond)[None]).to(padded)
    return encode_orientations(sampler, image=padded, cond=given, names=[name])


def _prepared(
    trained: TrainedModel, image: Float32[np.ndarray, " c *s"], *, tile: str
) -> tuple[SegmentationModel, Float[Tensor, "1 c *p"], Padding]:
    """What draws the samples, and the padded image on its device."""
    padding = Padding.of(*image.shape[1:], multiples=trained.model.size_multiples)
    padded = padding.add(torch.from_numpy(image)[None]).to(trained.device, compute_type(trained.model))
    return sampler_for(trained, padding.size, tile=tile), padded, padding


def sampler_for(trained: TrainedModel, size: tuple[int, ...], *, tile: str) -> SegmentationModel:
    """What draws the samples of a padded image of this size; models that extrapolate take large ones whole, too."""
    tile = "whole" if trained.model.cond_channels and tile == "auto" else tile
    return choose_sampler(trained.model, size=size, tile=tile, sampler=trained.sampler)


def parse_scales(scales: str | Sequence[int], *, latent_dims: Sequence[int]) -> list[Any]:
    """ "sample" or "mean" for each scale; see `SamplingOptions.scales`."""
    num_scales, given = len(latent_dims), scales
    named = {"full": range(num_scales), "global": (0,), "local": (num_scales - 1,)}
    try:
        if isinstance(scales, str):
            scales = named[scales] if scales in named else [int(part) for part in scales.split(",")]
        sampled = set(scales)
    except (TypeError, ValueError):
        sampled = {-1}
    if not sampled <= set(range(num_scales)):
        numbers = f"numbers from 0 (coarsest) to {num_scales - 1} such as 0,1"
        raise ConfigError(f"scales: expected full, global, local, or {numbers}; got {given!r}")
    if sampled and not any(latent_dims[i] for i in sampled):
        there = ", ".join(str(i) for i, count in enumerate(latent_dims) if count)
        raise ConfigError(f"scales: {given!r} draws nothing, this model has latents at scale {there} only; use full")
    return ["sample" if i in sampled else "mean" for i in range(num_scales)]
