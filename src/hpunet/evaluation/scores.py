"""Scores of samples and reconstructions on single images and volumes."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32, Integer
from torch import Tensor

from hpunet.data.batch import Batch
from hpunet.data.cityscapes.classes import FIXED_CLASSES
from hpunet.data.types import SetInfo
from hpunet.evaluation.images import of_first_grader
from hpunet.metrics import (
    PairIoUs,
    area_crps,
    best_match_dice,
    border_agreement,
    calibration_error,
    hidden_accuracy,
    hidden_iou,
    hidden_sample_disagreement,
    iou_rec,
    pair_ious,
    uncertainty_error_ncc,
    volume_crps,
)
from hpunet.metrics.overlap import mean_over_graders
from hpunet.sampling.instances import EROSION, cluster, connected_parts, merge_to_background, postprocess

FEW_IDS = 10
SLICE_SCORES = {"ged2", "hm_iou", "iou_rec", "area_crps"}
"""Of volumes, rows have them of their slices, too."""
PAPER_HEIGHT = 512  # of street scenes, in pixels


def default_num_samples(info: SetInfo, *, clustered: bool = True) -> int:
    """The paper's number of samples: 16, but 32 to cluster instances of 5 ids (street scenes) and not 15 (EM).

    Two instances merge if their ids agree by chance in half of the samples: with 5 ids in 1 of 140 pairs (16 samples)
    or 7,000 (32 samples); with 15 ids and 16 samples in 1 of 320,000.
    """
    return 32 if clustered and info.has_instances and info.num_random_ids < FEW_IDS else 16


def metric_arguments(batch: Batch, info: SetInfo) -> dict[str, Any]:
    """The arguments that all metrics of samples share."""
    return {
        "labels": batch.labels,
        "num_classes": info.num_classes,
        "classes": info.stochastic_classes,
        "valid": batch.valid,
        "graders": batch.graders,
    }


def volume_identity(info: SetInfo) -> dict[str, Any]:
    """What the rows of volumes depend on, beside what those of images do: the unit of `volume_crps`."""
    return {} if info.ndim == 2 else {"ndim": 3, "spacing": None if info.spacing is None else list(info.spacing)}


def image_scores(
    *,
    samples: Integer[Tensor, "b n *s"],
    reconstructions: Integer[Tensor, "b r *s"] | None,
    batch: Batch,
    info: SetInfo,
    representatives: int | None = None,
) -> dict[str, Float64[Tensor, " b"]]:
    """GED², HM-IoU and their relatives per image, and the IoU of reconstructions, on the CPU; NaN where undefined.

    With a number of `representatives`, also the scores of so many that stand for the samples.
    """
    common = metric_arguments(batch, info)
    pairs = pair_ious(samples=samples, **common)
    scores: dict[str, Any] = {
        "ged2": pairs.ged2(),
        "ged2_unbiased": pairs.ged2_unbiased(),
        "hm_iou": pairs.hungarian_iou(),
        "hm_iou_best": pairs.best_subset_iou(),
        "sample_diversity": pairs.sample_diversity(),
        **representative_scores(pairs, representatives),
    }
    if reconstructions is not None:
        scores["iou_rec"] = iou_rec(reconstructions=reconstructions, skip_empty=info.has_instances, **common)
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def representative_scores(pairs: PairIoUs, num: int | None) -> dict[str, Float64[np.ndarray, " b"]]:
    """GED² and HM-IoU of so many representatives, weighted by the samples they stand for; none without a number."""
    if num is None:
        return {}
    few = pairs.represented(num)
    return {"representatives_ged2": few.ged2(), "representatives_hm_iou": few.hungarian_iou()}


def marginal_scores(
    *, samples: Integer[Tensor, "b n *s"], batch: Batch, info: SetInfo
) -> dict[str, Float64[Tensor, " b"]]:
    """Dice of the best sample, calibration, CRPS of areas, correlation of uncertainty and error; NaN if undefined.

    Of volumes, CRPS is that of volumes, in ml if the data's spacing is known.
    """
    common = metric_arguments(batch, info)
    all_classes = {name: value for name, value in common.items() if name != "classes"}
    if batch.valid.ndim == 3:
        sizes = {"area_crps": area_crps(samples=samples, **common)}
    else:
        sizes = {"volume_crps": volume_crps(samples=samples, spacing=info.spacing, **common)}
    scores = {
        "best_match_dice": best_match_dice(samples=samples, **common),
        "calibration_error": calibration_error(samples=samples, **common),
        **sizes,
        "uncertainty_error_ncc": uncertainty_error_ncc(samples=samples, **all_classes),
    }
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def slice_scores(
    *,
    samples: Integer[Tensor, "b n d h w"],
    reconstructions: Integer[Tensor, "b r d h w"] | None,
    batch: Batch,
    info: SetInfo,
) -> dict[str, Float64[Tensor, " b"]]:
    """What an evaluation of the slices gives for the samples of volumes: see `mean_over_slices`."""
    found: list[dict[str, Any]] = []
    for z in range(batch.valid.shape[1]):
        labels, valid = batch.labels[:, :, z], batch.valid[:, z]
        one = Batch(image=batch.image[:, :, z], labels=labels, valid=valid, graders=batch.graders)
        rebuilt = None if reconstructions is None else reconstructions[:, :, z]
        scores = image_scores(samples=samples[:, :, z], reconstructions=rebuilt, batch=one, info=info)
        scores["area_crps"] = torch.as_tensor(
            area_crps(samples=samples[:, :, z], **metric_arguments(one, info)), device="cpu"
        )
        found.append({name: value.numpy() for name, value in scores.items()})
    by_slice = {name: np.stack([scores[name] for scores in found], axis=1) for name in found[0]}
    means = mean_over_slices(by_slice, valid=batch.valid.flatten(2).any(dim=2).cpu().numpy())
    return {name: torch.from_numpy(values) for name, values in means.items()}


def mean_over_slices(
    scores: dict[str, Float64[np.ndarray, "b d"]], *, valid: Bool[np.ndarray, "b d"]
) -> dict[str, Float64[np.ndarray, " b"]]:
    """The means of `SLICE_SCORES` over the slices with a valid pixel where the score is defined; NaN without any."""
    means = {}
    for name in SLICE_SCORES & scores.keys():
        counts = valid & np.isfinite(scores[name])
        means[f"slice_{name}"] = mean_over_graders(np.where(counts, scores[name], 0.0), counts)
    return means


def hidden_scores(
    *,
    samples: Integer[Tensor, "b n *s"],
    reconstructions: Integer[Tensor, "b r *s"],
    visible: Bool[Tensor, " b *s"],
    batch: Batch,
    info: SetInfo,
) -> dict[str, Float64[Tensor, " b"]]:
    """Scores of the hidden part of each image, for its first grader, on the CPU; NaN where undefined."""
    labels = of_first_grader(batch, batch.labels)
    rebuilt = of_first_grader(batch, reconstructions).unsqueeze(1)
    pixels: dict[str, Any] = {"visible": visible, "valid": batch.valid, "num_classes": info.num_classes}
    all_classes = {**pixels, "labels": labels}
    stochastic = {**all_classes, "classes": info.stochastic_classes}
    scores = {
        "hidden_iou_rec": hidden_iou(maps=rebuilt, **stochastic),
        "hidden_iou_samples": hidden_iou(maps=samples, **stochastic),
        "hidden_accuracy_rec": hidden_accuracy(maps=rebuilt, **all_classes),
        "hidden_accuracy_samples": hidden_accuracy(maps=samples, **all_classes),
        "hidden_accuracy_background": hidden_accuracy(maps=torch.zeros_like(rebuilt), **all_classes),
        "border_agreement_samples": border_agreement(maps=samples, **stochastic),
        "border_agreement_truth": border_agreement(maps=labels.unsqueeze(1), **stochastic),
        "hidden_sample_disagreement": hidden_sample_disagreement(samples=samples, **pixels),
    }
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def default_erosion(info: SetInfo, *, height: int) -> int:
    """Side of the square that an instance has to contain: the paper's 5, scaled for street scenes of another height.

    The paper's scenes are 512 pixels high; at 256, far cars hold no 5×5 square. Elsewhere the height of an image says
    nothing about the size of its objects.
    """
    if info.fixed_classes != FIXED_CLASSES:
        return EROSION
    return max(1, int(EROSION * height / PAPER_HEIGHT + 0.5))


def instances_of(
    samples: Integer[np.ndarray, " n *s"],
    *,
    info: SetInfo,
    alpha: int,
    seed: int,
    connected: bool = False,
    erosion: int | None = None,
) -> Int32[np.ndarray, "*s"]:
    """Cluster samples into instances and post-process them as in the paper (App. G and H).

    Other classes (street scenes) become background, and thin clusters without neighbours vanish; without other
    classes (EM) they stay. With `connected`, clusters are first split into their connected parts. Without `erosion`,
    it is that of `default_erosion`. In volumes its ball follows the spacing of the data.
    """
    merged = merge_to_background(samples, stochastic_classes=info.stochastic_classes)
    clusters = cluster(merged, num_classes=1 + len(info.stochastic_classes), threshold=alpha, seed=seed)
    clusters = connected_parts(clusters) if connected else clusters
    erosion = default_erosion(info, height=clusters.shape[-2]) if erosion is None else erosion
    how: dict[str, Any] = {"erosion": erosion, "spacing": info.spacing}
    return postprocess(clusters, keep_unmatched=info.num_fixed_classes == 1, **how)
