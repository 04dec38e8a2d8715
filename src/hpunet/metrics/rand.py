"""Rand error of instance segmentations."""

import numpy as np

from hpunet.metrics.arrays import Maps, PerImage, Valid, check_maps, numbered, same_type


def rand_error(*, prediction: Maps, truth: Maps, valid: Valid | None = None) -> PerImage:
    """Adapted Rand error of the SNEMI3D challenge (App. B): 1 − F-score over pairs of pixels, 0 is perfect.

    Labels are any numbers from 0 on, 0 is background. Only the n valid pixels with a true label above 0 count. With
    p_ij of them of true label i and predicted label j, and c = Σ_i p_i0 predicted as background:

        A = Σ_i (Σ_j p_ij)²      B = Σ_{j>0} (Σ_i p_ij)² + c/n      AB = Σ_{i, j>0} p_ij² + c/n
        precision AB/B, recall AB/A, error 1 − 2·precision·recall/(precision + recall)

    as in gala's `adapted_rand_error`. Pairs of a pixel with itself count. The c pixels predicted as background are in
    A, but add c/n ≤ 1 to B and AB: together less than one pixel, so they cost recall and hardly precision (were each
    a segment of its own, they would add c). scikit-image does both differently. NaN where n is 0.
    """
    maps = {"prediction": prediction, "truth": truth}
    checked = check_maps(maps, dims="b *s, b *s", num_classes=None, valid=valid)
    images = zip(*checked.maps, checked.valid, strict=True)
    return same_type(np.array([_rand_error(j[where], i[where]) for j, i, where in images]), like=prediction)


def _rand_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """The error of the pixels (n,) of one image."""
    foreground = true > 0
    n = int(foreground.sum())
    if n == 0:
        return float("nan")
    rows, row, _ = numbered(true[foreground])
    columns, column, _ = numbered(np.append(predicted[foreground], 0))  # so that number 0 is the background
    num_rows, num_columns = len(rows), len(columns)
    pairs, _, p = numbered(row * num_columns + column[:-1])
    i, j, p = pairs // num_columns, pairs % num_columns, p.astype(np.float64)
    c_over_n = p[j == 0].sum() / n
    in_columns = np.bincount(j, weights=p, minlength=num_columns)[1:]
    A = (np.bincount(i, weights=p, minlength=num_rows) ** 2).sum()
    B = (in_columns**2).sum() + c_over_n
    AB = (p[j > 0] ** 2).sum() + c_over_n
    precision, recall = AB / B, AB / A
    return float(1 - 2 * precision * recall / (precision + recall))
