"""Quality of a completed hidden part of an image (Section 3.3): correct, consistent at the border, diverse.

`visible` (b, *s) is false where the model saw neither image nor labels; `labels` is the map whose visible part it
was given. `maps` (samples, a reconstruction, a baseline) are compared with it. One float64 value per image, the mean
over the maps; NaN where no hidden pixel is valid.
"""

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import numpy as np

from hpunet.metrics.arrays import (
    Absent,
    MapOptions,
    Maps,
    PerImage,
    SampleMaps,
    Valid,
    check_flags,
    check_maps,
    positions,
    same_type,
)
from hpunet.metrics.overlap import iou_one_to_one, shows
from hpunet.metrics.pixels import count_true, ratio


class _Checked(NamedTuple):
    maps: np.ndarray  # (b, n, *s)
    labels: np.ndarray  # (b, *s)
    seen: np.ndarray  # (b, *s): visible and valid
    hidden: np.ndarray  # (b, *s): hidden and valid
    classes: list[int]


def _check(maps: SampleMaps, labels: Maps, visible: Valid, **options: Unpack[MapOptions]) -> _Checked:
    checked = check_maps({"maps": maps, "labels": labels}, dims="b n *s, b *s", **options)
    shown = check_flags(visible, name="visible", shape=checked.valid.shape)
    completed, truth = checked.maps
    return _Checked(completed, truth, checked.valid & shown, checked.valid & ~shown, checked.classes)


def hidden_iou(
    *, maps: SampleMaps, labels: Maps, visible: Valid, absent: Absent = "skip", **options: Unpack[MapOptions]
) -> PerImage:
    """IoU with the labels in the hidden part; classes that are absent there count as in `overlap.py`."""
    checked = _check(maps, labels, visible, **options)
    both = (checked.maps, checked.labels[:, None])
    iou = iou_one_to_one(*both, classes=checked.classes, valid=checked.hidden, absent=absent)
    some = checked.hidden.any(axis=positions(checked.hidden))
    return same_type(np.where(some, iou.mean(axis=1), np.nan), like=maps)


def hidden_accuracy(
    *, maps: SampleMaps, labels: Maps, visible: Valid, num_classes: int, valid: Valid | None = None
) -> PerImage:
    """The share of hidden pixels with the right label, background included."""
    checked = _check(maps, labels, visible, num_classes=num_classes, valid=valid)
    right = (checked.maps == checked.labels[:, None]) & checked.hidden[:, None]
    num_pixels = maps.shape[1] * np.count_nonzero(checked.hidden, axis=positions(checked.hidden))
    return same_type(ratio(np.count_nonzero(right, axis=positions(right)), num_pixels), like=maps)


def border_agreement(*, maps: SampleMaps, labels: Maps, visible: Valid, **options: Unpack[MapOptions]) -> PerImage:
    """Share of pairs of neighbours across the border with the same label; NaN without a pair.

    A pair is a visible pixel whose label is one of `classes`, and a hidden one beside it along an axis.
    Even the labels stay below 1 if instances end at the border.
    """
    checked = _check(maps, labels, visible, **options)
    given = checked.seen & shows(checked.labels, checked.classes)
    by_pixel = np.moveaxis(checked.maps, 1, -1)  # (b, *s, n)
    b, n = maps.shape[:2]
    agreeing, num_pairs = np.zeros(b), np.zeros(b)
    for here, there in _neighbours(given.ndim):
        pairs = np.nonzero(given[here] & checked.hidden[there])
        same = by_pixel[there][pairs] == checked.labels[here][pairs][:, None]
        agreeing += np.bincount(pairs[0], weights=same.sum(axis=1), minlength=b)
        num_pairs += np.bincount(pairs[0], minlength=b)
    return same_type(ratio(agreeing, n * num_pairs), like=maps)


def _neighbours(ndim: int) -> Iterator[tuple[tuple[slice, ...], ...]]:
    """For both sides along each axis of positions: all pixels (b, *s) that have a neighbour there, and those."""
    for axis in range(1, ndim):
        before, after = (slice(None),) * axis + (slice(-1),), (slice(None),) * axis + (slice(1, None),)
        yield from ((before, after), (after, before))


def hidden_sample_disagreement(
    *, samples: SampleMaps, visible: Valid, num_classes: int, valid: Valid | None = None
) -> PerImage:
    """The share of hidden pixels where two samples differ, the mean over pairs; NaN for one sample."""
    checked = check_maps({"samples": samples}, dims="b n *s", num_classes=num_classes, valid=valid)
    hidden = checked.valid & ~check_flags(visible, name="visible", shape=checked.valid.shape)
    s = samples.shape[1]
    differing = np.full(hidden.shape, s**2, dtype=np.int64)  # ordered pairs, less those of the same class
    for c in range(num_classes):
        differing -= count_true(checked.maps[0] == c) ** 2
    num_pairs = s * (s - 1) * np.count_nonzero(hidden, axis=positions(hidden))
    return same_type(ratio((differing * hidden).sum(axis=positions(hidden)), num_pairs), like=samples)
