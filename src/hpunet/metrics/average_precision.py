"""Average precision of instances by the official Cityscapes protocol, for one class (App. B: cars).

For each overlap (0.50, 0.55 ... 0.95), over all images together:

* true instances below the minimum region (100 pixels of 1024×2048; scaled by area at other sizes, ours) are ignored;
* a prediction matches a true instance if their IoU, over all pixels of the prediction, is *above* the overlap;
* of several predictions that match one true instance, the one with the highest score is true, the others are false
  (instances of label maps are disjoint, so from overlap 0.5 on there is at most one);
* a prediction without a match is false, or left out if more than that share (the overlap) of its pixels is ignored:
  void, groups, too small true instances;
* true instances without a match are missed;
* precision and recall are taken at each distinct score, the point (recall 0, precision 1) is added, and the area
  under the straight lines between the points is the AP.

The protocol also leaves out predictions whose IoU with a group or a too small instance is above the overlap. That
needs no rule: their share of ignored pixels is at least that IoU. One quirk is not followed: groups below the minimum
region count twice there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Integer

from hpunet.errors import DataError
from hpunet.metrics.bootstrap import draws, group_numbers

OVERLAPS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
MIN_REGION = 100
"""Smallest true instance that counts, in pixels of the official size."""
OFFICIAL_SIZE = (1024, 2048)


@dataclass(frozen=True)
class InstanceMatches:
    """How the instances of one image overlap: the input of average precision."""

    iou: Float64[np.ndarray, "predicted true"]
    scores: Float64[np.ndarray, " predicted"]
    ignored_share: Float64[np.ndarray, " predicted"]
    """Share of a prediction's pixels on void, groups and too small true instances."""


@dataclass(frozen=True)
class AveragePrecision:
    """AP is the mean over the overlaps, AP50 the value at 0.50. None if no image has a true instance."""

    ap: float | None
    ap50: float | None
    by_overlap: tuple[float, ...] | None


def match_instances(
    *,
    prediction: Integer[np.ndarray, "h w"],
    scores: Float64[np.ndarray, " ids"],
    truth: Integer[np.ndarray, "h w"],
    valid: Bool[np.ndarray, "h w"] | None = None,
    min_region: int | float | None = None,
) -> InstanceMatches:
    """Overlaps of the predicted and the true instances of one image.

    In both maps 0 is background and every other number an instance. `scores[i]` is the confidence in prediction i;
    `scores[0]` is not used. `valid` is false on void pixels and groups. `min_region`, in pixels of this image,
    defaults to the official one scaled by area.
    """
    h, w = truth.shape
    valid = np.ones((h, w), dtype=np.bool_) if valid is None else valid
    if prediction.shape != (h, w) or valid.shape != (h, w):
        raise DataError(
            f"prediction {prediction.shape} and valid {valid.shape} must have the shape of truth {(h, w)}"
        )
    if min(prediction.min(), truth.min()) < 0 or prediction.max() >= len(scores):
        raise DataError(
            f"instances must be 0 or more and each prediction needs a score: found {prediction.min()}..."
            f"{prediction.max()}, {len(scores)} scores (one for the background included)"
        )
    if min_region is None:
        min_region = MIN_REGION * (h * w) / (OFFICIAL_SIZE[0] * OFFICIAL_SIZE[1])
    true_ids, true_of_pixel, true_areas = np.unique(
        np.where(valid, truth, 0), return_inverse=True, return_counts=True
    )
    ids, of_pixel, areas = np.unique(prediction, return_inverse=True, return_counts=True)
    pairs = of_pixel.astype(np.int64).ravel() * len(true_ids) + true_of_pixel.ravel()
    shared = np.bincount(pairs, minlength=len(ids) * len(true_ids)).reshape(len(ids), len(true_ids))
    on_void = np.bincount(of_pixel[~valid].ravel(), minlength=len(ids))

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
    by_overlap = tuple(_area_under_curve(*_true_and_false(images, overlap=overlap)) for overlap in OVERLAPS)
    return AveragePrecision(ap=float(np.mean(by_overlap)), ap50=by_overlap[0], by_overlap=by_overlap)


def resampled_average_precision(
    images: Sequence[InstanceMatches], *, seed: int, groups: Sequence[object] | None = None, num: int = 1000
) -> Float64[np.ndarray, "num 2"]:
    """AP and AP50 of sets of images, or of whole groups, drawn as in `resampled_means`.

    NaN for a set without a true instance. The same seed and number of images give the same draws, so two models can
    be compared draw by draw.
    """
    result = np.full((num, 2), np.nan)
    if not images:
        return result
    group = group_numbers(groups, num_images=len(images))
    num_groups = int(group.max()) + 1
    num_true = np.array([image.iou.shape[1] for image in images])
    by_overlap = []  # for every prediction that counts: its image, its rank by score, whether it is true
    for overlap in OVERLAPS:
        parts = [_true_and_false([image], overlap=overlap)[:2] for image in images]
        image_of = np.repeat(np.arange(len(images)), [len(true) + len(false) for true, false in parts])
        is_true = np.concatenate([np.repeat([1.0, 0.0], [len(true), len(false)]) for true, false in parts])
        _, ranks = np.unique(-np.concatenate([scores for part in parts for scores in part]), return_inverse=True)
        by_overlap.append((image_of, ranks, is_true))
    for i, drawn in enumerate(draws(np.random.default_rng(seed), num_groups=num_groups, num=num)):
        weights = np.bincount(drawn, minlength=num_groups)[group].astype(np.float64)
        if not (num_instances := int(weights @ num_true)):
            continue
        areas = [_area(ranks, is_true, weights[image_of], num_instances) for image_of, ranks, is_true in by_overlap]
        result[i] = np.mean(areas), areas[0]
    return result


def _true_and_false(images: Sequence[InstanceMatches], *, overlap: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Scores of the true and of the false predictions, and the number of true instances."""
    true: list[float] = []
    false: list[float] = []
    for image in images:
        matches = image.iou > overlap
        for column in matches.T:
            scores = np.sort(image.scores[column])
            true.extend(scores[-1:])
            false.extend(scores[:-1])
        left = ~matches.any(axis=1) & (image.ignored_share <= overlap)
        false.extend(image.scores[left])
    return np.array(true), np.array(false), sum(image.iou.shape[1] for image in images)


def _area_under_curve(true: np.ndarray, false: np.ndarray, num_instances: int) -> float:
    """Area under precision over recall, from the highest score down."""
    _, ranks = np.unique(-np.concatenate([true, false]), return_inverse=True)
    is_true = np.repeat([1.0, 0.0], [len(true), len(false)])
    return _area(ranks, is_true, np.ones_like(is_true), num_instances)


def _area(ranks: np.ndarray, is_true: np.ndarray, weights: np.ndarray, num_instances: int) -> float:
    """The same for weighted predictions (n,), with their ranks among the distinct scores."""
    num_true = np.bincount(ranks, weights=is_true * weights).cumsum()
    num_predicted = np.bincount(ranks, weights=weights).cumsum()
    precision = np.divide(num_true, num_predicted, out=np.ones(len(num_true)), where=num_predicted > 0)
    recall = num_true / num_instances
    return float(np.trapezoid(np.concatenate([[1.0], precision]), np.concatenate([[0.0], recall])))
