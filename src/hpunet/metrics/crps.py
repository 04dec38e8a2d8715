"""The continuous ranked probability score (CRPS) of sampled sizes against those that graders marked."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from jaxtyping import Bool, Float

from hpunet.metrics.arrays import GraderMaps, GraderOptions, PerImage, SampleMaps, check_maps, positions, same_type
from hpunet.metrics.overlap import mean_over_graders
from hpunet.metrics.shapes import voxel_size


def crps(
    samples: Float[np.ndarray, "*b s"],
    observed: Float[np.ndarray, "*b r"],
    *,
    graders: Bool[np.ndarray, "*b r"] | None = None,
) -> Float[np.ndarray, "*b"]:
    """CRPS of the samples' distribution, each observation scored on its own, the mean over observations.

    E|X − y| − ½·E|X − X'| over samples X and pairs of different samples X, X': the estimator that has the same
    expectation for any number of samples (Ferro 2014, "fair"); NaN for a single one. In the unit of the sizes; 0 if
    all samples are the size that all graders marked.
    """
    s = samples.shape[-1]
    exists = np.ones(observed.shape, dtype=np.bool_) if graders is None else graders
    ranked = np.sort(samples, axis=-1)
    # Σ_i<j (x_j − x_i): the i-th in order is larger than i others, and smaller than s − 1 − i.
    apart = (ranked * (2 * np.arange(s) - s + 1)).sum(axis=-1)
    distance = np.abs(samples[..., :, None] - observed[..., None, :]).mean(axis=-2)
    found = mean_over_graders(distance.reshape(-1, observed.shape[-1]), exists.reshape(-1, observed.shape[-1]))
    return np.asarray(found.reshape(observed.shape[:-1]) - (apart / (s * (s - 1)) if s > 1 else np.nan))


def area_crps(*, samples: SampleMaps, labels: GraderMaps, **options: Unpack[GraderOptions]) -> PerImage:
    """CRPS of the area of each class in valid pixels, the mean over classes; an empty map has area 0."""
    checked = check_maps({"samples": samples, "labels": labels}, dims="b n *s, b r *s", **options)
    drawn, marked = (
        np.stack([_areas(maps == c, valid=checked.valid) for c in checked.classes], axis=1) for maps in checked.maps
    )
    return same_type(crps_of_areas(drawn, marked, graders=checked.graders), like=samples)


def volume_crps(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    spacing: Sequence[float] | None = None,
    **options: Unpack[GraderOptions],
) -> PerImage:
    """CRPS of the volume of each class, the mean over classes: in ml with the `spacing` in mm, else in voxels."""
    return area_crps(samples=samples, labels=labels, **options) * voxel_size(spacing)


def _areas(planes: np.ndarray, *, valid: np.ndarray) -> np.ndarray:
    """The number (b, n) of valid pixels in each of the bool planes (b, n, *s), which are changed."""
    planes &= valid[:, None]
    return np.asarray(np.count_nonzero(planes, axis=positions(planes, lead=2)))


def crps_of_areas(drawn: np.ndarray, marked: np.ndarray, *, graders: np.ndarray) -> np.ndarray:
    """The mean over classes (b,) of areas (b, k, s) and (b, k, r)."""
    exists = np.broadcast_to(graders[:, None], marked.shape)
    each = crps(drawn.astype(np.float64), marked.astype(np.float64), graders=exists)
    return np.asarray(each.mean(axis=1))
