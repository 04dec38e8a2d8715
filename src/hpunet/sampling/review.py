"""The review score: how unlike the training images an image is, from the features of the encoder.

Features are pooled at every scale: their mean, their standard deviation and their mean in the centre. Two numbers are
made of them: the Mahalanobis distance to the training images, among their main directions, and the margin of a
logistic regression that tells training images from altered ones (`data/alterations.py`; outlier exposure, Hendrycks
et al. 2019). The score is the larger of the two, each in units in which training images have median 0 and 95th
percentile 1. One orientation of the image is enough: training turns and mirrors images.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Float64, Int8
from torch import Tensor

from hpunet.errors import DataError
from hpunet.models.base import SegmentationModel, compute_type
from hpunet.sampling.tiling import Padding

NUM_DIRECTIONS = 64
MAX_PIXELS = 2**21
"""Larger images are not scored: the encoder would need too much memory."""
_LEAST_IMAGES = 20
_STEPS, _RIDGE = 25, 1e-3  # of the logistic regression, by Newton's method
_LEVELS = (0.5, 0.95)


@torch.no_grad()
def pooled_features(model: SegmentationModel, *, image: Float[Tensor, "b c *s"]) -> Float[Tensor, "b f"]:
    """The features of images of any size, pooled; float32, on the CPU."""
    padding = Padding.of(*image.shape[2:], multiples=model.size_multiples)
    pooled = []
    for maps in model.encode(image=padding.add(image).to(compute_type(model))):
        middle = maps[:, :, *(slice(3 * side // 8, -(-5 * side // 8)) for side in maps.shape[2:])]
        axes = tuple(range(2, maps.ndim))
        pooled += [maps.mean(axes), maps.std(axes, unbiased=False), middle.mean(axes)]
    return torch.cat(pooled, dim=1).float().cpu()


@dataclass(frozen=True)
class ReviewStatistic:
    """What the score needs of the training images; some 250 kB."""

    centre: Float[Tensor, " f"]
    scale: Float[Tensor, " f"]
    """Mean and standard deviation of the features."""
    directions: Int8[Tensor, "f d"]
    """Their main directions, rounded; their lengths do not matter."""
    mean: Float[Tensor, " e"]
    whitening: Float[Tensor, "e e"]
    """Of the coordinates and the logarithm of what is left, e = d + 1; the inverse root of their covariance."""
    weights: Float[Tensor, " e"]
    """Of the logistic regression on whitened coordinates."""
    units: Float[Tensor, "2 2"]
    """Median and 95th percentile of distance and margin of training images."""

    def score(self, features: Float[Tensor, "b f"]) -> Float64[Tensor, " b"]:
        """One score per image; those of training images are above 1 in 5 to 10 % of cases."""
        if features.shape[1] != len(self.centre):
            raise DataError(f"review: {features.shape[1]} features, the statistic has {len(self.centre)}")
        parts = self._parts(features)
        units = self.units.double()
        return ((parts - units[:, 0]) / (units[:, 1] - units[:, 0]).clamp(min=1e-9)).amax(dim=1)

    def _coordinates(self, features: Tensor) -> Tensor:
        normal = (features.double() - self.centre) / self.scale
        axes = self.directions.double()
        axes = axes / axes.norm(dim=0).clamp(min=1)
        along = normal @ axes
        left = (normal - along @ axes.T).square().mean(dim=1, keepdim=True).clamp(min=1e-12).log()
        return torch.cat([along, left], dim=1)

    def _parts(self, features: Tensor) -> Tensor:
        """Distance and margin (b, 2)."""
        white = (self._coordinates(features) - self.mean) @ self.whitening.double()
        return torch.stack([white.square().sum(dim=1).log1p(), white @ self.weights.double()], dim=1)


def fit_review(
    *, features: Float[Tensor, "n f"], altered: Float[Tensor, "m f"], num_directions: int = NUM_DIRECTIONS
) -> ReviewStatistic:
    """The statistic of the features of training images and of altered ones."""
    if len(features) < _LEAST_IMAGES or not len(altered):
        raise DataError(f"review: {len(features)} training images, at least {_LEAST_IMAGES} are needed")
    count = min(num_directions, len(features) // 4, features.shape[1])
    centre, spread = features.double().mean(dim=0), features.double().std(dim=0)
    scale = spread + 1e-3 * spread.mean() + 1e-9  # features that never vary
    _, _, axes = torch.linalg.svd((features.double() - centre) / scale, full_matrices=False)
    axes = axes[:count].T
    rounded = (127 * axes / axes.abs().amax(dim=0).clamp(min=1e-12)).round().to(torch.int8)
    size = count + 1
    blank = {"mean": torch.zeros(size), "whitening": torch.eye(size), "weights": torch.zeros(size)}
    first = ReviewStatistic(
        centre=centre.float(), scale=scale.float(), directions=rounded, units=torch.zeros(2, 2), **blank
    )
    own, other = first._coordinates(features), first._coordinates(altered)
    mean = own.mean(dim=0)
    values, vectors = torch.linalg.eigh(torch.cov(own.T))
    whitening = vectors @ torch.diag((values + 1e-3 * values.mean()).rsqrt()) @ vectors.T
    weights = _separate((own - mean) @ whitening, (other - mean) @ whitening)
    found = {"mean": mean.float(), "whitening": whitening.float(), "weights": weights.float()}
    second = ReviewStatistic(first.centre, first.scale, rounded, units=first.units, **found)
    units = torch.stack([second._parts(features).quantile(level, dim=0) for level in _LEVELS], dim=1)
    return ReviewStatistic(first.centre, first.scale, rounded, units=units.float(), **found)


def _separate(own: Tensor, other: Tensor) -> Tensor:
    """Weights of a logistic regression, both sides weighing the same; its constant does not matter here."""
    x = torch.cat([own, other])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    y = torch.cat([torch.zeros(len(own)), torch.ones(len(other))]).double()
    each = torch.where(y > 0, 0.5 / len(other), 0.5 / len(own))
    ridge = _RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(_STEPS):
        p = torch.sigmoid(x @ weights)
        slope = x.T @ (each * (p - y)) + ridge @ weights
        weights = weights - torch.linalg.solve((x * (each * p * (1 - p))[:, None]).T @ x + ridge, slope)
    return weights[:-1]


TENSORS = tuple(field.name for field in fields(ReviewStatistic))
