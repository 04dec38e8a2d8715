"""Distinct hypotheses and their shares: 16 samples that show, say, three opinions.

Clustered by complete linkage on 1 − IoU: any two samples of a group have an IoU of at least `same_iou`. Where that
leaves too many groups to say anything, the threshold is lowered step by step, and each hypothesis names it. Maps
without any of the classes have IoU 1 with each other and 0 with all others: "nothing marked" is its own group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int, Integer
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from hpunet.errors import ConfigError
from hpunet.metrics import k_medoids, num_parts, pair_ious

_THRESHOLDS = (0.5, 0.4, 0.3, 0.2, 0.1)
_FEW_GROUPS, _SAMPLES_PER_GROUP = 5, 4  # more groups than both allow are no summary


@dataclass(frozen=True)
class Hypothesis:
    """One opinion: a group of similar samples, or a representative with the samples that are nearest to it."""

    representative: int
    """The medoid: the sample with the highest IoU to the rest of its group."""
    members: tuple[int, ...]
    """Indices of the group's samples, ascending."""
    share: float
    """Members / samples."""
    area: int
    """Foreground pixels, or voxels, of the representative."""
    num_parts: int
    """Connected parts of its foreground (diagonal neighbours count), counted per class."""
    same_iou: float
    """Any two samples of a group have at least this IoU."""
    labels: Integer[np.ndarray, "..."] = field(repr=False, compare=False)
    """The representative's map."""

    @property
    def description(self) -> str:
        """The representative's foreground in a few words."""
        if self.area == 0:
            return "nothing marked"
        unit = "voxel" if self.labels.ndim == 3 else "pixel"
        units, parts = ("" if n == 1 else "s" for n in (self.area, self.num_parts))
        return f"{self.area} {unit}{units} in {self.num_parts} part{parts}"


def distinct_hypotheses(
    samples: Integer[np.ndarray, "s ..."],
    *,
    num_classes: int,
    classes: Sequence[int] | None = None,
    same_iou: float | None = None,
) -> list[Hypothesis]:
    """The distinct hypotheses among samples of an image or volume, the most frequent first, then by first sample.

    `classes` are the foreground, by default all but 0. The IoU is that of `metrics.overlap`. Samples with an IoU of
    `same_iou` are the same hypothesis; by default 0.5, or as much less (down to 0.1) as a summary needs: at most five
    groups, or four samples per group on average.
    """
    if same_iou is not None and not 0 < same_iou <= 1:
        raise ConfigError(f"same_iou: expected a number above 0 and up to 1, got {same_iou}")
    iou = _ious(samples, num_classes=num_classes, classes=classes)
    num_samples = len(samples)
    numbers, used = np.ones(num_samples, dtype=np.int32), _THRESHOLDS[0] if same_iou is None else same_iou
    if num_samples > 1:
        tree = linkage(squareform(1 - iou, checks=False), method="complete")
        for used in _THRESHOLDS if same_iou is None else (same_iou,):
            numbers = fcluster(tree, t=1 - used, criterion="distance")
            if numbers.max() <= _most_groups(num_samples):
                break
    groups = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    medoids = [int(members[iou[np.ix_(members, members)].sum(axis=1).argmax()]) for members in groups]
    return _described(
        samples, groups, medoids, num_classes=num_classes, classes=classes, same_iou=[used] * len(groups)
    )


def representatives(
    samples: Integer[np.ndarray, "s ..."], *, num: int, num_classes: int, classes: Sequence[int] | None = None
) -> list[Hypothesis]:
    """The `num` samples that, weighted by their shares, stand best for all: the most frequent first.

    They minimise the mean of 1 − IoU between a sample and the nearest of them (`metrics.k_medoids`). Fewer, where
    fewer samples differ.
    """
    iou = _ious(samples, num_classes=num_classes, classes=classes)
    chosen, nearest = k_medoids(1 - iou, num=num)
    groups = [np.flatnonzero(nearest == number) for number in range(len(chosen))]
    least = [float(iou[np.ix_(members, members)].min()) for members in groups]
    return _described(samples, groups, chosen.tolist(), num_classes=num_classes, classes=classes, same_iou=least)


def _ious(
    samples: Integer[np.ndarray, "s ..."], *, num_classes: int, classes: Sequence[int] | None
) -> Float64[np.ndarray, "s s"]:
    maps = samples.reshape(1, len(samples), -1, samples.shape[-1])
    pairs = pair_ious(samples=maps, labels=maps[:, :1], num_classes=num_classes, classes=classes)
    return np.asarray(pairs.samples[0])


def _described(
    samples: Integer[np.ndarray, "s ..."],
    groups: Sequence[Int[np.ndarray, " _"]],
    shown: Sequence[int],
    *,
    num_classes: int,
    classes: Sequence[int] | None,
    same_iou: Sequence[float],
) -> list[Hypothesis]:
    """The hypotheses of groups of samples, each with the one that is shown, in order."""
    chosen = list(range(1, num_classes)) if classes is None else list(classes)
    found = [
        Hypothesis(
            representative=number,
            members=tuple(members.tolist()),
            share=len(members) / len(samples),
            area=int(np.isin(samples[number], chosen).sum()),
            num_parts=sum(num_parts(samples[number] == c) for c in chosen),
            same_iou=iou,
            labels=samples[number],
        )
        for number, members, iou in zip(shown, groups, same_iou, strict=True)
    ]
    return sorted(found, key=lambda hypothesis: (-hypothesis.share, hypothesis.members))


def summarise(hypotheses: Sequence[Hypothesis]) -> str:
    """The number of distinct hypotheses and how alike their samples are; or that groups do not summarise them."""
    num_samples = sum(len(hypothesis.members) for hypothesis in hypotheses)
    words = f"{len(hypotheses)} distinct among {num_samples} samples (grouped at IoU {hypotheses[0].same_iou:g})"
    if len(hypotheses) > _most_groups(num_samples):
        words += "; samples differ in many places: look at the mean and the standard deviation"
    elif len(hypotheses) == 1 < num_samples and hypotheses[0].area:
        words += "; a higher same_iou (--same-iou 0.8) tells apart what differs in details"
    return words


def _most_groups(num_samples: int) -> int:
    return max(_FEW_GROUPS, num_samples // _SAMPLES_PER_GROUP)
