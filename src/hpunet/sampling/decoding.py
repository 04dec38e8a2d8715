"""Decodes hypotheses: in chunks that fit in memory or, on fused kernels, with their images in one go."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hpunet.errors import ConfigError, DivergenceError
from hpunet.models.base import Hypotheses, HypothesisDecoder, PerScale, SegmentationModel
from hpunet.sampling.orientations import Features, encoded_together, select, undo_orientations
from hpunet.utils.tensors import values_can_be_read

PIXELS_PER_CHUNK = 2**20
"""Pixels decoded at once, by default: 64 hypotheses of 128×128."""
PIXELS_PER_CHUNK_FAST = 2**22
"""The same on fused kernels, which take fewer at once where maps are large."""
PIXELS_PER_CHUNK_CPU = 2**16
"""The same on a CPU, where chunks that fit in its caches are faster."""


@dataclass(frozen=True)
class DecoderInputs:
    """What determines b × s hypotheses besides the features."""

    shape: tuple[int, int]  # b images, s samples
    num_pixels: int
    noise: PerScale
    given: PerScale
    orientation_ids: Int[Tensor, "b s"] | None = None

    def flat(self) -> tuple[Int[Tensor, " n"] | None, list[Tensor | None], list[Tensor | None]]:
        """Orientations, noise and given latents with one dimension for all hypotheses."""
        b, s = self.shape
        noise, given = (
            [None if t is None else t.expand(b, s, *t.shape[2:]).flatten(0, 1) for t in per_scale]
            for per_scale in (self.noise, self.given)
        )
        return None if self.orientation_ids is None else self.orientation_ids.flatten(), noise, given


@dataclass(frozen=True)
class Chunk:
    """Some of the b × s hypotheses, by number, decoded."""

    numbers: list[int]
    labels: Int[Tensor, " n *s"]
    logits: Float[Tensor, "n k *s"] | None
    latents: list[Tensor]
    orientation_ids: Int[Tensor, " n"] | None
    sums: Float[Tensor, "n parts"]
    """Of the logits: finite only if all of them are."""


def fits_in_one_go(model: SegmentationModel, image: Tensor, *, num_samples: int, chunk_size: int | None) -> bool:
    """Whether all images are encoded together, and all hypotheses are one chunk; not while a graph is captured."""
    sides = image.shape[2:]
    if (
        len(sides) != len(model.size_multiples)
        or any(side % multiple for side, multiple in zip(sides, model.size_multiples, strict=True))
        or not values_can_be_read(image)
    ):
        return False
    size = default_chunk_size(prod(sides), device=image.device, fast=True) if chunk_size is None else chunk_size
    return 1 <= len(image) * num_samples <= size and encoded_together(model, image)


def draw_in_one_go(
    model: HypothesisDecoder, features: Features, inputs: DecoderInputs, *, return_logits: bool
) -> Chunk:
    """All hypotheses, and the features that are not there yet."""
    (b, s), (ids, noise, given) = inputs.shape, inputs.flat()
    entries = torch.arange(b * s, device=features.image.device) // s
    labels, logits, latents, sums = model.draw(
        image=features.image,
        cond=features.cond,
        count=features.count,
        entries=entries if ids is None else entries * features.count + ids,
        noise=noise,
        given=given,
        orientation_ids=ids,
        keep_logits=return_logits,
    )
    return Chunk(list(range(b * s)), labels, logits, latents, ids, sums)


def decode_in_chunks(
    model: SegmentationModel, features: Features, inputs: DecoderInputs, *,
    chunk_size: int | None = None, return_logits: bool = True,
) -> Iterator[Chunk]:  # fmt: skip
    """Decode `chunk_size` hypotheses at a time: in order, or orientation by orientation (see `Features`)."""
    if chunk_size is not None and chunk_size < 1:
        raise ConfigError(f"chunk_size: expected at least 1, got {chunk_size}")
    (b, s), count, (ids, noise, given) = inputs.shape, features.count, inputs.flat()
    is_fast = isinstance(model, HypothesisDecoder)
    plain = partial(_decode, features.model, count=count)
    decode = model.decode_hypotheses if isinstance(model, HypothesisDecoder) else plain

    @torch.no_grad()
    def decoded(maps: Sequence[Tensor], pairs: slice | Tensor, entries: Tensor, numbers: list[int]) -> Chunk:
        own = None if ids is None else ids[pairs]
        labels, logits, latents, sums = decode(
            maps,
            entries=entries,
            noise=[None if t is None else t[pairs] for t in noise],
            given=[None if t is None else t[pairs] for t in given],
            orientation_ids=own,
            keep_logits=return_logits,
        )
        return Chunk(numbers, labels, logits, latents, own, sums)

    size = chunk_size or default_chunk_size(inputs.num_pixels, device=features.image.device, fast=is_fast)
    size -= size % s if is_fast and size > s else 0  # chunks of as many images are one CUDA graph
    if features.together is None or (ids is None and count > 1):
        of_pairs = [0] * (b * s) if ids is None else ids.tolist()
        for orientation in sorted(set(of_pairs)):
            mine = [n for n, each in enumerate(of_pairs) if each == orientation]
            maps = features.of(orientation)
            for part in slices(len(mine), size=size):
                chosen = torch.tensor(mine[part], device=features.image.device)
                yield decoded(maps, chosen, chosen // s, mine[part])
            del maps  # before the next ones are computed
        return
    for pairs in slices(b * s, size=size):
        first, last = pairs.start // s, (pairs.stop - 1) // s  # images
        entries = torch.arange(pairs.start - first * s, pairs.stop - first * s, device=features.image.device) // s
        entries = entries if ids is None else entries * count + ids[pairs]
        maps = [f[first * count : (last + 1) * count] for f in features.together]
        yield decoded(maps, pairs, entries, list(range(pairs.start, pairs.stop)))


def _decode(
    model: SegmentationModel, features: Sequence[Tensor], *, entries: Tensor, noise: PerScale, given: PerScale,
    orientation_ids: Tensor | None, keep_logits: bool, count: int,
) -> Hypotheses:  # fmt: skip
    """As `HypothesisDecoder.decode_hypotheses`, with the model's `decode`."""
    copy = len(features[0]) > 1 or len(entries) > 1  # else one image and one hypothesis: no copy of large features
    maps = [select(f, entries) for f in features] if copy else features
    logits, latents, _ = model.decode(maps, noise=noise, given=given)
    if orientation_ids is not None:
        logits = undo_orientations(logits, orientation_ids, count=count)
    sums = logits.sum(dim=tuple(range(1, logits.ndim)), dtype=torch.promote_types(logits.dtype, torch.float32))
    return Hypotheses(logits.argmax(dim=1), logits if keep_logits else None, latents, sums.unsqueeze(1))


def check_logits(chunks: Sequence[Chunk], *, features: Features, num_samples: int) -> None:
    """Raise a `DivergenceError` if logits are not finite, since the label of NaN would be 0: nothing marked."""
    sums = torch.cat([chunk.sums for chunk in chunks])
    if not features.model.check_values or not values_can_be_read(sums) or sums.isfinite().all():
        return
    numbers = torch.tensor([number for chunk in chunks for number in chunk.numbers])
    image = int(numbers[~sums.isfinite().all(dim=1).cpu()].min()) // num_samples if len(features.image) > 1 else 0
    name = features.names[image] if features.names else f"image {image}"
    raise DivergenceError(
        f"{name}: the network gives logits that are NaN or infinite, which are no segmentation; its weights, the "
        f"temperature or given latents are too large for {str(features.image.dtype).removeprefix('torch.')}"
    )


def default_chunk_size(num_pixels: int, *, device: torch.device, fast: bool = False) -> int:
    """Hypotheses of this many pixels to decode at once; `fast` on fused kernels."""
    on_gpu = PIXELS_PER_CHUNK_FAST if fast else PIXELS_PER_CHUNK
    return max(1, (PIXELS_PER_CHUNK_CPU if device.type == "cpu" else on_gpu) // num_pixels)


def slices(count: int, *, size: int) -> Iterator[slice]:
    """Of 0 ... `count` - 1, `size` at a time."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
