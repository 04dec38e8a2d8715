"""Scores of the instances that the samples of one image cluster into; worker processes can compute them."""

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
    connected: bool
    erosion: int | None


class InstanceMaps(NamedTuple):
    """One image: its samples, true instances (0 for none) and, for average precision, the instances' probability."""

    clustering: Clustering
    samples: UInt8[np.ndarray, "s h w"]
    truth: Int32[np.ndarray, "h w"]
    valid: Bool[np.ndarray, "h w"]
    confidence: Float[np.ndarray, "h w"] | None


def score_instances(maps: InstanceMaps) -> tuple[dict[str, float], InstanceMatches | None]:
    """Rand error and IoU of the background, and overlaps for average precision."""
    predicted = instances_of(maps.samples, **maps.clustering._asdict())
    truth, valid = maps.truth, maps.valid
    error = rand_error(prediction=predicted[None], truth=truth[None], valid=valid[None])
    # Whether membranes or gaps are found: the Rand error ignores them.
    taken = [(each > 0).astype(np.uint8)[None] for each in (predicted, truth)]
    background = iou(*taken, num_classes=2, classes=[0], valid=valid[None])
    matches = None
    if maps.confidence is not None:
        certainty = instance_scores(predicted, stochastic_probs=maps.confidence[None])
        matches = match_instances(prediction=predicted, scores=certainty, truth=truth, valid=valid)
    return {"rand_error": float(error[0]), "background_iou": float(background[0])}, matches


def start_worker(_number: int) -> None:
    """Do nothing: a worker that has done so has imported all that it needs."""
