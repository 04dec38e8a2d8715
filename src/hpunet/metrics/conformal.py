"""Conformal calibration by patient: thresholds from scores, so that a statement about a new patient holds as often
as stated.

A score is a number per grading: the smallest threshold at which the statement is right about it. If patients are
exchangeable, a statement at the threshold of `patient_quantile` is right about a random grading of a random image of
a new patient with at least the stated probability. This is conformal risk control (Angelopoulos et al., ICLR 2024) of
the share of gradings of a patient for which it is wrong, and equals hierarchical conformal prediction (Lee, Barber
and Willett, 2023). Images of one patient need not be independent, and the sampler need not be any good: then the
statements are vague, not wrong.

Statements are about graders who mark something: `nested_weights` gives empty gradings no weight. Masks come from one
nested family, {order ≤ t}: see `mask_order`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy import ndimage

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import positions
from hpunet.metrics.bootstrap import group_numbers

_ROUNDING = 1e-9
_LEAST, _FAR = 1e-6, 0.25  # smallest probability; see `mask_order`


class Interval(NamedTuple):
    """Both ends included."""

    low: float
    high: float


def nested_weights(
    *, patients: Sequence[object], images: Sequence[object], counts: Sequence[bool] | Bool[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """The probability of each grading when an image of a given patient is drawn, then one of its gradings.

    Gradings that do not count have weight 0, images without one that counts are not drawn. The weights of a patient
    add up to 1, or to 0 if none of the gradings counts.
    """
    used = np.asarray(counts, dtype=np.bool_)
    patient = group_numbers(patients, num_images=len(used))
    image = group_numbers(list(zip(patient.tolist(), images, strict=True)), num_images=len(used))
    gradings = np.bincount(image, weights=used)
    owner = np.zeros(len(gradings), dtype=np.int64)
    owner[image] = patient
    images_used = np.bincount(owner, weights=gradings > 0)
    return np.where(used, 1 / np.maximum(gradings[image] * images_used[patient], 1), 0.0)


def patient_quantile(scores: Float64[np.ndarray, " n"], *, weights: Float64[np.ndarray, " n"], level: float) -> float:
    """The smallest score that is at least those of new patients with probability `level`; infinite if there is none.

    `weights` add up to 1 for each of K patients. With Σ(t) the weights of scores up to t, it is the smallest t with
    Σ(t) / (K + 1) ≥ level: the unseen patient counts as one whose scores are infinite.
    """
    if not 0 < level < 1:
        raise ConfigError(f"guarantee: expected a number between 0 and 1, got {level:g}")
    if scores.shape != weights.shape or np.isnan(scores).any() or (weights < 0).any():
        raise DataError("scores: expected one number and one weight, not negative, each")
    order = np.argsort(scores, kind="stable")
    reached = weights[order].cumsum()
    num_patients = round(float(weights.sum()))
    enough = np.flatnonzero(reached >= level * (num_patients + 1) - _ROUNDING)
    return float(scores[order[enough[0]]]) if enough.size else float("inf")


def coverage(scores: Float64[np.ndarray, " n"], *, weights: Float64[np.ndarray, " n"], threshold: float) -> float:
    """The mean over patients of the share of their gradings with a score up to the threshold."""
    return float(weights[scores <= threshold].sum() / weights.sum())


def mask_order(
    samples: Bool[np.ndarray, " n *s"], *, mean: Float32[np.ndarray, "*s"], spacing: Sequence[float] | None = None
) -> Float64[np.ndarray, "*s"]:
    """A nested family of masks, {order ≤ t}: from pixels that all samples share to the whole image.

    The order is minus the decimal logarithm of a pixel's probability *among samples that mark something*: `mean`, the
    mean probability of all samples, divided by their share (by its own maximum if all samples are empty). A quarter
    of the distance from where samples end, in units of their radius, is added: far away, probabilities say little. In
    volumes with a `spacing` in mm both are in mm; the radius is that of a ball.
    """
    marked = samples.any(axis=positions(samples))
    share = max(float(marked.mean()), float(mean.max()), 1e-9)
    probability = np.minimum(mean.astype(np.float64) / share, 1)
    core = np.asarray(samples.any(axis=0) if marked.any() else probability > 0.5)
    if not core.any():
        core = np.asarray(probability >= probability.max())
    pixels = float(samples[marked].sum(axis=positions(samples)).mean()) if marked.any() else float(core.sum())
    distance = ndimage.distance_transform_edt(~core, sampling=spacing)
    size = 1.0 if spacing is None else math.prod(spacing)
    radius = np.sqrt(pixels * size / np.pi) if mean.ndim == 2 else np.cbrt(3 * pixels * size / (4 * np.pi))
    radius = max(radius, size ** (1 / mean.ndim))
    return np.asarray(_FAR * distance / radius - np.log10(np.maximum(probability, _LEAST)))


def outer_score(order: Float64[np.ndarray, "*s"], *, marked: Bool[np.ndarray, "*s"], miss_rate: float) -> float:
    """The smallest t at which {order ≤ t} misses at most this share of the marked pixels; −∞ without any."""
    values = np.sort(order[marked])[::-1]
    return float(values[int(miss_rate * values.size + _ROUNDING)]) if values.size else float("-inf")


def inner_score(order: Float64[np.ndarray, "*s"], *, marked: Bool[np.ndarray, "*s"], miss_rate: float) -> float:
    """Minus the first t at which more than this share of {order ≤ t} is not marked; −∞ if there is none.

    {order < t} is then fine, and so is each smaller mask of the family.
    """
    ascending = np.argsort(order, axis=None, kind="stable")
    values = order.ravel()[ascending]
    outside = (~marked).ravel()[ascending].cumsum()
    sizes = np.arange(1, values.size + 1)
    is_mask = np.append(values[1:] != values[:-1], True)  # pixels of equal order enter together
    wrong = np.flatnonzero(is_mask & (outside > miss_rate * sizes + _ROUNDING))
    return -float(values[wrong[0]]) if wrong.size else float("-inf")


def area_range(samples: Bool[np.ndarray, " n *s"], *, level: float) -> Interval:
    """Quantiles of the areas of samples that mark something, as logarithms of 1 + pixels; (0, 0) if none does."""
    areas = samples.sum(axis=positions(samples))
    areas = areas[areas > 0] if (areas > 0).any() else np.zeros(1)
    low, high = np.quantile(np.log1p(areas), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def area_score(found: Interval, *, area: float) -> float:
    """By how much a range must be widened on both sides to hold this area (Romano et al. 2019); negative inside."""
    return float(max(found.low - np.log1p(area), np.log1p(area) - found.high))


def area_interval(found: Interval, *, threshold: float, largest: float) -> Interval:
    """The range in pixels, widened by the threshold, within 0 and the largest possible area."""
    low, high = found.low - threshold, found.high + threshold
    if low > high:
        low = high = (low + high) / 2
    return Interval(*(float(np.clip(np.expm1(min(end, 700.0)), 0, largest)) for end in (low, high)))
