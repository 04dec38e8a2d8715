"""What the page is told of samples: hypotheses, sizes, and where latents lie."""

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt, UInt8

if TYPE_CHECKING:  # torch is imported by the model's thread
    from hpunet.predict.prediction import Prediction

_MAX_STATE_CHARS = 2**15  # of a hypothesis in the strip


def answer_of(prediction: "Prediction", *, seed: int) -> dict[str, Any]:
    """Samples of a slice as the page gets them, without their maps."""
    _, y, x = prediction.place.offset
    h, w = prediction.mean.shape
    spacing = prediction.spacing
    hypotheses = [
        {
            "share": each.share,
            "representative": each.representative,
            "members": list(each.members),
            "description": each.description,
            "same_iou": each.same_iou,
            "state": _small_state(prediction, each.representative),
        }
        for each in prediction.hypotheses
    ]
    foreground = prediction.info.foreground
    return {
        "seed": seed,
        "num_samples": len(prediction.samples),
        "place": {"y": y, "x": x, "height": h, "width": w},
        "hypotheses": hypotheses,
        "samples": [measured(labels, foreground=foreground, spacing=spacing) for labels in prediction.samples],
        "units": "px" if spacing is None else "mm",
        **latent_grid(prediction),
        "notes": [*prediction.notes, *prediction.statements],
    }


def latent_grid(prediction: "Prediction") -> dict[str, Any]:
    """Where latents lie: positions and channels of each scale, and the part of the slice that they divide evenly."""
    from hpunet.sampling.tiling import Padding

    _, y, x = prediction.place.offset
    padding = Padding.of(*prediction.mean.shape, multiples=prediction.trained.model.size_multiples)
    (rows, columns), (height, width) = padding.inside[1:], padding.size
    return {
        "grid": {"y": y - rows.start, "x": x - columns.start, "height": height, "width": width},
        "scales": [
            {"height": scale.shape[-2], "width": scale.shape[-1], "channels": scale.shape[2]}
            for scale in prediction.latents
        ],
    }


def _small_state(prediction: "Prediction", sample: int) -> dict[str, Any] | None:
    state = prediction.state(sample)
    return state if len(json.dumps(state)) < _MAX_STATE_CHARS else None


def runs_of(labels: UInt[np.ndarray, "h w"]) -> list[tuple[int, int, int]]:
    """Start, length and value of what is marked, row after row."""
    flat = labels.ravel()
    bounds = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), flat.size]
    return [(start, end - start, int(flat[start])) for start, end in pairwise(bounds) if flat[start]]


def measured(
    labels: UInt8[np.ndarray, "h w"], *, foreground: tuple[int, ...], spacing: tuple[float, ...] | None
) -> dict[str, float]:
    """Area and longest diameter of what a map marks: in mm² and mm, or in pixels where the spacing is not known."""
    from hpunet.metrics import area, longest_diameter

    marked, distances = np.isin(labels, foreground), (spacing or (1.0, 1.0))[-2:]
    sizes = {"area": area(marked, spacing=distances), "diameter": longest_diameter(marked, spacing=distances)}
    return {name: round(value, 3) for name, value in sizes.items()}
