"""The scores of a batch from counts of its pixels, which are made on the device that has drawn the maps.

One pass over the maps gives whole numbers, a few hundred per image; they are all that is copied to the CPU, where the
formulas of `hpunet.metrics` turn them into scores. Counting never waits for the device. On a CPU the metrics
themselves are faster.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer, UInt8
from torch import Tensor

from hpunet.evaluation.scores import mean_over_slices, representative_scores
from hpunet.metrics import PairIoUs
from hpunet.metrics.arrays import Array
from hpunet.metrics.crps import crps_of_areas
from hpunet.metrics.overlap import dice_from_counts, iou_from_counts, mean_over_classes, mean_over_graders
from hpunet.metrics.pixels import NUM_BINS, ratio
from hpunet.metrics.shapes import voxel_size

_NUMBERS_AT_ONCE = 2**25  # float32 numbers of a class's planes
_EXACT = 2**24  # float32 counts up to here
_ALIGNED = 2**10  # pixels; rows of other lengths make products slower


class Counts(NamedTuple):
    """Valid pixels of each image, for n maps in this order: s samples, r graders' labels, r reconstructions.

    Of volumes, those of each slice (b, d).
    """

    shared: Int64[Array, "b *d k n n"]
    """Of the k-th class in both maps."""
    agreement: Int64[Array, "b *d i j"]
    """That i samples and j graders give to any of the classes."""
    moments: Int64[Array, "b *d r 5"]
    """Sums of u, u², e, e² and u·e of `metrics.uncertainty_error_ncc`, here as whole numbers s²·u and s·e."""


@torch.no_grad()
def count_maps(
    *,
    samples: UInt8[Tensor, "b s *z h w"],
    labels: Integer[Tensor, "b r *z h w"],
    reconstructions: Integer[Tensor, "b r *z h w"],
    valid: Bool[Tensor, "b *z h w"],
    graders: Bool[Tensor, "b r"],
    num_classes: int,
    classes: Sequence[int],
) -> Counts:
    """Count on the device of the maps; as many pixels at a time as memory should hold."""
    s, lead = samples.shape[1], valid.shape[:-2]
    maps = torch.cat([samples, labels.byte(), reconstructions.byte()], dim=1)
    maps = maps.movedim(1, -3).flatten(0, len(lead) - 1).flatten(2)  # slices as images of their own
    where = valid.flatten(0, len(lead) - 1).flatten(1)
    graders = graders.repeat_interleave(math.prod(lead[1:]), dim=0)
    at_once = min(_EXACT, _NUMBERS_AT_ONCE // (len(maps) * maps.shape[1]))
    at_once = max(1, at_once - at_once % _ALIGNED if at_once > _ALIGNED else at_once)
    parts = zip(maps.split(at_once, dim=2), where.split(at_once, dim=1), strict=True)
    how: dict[str, Any] = {"num_samples": s, "graders": graders, "num_classes": num_classes, "classes": classes}
    with torch.autocast(maps.device.type, enabled=False):
        counts = [_counted(part, where=valid_part, **how) for part, valid_part in parts]
    return Counts(*(torch.stack(each).sum(dim=0).unflatten(0, lead) for each in zip(*counts, strict=True)))


def _counted(
    maps: UInt8[Tensor, "b n p"],
    *,
    where: Bool[Tensor, "b p"],
    num_samples: int,
    graders: Bool[Tensor, "b r"],
    num_classes: int,
    classes: Sequence[int],
) -> Counts:
    s, r = num_samples, graders.shape[1]
    shared = {}
    agreeing_pairs, showing, marking = (torch.zeros(where.shape, device=maps.device) for _ in range(3))
    agreeing = torch.zeros(len(maps), r, where.shape[1], device=maps.device)
    exists = graders.unsqueeze(2)
    for c in range(num_classes):
        planes = ((maps == c) & where.unsqueeze(1)).float()
        votes, truths = planes[:, :s].sum(dim=1), planes[:, s : s + r]
        agreeing_pairs += votes * votes
        agreeing += truths * votes.unsqueeze(1)
        if c in classes:
            shared[c] = planes @ planes.mT
            showing += votes
            marking += (truths * exists).sum(dim=1)
    agreement = torch.zeros(len(maps), (s + 1) * (r + 1), dtype=torch.int64, device=maps.device)
    agreement.scatter_add_(1, (showing * (r + 1) + marking).long(), where.long())
    u = ((s * s - agreeing_pairs).long() * where).unsqueeze(1)
    e = (s - agreeing).long() * where.unsqueeze(1)
    of_u = [each.sum(dim=2).expand(-1, r) for each in (u, u * u)]
    return Counts(
        shared=torch.stack([shared[c] for c in classes], dim=1).long(),
        agreement=agreement.unflatten(1, (s + 1, r + 1)),
        moments=torch.stack([*of_u, *(each.sum(dim=2) for each in (e, e * e, u * e))], dim=2),
    )


def scores_from_counts(
    counts: Counts, *, graders: Bool[np.ndarray, "b r"], skip_empty: bool, representatives: int | None = None
) -> dict[str, Float64[np.ndarray, " b"]]:
    """The scores of counts on the CPU, as `hpunet.metrics` has them; NaN where undefined."""
    r = graders.shape[1]
    s = counts.agreement.shape[1] - 1
    shared = np.asarray(counts.shared, dtype=np.float64)
    areas = shared.diagonal(axis1=2, axis2=3)
    drawn, marked, rebuilt = slice(s), slice(s, s + r), slice(s + r, None)

    def pairs(rows: slice, columns: slice) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for c in range(shared.shape[1]):
            yield shared[:, c, rows, columns], areas[:, c, rows, None] + areas[:, c, None, columns]

    def each_rebuilt() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for c in range(shared.shape[1]):
            yield shared[:, c, marked, rebuilt].diagonal(axis1=1, axis2=2), areas[:, c, marked] + areas[:, c, rebuilt]

    how: dict[str, Any] = {"score": iou_from_counts, "absent": "skip"}
    among, between, of_labels = (
        mean_over_classes(pairs(*which), **how) for which in ((drawn, drawn), (drawn, marked), (marked, marked))
    )
    ious = PairIoUs(samples=among, cross=between, labels=of_labels, graders=graders)
    dice = mean_over_classes(pairs(drawn, marked), score=dice_from_counts, absent="skip")
    shown = np.asarray(areas.any(axis=1))
    rebuilt_graders = graders & (shown[:, marked] | shown[:, rebuilt]) if skip_empty else graders
    return {
        "ged2": ious.ged2(),
        "ged2_unbiased": ious.ged2_unbiased(),
        "hm_iou": ious.hungarian_iou(),
        "hm_iou_best": ious.best_subset_iou(),
        "sample_diversity": ious.sample_diversity(),
        "iou_rec": mean_over_graders(mean_over_classes(each_rebuilt(), **how), rebuilt_graders),
        "best_match_dice": mean_over_graders(dice.max(axis=1), graders),
        "calibration_error": _calibration_error(np.asarray(counts.agreement), graders),
        "area_crps": crps_of_areas(areas[..., drawn], areas[..., marked], graders=graders),
        "uncertainty_error_ncc": _correlation(counts, graders),
        **representative_scores(ious, representatives),
    }


def volume_scores_from_counts(
    counts: Counts, *, graders: Bool[np.ndarray, "b r"], spacing: Sequence[float] | None, **how: Any
) -> dict[str, Float64[np.ndarray, " b"]]:
    """The scores of volumes, and of their slices, from counts by slice; further arguments as above."""
    scores = scores_from_counts(of_volumes(counts), graders=graders, **how)
    scores["volume_crps"] = scores.pop("area_crps") * voxel_size(spacing)
    b, d = counts.moments.shape[:2]
    slices = Counts(*(np.asarray(each).reshape(b * d, *each.shape[2:]) for each in counts))
    how |= {"graders": graders.repeat(d, axis=0), "representatives": None}
    by_slice = {name: values.reshape(b, d) for name, values in scores_from_counts(slices, **how).items()}
    sizes = np.asarray(counts.agreement).sum(axis=(2, 3))
    return scores | mean_over_slices(by_slice, valid=np.asarray(sizes > 0))


def of_volumes(counts: Counts) -> Counts:
    """The counts of whole volumes."""
    return Counts(*(np.asarray(each).sum(axis=1) for each in counts))


def subset_b_from_counts(counts: Counts, *, graders: Bool[np.ndarray, "b r"]) -> Bool[np.ndarray, " b"]:
    """As `metrics.subset_b`."""
    s, r = counts.agreement.shape[1] - 1, graders.shape[1]
    areas = np.asarray(counts.shared).diagonal(axis1=2, axis2=3)
    return np.asarray((areas[:, :, s : s + r].any(axis=1) | ~graders).all(axis=1))


def _calibration_error(agreement: np.ndarray, graders: np.ndarray) -> np.ndarray:
    i, j = (np.arange(size) for size in agreement.shape[1:])
    s = len(i) - 1
    gap = i[:, None] / s - j / graders.sum(axis=1)[:, None, None]
    in_bin = np.minimum(i * NUM_BINS // s, NUM_BINS - 1) == np.arange(NUM_BINS)[:, None]
    sums = (agreement * gap).sum(axis=2) @ in_bin.T
    return ratio(np.abs(sums).sum(axis=1), agreement.sum(axis=(1, 2)))


def _correlation(counts: Counts, graders: np.ndarray) -> np.ndarray:
    """From Python's integers: variances of constant maps are exactly 0, and no product is too large."""
    result = np.full(len(graders), np.nan)
    sizes = np.asarray(counts.agreement).sum(axis=(1, 2)).tolist()
    for image, (n, of_graders) in enumerate(zip(sizes, np.asarray(counts.moments).tolist(), strict=True)):
        found = []
        for grader in np.flatnonzero(graders[image]).tolist():
            u, uu, e, ee, ue = of_graders[grader]
            variances = (n * uu - u * u) * (n * ee - e * e)
            if variances > 0:
                found.append((n * ue - u * e) / math.sqrt(variances))
        if found:
            result[image] = np.mean(found)
    return result
