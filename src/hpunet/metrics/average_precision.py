"""Average precision of instances by the official Cityscapes protocol, for one class (App. B: cars).

For each overlap (0.50, 0.55 ... 0.95), over all images together:

* true instances below the minimum region (100 pixels of 1024×2048, scaled by area at other sizes) are ignored;
* a prediction matches a true instance if their IoU, over all pixels of the prediction, is *above* the overlap;
* of several predictions that match one true instance, the one with the highest score is true, the others are false;
* a prediction without a match is false, or ignored if a larger share of its pixels than the overlap is ignored: void,
  groups, too small true instances (this implies the protocol's rule on the IoU with a group or small instance);
* precision and recall are taken at each distinct score, the point (recall 0, precision 1) is added, and the area
  under the straight lines between the points is the AP;
* unlike there, groups below the minimum region do not count twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Integer

from hpunet.errors import DataError
from hpunet.metrics.arrays import numbered
from hpunet.metrics.bootstrap import draws, group_numbers

OVERLAPS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
MIN_REGION, OFFICIAL_SIZE = 100, (1024, 2048)
"""Pixels of the smallest true instance that counts, at the official size of images."""


@dataclass(frozen=True)
class InstanceMatches:
    """The overlaps of the instances of one image, and the share of each prediction's pixels that is ignored."""

    iou: Float64[np.ndarray, "predicted true"]
    scores: Float64[np.ndarray, " predicted"]
    ignored_share: Float64[np.ndarray, " predicted"]


@dataclass(frozen=True)
class AveragePrecision:
    """AP (mean over the overlaps), AP50 (overlap 0.50) and all overlaps; None if no image has a true instance."""

    ap: float | None
    ap50: float | None
    by_overlap: tuple[float, ...] | None


def match_instances(
    *,
    prediction: Integer[np.ndarray, "*s"],
    scores: Float64[np.ndarray, " ids"],
    truth: Integer[np.ndarray, "*s"],
    valid: Bool[np.ndarray, "*s"] | None = None,
    min_region: int | float | None = None,
) -> InstanceMatches:
    """Overlaps of the predicted and the true instances of one image.

    In both maps 0 is background, other numbers are instances. `scores[i]` is the confidence in prediction i,
    `scores[0]` is unused. `valid` is false on void pixels and groups. `min_region`, in pixels, is scaled by default;
    in volumes, which the protocol does not know, it is 0.
    """
    size = truth.shape
    valid = np.ones(size, dtype=np.bool_) if valid is None else valid
    if prediction.shape != size or valid.shape != size:
        raise DataError(f"prediction {prediction.shape} and valid {valid.shape} must have truth's shape {size}")
    if min(prediction.min(), truth.min()) < 0 or prediction.max() >= len(scores):
        raise DataError(
            f"instances must be 0 or more and each prediction needs a score: found {prediction.min()}..."
            f"{prediction.max()}, {len(scores)} scores (one for the background included)"
        )
    if min_region is None:
        min_region = MIN_REGION * truth.size / math.prod(OFFICIAL_SIZE) if truth.ndim == 2 else 0
    counted = np.where(valid, truth, 0)
    true_ids, true_of_pixel, true_areas = numbered(counted)
    ids, of_pixel, areas = numbered(prediction)
    pairs = of_pixel * len(true_ids) + true_of_pixel
    shared = np.bincount(pairs, minlength=len(ids) * len(true_ids)).reshape(len(ids), len(true_ids))
    on_void = np.bincount(of_pixel[~valid.ravel()], minlength=len(ids))
    counts = (true_ids > 0) & (true_areas >= min_region)
    too_small = (true_ids > 0) & ~counts
    is_instance = ids > 0
    iou = shared / (areas[:, None] + true_areas[None, :] - shared)
    ignored = (on_void + shared[:, too_small].sum(axis=1)) / areas
    return InstanceMatches(
        iou=iou[is_instance][:, counts],
        scores=np.asarray(scores, dtype=np.float64)[ids[is_instance]],
        ignored_share=ignored[is_instance],
    )


def average_precision(images: Sequence[InstanceMatches]) -> AveragePrecision:
    """AP and AP50 over all images together."""
    if not any(image.iou.shape[1] for image in images):
        return AveragePrecision(ap=None, ap50=None, by_overlap=None)
    if not all(np.isfinite(image.scores).all() for image in images):
        raise DataError("scores: expected finite numbers")
    num_true = sum(image.iou.shape[1] for image in images)
    ranked = _ranked(images)
    by_overlap = tuple(_area(ranks, is_true, np.ones_like(is_true), num_true) for _, ranks, is_true in ranked)
    return AveragePrecision(ap=float(np.mean(by_overlap)), ap50=by_overlap[0], by_overlap=by_overlap)


def resampled_average_precision(
    images: Sequence[InstanceMatches], *, seed: int, groups: Sequence[object] | None = None, num: int = 1000
) -> Float64[np.ndarray, "num 2"]:
    """AP and AP50 of sets of images, or of whole groups, drawn as in `resampled_means`; NaN without a true instance.

    The same seed and number of images give the same draws, so that two models can be compared draw by draw.
    """
    result = np.full((num, 2), np.nan)
    if not images:
        return result
    group = group_numbers(groups, num_images=len(images))
    num_groups = int(group.max()) + 1
    num_true = np.array([image.iou.shape[1] for image in images])
    ranked = _ranked(images)
    for i, drawn in enumerate(draws(np.random.default_rng(seed), num_groups=num_groups, num=num)):
        weights = np.bincount(drawn, minlength=num_groups)[group].astype(np.float64)
        if not (num_instances := int(weights @ num_true)):
            continue
        areas = [_area(ranks, is_true, weights[image_of], num_instances) for image_of, ranks, is_true in ranked]
        result[i] = np.mean(areas), areas[0]
    return result


def _ranked(images: Sequence[InstanceMatches]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each overlap: image, rank by score and correctness (1 or 0) of every prediction that counts."""
    result = []
    for overlap in OVERLAPS:
        parts = [_true_and_false(image, overlap=overlap) for image in images]
        image_of = np.repeat(np.arange(len(images)), [len(true) + len(false) for true, false in parts])
        is_true = np.concatenate([np.repeat([1.0, 0.0], [len(true), len(false)]) for true, false in parts])
        _, ranks = np.unique(-np.concatenate([scores for part in parts for scores in part]), return_inverse=True)
        result.append((image_of, ranks, is_true))
    return result


def _true_and_false(image: InstanceMatches, *, overlap: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the true and of the false predictions."""
    matches = image.iou > overlap
    ordered = [np.sort(image.scores[column]) for column in matches.T]
    left = image.scores[~matches.any(axis=1) & (image.ignored_share <= overlap)]
    best, others = ([scores[part] for scores in ordered] for part in (slice(-1, None), slice(None, -1)))
    return np.concatenate([np.empty(0), *best]), np.concatenate([*others, left])


def _area(ranks: np.ndarray, is_true: np.ndarray, weights: np.ndarray, num_instances: int) -> float:
    """Area under precision over recall, from weighted predictions (n,) and their ranks among the distinct scores."""
    num_true = np.bincount(ranks, weights=is_true * weights).cumsum()
    num_predicted = np.bincount(ranks, weights=weights).cumsum()
    precision = np.divide(num_true, num_predicted, out=np.ones(len(num_true)), where=num_predicted > 0)
    recall = num_true / num_instances
    return float(np.trapezoid(np.concatenate([[1.0], precision]), np.concatenate([[0.0], recall])))
