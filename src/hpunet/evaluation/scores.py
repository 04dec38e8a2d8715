"""Scores of samples and reconstructions on single images."""

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
)
from hpunet.sampling.instances import EROSION, cluster, connected_parts, merge_to_background, postprocess

FEW_IDS = 10
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


def image_scores(
    *,
    samples: Integer[Tensor, "b s h w"],
    reconstructions: Integer[Tensor, "b r h w"] | None,
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
    *, samples: Integer[Tensor, "b s h w"], batch: Batch, info: SetInfo
) -> dict[str, Float64[Tensor, " b"]]:
    """Dice of the best sample, calibration, CRPS of areas, correlation of uncertainty and error; NaN if undefined."""
    common = metric_arguments(batch, info)
    all_classes = {name: value for name, value in common.items() if name != "classes"}
    scores = {
        "best_match_dice": best_match_dice(samples=samples, **common),
        "calibration_error": calibration_error(samples=samples, **common),
        "area_crps": area_crps(samples=samples, **common),
        "uncertainty_error_ncc": uncertainty_error_ncc(samples=samples, **all_classes),
    }
    return {name: torch.as_tensor(values, device="cpu") for name, values in scores.items()}


def hidden_scores(
    *,
    samples: Integer[Tensor, "b s h w"],
    reconstructions: Integer[Tensor, "b r h w"],
    visible: Bool[Tensor, "b h w"],
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
    samples: Integer[np.ndarray, "s h w"],
    *,
    info: SetInfo,
    alpha: int,
    seed: int,
    connected: bool = False,
    erosion: int | None = None,
) -> Int32[np.ndarray, "h w"]:
    """Cluster samples into instances and post-process them as in the paper (App. G and H).

    Other classes (street scenes) become background, and thin clusters without neighbours vanish; without other
    classes (EM) they stay. With `connected`, clusters are first split into their connected parts. Without `erosion`,
    it is that of `default_erosion`.
    """
    merged = merge_to_background(samples, stochastic_classes=info.stochastic_classes)
    clusters = cluster(merged, num_classes=1 + len(info.stochastic_classes), threshold=alpha, seed=seed)
    clusters = connected_parts(clusters) if connected else clusters
    erosion = default_erosion(info, height=clusters.shape[0]) if erosion is None else erosion
    return postprocess(clusters, keep_unmatched=info.num_fixed_classes == 1, erosion=erosion)
