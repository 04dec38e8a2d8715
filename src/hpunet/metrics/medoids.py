"""Few samples that stand for many: k-medoids, optimal in expected distance."""

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hpunet.errors import ConfigError

MAX_SUBSETS = 50_000
"""All subsets are tried up to here, as of 16 samples or of 4 among 32; beyond, swaps until none helps."""


class Medoids(NamedTuple):
    """Some of n maps, in ascending order, and for each map which of them is nearest (the first of equals)."""

    chosen: Int[np.ndarray, " k"]
    nearest: Int[np.ndarray, " n"]


def k_medoids(distances: Float[np.ndarray, "n n"], *, num: int) -> Medoids:
    """The `num` maps with the smallest mean distance of all maps to the nearest of them.

    With the shares of maps that are nearest as weights, no other choice and no other weights have a smaller
    Wasserstein distance to the maps. The optimum up to `MAX_SUBSETS` subsets, else the best of the partitions that no
    swap improves (PAM, Kaufman and Rousseeuw 1990). Maps that no map is nearest to are left out, as equal ones are.
    """
    n = len(distances)
    if not 1 <= num <= n:
        raise ConfigError(f"representatives: expected 1 to {n}, the number of samples, got {num}")
    chosen = _best_subset(distances, num) if comb(n, num) <= MAX_SUBSETS else _swapped(distances, num)
    chosen = np.sort(chosen)
    nearest = distances[:, chosen].argmin(axis=1)
    used, nearest = np.unique(nearest, return_inverse=True)
    return Medoids(chosen[used], nearest)


def _best_subset(distances: np.ndarray, num: int) -> np.ndarray:
    subsets = np.array(list(combinations(range(len(distances)), num)))
    parts = np.array_split(subsets, 1 + subsets.size // 2**16)
    totals = [distances[:, part].min(axis=2).sum(axis=0) for part in parts]
    return np.asarray(subsets[np.concatenate(totals).argmin()])


def _swapped(distances: np.ndarray, num: int) -> np.ndarray:
    """Each in turn the one that helps most; then the best swap of one of them, as long as it helps."""
    to_nearest, found = np.full(len(distances), np.inf), []
    for _ in range(num):
        found.append(int(np.minimum(distances, to_nearest[:, None]).sum(axis=0).argmin()))
        to_nearest = np.minimum(to_nearest, distances[:, found[-1]])
    chosen, total = np.array(found), to_nearest.sum()
    while True:
        kept = [distances[:, np.delete(chosen, i)].min(axis=1, initial=np.inf) for i in range(num)]
        totals = np.stack([np.minimum(distances, each[:, None]).sum(axis=0) for each in kept])
        place, candidate = np.unravel_index(totals.argmin(), totals.shape)
        if not totals[place, candidate] < total * (1 - 1e-12):  # rounding must not swap for ever
            return chosen
        chosen[place], total = candidate, totals[place, candidate]
