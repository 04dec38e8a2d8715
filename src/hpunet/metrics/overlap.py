"""IoU between label maps (App. B), for all pairs of a set or map by map.

The IoU of two maps is the mean of their IoUs over `classes`. A class that only one of them shows has IoU 0. A class
that neither shows has no IoU; `absent` is the rule for it:

* "skip" (default): it is left out of the mean; without any class in either map the IoU is 1. For one class this is
  the paper's rule for LIDC, for several its rule for instances;
* "one": it counts as 1, a correctly predicted absence.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Unpack

import numpy as np
from jaxtyping import Bool

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import (
    Absent,
    Array,
    CheckedMaps,
    GraderMaps,
    GraderOptions,
    MapOptions,
    Maps,
    PerImage,
    check_maps,
    positions,
    same_type,
)

MAX_PAIRS = 2**26  # of maps, compared at once: a matrix of 512 MiB
_PIXELS_AT_ONCE = 2**17  # of each map: their bits fit a core's cache
_WORDS_AT_ONCE = 2**17  # 64-bit words of pairs of maps compared at once: fits a core's cache
_pairs = cache(np.triu_indices)


def iou(a: Maps, b: Maps, *, absent: Absent = "skip", **options: Unpack[MapOptions]) -> PerImage:
    """Intersection over union of two maps per image: |A∩B| / |A∪B|, the mean over classes."""
    checked = check_maps({"a": a, "b": b}, dims="b *s, b *s", **options)
    one, other = (maps[:, None] for maps in checked.maps)
    each = iou_one_to_one(one, other, classes=checked.classes, valid=checked.valid, absent=absent)
    return same_type(each[:, 0], like=a)


def iou_rec(
    *,
    reconstructions: GraderMaps,
    labels: GraderMaps,
    absent: Absent = "skip",
    skip_empty: bool = False,
    **options: Unpack[GraderOptions],
) -> PerImage:
    """Reconstruction IoU (App. B): IoU(Y, Y') with Y' = S(X, μ_post(X, Y)), the mean over the graders' maps Y.

    With `skip_empty`, the paper's rule for instances, graders with no class in Y and Y' are left out; NaN without any
    other grader.
    """
    maps = {"labels": labels, "reconstructions": reconstructions}
    checked = check_maps(maps, dims="b r *s, b r *s", **options)
    each = iou_one_to_one(*checked.maps, classes=checked.classes, valid=checked.valid, absent=absent)
    graders = checked.graders
    if skip_empty:
        seen = [_shown(m, checked) for m in checked.maps]
        graders = graders & (seen[0] | seen[1])
    return same_type(mean_over_graders(each, graders), like=labels)


def subset_b(*, labels: GraderMaps, **options: Unpack[GraderOptions]) -> Bool[Array, " b"]:
    """Which images are in subset B (App. C): every existing grader marked some of the classes in a valid pixel."""
    checked = check_maps({"labels": labels}, dims="b r *s", **options)
    marked = _shown(checked.maps[0], checked)
    return same_type((marked | ~checked.graders).all(axis=1), like=labels)


def iou_from_counts(intersection: np.ndarray, both_areas: np.ndarray) -> np.ndarray:
    """|A∩B| / |A∪B|."""
    return np.asarray(intersection / (both_areas - intersection))


def dice_from_counts(intersection: np.ndarray, both_areas: np.ndarray) -> np.ndarray:
    """2·|A∩B| / (|A| + |B|)."""
    return np.asarray(2 * intersection / both_areas)


Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
Counts = tuple[np.ndarray, np.ndarray]  # of one class: pixels in both maps, and the sum of the pixels in each


def mean_over_classes(counts: Iterable[Counts], *, score: Score, absent: Absent) -> np.ndarray:
    """The mean of a score over classes, by the rule for absent ones; 1 where no class counts."""
    if absent not in ("skip", "one"):
        raise ConfigError(f"absent: expected 'skip' or 'one', got {absent!r}")
    total, number = np.zeros(()), np.zeros(())
    for intersection, both_areas in counts:
        present = both_areas > 0
        total = total + np.where(present, score(intersection, np.maximum(both_areas, 1)), float(absent == "one"))
        number = number + (present | (absent == "one"))
    return np.where(number > 0, total / np.maximum(number, 1), 1.0)


def mean_over_graders(values: np.ndarray, graders: np.ndarray) -> np.ndarray:
    """The mean (b,) of one value per grader (b, r) over `graders`; NaN where there is none."""
    number = graders.sum(axis=1)
    return np.where(number > 0, (values * graders).sum(axis=1) / np.maximum(number, 1), np.nan)


def shows(maps: np.ndarray, classes: list[int]) -> np.ndarray:
    """Where maps show any of the classes (several times as fast as `np.isin`)."""
    shown = maps == classes[0]
    for c in classes[1:]:
        shown |= maps == c
    return np.asarray(shown)


def _shown(maps: np.ndarray, checked: CheckedMaps) -> np.ndarray:
    """Whether each map (b, n, *s) shows any of the classes in a valid pixel, (b, n)."""
    return np.asarray((shows(maps, checked.classes) & checked.valid[:, None]).any(axis=positions(maps, lead=2)))


def iou_one_to_one(
    one: np.ndarray, other: np.ndarray, *, classes: list[int], valid: np.ndarray, absent: Absent
) -> np.ndarray:
    """IoU (b, n) of maps (b, n, *s) and their counterparts."""

    def counts() -> Iterator[Counts]:
        for c in classes:
            first, second = ((maps == c) & valid[:, None] for maps in (one, other))
            planes, axes = (first, second, first & second), positions(one, lead=2)
            areas = [np.count_nonzero(each, axis=axes) for each in planes]
            yield areas[2], areas[0] + areas[1]

    return mean_over_classes(counts(), score=iou_from_counts, absent=absent)


def score_pairs(checked: CheckedMaps, *, score: Score, absent: Absent) -> np.ndarray:
    """Scores (b, n, n) of all pairs of the n maps; intersections are counted in packed bits, 64 pixels per word."""

    num_maps = sum(m.shape[1] for m in checked.maps)
    if (num_pairs := len(checked.valid) * num_maps**2) > MAX_PAIRS:
        words = f"{num_maps} maps per image are {num_pairs:,} pairs, at most {MAX_PAIRS:,} are compared at once"
        raise DataError(f"{words}; give fewer maps or images")

    def of_classes() -> Iterator[Counts]:
        pairs, maps = _pairs(num_maps), [m.reshape(*m.shape[:2], -1) for m in checked.maps]
        masks = [None if where.all() else where.ravel() for where in checked.valid]
        parts = [slice(start, start + _PIXELS_AT_ONCE) for start in range(0, maps[0].shape[2], _PIXELS_AT_ONCE)]
        for c in checked.classes:
            shared = np.empty((len(masks), num_maps, num_maps))
            for image, where in enumerate(masks):
                counts = np.zeros(len(pairs[0]))
                for part in parts:
                    counted = None if where is None else where[part]
                    rows = np.concatenate([_bits(m[image, :, part] == c, where=counted) for m in maps])
                    counts += _shared_bits(rows, pairs=pairs)
                shared[image][pairs] = shared[image].T[pairs] = counts
            areas = shared.diagonal(axis1=1, axis2=2)
            yield shared, areas[:, :, None] + areas[:, None, :]

    return mean_over_classes(of_classes(), score=score, absent=absent)


def _bits(planes: np.ndarray, *, where: np.ndarray | None) -> np.ndarray:
    """Bool planes (n, p), false outside `where`, as (n, words) of 64 bits."""
    if where is not None:
        planes &= where
    packed = np.packbits(planes, axis=1)
    missing = -packed.shape[1] % 8
    packed = np.pad(packed, ((0, 0), (0, missing))) if missing else packed
    return np.ascontiguousarray(packed).view(np.uint64)


def _shared_bits(rows: np.ndarray, *, pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The number of bits set in both rows of each pair of rows of (n, words)."""
    rows = rows[:, np.bitwise_or.reduce(rows, axis=0) != 0]  # in most of an image no map shows the class
    counts = np.empty(len(pairs[0]))
    at_once = _WORDS_AT_ONCE // max(1, rows.shape[1]) or 1
    for start in range(0, len(counts), at_once):
        i, j = (side[start : start + at_once] for side in pairs)
        counts[start : start + at_once] = np.bitwise_count(rows[i] & rows[j]).sum(axis=1, dtype=np.uint32)
    return counts
