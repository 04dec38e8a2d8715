"""IoU between label maps (App. B), for all pairs of a set or map by map.

All maps are integer maps. Only `classes`, the stochastic foreground classes, are looked at (default: all but 0), and
only where `valid` is true. A grader whom `graders` says is missing is left out of the set, which is not the same as a
grader who drew nothing. The IoU of two maps is the mean of their IoUs over classes, by one of two rules for a class
that neither map shows:

* absent="skip" (default): it does not enter the mean; if no class is in either map, the IoU is 1. For a single class
  that is the LIDC rule, empty against empty is 1; for several it is the paper's rule for instances;
* absent="one": it enters the mean as 1, a correctly predicted absence.

A class that one of the maps shows and the other does not has IoU 0. Everything is one float64 value an image.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Bool

from hpunet.errors import ConfigError
from hpunet.metrics.arrays import (
    Array,
    GraderMaps,
    Graders,
    Maps,
    PerImage,
    Valid,
    check_values,
    existing_graders,
    in_kind,
    label_maps,
    looked_at,
    same_size,
    valid_pixels,
)

Absent = Literal["skip", "one"]
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
_WORDS_AT_ONCE = 2**17
"""64 bit words of pairs of maps that are compared at once: what fits a core's cache."""


def iou_from_counts(intersection: np.ndarray, both_areas: np.ndarray) -> np.ndarray:
    """|A∩B| / |A∪B|."""
    return np.asarray(intersection / (both_areas - intersection))


def dice_from_counts(intersection: np.ndarray, both_areas: np.ndarray) -> np.ndarray:
    """2·|A∩B| / (|A| + |B|)."""
    return np.asarray(2 * intersection / both_areas)


class _MeanOverClasses:
    """The mean of a score over classes, by the rule for absent ones."""

    def __init__(self, score: Score, absent: Absent, *, shape: tuple[int, ...]) -> None:
        if absent not in ("skip", "one"):
            raise ConfigError(f"absent: expected 'skip' or 'one', got {absent!r}")
        self.score, self.absent = score, absent
        self.total, self.number = np.zeros(shape), np.zeros(shape)

    def add(self, *, intersection: np.ndarray, both_areas: np.ndarray) -> None:
        """One more class: the pixels it has in both maps, and the sum of those in each."""
        present = both_areas > 0
        self.total += self.score(intersection, np.maximum(both_areas, 1))  # 0 for an absent class
        self.number += present
        if self.absent == "one":
            self.total += ~present
            self.number += ~present

    def result(self) -> np.ndarray:
        """1 where nothing entered the mean."""
        return np.where(self.number > 0, self.total / np.maximum(self.number, 1), 1.0)


def pair_scores(*maps: np.ndarray, classes: list[int], valid: np.ndarray, absent: Absent, score: Score) -> np.ndarray:
    """Scores (b, n, n) of all pairs among all maps (b, ..., h, w), n of them together.

    A class in a map is a row of bits, 64 pixels a word; what two maps share is the number of bits set in both.
    """
    num_images, num_maps = len(valid), sum(m.shape[1] for m in maps)
    mean = _MeanOverClasses(score, absent, shape=(num_images, num_maps, num_maps))
    pairs = _pairs(num_maps)
    everywhere = [bool(where.all()) for where in valid]
    shared = np.empty((num_images, num_maps, num_maps))
    for c in classes:
        for image in range(num_images):
            where = None if everywhere[image] else valid[image]
            rows = np.concatenate([_bits(m[image] == c, where=where) for m in maps])
            shared[image][pairs] = shared[image].T[pairs] = _shared_bits(rows, pairs=pairs)
        areas = shared.diagonal(axis1=1, axis2=2)
        mean.add(intersection=shared, both_areas=areas[:, :, None] + areas[:, None, :])
    return mean.result()


@cache
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of n things, each with itself too."""
    return np.triu_indices(n)


def _bits(planes: np.ndarray, *, where: np.ndarray | None) -> np.ndarray:
    """Bool planes (n, h, w), false outside `where`, as (n, words) of 64 bits."""
    if where is not None:
        planes &= where
    packed = np.packbits(planes.reshape(len(planes), -1), axis=1)
    missing = -packed.shape[1] % 8
    packed = np.pad(packed, ((0, 0), (0, missing))) if missing else packed
    return np.ascontiguousarray(packed).view(np.uint64)


def _shared_bits(rows: np.ndarray, *, pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """How many bits are set in both of two rows of (n, words), for these pairs of rows."""
    rows = rows[:, np.bitwise_or.reduce(rows, axis=0) != 0]  # most of an image shows a class in no map at all
    counts = np.empty(len(pairs[0]))
    at_once = _WORDS_AT_ONCE // max(1, rows.shape[1]) or 1
    for start in range(0, len(counts), at_once):
        i, j = (side[start : start + at_once] for side in pairs)
        counts[start : start + at_once] = np.bitwise_count(rows[i] & rows[j]).sum(axis=1, dtype=np.uint32)
    return counts


def iou(
    a: Maps,
    b: Maps,
    *,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """Intersection over union of two maps of each image: |A∩B| / |A∪B|, the mean over classes."""
    one, other = (label_maps(m, name=name, dims="b h w") for m, name in ((a, "a"), (b, "b")))
    same_size(one, other, names="a and b")
    result = _iou_one_to_one(
        one[:, None], other[:, None], num_classes=num_classes, classes=classes, valid=valid, absent=absent
    )
    return in_kind(result[:, 0], like=a)


def iou_rec(
    *,
    reconstructions: GraderMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """Reconstruction IoU (App. B): IoU(Y, Y') with Y' = S(X, μ_post(X, Y)), the mean over the graders' maps Y."""
    truths = label_maps(labels, name="labels", dims="b r h w")
    drawn = label_maps(reconstructions, name="reconstructions", dims="b r h w")
    same_size(
        truths.reshape(-1, *truths.shape[2:]), drawn.reshape(-1, *drawn.shape[2:]), names="labels and reconstructions"
    )
    exist = existing_graders(graders, labels=truths)
    # Missing graders' maps hold nothing that counts: both sides are made alike, then given no weight.
    if not exist.all():
        truths, drawn = (np.where(exist[:, :, None, None], m, 0) for m in (truths, drawn))
    each = _iou_one_to_one(truths, drawn, num_classes=num_classes, classes=classes, valid=valid, absent=absent)
    return in_kind((each * exist).sum(axis=1) / exist.sum(axis=1), like=labels)


def _iou_one_to_one(
    one: np.ndarray,
    other: np.ndarray,
    *,
    num_classes: int,
    classes: Sequence[int] | None,
    valid: Array | None,
    absent: Absent,
) -> np.ndarray:
    """IoU (b, n) of maps (b, n, h, w) and their counterparts."""
    where = valid_pixels(valid, maps=one)
    for maps in (one, other):
        check_values(maps, name="maps", num_classes=num_classes, valid=where)
    mean = _MeanOverClasses(iou_from_counts, absent, shape=one.shape[:2])
    for c in looked_at(classes, num_classes=num_classes):
        first, second = ((maps == c) & where[:, None] for maps in (one, other))
        in_first, in_second, in_both = (
            np.count_nonzero(planes, axis=(2, 3)) for planes in (first, second, first & second)
        )
        mean.add(intersection=in_both, both_areas=in_first + in_second)
    return mean.result()


def subset_b(
    *,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
) -> Bool[Array, " b"]:
    """Which images are in subset B (App. C): every grader there is marked some of the classes in a valid pixel."""
    maps = label_maps(labels, name="labels", dims="b r h w")
    where = valid_pixels(valid, maps=maps)
    exist = existing_graders(graders, labels=maps)
    check_values(maps, name="labels", num_classes=num_classes, valid=where, graders=exist)
    marked = np.zeros_like(exist)
    for c in looked_at(classes, num_classes=num_classes):
        marked |= ((maps == c) & where[:, None]).any(axis=(2, 3))
    return in_kind((marked | ~exist).all(axis=1), like=labels)
