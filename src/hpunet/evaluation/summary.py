"""From rows to numbers: mean ± std by bootstrap over images and patients, pooled over trained models (Table 1)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpunet.evaluation.rows import (
    CLASS_METRICS,
    CLUSTER_METRICS,
    HIDDEN_METRICS,
    IMAGE_METRICS,
    METRICS,
    REPRESENTATIVE_METRICS,
    VOLUME_METRICS,
    Row,
)
from hpunet.metrics import average_precision, resampled_average_precision, resampled_means

ALL_METRICS = (*METRICS, "ap50", "ap")
"""Metrics of an image, then those of a set of images."""
METRIC_GROUPS = (*((name,) for name in METRICS), ("ap50", "ap"))
"""Metrics of a group are defined for the same images and resampled together."""
_HIGHER_IS_BETTER = (
    *("hm_iou", "hm_iou_best", "iou_rec", "best_match_dice", "uncertainty_error_ncc", "background_iou", "ap50", "ap"),
    *("hidden_iou_rec", "hidden_iou_samples", "hidden_accuracy_rec", "hidden_accuracy_samples"),
    *("representatives_hm_iou", "slice_hm_iou", "slice_iou_rec"),
)
_LOWER_IS_BETTER = (
    *("ged2", "ged2_unbiased", "calibration_error", "area_crps", "rand_error", "representatives_ged2"),
    *("volume_crps", "slice_ged2", "slice_area_crps", "slice_rand_error"),
)
DIRECTIONS = {
    **dict.fromkeys(_LOWER_IS_BETTER, "↓"),
    **dict.fromkeys(_HIGHER_IS_BETTER, "↑"),
}
"""Whether lower or higher is better, if either."""
NUM_BOOTSTRAPS = 1000
MAX_FAILED_SHOWN = 20
Entry = dict[str, Any] | None
"""mean, std (over images), patient_mean, patient_std, and num_images where the metric is defined; or None."""


@dataclass(frozen=True)
class Scope:
    """The properties of data and model that decide which metrics an evaluation has."""

    num_samples: int
    has_instances: bool
    has_average_precision: bool  # instances among other classes, as in street scenes
    extrapolates: bool = False  # a part of each image was hidden
    has_representatives: bool = False  # samples were also reduced to a few
    has_volumes: bool = False


def plural(number: int, noun: str) -> str:
    """1 image, 2 images."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def counts(found: Mapping[str, Any]) -> str:
    """The numbers of images, samples and seeds of a summary or comparison, in words."""
    images = plural(found["num_images"], f"{found['split']} {'volume' if found.get('ndim') == 3 else 'image'}")
    seeds = f", mean of {found['num_seeds']} seeds" if found["num_seeds"] > 1 else ""
    return f"{images}, {plural(found['num_samples'], 'sample')} each{seeds}"


def scored_part(found: Mapping[str, Any]) -> str:
    """The scored part of the images, in words; empty if pooled runs differ."""
    if "crop" not in found:
        return ""
    whole = "whole volumes" if found.get("ndim") == 3 else "whole images"
    return whole if found["crop"] is None else f"the centre {_by(found['crop'])} of each"


def sizes_scored(sizes: Collection[tuple[int, ...]], *, crop: Sequence[int] | None) -> str:
    """What was scored of images of these sizes, in words."""
    least, most = min(sizes), max(sizes)
    range_ = _by(least) if least == most else f"{_by(least)} to {_by(most)}"
    images, pixels = ("images", "pixels") if len(least) == 2 else ("volumes", "voxels")
    if crop is None:
        return f"scored whole {images} of {range_} {pixels}"
    is_padded = any(side < wanted for size in sizes for side, wanted in zip(size, crop, strict=True))
    padding = f"; {pixels} around smaller ones do not count" if is_padded else ""
    return f"scored the centre {_by(crop)} of {images} of {range_} {pixels}{padding}"


def _by(size: Sequence[int]) -> str:
    return "×".join(map(str, size))


def metric_note(found: Mapping[str, Any], name: str) -> str:
    """Why a metric is undefined for some images of a summary, or its unit; empty if there is nothing to say."""
    num_defined, num_images = found[name]["num_images"], found["num_images"]
    if name == "volume_crps" and num_defined == num_images:
        return f"{name} is in {'voxels' if found['spacing'] is None else 'ml'}"
    if num_defined == num_images:
        return ""
    reasons: Iterable[tuple[bool, str]] = (
        (name in ("rand_error", "slice_rand_error"), "the others have no true instance"),
        (name in ("iou_rec", "slice_iou_rec"), "the others have no instance, and their reconstructions none"),
        (name == "ged2_unbiased", "the others have one grader only"),
        (name == "hm_iou_best", "the others have more graders than samples"),
        (name.startswith("border_agreement"), "in the others no visible label touches the hidden part"),
        (name in HIDDEN_METRICS, "in the others no hidden pixel is valid"),
        (name == "calibration_error", "the others have no valid pixel"),
        (name == "uncertainty_error_ncc", "in the others uncertainty or error is the same at all pixels"),
    )
    reason = next((reason for applies, reason in reasons if applies), "it is undefined for the others")
    return f"{name}: {num_defined} of {plural(num_images, 'image')}; {reason}"


def metric_groups(scope: Scope) -> list[tuple[str, ...]]:
    """The groups of metrics that an evaluation lists."""
    unlisted: tuple[str, ...] = () if scope.has_representatives else REPRESENTATIVE_METRICS
    unlisted += CLUSTER_METRICS if scope.extrapolates else HIDDEN_METRICS
    unlisted += CLASS_METRICS if scope.has_instances or scope.extrapolates else ()
    unlisted += () if scope.has_instances else CLUSTER_METRICS
    unlisted += IMAGE_METRICS if scope.has_volumes else VOLUME_METRICS
    return [names for names in METRIC_GROUPS if names[0] not in unlisted]


def listed(found: Mapping[str, Any]) -> list[str]:
    """The metrics of a summary or comparison in order, undefined ones included."""
    return [name for name in ALL_METRICS if name in found]


def summarise(rows: Sequence[Row], *, scope: Scope) -> dict[str, Any]:
    """The summary of one model: every metric, the same over subset B, reasons for nulls, and what failed."""
    good, failed = ([row for row in rows if bool(row.error) == has_failed] for has_failed in (False, True))
    marked_by_all = [row for row in good if row.subset_b]
    return {
        "num_images": len(good),
        "num_samples": scope.num_samples,
        "num_failed": len(failed),
        "failed": [{"key": row.key, "error": row.error} for row in failed[:MAX_FAILED_SHOWN]],
        **metric_entries(good, scope=scope),
        "subset_b": {"num_images": len(marked_by_all), **metric_entries(marked_by_all, scope=scope)},
    }


def metric_entries(rows: Sequence[Row], *, scope: Scope) -> dict[str, Any]:
    """An entry for each metric, and `reasons` for those that are None."""
    entries = {name: entry for names in metric_groups(scope) for name, entry in _entries(rows, names).items()}
    reasons = {name: _reason(name, rows, scope=scope) for name, entry in entries.items() if entry is None}
    return {**entries, "reasons": reasons}


def _entries(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Entry]:
    defined = [row for row in rows if is_defined(row, names[0])]
    drawn = {"": resampled(defined, names), "patient_": resampled(defined, names, by_patient=True)}
    entries: dict[str, Entry] = dict.fromkeys(names)
    for name in names:
        if all(found[name].size for found in drawn.values()):
            entry: dict[str, float] = {}
            for prefix, found in drawn.items():
                entry |= {prefix + "mean": float(found[name].mean()), prefix + "std": float(found[name].std())}
            entries[name] = {**entry, "num_images": len(defined)}
    if names[0] not in METRICS:
        whole = average_precision([row.matches for row in defined if row.matches is not None])
        for name, value in (("ap", whole.ap), ("ap50", whole.ap50)):
            if (defined_entry := entries[name]) is not None:
                defined_entry["value"] = value
    return entries


def is_defined(row: Row, name: str) -> bool:
    """Whether a row counts for a metric."""
    return name in row.scores if name in METRICS else row.matches is not None


def resampled(
    rows: Sequence[Row], names: Sequence[str], *, by_patient: bool = False, less: Sequence[Row] | None = None
) -> dict[str, np.ndarray]:
    """Bootstrapped values of one of `METRIC_GROUPS`, which every row must have, minus those of the rows `less`.

    Draws without a true instance are left out; empty if undefined.
    """
    if not rows:
        return {name: np.empty(0) for name in names}
    how: dict[str, Any] = {"seed": 0, "groups": [row.patient for row in rows] if by_patient else None}
    if names[0] in METRICS:
        (name,) = names
        values = np.array([row.scores[name] for row in rows])
        if less is not None:
            values = values - np.array([row.scores[name] for row in less])
        return {name: resampled_means(values, num=NUM_BOOTSTRAPS, **how)}
    parts = ([row.matches for row in part if row.matches is not None] for part in (rows, less or ()))
    mine, base = (resampled_average_precision(part, num=NUM_BOOTSTRAPS, **how) if part else 0.0 for part in parts)
    difference = np.asarray(mine - base)
    defined = difference[np.isfinite(difference).all(axis=1)]
    return dict(zip(("ap", "ap50"), defined.T, strict=True))


def _reason(name: str, rows: Sequence[Row], *, scope: Scope) -> str:
    """Why a metric is undefined for these rows."""
    one_grader = all(row.num_graders == 1 for row in rows)
    of_instances = ("rand_error", "slice_rand_error", "ap", "ap50")
    of_pairs = ("ged2_unbiased", "sample_diversity", *CLASS_METRICS, "hidden_sample_disagreement")
    is_rebuilt = name in ("iou_rec", "slice_iou_rec")
    none_hidden = not any("hidden_accuracy_rec" in row.scores for row in rows)
    reasons: Iterable[tuple[bool, str]] = (
        (name in of_instances and not scope.has_instances, "labels are classes, not instances"),
        (name in of_instances and scope.extrapolates, "a part is hidden, so samples have no instances to agree on"),
        (name in ("ap", "ap50") and not scope.has_average_precision, "only for instances among other classes"),
        (not rows, "no image"),
        (name in of_pairs and scope.num_samples == 1, "needs at least two samples"),
        (name == "ged2_unbiased" and one_grader, "needs at least two graders"),
        (name in of_instances, "no image has a true instance"),
        (is_rebuilt and not scope.has_instances, "needs a posterior, which samples alone do not have"),
        (is_rebuilt, "no image or reconstruction has an instance"),
        (name == "hm_iou_best", "needs as many samples as graders, or rows are older than this metric"),
        (name in (*CLUSTER_METRICS, *CLASS_METRICS), "rows are older than this metric"),
        (name in HIDDEN_METRICS and none_hidden, "no hidden pixel is valid, or rows are older than this metric"),
        (name.startswith("border_agreement"), "no visible label touches the hidden part, in any image"),
        (name == "calibration_error", "no image has a valid pixel"),
        (name == "uncertainty_error_ncc", "uncertainty or error is the same at all pixels, in every image"),
    )
    return next((reason for applies, reason in reasons if applies), "undefined for every image")


def pooled(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One summary of several trained models: their bootstraps, equally many of each, as one set.

    The pooled mean is the mean of the models' means; the variance is the mean of their variances plus the variance of
    their means. A metric that is undefined for one model is undefined; one that is not listed for all is left out.
    """
    merged: dict[str, Any] = {}
    in_all = [key for key in summaries[0] if all(key in summary for summary in summaries)]
    for key in in_all:
        values = [summary[key] for summary in summaries]
        if key in ALL_METRICS:
            merged[key] = None if any(value is None for value in values) else _pooled_entry(values)
        elif key == "subset_b":
            merged[key] = pooled(values)
        elif key == "reasons":
            reasons = {name: reason for value in reversed(values) for name, reason in value.items()}
            merged[key] = {name: reason for name, reason in reasons.items() if name in in_all}
        elif key == "crop":
            merged |= {key: values[0]} if all(value == values[0] for value in values) else {}
        elif key == "num_images":
            merged[key] = min(values)
        elif key == "num_failed":
            merged[key] = sum(values)
        elif key == "failed":
            merged[key] = [entry for value in values for entry in value][:MAX_FAILED_SHOWN]
        else:
            merged[key] = values[0]
    return merged


def _pooled_entry(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for mean, std in (("mean", "std"), ("patient_mean", "patient_std")):
        means, stds = (np.array([entry[key] for entry in entries]) for key in (mean, std))
        merged |= {mean: float(means.mean()), std: float(np.sqrt((stds**2).mean() + means.var()))}
    merged["num_images"] = min(entry["num_images"] for entry in entries)
    if all(entry.get("value") is not None for entry in entries):
        merged["value"] = float(np.mean([entry["value"] for entry in entries]))
    return merged
