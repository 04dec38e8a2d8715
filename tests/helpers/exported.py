"""Predictions whose samples can be told from the image: where its stored values are above thresholds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom

from hpunet.predict.prediction import Prediction
from hpunet.predict.predictor import Predictor

LOW, HIGH = -100.5, 199.5
"""The window: stored values are whole numbers, so that no threshold meets one."""
THRESHOLDS = (0.37, 0.37, 0.43, 0.52, 0.58, 2.0)
"""Of samples; each of them but the last, which marks nothing, holds all pixels of the later ones."""


def thresholded(predictor: Predictor, image: Path, **options: Any) -> Prediction:
    """Six samples in five hypotheses."""
    found = predictor(image, num_samples=len(THRESHOLDS), window=(LOW, HIGH), same_iou=0.99, **options)
    samples = np.stack([(found.image[0] > threshold).astype(np.uint8) for threshold in THRESHOLDS])
    return replace(found, samples=samples, mean=samples.mean(axis=0, dtype=np.float32))


def levels() -> list[float]:
    """The stored values above which each hypothesis marks, in the order of their names."""
    return [LOW + threshold * (HIGH - LOW) for threshold in THRESHOLDS[1:]]


def stored_slices(folder: Path) -> Mapping[tuple[str, int], np.ndarray]:
    """Values by SOP instance UID and number of the frame, from 1, of each file by itself."""
    found = {}
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        frames = data.pixel_array.reshape(-1, data.Rows, data.Columns) - 1024.0
        found |= {(str(data.SOPInstanceUID), number): frame for number, frame in enumerate(frames, start=1)}
    return found


def inside(values: np.ndarray, place: tuple[slice, slice], level: float) -> np.ndarray:
    """What a hypothesis marks on a slice: nothing outside of the crop."""
    marked = np.zeros(values.shape, dtype=np.bool_)
    marked[place] = values[place] > level
    return marked
