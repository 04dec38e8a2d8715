"""Scores of a model against the known distribution of the synthetic lesions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.source import SyntheticSource
from hpunet.metrics import hungarian_iou, iou_rec, pair_ious
from hpunet.models.base import SegmentationModel
from hpunet.sampling.sample import LatentSource, reconstruct, sample

NUM_SAMPLES = 16
BORDER_WIDTH = 2.0
"""Pixels on either side of an outline."""
_IMAGES_AT_ONCE = 10


def scores_against_truth(
    model: SegmentationModel, source: SyntheticSource, *, seed: int
) -> dict[str, Float64[np.ndarray, " images"]]:
    """GED², matched IoU and IoU_rec per image, against the exact distribution of the graders.

    In GED², E d(S, Y) and E d(Y, Y') are exact sums over all label maps; E d(S, S') is over all sample pairs,
    self-pairs included (App. B), so a perfect sampler has E d(Y, Y') / samples on average. Matched IoU compares the
    samples with the same number of draws of the truth.
    """
    ged2: list[float] = []
    matched: list[float] = []
    rebuilt_well: list[float] = []
    for indices, image, labels in _batches(source):
        samples = _draw(model, image, "sample", seed=seed + indices[0])
        rebuilt = reconstruct(model, image=image, labels=labels, return_logits=False).labels
        for i, index in enumerate(indices):
            truth = source.distribution(index)
            ged2.append(_exact_ged2(samples[i : i + 1], truth))
            draws = torch.from_numpy(truth.sample(np.random.default_rng((seed, index)), NUM_SAMPLES))
            matched.append(hungarian_iou(samples=samples[i : i + 1], labels=draws[None], num_classes=2).item())
        rebuilt_well.extend(iou_rec(reconstructions=rebuilt, labels=labels, num_classes=2).tolist())
    return {"ged2": np.array(ged2), "hm_iou": np.array(matched), "iou_rec": np.array(rebuilt_well)}


def _exact_ged2(samples: Tensor, truth: KnownDistribution) -> float:
    """GED² of samples (1, s, h, w) against the whole distribution."""
    pairs = pair_ious(samples=samples, labels=torch.from_numpy(truth.support)[None], num_classes=2)
    between = (1 - pairs.cross[0]).mean(axis=0) @ truth.probabilities
    return float(2 * between - (1 - pairs.samples[0]).mean() - truth.mean_distance)


def perfect_ged2(source: SyntheticSource) -> float:
    """The expected GED² of a sampler that draws from the truth."""
    return float(np.mean([source.distribution(i).mean_distance for i in range(len(source))]) / NUM_SAMPLES)


GLOBAL_ONLY, LOCAL_ONLY = "most global scale, others at their mean", "most local scale, others at their mean"


def border_shares(model: SegmentationModel, source: SyntheticSource, *, seed: int) -> dict[str, float]:
    """Share of the samples' pixel variance in `border_zone`, with only one scale sampled; NaN if samples agree."""
    rest: list[LatentSource] = ["mean"] * (len(model.latent_dims) - 1)
    ways: dict[str, Sequence[LatentSource]] = {GLOBAL_ONLY: ["sample", *rest], LOCAL_ONLY: [*rest, "sample"]}
    at_borders, everywhere = (dict.fromkeys(ways, 0.0) for _ in range(2))
    for indices, image, _ in _batches(source):
        zones = np.stack([border_zone(source.distribution(index)) for index in indices])
        for name, latents in ways.items():
            samples = _draw(model, image, latents, seed=seed + indices[0])
            variance = samples.double().var(dim=1, correction=0).numpy()
            at_borders[name] += float(variance[zones].sum())
            everywhere[name] += float(variance.sum())
    return {name: at_borders[name] / total if total else float("nan") for name, total in everywhere.items()}


def border_zone(truth: KnownDistribution) -> Bool[np.ndarray, "h w"]:
    """Pixels within `BORDER_WIDTH` of a possible outline, of a core or a halo."""
    return np.asarray(_near_edge(truth.cores) | _near_edge(truth.regions > 0))


def _near_edge(inside: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    return np.asarray((distance_transform_edt(inside) + distance_transform_edt(~inside)) <= BORDER_WIDTH)


def _draw(model: SegmentationModel, image: Tensor, latents: str | Sequence[LatentSource], *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    how: dict[str, Any] = {"latents": latents, "generator": generator, "return_logits": False}
    return sample(model, image=image, num_samples=NUM_SAMPLES, **how).labels


def _batches(source: SyntheticSource) -> list[tuple[list[int], Tensor, Tensor]]:
    """Indices, images (b, 1, h, w) and labels (b, r, h, w) of a few images at a time."""
    batches = []
    for start in range(0, len(source), _IMAGES_AT_ONCE):
        indices = list(range(start, min(start + _IMAGES_AT_ONCE, len(source))))
        samples = [source[i] for i in indices]
        image = torch.from_numpy(np.stack([s.image for s in samples]))
        labels = torch.from_numpy(np.stack([s.labels for s in samples])).long()
        batches.append((indices, image, labels))
    return batches
