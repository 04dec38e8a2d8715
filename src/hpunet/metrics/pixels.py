"""Metrics of each pixel's marginal distribution: calibration, and the correlation of uncertainty and error."""

from typing import Unpack

import numpy as np

from hpunet.errors import ConfigError
from hpunet.metrics.arrays import (
    GraderMaps,
    GraderOptions,
    Graders,
    PerImage,
    SampleMaps,
    Valid,
    check_maps,
    over_positions,
    positions,
    same_type,
)
from hpunet.metrics.overlap import shows

NUM_BINS = 10  # of the probabilities of a calibration error
_FEW_SAMPLES = 2**15  # whose pairs 32 bits hold


def calibration_error(
    *, samples: SampleMaps, labels: GraderMaps, num_bins: int = NUM_BINS, **options: Unpack[GraderOptions]
) -> PerImage:
    """Expected calibration error of the samples' mean, pixel by pixel: Σ_bins (n_bin/n) · |mean p − mean y|.

    p is the share of samples that show any of `classes` at a pixel, y the share of graders. Bins have equal width,
    the last one includes p = 1 (Naeini et al., AAAI 2015, for the probability of the foreground). Background that all
    maps leave empty counts as correct. NaN for an image without a valid pixel.
    """
    if num_bins < 1:
        raise ConfigError(f"num_bins must be at least 1, got {num_bins}")
    checked = check_maps({"samples": samples, "labels": labels}, dims="b n *s, b r *s", **options)
    b, s = samples.shape[:2]
    showing = count_true(shows(checked.maps[0], checked.classes))
    marked = shows(checked.maps[1], checked.classes)
    marking = count_true(marked & over_positions(checked.graders, like=marked))
    num_graders, image = (over_positions(each, like=showing) for each in (checked.graders.sum(axis=1), np.arange(b)))
    gap = showing / s - marking / num_graders
    in_bin = np.minimum(showing * num_bins // s, num_bins - 1) + num_bins * image
    sums = np.bincount(in_bin.ravel(), weights=(gap * checked.valid).ravel(), minlength=b * num_bins)
    num_pixels = checked.valid.sum(axis=positions(checked.valid))
    return same_type(ratio(np.abs(sums).reshape(b, num_bins).sum(axis=1), num_pixels), like=samples)


def uncertainty_error_ncc(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    valid: Valid | None = None,
    graders: Graders | None = None,
) -> PerImage:
    """Normalised cross-correlation of uncertainty and error maps, the mean over graders (Baumgartner et al., PHiSeg).

    PHiSeg correlates E_s[CE(mean of s, s)] with E_s[CE(y, s)] over the valid pixels. For hard maps these are, up to
    a constant factor that cancels,

        uncertainty u = 1 − Σ_k (share of samples of class k)²      error e = share of samples that differ from y

    Graders for whom u or e is the same at every pixel are left out of the mean; NaN if none is left.
    """
    maps = {"samples": samples, "labels": labels}
    checked = check_maps(maps, dims="b n *s, b r *s", num_classes=num_classes, valid=valid, graders=graders)
    drawn, truths = checked.maps
    s = drawn.shape[1]
    kind = np.int32 if s < _FEW_SAMPLES else np.int64  # volumes are large
    agreeing_pairs = np.zeros(checked.valid.shape, dtype=kind)
    agreeing = np.zeros(truths.shape, dtype=kind)
    for c in range(num_classes):
        votes = count_true(drawn == c).astype(kind)
        agreeing_pairs += votes**2
        agreeing += np.where(truths == c, votes[:, None], 0)
    result = np.full(len(drawn), np.nan)
    for image, where in enumerate(checked.valid):
        uncertainty = s**2 - agreeing_pairs[image][where]
        errors = [s - agreeing[image, grader][where] for grader in np.flatnonzero(checked.graders[image])]
        # Integers, so that a constant map is known to be constant.
        defined = [error for error in errors if error.size and np.ptp(error)]
        if defined and np.ptp(uncertainty):
            result[image] = np.corrcoef([uncertainty, *defined])[0, 1:].mean()
    return same_type(result, like=samples)


def count_true(planes: np.ndarray) -> np.ndarray:
    """How many of fewer than 65,536 bool planes (b, n, *s) are true at each pixel."""
    return np.asarray(planes.sum(axis=1, dtype=np.uint16), dtype=np.int64)


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Part of whole, NaN where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
