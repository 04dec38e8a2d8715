"""Mean and standard deviation of a metric by bootstrap."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import Array, as_numpy


class Bootstrap(NamedTuple):
    """Mean and standard deviation (by n, not n − 1) over all resampled means."""

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
    """Resample images with replacement, `num` times for each trained model, and pool the means.

    `values` is a metric of each image, one row for each model trained with another seed. With `groups`, one name for
    each image, whole groups are drawn instead: slices of one patient are not independent. As many groups are drawn as
    there are, and each image of a drawn group counts once for every time that the group was drawn.
    """
    rows = np.atleast_2d(as_numpy(values).astype(np.float64))
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(f"values: expected one value an image, or (models, images), got shape {tuple(values.shape)}")
    if not np.isfinite(rows).all():
        undefined = int((~np.isfinite(rows)).sum())
        raise DataError(f"values: {undefined} of {rows.size} are undefined; leave those images out and say how many")
    group = group_numbers(groups, num_images=rows.shape[1])
    sizes = np.bincount(group)
    rng = np.random.default_rng(seed)
    means = []
    for row in rows:
        totals = np.bincount(group, weights=row)
        for drawn in draws(rng, num_groups=len(sizes), num=num):
            means.append(totals[drawn].sum() / sizes[drawn].sum())
    return np.array(means)


def group_numbers(groups: Sequence[object] | None, *, num_images: int) -> Int[np.ndarray, " images"]:
    """The group of each image as a number, in the order they first occur; without groups each image is its own."""
    names = list(range(num_images)) if groups is None else list(groups)
    if len(names) != num_images:
        raise DataError(f"groups: expected one for each of the {num_images} images, got {len(names)}")
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.int64)


def draws(rng: np.random.Generator, *, num_groups: int, num: int) -> Iterator[Int[np.ndarray, " groups"]]:
    """`num` times as many groups as there are, drawn with replacement."""
    if num < 1:
        raise ConfigError(f"num must be at least 1, got {num}")
    for _ in range(num):
        yield rng.integers(num_groups, size=num_groups)
