"""Mean and standard deviation of a metric by bootstrap."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import Array, as_numpy


class Bootstrap(NamedTuple):
    """Mean and standard deviation (by n, not n − 1) of resampled means."""

    mean: float
    std: float


Values = Float[Array, " images"] | Float[Array, "models images"]


def bootstrap(values: Values, *, seed: int, groups: Sequence[object] | None = None, num: int = 1000) -> Bootstrap:
    """Mean and standard deviation of `resampled_means` (Table 1)."""
    means = resampled_means(values, seed=seed, groups=groups, num=num)
    return Bootstrap(mean=float(means.mean()), std=float(means.std()))


def resampled_means(
    values: Values, *, seed: int, groups: Sequence[object] | None = None, num: int = 1000
) -> Float64[np.ndarray, " means"]:
    """Resample images with replacement, `num` times per trained model (rows of `values`), and pool the means.

    With `groups`, one name per image, whole groups are drawn instead: slices of one patient are not independent. As
    many groups are drawn as there are, and an image counts each time its group is drawn.
    """
    rows = np.atleast_2d(as_numpy(values).astype(np.float64))
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(f"values: expected one value per image, or (models, images), got shape {tuple(values.shape)}")
    if not np.isfinite(rows).all():
        undefined = int((~np.isfinite(rows)).sum())
        raise DataError(f"values: {undefined} of {rows.size} are undefined; leave those images out")
    group = group_numbers(groups, num_images=rows.shape[1])
    sizes = np.bincount(group)
    rng = np.random.default_rng(seed)
    means = []
    for totals in (np.bincount(group, weights=row) for row in rows):
        drawn = draws(rng, num_groups=len(sizes), num=num)
        means += [totals[chosen].sum() / sizes[chosen].sum() for chosen in drawn]
    return np.array(means)


def group_numbers(groups: Sequence[object] | None, *, num_images: int) -> Int[np.ndarray, " images"]:
    """The number of each image's group, in order of appearance; without groups each image is its own group."""
    names = list(range(num_images)) if groups is None else list(groups)
    if len(names) != num_images:
        raise DataError(f"groups: expected one per image ({num_images}), got {len(names)}")
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.int64)


def draws(rng: np.random.Generator, *, num_groups: int, num: int) -> Iterator[Int[np.ndarray, " groups"]]:
    """`num` draws of `num_groups` groups with replacement."""
    if num < 1:
        raise ConfigError(f"num must be at least 1, got {num}")
    for _ in range(num):
        yield rng.integers(num_groups, size=num_groups)
