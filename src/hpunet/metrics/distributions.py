"""How well a set of samples agrees with the set of the graders' maps (App. B): GED², matched IoU and others.

The IoU, its arguments and its rules for absent classes are those of `overlap.py`. One float64 value an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import linear_sum_assignment

from hpunet.metrics.arrays import (
    GraderMaps,
    Graders,
    PerImage,
    SampleMaps,
    Valid,
    check_values,
    checked_sets,
    in_kind,
    label_maps,
    looked_at,
    valid_pixels,
)
from hpunet.metrics.overlap import Absent, dice_from_counts, iou_from_counts, pair_scores


@dataclass(frozen=True)
class PairIoUs:
    """The IoU of every pair of maps of an image: what GED² and matched IoU are made of, worked out once."""

    samples: Float64[np.ndarray, "b s s"]
    cross: Float64[np.ndarray, "b s r"]
    labels: Float64[np.ndarray, "b r r"]
    graders: Bool[np.ndarray, "b r"]

    def _distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean 1 − IoU (b,) of samples and graders, and of graders among themselves, self-pairs included."""
        weights = self.graders / self.graders.sum(axis=1, keepdims=True)
        between = ((1 - self.cross).mean(axis=1) * weights).sum(axis=1)
        return between, np.einsum("bi,bij,bj->b", weights, 1 - self.labels, weights)

    def ged2(self) -> Float64[np.ndarray, " b"]:
        """See `ged2`."""
        between, among_labels = self._distances()
        return np.asarray(2 * between - (1 - self.samples).mean(axis=(1, 2)) - among_labels)

    def ged2_unbiased(self) -> Float64[np.ndarray, " b"]:
        """See `ged2_unbiased`."""
        between, among_labels = self._distances()
        # Self-pairs have distance 0: leaving them out changes only the number of pairs that is divided by.
        r = self.graders.sum(axis=1)
        apart = np.where(r > 1, among_labels * r / np.maximum(r - 1, 1), np.nan)
        return np.asarray(2 * between - self.sample_diversity() - apart)

    def sample_diversity(self) -> Float64[np.ndarray, " b"]:
        """See `sample_diversity`."""
        return _mean_distance(self.samples)

    def hungarian_iou(self) -> Float64[np.ndarray, " b"]:
        """See `hungarian_iou`."""
        return np.array([_matched_mean(iou[:, mine]) for iou, mine in zip(self.cross, self.graders, strict=True)])


def _mean_distance(iou: np.ndarray) -> np.ndarray:
    """Mean 1 − IoU (b,) over the pairs of different members, from (b, n, n); NaN where there is no pair."""
    n = iou.shape[1]
    return np.asarray((1 - iou).sum(axis=(1, 2)) / (n * (n - 1)) if n > 1 else np.full(len(iou), np.nan))


def _matched_mean(iou: np.ndarray) -> float:
    """Mean IoU of the best 1:1 match of rows and columns, both repeated to their least common multiple."""
    s, r = iou.shape
    size = lcm(s, r)
    repeated = iou.repeat(size // s, axis=0).repeat(size // r, axis=1)
    return float(repeated[linear_sum_assignment(repeated, maximize=True)].mean())


def pair_ious(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PairIoUs:
    """IoUs among samples, among labels and between them: for several metrics of the same maps. Always numpy."""
    sets = checked_sets(samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders)
    chosen = looked_at(classes, num_classes=num_classes)
    both = (sets.samples, sets.labels)
    iou = pair_scores(*both, classes=chosen, valid=sets.valid, absent=absent, score=iou_from_counts)
    s = sets.samples.shape[1]
    return PairIoUs(samples=iou[:, :s, :s], cross=iou[:, :s, s:], labels=iou[:, s:, s:], graders=sets.graders)


def ged2(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """Generalised energy distance, squared (App. B): 2·E[d(S,Y)] − E[d(S,S')] − E[d(Y,Y')], d = 1 − IoU.

    The means go over all pairs, those of a map with itself included (the V-statistic, as everybody reports it). So
    it is 0 for a set against itself and never negative up to rounding for a single class, but above 0 on average for
    two draws of one distribution: (1/s + 1/r) · E[d].
    """
    pairs = pair_ious(
        samples=samples,
        labels=labels,
        num_classes=num_classes,
        classes=classes,
        valid=valid,
        graders=graders,
        absent=absent,
    )
    return in_kind(pairs.ged2(), like=samples)


def ged2_unbiased(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """GED² without self-pairs (the U-statistic): 0 on average for two draws of one distribution; may be negative.

    It is undefined where there is a single sample or a single grader. Such images are NaN in the array, which holds
    floats; a summary must leave them out, say how many, and write null where none is left.
    """
    pairs = pair_ious(
        samples=samples,
        labels=labels,
        num_classes=num_classes,
        classes=classes,
        valid=valid,
        graders=graders,
        absent=absent,
    )
    return in_kind(pairs.ged2_unbiased(), like=samples)


def hungarian_iou(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """Hungarian-matched IoU (App. B): the mean IoU of the best 1:1 match of samples and graders.

    Both sets are repeated to the least common multiple of their sizes: 16 samples and 4 graders are matched as 16
    against 4 times 4, 16 and 3 as 3 times 16 against 16 times 3.
    """
    pairs = pair_ious(
        samples=samples,
        labels=labels,
        num_classes=num_classes,
        classes=classes,
        valid=valid,
        graders=graders,
        absent=absent,
    )
    return in_kind(pairs.hungarian_iou(), like=samples)


def sample_diversity(
    *,
    samples: SampleMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """Mean distance 1 − IoU of two different samples of an image; NaN (undefined) for a single sample."""
    maps = label_maps(samples, name="samples", dims="b s h w")
    where = valid_pixels(valid, maps=maps)
    check_values(maps, name="samples", num_classes=num_classes, valid=where)
    chosen = looked_at(classes, num_classes=num_classes)
    iou = pair_scores(maps, classes=chosen, valid=where, absent=absent, score=iou_from_counts)
    return in_kind(_mean_distance(iou), like=samples)


def best_match_dice(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """D_max: for each grader the Dice of the best sample, averaged over graders (Rahman et al., CVPR 2023).

    Dice is 2·|A∩B| / (|A| + |B|), with the rules of IoU for absent classes: empty against empty is 1. Several
    graders may share a best sample, so it never falls when samples are added.
    """
    sets = checked_sets(samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders)
    chosen = looked_at(classes, num_classes=num_classes)
    both = (sets.samples, sets.labels)
    dice = pair_scores(*both, classes=chosen, valid=sets.valid, absent=absent, score=dice_from_counts)
    s = sets.samples.shape[1]
    best = dice[:, :s, s:].max(axis=1)
    return in_kind((best * sets.graders).sum(axis=1) / sets.graders.sum(axis=1), like=samples)
