"""Metrics of the marginal distribution of each pixel: calibration, and whether uncertainty lies where errors are."""

from collections.abc import Sequence

import numpy as np

from hpunet.errors import ConfigError
from hpunet.metrics.arrays import GraderMaps, Graders, PerImage, SampleMaps, Valid, checked_sets, in_kind, looked_at


def calibration_error(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    num_bins: int = 10,
) -> PerImage:
    """Expected calibration error of the samples' mean, pixel by pixel: Σ_bins (n_bin/n) · |mean p − mean y|.

    p is the share of samples that show any of `classes` at a pixel, y the share of the graders that do. Bins have
    equal width: bin i holds p in [i, i + 1) / `num_bins`, the last one p = 1 as well (Naeini et al., AAAI 2015, for
    the probability of the foreground). Pixels that all samples and graders leave empty are right and count, so the
    value falls with the share of background in the image. NaN (undefined) for an image without a valid pixel.
    """
    if num_bins < 1:
        raise ConfigError(f"num_bins must be at least 1, got {num_bins}")
    sets = checked_sets(samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders)
    chosen = looked_at(classes, num_classes=num_classes)
    b, s = sets.samples.shape[:2]
    showing = votes_of(shows(sets.samples, chosen))
    marking = votes_of(shows(sets.labels, chosen) & sets.graders[:, :, None, None])
    gap = showing / s - marking / sets.graders.sum(axis=1)[:, None, None]
    in_bin = np.minimum(showing * num_bins // s, num_bins - 1) + num_bins * np.arange(b)[:, None, None]
    sums = np.bincount(in_bin.ravel(), weights=(gap * sets.valid).ravel(), minlength=b * num_bins)
    num_pixels = sets.valid.sum(axis=(1, 2))
    error = np.abs(sums).reshape(b, num_bins).sum(axis=1) / np.maximum(num_pixels, 1)
    return in_kind(np.where(num_pixels > 0, error, np.nan), like=samples)


def uncertainty_error_ncc(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    valid: Valid | None = None,
    graders: Graders | None = None,
) -> PerImage:
    """Normalised cross-correlation of uncertainty and error maps, the mean over graders (Baumgartner et al., PHiSeg).

    PHiSeg correlates E_s[CE(mean of s, s)] with E_s[CE(y, s)] over the pixels. For hard maps both cross-entropies
    are, up to one constant factor that the correlation does not see, how often labels differ:

        uncertainty u = 1 − Σ_k (share of samples of class k)²      error e = share of samples that differ from y

    so ncc = mean[(u − ū)·(e − ē)] / (σ_u·σ_e), over valid pixels and all classes, in [−1, 1]. It is undefined for a
    grader where u or e is the same at every pixel, as when all samples agree; such graders are left out of the mean,
    and an image where none is left is NaN.
    """
    sets = checked_sets(samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders)
    s = sets.samples.shape[1]
    agreeing_pairs = np.zeros(sets.valid.shape, dtype=np.int64)
    agreeing = np.zeros(sets.labels.shape, dtype=np.int64)
    for c in range(num_classes):
        votes = votes_of(sets.samples == c)
        agreeing_pairs += votes**2
        agreeing += np.where(sets.labels == c, votes[:, None], 0)
    result = np.full(len(sets.samples), np.nan)
    for image, where in enumerate(sets.valid):
        uncertainty = s**2 - agreeing_pairs[image][where]
        errors = [s - agreeing[image, grader][where] for grader in np.flatnonzero(sets.graders[image])]
        # Integers, so that a map which is the same everywhere is known to be.
        if uncertainty.size and np.ptp(uncertainty):
            defined = [error for error in errors if np.ptp(error)]
            if defined:
                result[image] = np.corrcoef([uncertainty, *defined])[0, 1:].mean()
    return in_kind(result, like=samples)


def shows(maps: np.ndarray, classes: Sequence[int]) -> np.ndarray:
    """Where maps show any of the classes (several times as fast as `np.isin`)."""
    shown = maps == classes[0]
    for c in classes[1:]:
        shown |= maps == c
    return np.asarray(shown)


def votes_of(planes: np.ndarray) -> np.ndarray:
    """How many of fewer than 65,536 bool planes (b, n, h, w) are true at each pixel."""
    return np.asarray(planes.sum(axis=1, dtype=np.uint16), dtype=np.int64)
