"""Draws hypotheses from a model: the encoder runs once per image, the decoder once per hypothesis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.errors import ConfigError, DataError
from hpunet.kernels.dispatch import capture_stream
from hpunet.models.base import HypothesisDecoder, PerScale, SegmentationModel
from hpunet.models.cpu_sampler import on_cpu
from hpunet.sampling.decoding import (
    Chunk,
    DecoderInputs,
    check_logits,
    decode_in_chunks,
    default_chunk_size,
    draw_in_one_go,
    fits_in_one_go,
    slices,
)
from hpunet.sampling.orientations import Features, encode_orientations, num_orientations, select
from hpunet.utils.tensors import AXES, check_is_tensor, check_labels

T = TypeVar("T")

LatentSource = Literal["sample", "mean"] | Tensor
"""Values of a latent scale: drawn from the prior, its mean, or given as (b, s, z, *s_i), and drawn where NaN."""

Generators = torch.Generator | Sequence[torch.Generator] | None
"""Where noise comes from: one generator for the batch, one per image, or torch's default."""

MAX_TEMPERATURE = 100.0
"""Factor on the prior's σ; 0.5 to 2 are useful."""


@dataclass(frozen=True)
class Samples:
    """Hypotheses for a batch of images, with the latents (b, s, z, *s_i) that made them, coarsest scale first.

    Pass `latents` and `orientation_ids` back to `sample` to replay hypotheses; change a scale to edit them.
    """

    labels: Int[Tensor, "b s *s"]
    logits: Float[Tensor, "b s k *s"] | None
    latents: list[Tensor]
    orientation_ids: Int[Tensor, "b s"] | None = None
    """The orientation of the image and of the latents (`orientations.orient`)."""

    @property
    def probs(self) -> Float[Tensor, "b s k *s"]:
        """Class probabilities."""
        if self.logits is None:
            raise ConfigError("probs need the logits: call with return_logits=True")
        return self.logits.softmax(dim=2)


def draw_noise(
    shapes: Sequence[tuple[int, ...]],
    *,
    batch: int,
    num_samples: int,
    generator: Generators,
    device: torch.device,
) -> list[Tensor]:
    """Standard normal noise (b, s, z, *s_i) for each latent scale, drawn hypothesis by hypothesis."""
    each = isinstance(generator, Sequence)
    generators = list(generator) if isinstance(generator, Sequence) else [generator]
    if each and len(generators) != batch:
        raise ConfigError(f"generator: expected one, or one for each of the {batch} images, got {len(generators)}")
    sizes = [prod(shape) for shape in shapes]
    source = next((g.device for g in generators if g is not None), device)
    drawn = torch.empty(len(generators), num_samples, 1 if each else batch, sum(sizes), device=source)
    for of_generator, own in zip(drawn, generators, strict=True):
        for row in of_generator:
            row.normal_(generator=own)
    by_image = drawn.flatten(1, 2) if each else drawn[0].transpose(0, 1)
    parts = by_image.to(device).split(sizes, dim=2)
    return [part.unflatten(2, shape) for part, shape in zip(parts, shapes, strict=True)]


@torch.no_grad()
def sample(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c *s"],
    num_samples: int = 16,
    latents: Literal["sample", "mean"] | Sequence[LatentSource] = "sample",
    temperature: float | Sequence[float] = 1.0,
    cond: Float[Tensor, "b e *s"] | None = None,
    generator: Generators = None,
    orientation_ids: Int[Tensor, "b s"] | None = None,
    chunk_size: int | None = None,
    return_logits: bool = True,
    features: Features | None = None,
) -> Samples:
    """Draw segmentation hypotheses for each image or volume in [0, 1].

    If `model.orientations` is above 1, each is drawn from a random orientation of the image and mapped back.

    Args:
        latents: "sample", "mean" or a tensor (b, s, z, *s_i) where b and s may be 1, for each scale, coarsest
            first; one string for all scales. Where a tensor is NaN, the latent is drawn.
        temperature: factor on the prior's σ, for all scales or one per scale.
        cond: extra input of the prior, for models with `cond_channels`.
        generator: makes the draw reproducible. The n-th hypothesis is the same for any `num_samples` and chunk size
            and, with one generator per image, for any batch.
        orientation_ids: the orientation of each hypothesis, instead of a random one.
        chunk_size: hypotheses decoded at once; by default as many as are fast and fit.
        return_logits: False keeps only the labels, which saves most of the memory.
        features: result of `encode_orientations` for these images, to skip the encoder.
    """
    how: dict[str, Any] = {"num_samples": num_samples, "latents": latents, "temperature": temperature}
    how |= {"generator": generator, "orientation_ids": orientation_ids}
    how |= {"chunk_size": chunk_size, "return_logits": return_logits}
    features, chunks = _draw_chunks(model, image=image, cond=cond, features=features, **how)
    return _concat(list(chunks), features=features, shape=(image.shape[0], num_samples))


def stream(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "1 c *s"],
    num_samples: int = 16,
    latents: Literal["sample", "mean"] | Sequence[LatentSource] = "sample",
    temperature: float | Sequence[float] = 1.0,
    generator: torch.Generator | None = None,
    orientation_ids: Int[Tensor, "1 s"] | None = None,
    features: Features | None = None,
    name: str = "image",
) -> Iterator[tuple[list[int], Samples]]:
    """The hypotheses that `sample` draws for one image, a few at a time, to save memory, each part with its numbers.

    They come in order, or, for large images in several orientations, orientation by orientation. `features` as in
    `sample`; `name` is the image's in errors.
    """
    if image.shape[0] != 1:
        raise DataError(f"image: expected a batch of one image, got shape {tuple(image.shape)}")
    how: dict[str, Any] = {"num_samples": num_samples, "latents": latents, "temperature": temperature}
    how |= {"generator": generator, "orientation_ids": orientation_ids}
    features, chunks = _draw_chunks(model, image=image, features=features, names=[name], **how)
    for chunk in chunks:
        yield chunk.numbers, _concat([chunk], features=features, shape=(1, len(chunk.labels)))
        del chunk  # before the next one is computed


@torch.no_grad()
def reconstruct(
    model: SegmentationModel,
    *,
    image: Float[Tensor, "b c *s"],
    labels: Int[Tensor, " b *s"] | Int[Tensor, "b r *s"],
    draw: bool = False,
    cond: Float[Tensor, "b e *s"] | None = None,
    generator: Generators = None,
    return_logits: bool = True,
    features: Features | None = None,
) -> Samples:
    """Reconstruct segmentations, one per grader, from the posterior's means, Y' = S(X, μ_post(X, Y)), or a draw.

    Only the first orientation of the image is used. `features` as in `sample`.
    """
    check_is_tensor(image, name="image")
    check_is_tensor(labels, name="labels")
    axes = AXES[-len(model.size_multiples) :]
    if labels.ndim == 1 + len(axes):
        labels = labels.unsqueeze(1)
    if labels.ndim != 2 + len(axes) or labels.shape[1] == 0:
        raise DataError(f"labels: expected (batch, [graders,] {', '.join(axes)}), got {tuple(labels.shape)}")
    b, _, *size = image.shape
    if features is None:
        network = on_cpu(model)
        features = Features(network, image, cond, 1, network.encode(image=image, cond=cond))
    r = labels.shape[1]
    for grader in range(r):
        check_labels(labels[:, grader], image=image, num_classes=model.num_classes, values=model.check_values)
    none: PerScale = [None] * len(model.latent_dims)
    noise = none
    if draw:
        shapes = model.latent_shapes(*size)
        drawn = draw_noise(shapes, batch=b, num_samples=r, generator=generator, device=image.device)
        noise = [n.flatten(0, 1) for n in drawn]
    inferred = []
    for pairs in slices(b * r, size=default_chunk_size(prod(size), device=image.device)):
        latents, _ = model.infer(
            image=image[torch.arange(pairs.start, pairs.stop, device=image.device) // r],
            labels=labels.flatten(0, 1)[pairs],
            noise=[n if n is None else n[pairs] for n in noise],
        )
        inferred.append(latents)
    given = [torch.cat(scale).unflatten(0, (b, r)) for scale in zip(*inferred, strict=True)]
    inputs = DecoderInputs(shape=(b, r), num_pixels=prod(size), noise=none, given=given)
    chunks = decode_in_chunks(model, features, inputs, return_logits=return_logits)
    return _concat(list(chunks), features=features, shape=(b, r))


def _decoder_inputs(
    model: SegmentationModel, *, image: Tensor, num_samples: int, latents: Any, temperature: float | Sequence[float],
    generator: Generators, orientation_ids: Tensor | None = None,
) -> DecoderInputs:  # fmt: skip
    """Check the arguments of `sample` and draw its noise and orientations."""
    if num_samples < 1:
        raise ConfigError(f"num_samples: expected at least 1, got {num_samples}")
    b, _, *size = image.shape
    shapes, count = model.latent_shapes(*size), num_orientations(model, size=size)
    n = len(shapes)
    sources = _one_per_scale([latents] * n if isinstance(latents, str) else latents, n, "latents")
    temperatures = temperature_per_scale(temperature, num_scales=n)
    drawn_shapes = [*shapes, (1,)] if count > 1 else shapes  # one more number, for the orientation
    drawn = draw_noise(drawn_shapes, batch=b, num_samples=num_samples, generator=generator, device=image.device)
    if orientation_ids is not None:
        orientation_ids = _checked_orientation_ids(orientation_ids, shape=(b, num_samples), count=count)
        orientation_ids = orientation_ids.to(image.device)
    elif count > 1:
        uniform = torch.special.ndtr(drawn[-1].double()).flatten(1)
        orientation_ids = (count * uniform).long().clamp(max=count - 1)
        if not any(isinstance(source, str) and source == "sample" for source in sources):
            orientation_ids = torch.zeros_like(orientation_ids)
    noise: list[Tensor | None] = []
    given: list[Tensor | None] = []
    for i, source in enumerate(sources):
        if isinstance(source, str) and source not in ("sample", "mean"):
            raise ConfigError(f"latents[{i}]: expected 'sample', 'mean' or a tensor, got {source!r}")
        is_drawn = source == "sample" if isinstance(source, str) else bool(source.isnan().any())
        scaled = drawn[i] if temperatures[i] == 1 else drawn[i] * temperatures[i]
        noise.append(scaled if is_drawn else None)
        given.append(
            _checked_latents(source, scale=i, shape=(b, num_samples, *shapes[i])).to(image.device)
            if isinstance(source, Tensor)
            else None
        )
    return DecoderInputs((b, num_samples), prod(size), noise, given, orientation_ids)


def _draw_chunks(
    model: SegmentationModel, *, image: Tensor, features: Features | None, num_samples: int,
    cond: Tensor | None = None, names: Sequence[str] = (), chunk_size: int | None = None, return_logits: bool = True,
    **how: Any,
) -> tuple[Features, Iterator[Chunk]]:  # fmt: skip
    """Hypotheses in chunks, and the features they share. Arguments as of `sample`, and of `encode_orientations`."""
    check_is_tensor(image, name="image")
    inputs = partial(_decoder_inputs, model, image=image, num_samples=num_samples, **how)
    fits = partial(fits_in_one_go, model, image, num_samples=num_samples, chunk_size=chunk_size)
    if features is None and isinstance(model, HypothesisDecoder) and fits():
        features = Features(model, image, cond, num_orientations(model, size=image.shape[2:]), names=names)
        return features, iter([draw_in_one_go(model, features, inputs(), return_logits=return_logits)])
    stream = capture_stream(image.device)
    with stream.fork():
        features = features or encode_orientations(model, image=image, cond=cond, names=names)
    drawn = inputs()
    stream.join()
    return features, decode_in_chunks(model, features, drawn, chunk_size=chunk_size, return_logits=return_logits)


def _concat(chunks: Sequence[Chunk], *, features: Features, shape: tuple[int, int]) -> Samples:
    check_logits(chunks, features=features, num_samples=shape[1])
    logits = [chunk.logits for chunk in chunks if chunk.logits is not None]
    ids = [chunk.orientation_ids for chunk in chunks if chunk.orientation_ids is not None]
    numbers = [number for chunk in chunks for number in chunk.numbers]
    order = None if sorted(numbers) == numbers else torch.tensor(numbers).argsort()

    def whole(parts: Sequence[Tensor]) -> Tensor:
        every = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        return (every if order is None else select(every, order.to(every.device))).view(*shape, *every.shape[1:])

    return Samples(
        labels=whole([chunk.labels for chunk in chunks]),
        logits=whole(logits) if logits else None,
        latents=[whole(z) for z in zip(*(chunk.latents for chunk in chunks), strict=True)],
        orientation_ids=whole(ids) if ids else None,
    )


def temperature_per_scale(temperature: float | Sequence[float], *, num_scales: int) -> list[float]:
    """One factor per scale, from one for all or one each."""
    given = [temperature] * num_scales if isinstance(temperature, (int, float)) else temperature
    found = _one_per_scale(given, num_scales, "temperature")
    if any(not 0 <= factor <= MAX_TEMPERATURE for factor in found):
        raise ConfigError(f"temperature: expected numbers from 0 to {MAX_TEMPERATURE:g}, got {temperature}")
    return found


def _one_per_scale(values: Sequence[T], num_scales: int, name: str) -> list[T]:
    if len(values) != num_scales:
        raise ConfigError(f"{name}: expected one entry for each of the {num_scales} scales, got {len(values)}")
    return list(values)


def _checked_orientation_ids(ids: Tensor, *, shape: tuple[int, int], count: int) -> Tensor:
    if tuple(ids.shape) != shape or ids.is_floating_point() or not ((ids >= 0) & (ids < count)).all():
        raise DataError(f"orientation_ids: expected integers of 0 to {count - 1} of shape {shape}, got {ids}")
    return ids


def _checked_latents(given: Tensor, *, scale: int, shape: tuple[int, ...]) -> Tensor:
    fits = given.ndim == len(shape) and given.shape[2:] == shape[2:]
    if not fits or given.shape[0] not in (1, shape[0]) or given.shape[1] not in (1, shape[1]):
        raise DataError(f"latents[{scale}]: expected shape {shape}, got {tuple(given.shape)}")
    return given
