"""Hypotheses from a model: encode an image once, decode it as often as wanted, scale by scale if wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from hpunet.errors import ConfigError, DataError
from hpunet.models.base import PerScale, SegmentationModel
from hpunet.utils.tensors import check_image, check_labels

T = TypeVar("T")

LatentSource = Literal["sample", "mean"] | Tensor
"""How a latent scale gets its values: drawn from the prior, its mean, or given as (b, s, z, h_i, w_i)."""

Generators = torch.Generator | Sequence[torch.Generator] | None
"""Where noise comes from: one generator for the batch, one for each image, or torch's own."""

PIXELS_AT_ONCE = 2**20
"""Default bound on the pixels decoded at once: 64 hypotheses of 128×128, 2 of 512×1024."""
PIXELS_AT_ONCE_CPU = 2**16
"""The same on a CPU, where smaller pieces stay in its caches: 4 hypotheses of 128×128 were the fastest."""


@dataclass(frozen=True)
class Samples:
    """Hypotheses of a batch of images, with the latents that made them.

    Pass `latents` (and `orientation_ids`, if the model draws them) back to `sample` to replay the hypotheses; change
    one scale to edit them. Entry i is (b, s, z, h_i, w_i), coarsest scale first.
    """

    labels: Int[Tensor, "b s h w"]
    logits: Float[Tensor, "b s k h w"] | None
    latents: list[Tensor]
    orientation_ids: Int[Tensor, "b s"] | None = None
    """Which orientation of the image each was drawn from (`orient`); its latents are those of the image so orient."""

    @property
    def probs(self) -> Float[Tensor, "b s k h w"]:
        """Class probabilities of every hypothesis."""
        if self.logits is None:
            raise ConfigError("probs need the logits: call with return_logits=True")
        return self.logits.softmax(dim=2)


def orient(maps: Shaped[Tensor, "*n h w"], turn: int) -> Shaped[Tensor, "*n y x"]:
    """One of the eight orientations: bit 0 mirrors left and right, bit 1 up and down, then bit 2 transposes."""
    axes = [axis for axis, bit in ((-1, 1), (-2, 2)) if turn & bit]
    maps = maps.flip(axes) if axes else maps
    return maps.transpose(-2, -1) if turn & 4 else maps


def orient_back(maps: Shaped[Tensor, "*n y x"], turn: int) -> Shaped[Tensor, "*n h w"]:
    """The inverse of `orient`."""
    return orient(maps.transpose(-2, -1) if turn & 4 else maps, turn & 3)


def usable_orientations(model: SegmentationModel, *, height: int, width: int) -> int:
    """How many orientations the model draws from: of images that are not square at most the four that fit."""
    if model.orientations not in (1, 2, 4, 8):
        raise ConfigError(f"orientations: expected 1, 2, 4 or 8, got {model.orientations}")
    return model.orientations if height == width else min(model.orientations, 4)


def encode_oriented(
    model: SegmentationModel, *, image: Float[Tensor, "b c h w"], cond: Float[Tensor, "b e h w"] | None = None
) -> list[Tensor]:
    """Features of all orientations that the model draws from, an image's one after the other: for `sample`."""
    if model.orientations == 1:
        return model.encode(image=image, cond=cond)
    # Here, so that an error names the shape that was given.
    check_image(image, channels=model.in_channels, multiple=model.size_multiple, values=False)
    orientation_ids = range(usable_orientations(model, height=image.shape[2], width=image.shape[3]))

    def each(maps: Tensor) -> Tensor:
        return torch.stack([orient(maps, turn) for turn in orientation_ids], dim=1).flatten(0, 1)

    return model.encode(image=each(image), cond=None if cond is None else each(cond))


def draw_noise(
    shapes: Sequence[tuple[int, int, int]],
    *,
    batch: int,
    num_samples: int,
    generator: Generators,
    device: torch.device,
) -> list[Tensor]:
    """Standard normal noise (b, s, z, h_i, w_i) for each latent scale.

    One draw a hypothesis, so that the n-th one depends neither on how many follow nor on how they are chunked. With a
    generator for each image it does not depend on the other images either.
    """
    if isinstance(generator, Sequence):
        if len(generator) != batch:
            raise ConfigError(f"generator: expected one, or one for each of the {batch} images, got {len(generator)}")
        alone = [draw_noise(shapes, batch=1, num_samples=num_samples, generator=g, device=device) for g in generator]
        return [torch.cat(scale) for scale in zip(*alone, strict=True)]
    sizes = [prod(shape) for shape in shapes]
    source = generator.device if generator is not None else device
    flat = torch.stack(
        [torch.randn(batch, sum(sizes), generator=generator, device=source).to(device) for _ in range(num_samples)],
        dim=1,
    )
    parts = flat.split(sizes, dim=2)
    return [part.unflatten(2, shape) for part, shape in zip(parts, shapes, strict=True)]


@torch.no_grad()
def sample(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c h w"],
    num_samples: int = 16,
    latents: Literal["sample", "mean"] | Sequence[LatentSource] = "sample",
    temperature: float | Sequence[float] = 1.0,
    cond: Float[Tensor, "b e h w"] | None = None,
    generator: Generators = None,
    orientation_ids: Int[Tensor, "b s"] | None = None,
    chunk_size: int | None = None,
    return_logits: bool = True,
    features: Sequence[Tensor] | None = None,
) -> Samples:
    """Draw segmentation hypotheses for each image.

    The encoder runs once an image, the decoder once a hypothesis. A model with `orientations` encodes each of them,
    and each hypothesis is drawn from one of them at random, and turned back.

    Args:
        model: an `HPUNet` or `ProbUNet`.
        image: images in [0, 1].
        num_samples: hypotheses an image.
        latents: "sample" or "mean" for all scales, or one entry a scale, coarsest first: "sample", "mean", or a
            tensor (b, s, z, h_i, w_i) of values to use (b and s may be 1).
        temperature: factor on the prior's σ, for all scales or one a scale.
        cond: what the prior sees beside the image, for models with `cond_channels`.
        generator: makes the draw reproducible; the n-th hypothesis is the same for any `num_samples` and chunks, and
            with a sequence of generators, one an image, whatever else is in the batch.
        orientation_ids: the orientation that each hypothesis is drawn from, instead of a random one.
        chunk_size: hypotheses decoded at once; by default as many as is fast and fits.
        return_logits: False keeps only the labels, a fraction of the memory.
        features: what `encode_oriented` gave for these images, if it is at hand: then the encoder does not run.
    """
    chunks = list(
        _drawn(
            model,
            image=image,
            num_samples=num_samples,
            latents=latents,
            temperature=temperature,
            cond=cond,
            generator=generator,
            orientation_ids=orientation_ids,
            chunk_size=chunk_size,
            return_logits=return_logits,
            features=features,
        )
    )
    return _joined(chunks, shape=(image.shape[0], num_samples))


def stream(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "1 c h w"],
    num_samples: int = 16,
    latents: Literal["sample", "mean"] | Sequence[LatentSource] = "sample",
    temperature: float | Sequence[float] = 1.0,
    generator: torch.Generator | None = None,
) -> Iterator[Samples]:
    """The hypotheses of one image as `sample` draws them, a few at a time: their logits need not fit together."""
    if image.shape[0] != 1:
        raise DataError(f"image: expected a batch of one image, got shape {tuple(image.shape)}")
    for chunk in _drawn(
        model, image=image, num_samples=num_samples, latents=latents, temperature=temperature, generator=generator
    ):
        yield _joined([chunk], shape=(1, len(chunk.labels)))


@dataclass(frozen=True)
class _Chunk:
    """Some (image, hypothesis) pairs, decoded."""

    labels: Int[Tensor, "n h w"]
    logits: Float[Tensor, "n k h w"] | None
    latents: list[Tensor]
    orientation_ids: Int[Tensor, " n"] | None


def _joined(chunks: Sequence[_Chunk], *, shape: tuple[int, int]) -> Samples:
    logits = [chunk.logits for chunk in chunks if chunk.logits is not None]
    orientation_ids = [chunk.orientation_ids for chunk in chunks if chunk.orientation_ids is not None]
    return Samples(
        labels=torch.cat([chunk.labels for chunk in chunks]).unflatten(0, shape),
        logits=torch.cat(logits).unflatten(0, shape) if logits else None,
        latents=[
            torch.cat(scale).unflatten(0, shape) for scale in zip(*(chunk.latents for chunk in chunks), strict=True)
        ],
        orientation_ids=torch.cat(orientation_ids).unflatten(0, shape) if orientation_ids else None,
    )


def _drawn(
    model: SegmentationModel,
    *,
    image: Tensor,
    num_samples: int,
    latents: Literal["sample", "mean"] | Sequence[LatentSource],
    temperature: float | Sequence[float],
    cond: Tensor | None = None,
    generator: Generators,
    orientation_ids: Tensor | None = None,
    chunk_size: int | None = None,
    return_logits: bool = True,
    features: Sequence[Tensor] | None = None,
) -> Iterator[_Chunk]:
    """What `sample` returns, chunk by chunk."""
    if num_samples < 1 or (chunk_size is not None and chunk_size < 1):
        raise ConfigError(f"num_samples and chunk_size must be at least 1, got {num_samples} and {chunk_size}")
    if features is None:
        with torch.no_grad():  # not around a `yield`, where it would reach the caller
            features = encode_oriented(model, image=image, cond=cond)
    b, _, h, w = image.shape
    shapes, num_orientations = model.latent_shapes(h, w), usable_orientations(model, height=h, width=w)
    n = len(shapes)
    how = _one_per_scale([latents] * n if isinstance(latents, str) else latents, n, "latents")
    temperatures = temperature_of_scales(temperature, num_scales=n)
    needed = [*shapes, (1, 1, 1)] if num_orientations > 1 else shapes  # a number more, for the orientation
    drawn = draw_noise(needed, batch=b, num_samples=num_samples, generator=generator, device=image.device)
    if orientation_ids is not None:
        orientation_ids = _checked_orientation_ids(
            orientation_ids, shape=(b, num_samples), count=num_orientations
        ).to(image.device)
    elif num_orientations > 1:
        uniform = torch.special.ndtr(drawn[-1].double()).flatten(1)
        orientation_ids = (num_orientations * uniform).long().clamp(max=num_orientations - 1)
        if not any(isinstance(choice, str) and choice == "sample" for choice in how):
            orientation_ids = torch.zeros_like(orientation_ids)
    noise: list[Tensor | None] = []
    given: list[Tensor | None] = []
    for i, choice in enumerate(how):
        if isinstance(choice, str) and choice not in ("sample", "mean"):
            raise ConfigError(f"latents[{i}]: expected 'sample', 'mean' or a tensor, got {choice!r}")
        noise.append(drawn[i] * temperatures[i] if isinstance(choice, str) and choice == "sample" else None)
        given.append(
            _checked_latents(choice, scale=i, shape=(b, num_samples, *shapes[i])).to(image.device)
            if isinstance(choice, Tensor)
            else None
        )
    yield from _decode_in_chunks(
        model,
        features,
        num_samples=num_samples,
        noise=noise,
        given=given,
        orientation_ids=orientation_ids,
        num_pixels=h * w,
        chunk_size=chunk_size,
        return_logits=return_logits,
    )


@torch.no_grad()
def reconstruct(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b h w"] | Int[Tensor, "b r h w"],
    draw: bool = False,
    cond: Float[Tensor, "b e h w"] | None = None,
    generator: Generators = None,
    return_logits: bool = True,
    features: Sequence[Tensor] | None = None,
) -> Samples:
    """Reconstruct segmentations through the posterior: Y' = S(X, μ_post(X, Y)), or a posterior draw.

    `labels` is one map or several graders' maps an image; the result has one reconstruction for each, in the
    place of samples. The prior's encoder runs once an image, or not at all with its `features`, as in `sample`; of
    a model's `orientations` it takes the first, the image as it is.
    """
    if labels.ndim == 3:
        labels = labels.unsqueeze(1)
    if labels.ndim != 4 or labels.shape[1] == 0:
        raise DataError(
            f"labels: expected (batch, height, width) or (batch, graders, height, width), got {tuple(labels.shape)}"
        )
    b, _, h, w = image.shape
    if features is None:
        features = model.encode(image=image, cond=cond)
    elif len(features[0]) > b:
        upright = torch.arange(0, len(features[0]), len(features[0]) // b, device=image.device)
        features = [_select(f, upright) for f in features]
    r = labels.shape[1]
    for grader in range(r):
        check_labels(labels[:, grader], image=image, num_classes=model.num_classes, values=model.check_values)
    noise: list[Tensor | None] = [None] * len(model.latent_dims)
    if draw:
        shapes = model.latent_shapes(h, w)
        noise = list(draw_noise(shapes, batch=b, num_samples=r, generator=generator, device=image.device))
    inferred = []
    flat_noise = [n if n is None else n.flatten(0, 1) for n in noise]
    for pairs in _chunks(b * r, size=_fast_chunk_size(h * w, device=image.device)):
        latents, _ = model.infer(
            image=image[torch.arange(pairs.start, pairs.stop, device=image.device) // r],
            labels=labels.flatten(0, 1)[pairs],
            noise=[n if n is None else n[pairs] for n in flat_noise],
        )
        inferred.append(latents)
    chunks = list(
        _decode_in_chunks(
            model,
            features,
            num_samples=r,
            noise=[None] * len(model.latent_dims),
            given=[torch.cat(scale).unflatten(0, (b, r)) for scale in zip(*inferred, strict=True)],
            num_pixels=h * w,
            chunk_size=None,
            return_logits=return_logits,
        )
    )
    return _joined(chunks, shape=(b, r))


def _decode_in_chunks(
    model: SegmentationModel,
    features: Sequence[Tensor],
    *,
    num_samples: int,
    noise: PerScale,
    given: PerScale,
    num_pixels: int,
    chunk_size: int | None,
    return_logits: bool,
    orientation_ids: Int[Tensor, "b s"] | None = None,
) -> Iterator[_Chunk]:
    """Decode all (image, hypothesis) pairs, `chunk_size` at a time; `features` are of as many orientations an image
    as `orientation_ids` choose from."""
    device, b = features[0].device, len(features[0]) if orientation_ids is None else len(orientation_ids)
    num_orientations = len(features[0]) // b
    if chunk_size is None:
        chunk_size = _fast_chunk_size(num_pixels, device=device)

    def flat(per_scale: PerScale) -> list[Tensor | None]:
        return [None if t is None else t.expand(b, num_samples, *t.shape[2:]).flatten(0, 1) for t in per_scale]

    noise, given = flat(noise), flat(given)
    for pairs in _chunks(b * num_samples, size=chunk_size):
        which_image = torch.arange(pairs.start, pairs.stop, device=device) // num_samples
        of_pairs = None if orientation_ids is None else orientation_ids.flatten()[pairs]
        if of_pairs is not None:
            which_image = which_image * num_orientations + of_pairs
        # A single one needs no copy of large features.
        is_only_image = len(features[0]) == 1 and pairs.stop - pairs.start == 1
        with torch.no_grad():
            logits, latents, _ = model.decode(
                features if is_only_image else [_select(f, which_image) for f in features],
                noise=[None if t is None else t[pairs] for t in noise],
                given=[None if t is None else t[pairs] for t in given],
            )
            if of_pairs is not None:
                logits = _upright(logits, of_pairs, count=num_orientations)
        yield _Chunk(
            labels=logits.argmax(dim=1),
            logits=logits if return_logits else None,
            latents=latents,
            orientation_ids=of_pairs,
        )


def _upright(
    logits: Float[Tensor, "n k h w"], orientation_ids: Int[Tensor, " n"], *, count: int
) -> Float[Tensor, "n k h w"]:
    """Every map turned back."""
    out = torch.empty_like(logits)
    for turn in range(count):
        these = (orientation_ids == turn).nonzero().squeeze(1)
        out[these] = orient_back(logits[these], turn)
    return out


def _fast_chunk_size(num_pixels: int, *, device: torch.device) -> int:
    """How many images of so many pixels to work on at once."""
    return max(1, (PIXELS_AT_ONCE_CPU if device.type == "cpu" else PIXELS_AT_ONCE) // num_pixels)


def _chunks(count: int, *, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _select(features: Tensor, which_image: Tensor) -> Tensor:
    """The features of these images, in their memory format (`index_select` alone falls back to NCHW)."""
    if not features.is_contiguous(memory_format=torch.channels_last):
        return features.index_select(0, which_image)
    return features.permute(0, 2, 3, 1).index_select(0, which_image).permute(0, 3, 1, 2)


def temperature_of_scales(temperature: float | Sequence[float], *, num_scales: int) -> list[float]:
    """One factor a scale; a number is that of all."""
    given = [temperature] * num_scales if isinstance(temperature, (int, float)) else temperature
    found = _one_per_scale(given, num_scales, "temperature")
    if any(not 0 <= factor < float("inf") for factor in found):
        raise ConfigError(f"temperature: expected finite numbers of at least 0, got {temperature}")
    return found


def _one_per_scale(values: Sequence[T], num_scales: int, name: str) -> list[T]:
    if len(values) != num_scales:
        raise ConfigError(f"{name}: expected one entry for each of the {num_scales} scales, got {len(values)}")
    return list(values)


def _checked_orientation_ids(orientation_ids: Tensor, *, shape: tuple[int, int], count: int) -> Tensor:
    if (
        tuple(orientation_ids.shape) != shape
        or orientation_ids.is_floating_point()
        or not ((orientation_ids >= 0) & (orientation_ids < count)).all()
    ):
        raise DataError(
            f"orientation_ids: expected whole numbers of 0 to {count - 1} of shape {shape}, got {orientation_ids}"
        )
    return orientation_ids


def _checked_latents(given: Tensor, *, scale: int, shape: tuple[int, ...]) -> Tensor:
    fits = given.ndim == 5 and given.shape[2:] == shape[2:]
    if not fits or given.shape[0] not in (1, shape[0]) or given.shape[1] not in (1, shape[1]):
        raise DataError(f"latents[{scale}]: expected shape {shape}, got {tuple(given.shape)}")
    return given
