"""Agreement of the set of samples with the set of graders' maps (App. B): GED², matched IoU and others.

Options and the rule for absent classes are those of `overlap.py`; d is 1 − IoU. One float64 value per image.
"""

from dataclasses import dataclass, replace
from math import lcm
from typing import Unpack

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import linear_sum_assignment

from hpunet.errors import DataError
from hpunet.metrics.arrays import (
    Absent,
    GraderMaps,
    GraderOptions,
    MapOptions,
    PairOptions,
    PerImage,
    SampleMaps,
    check_maps,
    same_type,
)
from hpunet.metrics.medoids import k_medoids
from hpunet.metrics.overlap import dice_from_counts, iou_from_counts, mean_over_graders, score_pairs

MAX_MATCHED = 2**12  # maps on each side of a match, which takes the cube of this many operations


@dataclass(frozen=True)
class PairIoUs:
    """The IoUs of all pairs of maps of an image, for several metrics."""

    samples: Float64[np.ndarray, "b s s"]
    cross: Float64[np.ndarray, "b s r"]
    labels: Float64[np.ndarray, "b r r"]
    graders: Bool[np.ndarray, "b r"]

    def _distances(self) -> tuple[np.ndarray, np.ndarray]:
        """E[d(S,Y)] and E[d(Y,Y')] (b,), self-pairs included."""
        weights = self.graders / self.graders.sum(axis=1, keepdims=True)
        between = ((1 - self.cross).mean(axis=1) * weights).sum(axis=1)
        return between, np.einsum("bi,bij,bj->b", weights, 1 - self.labels, weights)

    def ged2(self) -> Float64[np.ndarray, " b"]:
        """See `ged2`."""
        between, among_labels = self._distances()
        return np.asarray(2 * between - (1 - self.samples).mean(axis=(1, 2)) - among_labels)

    def grader_distance(self) -> Float64[np.ndarray, " b"]:
        """E[d(Y,Y')], NaN for a single grader: the GED² of one grader's map, on average, in place of all samples.

        A sampler that draws s maps from the graders' own has 1/s of it (see `ged2`).
        """
        return np.where(self.graders.sum(axis=1) > 1, self._distances()[1], np.nan)

    def grader_iou(self) -> Float64[np.ndarray, " b"]:
        """Mean IoU of two different graders; NaN for a single one."""
        r = self.graders.sum(axis=1)
        return np.asarray(1 - self.grader_distance() * r / np.maximum(r - 1, 1))

    def ged2_unbiased(self) -> Float64[np.ndarray, " b"]:
        """See `ged2_unbiased`."""
        between, among_labels = self._distances()
        # Self-pairs have distance 0: without them only the number of pairs changes.
        r = self.graders.sum(axis=1)
        apart = np.where(r > 1, among_labels * r / np.maximum(r - 1, 1), np.nan)
        return np.asarray(2 * between - self.sample_diversity() - apart)

    def sample_diversity(self) -> Float64[np.ndarray, " b"]:
        """See `sample_diversity`."""
        return _mean_distance(self.samples)

    def represented(self, num: int) -> "PairIoUs":
        """Each sample replaced by the nearest of `num` representatives (`medoids.py`): the scores of those, weighted.

        GED² becomes 2·Σ w_i·E[d(S_i,Y)] − Σ w_i·w_j·d(S_i,S_j) − E[d(Y,Y')], matched IoU that of the best transport
        of the weights to graders of equal weight. Only scores without pairs of different samples have a meaning.
        """
        found = [k_medoids(1 - iou, num=num) for iou in self.samples]
        stands_for = np.stack([medoids.chosen[medoids.nearest] for medoids in found])
        cross = np.take_along_axis(self.cross, stands_for[:, :, None], axis=1)
        samples = np.take_along_axis(self.samples, stands_for[:, :, None], axis=1)
        return replace(self, cross=cross, samples=np.take_along_axis(samples, stands_for[:, None], axis=2))

    def hungarian_iou(self) -> Float64[np.ndarray, " b"]:
        """See `hungarian_iou`."""
        return np.array([_matched_mean(iou[:, mine]) for iou, mine in zip(self.cross, self.graders, strict=True)])

    def best_subset_iou(self) -> Float64[np.ndarray, " b"]:
        """See `best_subset_iou`."""
        return np.array([_best_subset_mean(iou[:, mine]) for iou, mine in zip(self.cross, self.graders, strict=True)])


def _mean_distance(iou: np.ndarray) -> np.ndarray:
    """Mean d (b,) over pairs of different maps, from their IoUs (b, n, n); NaN for a single map."""
    n = iou.shape[1]
    return np.asarray((1 - iou).sum(axis=(1, 2)) / (n * (n - 1)) if n > 1 else np.full(len(iou), np.nan))


def _matched_mean(iou: np.ndarray) -> float:
    """Mean IoU of the best 1:1 match of rows and columns, both repeated to their least common multiple."""
    s, r = iou.shape
    if (size := lcm(s, r)) > MAX_MATCHED:
        words = f"{s} samples and {r} graders have {size} as least common multiple, at most {MAX_MATCHED} are matched"
        raise DataError(f"{words}; draw a multiple of {r} samples")
    repeated = iou.repeat(size // s, axis=0).repeat(size // r, axis=1)
    return float(repeated[linear_sum_assignment(repeated, maximize=True)].mean())


def _best_subset_mean(iou: np.ndarray) -> float:
    """Mean IoU of the best match of every column with a row of its own; NaN if there are too few rows."""
    s, r = iou.shape
    return float(iou[linear_sum_assignment(iou, maximize=True)].mean()) if s >= r else float("nan")


def pair_ious(
    *, samples: SampleMaps, labels: GraderMaps, absent: Absent = "skip", **options: Unpack[GraderOptions]
) -> PairIoUs:
    """IoUs among samples, among labels and between them, always numpy: compute once, then read several metrics."""
    checked = check_maps({"samples": samples, "labels": labels}, dims="b n *s, b r *s", **options)
    iou = score_pairs(checked, score=iou_from_counts, absent=absent)
    s = samples.shape[1]
    return PairIoUs(samples=iou[:, :s, :s], cross=iou[:, :s, s:], labels=iou[:, s:, s:], graders=checked.graders)


def ged2(*, samples: SampleMaps, labels: GraderMaps, **options: Unpack[PairOptions]) -> PerImage:
    """Generalised energy distance, squared (App. B): 2·E[d(S,Y)] − E[d(S,S')] − E[d(Y,Y')].

    The means include pairs of a map with itself (the V-statistic, as in the literature), so two draws of one
    distribution have (1/s + 1/r)·E[d] on average. For a single class it is never negative, up to rounding.
    """
    return same_type(pair_ious(samples=samples, labels=labels, **options).ged2(), like=samples)


def ged2_unbiased(*, samples: SampleMaps, labels: GraderMaps, **options: Unpack[PairOptions]) -> PerImage:
    """GED² without self-pairs (the U-statistic, Székely and Rizzo 2013), NaN for a single sample or grader.

    It is 0 on average for two draws of one distribution, and may be negative.
    """
    return same_type(pair_ious(samples=samples, labels=labels, **options).ged2_unbiased(), like=samples)


def hungarian_iou(*, samples: SampleMaps, labels: GraderMaps, **options: Unpack[PairOptions]) -> PerImage:
    """Hungarian-matched IoU (App. B): mean IoU of the best 1:1 match of both sets, repeated to their LCM."""
    return same_type(pair_ious(samples=samples, labels=labels, **options).hungarian_iou(), like=samples)


def best_subset_iou(*, samples: SampleMaps, labels: GraderMaps, **options: Unpack[PairOptions]) -> PerImage:
    """Mean IoU of the best 1:1 match of all graders with as many of the samples; NaN for fewer samples than graders.

    The other samples do not count, so that more samples never lower the value, unlike that of `hungarian_iou`.
    """
    return same_type(pair_ious(samples=samples, labels=labels, **options).best_subset_iou(), like=samples)


def sample_diversity(*, samples: SampleMaps, absent: Absent = "skip", **options: Unpack[MapOptions]) -> PerImage:
    """Mean distance E[d(S,S')] of two different samples of an image; NaN for a single sample."""
    checked = check_maps({"samples": samples}, dims="b n *s", **options)
    return same_type(_mean_distance(score_pairs(checked, score=iou_from_counts, absent=absent)), like=samples)


def best_match_dice(
    *, samples: SampleMaps, labels: GraderMaps, absent: Absent = "skip", **options: Unpack[GraderOptions]
) -> PerImage:
    """D_max: for each grader the Dice of the best sample, the mean over graders (Rahman et al., CVPR 2023).

    Absent classes count as for IoU. Graders may share a best sample, so more samples never lower the value.
    """
    checked = check_maps({"samples": samples, "labels": labels}, dims="b n *s, b r *s", **options)
    s = samples.shape[1]
    dice = score_pairs(checked, score=dice_from_counts, absent=absent)[:, :s, s:]
    return same_type(mean_over_graders(dice.max(axis=1), checked.graders), like=samples)
