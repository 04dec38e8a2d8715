"""How well a hidden part of an image is completed (Section 3.3): what is right, goes on at the border, and varies.

`visible` (b, h, w) is false where a model was shown nothing of image and labels. `labels` is the one map whose
visible part the model was given, and `maps` are what is held against it: samples, a reconstruction, a baseline.
Values are the mean over these maps, one float64 value an image; NaN (undefined) where no hidden pixel is valid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpunet.metrics.arrays import (
    Array,
    Maps,
    PerImage,
    SampleMaps,
    Valid,
    check_values,
    flags,
    in_kind,
    label_maps,
    looked_at,
    same_size,
    valid_pixels,
)
from hpunet.metrics.overlap import Absent, iou_from_counts, pair_scores
from hpunet.metrics.pixels import shows, votes_of

_ALL, _BUT_LAST, _BUT_FIRST = slice(None), slice(None, -1), slice(1, None)
_ABOVE_BELOW = ((_ALL, _BUT_LAST), (_ALL, _BUT_FIRST))
_LEFT_RIGHT = ((_ALL, _ALL, _BUT_LAST), (_ALL, _ALL, _BUT_FIRST))
_BESIDE = (*(pair[::way] for pair in (_ABOVE_BELOW, _LEFT_RIGHT) for way in (1, -1)),)
"""All pixels (b, h, w) that have a neighbour on one of the four sides, and those neighbours."""


class _Completed(NamedTuple):
    """Completed maps and what they are held against, checked."""

    maps: np.ndarray
    """(b, s, h, w)"""
    labels: np.ndarray
    """(b, h, w)"""
    seen: np.ndarray
    """(b, h, w): visible and valid."""
    hidden: np.ndarray
    """(b, h, w): hidden and valid."""


def hidden_iou(
    *,
    maps: SampleMaps,
    labels: Maps,
    visible: Valid,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    absent: Absent = "skip",
) -> PerImage:
    """IoU with the labels in the hidden part alone, by the rules of `overlap.py` for classes that are absent there.

    Background everywhere has IoU 0 wherever a class is hidden, so `hidden_accuracy` is to be looked at too.
    """
    found = _checked(maps=maps, labels=labels, visible=visible, num_classes=num_classes, valid=valid)
    chosen = looked_at(classes, num_classes=num_classes)
    both = (found.maps, found.labels[:, None])
    iou = pair_scores(*both, classes=chosen, valid=found.hidden, absent=absent, score=iou_from_counts)
    each = iou[:, :-1, -1]
    return in_kind(np.where(found.hidden.any(axis=(1, 2)), each.mean(axis=1), np.nan), like=maps)


def hidden_accuracy(
    *, maps: SampleMaps, labels: Maps, visible: Valid, num_classes: int, valid: Valid | None = None
) -> PerImage:
    """The share of the hidden pixels that have the right label, background included."""
    found = _checked(maps=maps, labels=labels, visible=visible, num_classes=num_classes, valid=valid)
    right = (found.maps == found.labels[:, None]) & found.hidden[:, None]
    num_pixels = found.maps.shape[1] * np.count_nonzero(found.hidden, axis=(1, 2))
    return in_kind(_share(np.count_nonzero(right, axis=(1, 2, 3)), num_pixels), like=maps)


def border_agreement(
    *,
    maps: SampleMaps,
    labels: Maps,
    visible: Valid,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
) -> PerImage:
    """How often what is given goes on across the border: the share of pairs of neighbours with the same label.

    A pair is a visible pixel whose label is one of `classes`, and a hidden one above, below, left or right of it. The
    labels themselves do not reach 1 where instances end at the border. NaN (undefined) where there is no such pair.
    """
    found = _checked(maps=maps, labels=labels, visible=visible, num_classes=num_classes, valid=valid)
    given = found.seen & shows(found.labels, looked_at(classes, num_classes=num_classes))
    by_pixel = np.moveaxis(found.maps, 1, 3)  # (b, h, w, s)
    b, s = found.maps.shape[:2]
    agreeing, num_pairs = np.zeros(b), np.zeros(b)
    for here, there in _BESIDE:
        pairs = np.nonzero(given[here] & found.hidden[there])
        same = by_pixel[there][pairs] == found.labels[here][pairs][:, None]
        agreeing += np.bincount(pairs[0], weights=same.sum(axis=1), minlength=b)
        num_pairs += np.bincount(pairs[0], minlength=b)
    return in_kind(_share(agreeing, s * num_pairs), like=maps)


def hidden_sample_disagreement(
    *, samples: SampleMaps, visible: Valid, num_classes: int, valid: Valid | None = None
) -> PerImage:
    """The share of the hidden pixels in which two different samples differ, the mean over all pairs of them.

    NaN (undefined) for a single sample.
    """
    maps = label_maps(samples, name="samples", dims="b s h w")
    where = valid_pixels(valid, maps=maps)
    hidden = where & ~flags(visible, name="visible", shape=where.shape)
    check_values(maps, name="samples", num_classes=num_classes, valid=where)
    s = maps.shape[1]
    differing = np.full(hidden.shape, s**2, dtype=np.int64)  # ordered pairs, less those that show the same class
    for c in range(num_classes):
        differing -= votes_of(maps == c) ** 2
    num_pairs = s * (s - 1) * np.count_nonzero(hidden, axis=(1, 2))
    return in_kind(_share((differing * hidden).sum(axis=(1, 2)), num_pairs), like=samples)


def _checked(*, maps: Array, labels: Array, visible: Array, num_classes: int, valid: Array | None) -> _Completed:
    completed = label_maps(maps, name="maps", dims="b s h w")
    truth = label_maps(labels, name="labels", dims="b h w")
    same_size(completed, truth, names="maps and labels")
    where = valid_pixels(valid, maps=completed)
    shown = flags(visible, name="visible", shape=where.shape)
    check_values(completed, name="maps", num_classes=num_classes, valid=where)
    check_values(truth[:, None], name="labels", num_classes=num_classes, valid=where)
    return _Completed(maps=completed, labels=truth, seen=where & shown, hidden=where & ~shown)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Part of whole, NaN where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
