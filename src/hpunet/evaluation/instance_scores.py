"""Scores of the instances that the samples of one image cluster into; worker processes can compute them."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int32, UInt8

from hpunet.data.types import SetInfo
from hpunet.evaluation.scores import instances_of
from hpunet.metrics import InstanceMatches, iou, match_instances, rand_error
from hpunet.sampling.instances import instance_scores


class Clustering(NamedTuple):
    """How samples are clustered: the arguments of `instances_of`."""

    info: SetInfo
    alpha: int
    seed: int
    connected: bool = False
    erosion: int | None = None


class InstanceMaps(NamedTuple):
    """One image: its samples, true instances (0 for none) and, for average precision, the instances' probability."""

    clustering: Clustering
    samples: UInt8[np.ndarray, " n *s"]
    truth: Int32[np.ndarray, "*s"]
    valid: Bool[np.ndarray, "*s"]
    confidence: Float[np.ndarray, "*s"] | None


def score_instances(maps: InstanceMaps) -> tuple[dict[str, float], InstanceMatches | None]:
    """Rand error and IoU of the background, and overlaps for average precision.

    Of a volume also the mean Rand error of its slices, where it is defined, each clustered on its own.
    """
    how, truth, valid = maps.clustering._asdict(), maps.truth, maps.valid
    predicted = instances_of(maps.samples, **how)
    error = rand_error(prediction=predicted[None], truth=truth[None], valid=valid[None])
    # Whether membranes or gaps are found: the Rand error ignores them.
    taken = [(each > 0).astype(np.uint8)[None] for each in (predicted, truth)]
    background = iou(*taken, num_classes=2, classes=[0], valid=valid[None])
    matches = None
    if maps.confidence is not None:
        certainty = instance_scores(predicted, stochastic_probs=maps.confidence[None])
        matches = match_instances(prediction=predicted, scores=certainty, truth=truth, valid=valid)
    scores = {"rand_error": float(error[0]), "background_iou": float(background[0])}
    if truth.ndim == 3:
        slices = np.stack([instances_of(maps.samples[:, z], **how) for z in range(len(truth))])
        errors = rand_error(prediction=slices, truth=truth, valid=valid)
        scores["slice_rand_error"] = (
            float(errors[np.isfinite(errors)].mean()) if np.isfinite(errors).any() else math.nan
        )
    return scores, matches


def start_worker(_number: int) -> None:
    """Do nothing: a worker that has done so has imported all that it needs."""
