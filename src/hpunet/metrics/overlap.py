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
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

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
    flags,
    in_kind,
    label_maps,
    looked_at,
    same_size,
)

Absent = Literal["skip", "one"]
Score = Callable[[Tensor, Tensor], Tensor]
PIXELS_AT_ONCE = 2**22
"""Bound on the pixels of all maps that are compared at once; more only costs memory."""
_EXACT_IN_FLOAT32 = 2**24


def iou_from_counts(intersection: Tensor, both_areas: Tensor) -> Tensor:
    """|A∩B| / |A∪B|."""
    return intersection / (both_areas - intersection)


def dice_from_counts(intersection: Tensor, both_areas: Tensor) -> Tensor:
    """2·|A∩B| / (|A| + |B|)."""
    return 2 * intersection / both_areas


class _MeanOverClasses:
    """The mean of a score over classes, by the rule for absent ones."""

    def __init__(self, score: Score, absent: Absent) -> None:
        if absent not in ("skip", "one"):
            raise ConfigError(f"absent: expected 'skip' or 'one', got {absent!r}")
        self.score, self.absent = score, absent
        self.total: Tensor | float = 0.0
        self.number: Tensor | float = 0.0

    def add(self, *, intersection: Tensor, both_areas: Tensor) -> None:
        """One more class: the pixels it has in both maps, and the sum of those in each."""
        present = both_areas > 0
        score = self.score(intersection, both_areas.clamp(min=1))
        if self.absent == "one":
            score, present = torch.where(present, score, 1.0), torch.ones_like(present)
        self.total = self.total + torch.where(present, score, 0.0)
        self.number = self.number + present.double()

    def result(self) -> Tensor:
        """1 where nothing entered the mean."""
        total, number = torch.as_tensor(self.total), torch.as_tensor(self.number)
        return torch.where(number > 0, total / number.clamp(min=1), 1.0)


def pair_scores(maps: Sequence[Tensor], *, classes: list[int], valid: Tensor, absent: Absent, score: Score) -> Tensor:
    """Scores (b, n, n) of all pairs among all maps (b, ..., h, w), n of them together.

    The pixels that two maps share are a product of one-hot planes, so all pairs are one matrix product a class.
    """
    num_maps = sum(m.shape[1] for m in maps)
    num_pixels = valid[0].numel()
    exact = torch.float32 if num_pixels < _EXACT_IN_FLOAT32 else torch.float64
    at_once = max(1, PIXELS_AT_ONCE // (num_maps * num_pixels))
    chunks = []
    for start in range(0, len(valid), at_once):
        images = slice(start, start + at_once)
        everywhere = bool(valid[images].all())
        mean = _MeanOverClasses(score, absent)
        for c in classes:
            planes = torch.cat([m[images] == c for m in maps], dim=1)
            if not everywhere:
                planes &= valid[images, None]
            with torch.autocast(planes.device.type, enabled=False):
                vectors = planes.flatten(2).to(exact)
                intersection = (vectors @ vectors.mT).double()
            areas = intersection.diagonal(dim1=1, dim2=2)
            mean.add(intersection=intersection, both_areas=areas[:, :, None] + areas[:, None, :])
        chunks.append(mean.result())
    return torch.cat(chunks)


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
    one, other = (label_maps(m, name=name, dims="b h w")[:, None] for m, name in ((a, "a"), (b, "b")))
    same_size(one, other, names="a and b")
    result = _iou_one_to_one(one, other, num_classes=num_classes, classes=classes, valid=valid, absent=absent)
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
    drawn = label_maps(reconstructions, name="reconstructions", dims="b r h w").to(truths.device)
    same_size(truths.flatten(0, 1), drawn.flatten(0, 1), names="labels and reconstructions")
    exist = existing_graders(graders, labels=truths)
    # Missing graders' maps hold nothing that counts: both sides are made alike, then given no weight.
    truths, drawn = (m.masked_fill(~exist[:, :, None, None], 0) for m in (truths, drawn))
    each = _iou_one_to_one(truths, drawn, num_classes=num_classes, classes=classes, valid=valid, absent=absent)
    return in_kind((each * exist).sum(dim=1) / exist.sum(dim=1), like=labels)


def _iou_one_to_one(
    one: Tensor,
    other: Tensor,
    *,
    num_classes: int,
    classes: Sequence[int] | None,
    valid: Array | None,
    absent: Absent,
) -> Tensor:
    """IoU (b, n) of maps (b, n, h, w) and their counterparts."""
    other = other.to(one.device)
    where = flags(valid, name="valid", shape=(one.shape[0], *one.shape[2:]), device=one.device)[:, None]
    for maps in (one, other):
        check_values(maps, name="maps", num_classes=num_classes, counted=where)
    mean = _MeanOverClasses(iou_from_counts, absent)
    for c in looked_at(classes, num_classes=num_classes):
        first, second = (one == c) & where, (other == c) & where
        areas = first.sum(dim=(2, 3)) + second.sum(dim=(2, 3))
        mean.add(intersection=(first & second).sum(dim=(2, 3)).double(), both_areas=areas.double())
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
    where = flags(valid, name="valid", shape=(maps.shape[0], *maps.shape[2:]), device=maps.device)[:, None]
    exist = existing_graders(graders, labels=maps)
    check_values(maps, name="labels", num_classes=num_classes, counted=where & exist[:, :, None, None])
    marked = torch.zeros_like(exist)
    for c in looked_at(classes, num_classes=num_classes):
        marked |= ((maps == c) & where).flatten(2).any(dim=2)
    return in_kind((marked | ~exist).all(dim=1), like=labels)
