"""Few samples that stand for many: k-medoids, optimal in expected distance."""

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hpunet.errors import ConfigError

MAX_SUBSETS = 5_000
"""All subsets are tried up to here, as of up to 5 among 16 maps or 3 among 32; beyond, swaps until none helps."""
NUM_STARTS, MAX_FOR_STARTS = 8, 10_000
"""Random starts take their time: above this many maps times medoids, as of 64 among 512, there is one start only."""


class Medoids(NamedTuple):
    """Some of n maps, in ascending order, and for each map which of them is nearest (the first of equals)."""

    chosen: Int[np.ndarray, " k"]
    nearest: Int[np.ndarray, " n"]


def k_medoids(distances: Float[np.ndarray, "n n"], *, num: int) -> Medoids:
    """The `num` maps with the smallest mean distance of all maps to the nearest of them.

    With the shares of maps that are nearest as weights, no other choice and no other weights have a smaller
    Wasserstein distance to the maps. The optimum up to `MAX_SUBSETS` subsets, else the best of `NUM_STARTS`
    choices that no swap improves (PAM, Kaufman and Rousseeuw 1990), nearly always the optimum too; above
    `MAX_FOR_STARTS`, one such choice. Maps that no other is nearest to because they repeat one are left out.
    """
    n = len(distances)
    if not 1 <= num <= n:
        raise ConfigError(f"representatives: expected 1 to {n}, the number of samples, got {num}")
    is_small = comb(n, num) <= MAX_SUBSETS
    chosen = np.sort(_best_subset(distances, num) if is_small else _best_of_starts(distances, num))
    nearest = distances[:, chosen].argmin(axis=1)
    used, nearest = np.unique(nearest, return_inverse=True)
    return Medoids(chosen[used], nearest)


def _best_subset(distances: np.ndarray, num: int) -> np.ndarray:
    subsets = np.array(list(combinations(range(len(distances)), num)))
    parts = np.array_split(subsets, 1 + subsets.size // 2**16)
    totals = [distances[:, part].min(axis=2).sum(axis=0) for part in parts]
    return np.asarray(subsets[np.concatenate(totals).argmin()])


def _best_of_starts(distances: np.ndarray, num: int) -> np.ndarray:
    """From maps added one by one, each the one that helps most, and for few maps from random ones."""
    to_nearest, added = np.full(len(distances), np.inf), []
    for _ in range(num):
        added.append(int(np.minimum(distances, to_nearest[:, None]).sum(axis=0).argmin()))
        to_nearest = np.minimum(to_nearest, distances[:, added[-1]])
    rng, more = np.random.default_rng(0), NUM_STARTS - 1 if len(distances) * num <= MAX_FOR_STARTS else 0
    starts = [np.array(added), *(rng.permutation(len(distances))[:num] for _ in range(more))]
    return min((_swapped(distances, start) for start in starts), key=lambda part: _total(distances, part))


def _swapped(distances: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The best swap of one map, as long as it helps."""
    total = _total(distances, chosen)
    while True:
        kept = [distances[:, np.delete(chosen, i)].min(axis=1, initial=np.inf) for i in range(len(chosen))]
        totals = np.stack([np.minimum(distances, each[:, None]).sum(axis=0) for each in kept])
        place, candidate = np.unravel_index(totals.argmin(), totals.shape)
        if not totals[place, candidate] < total * (1 - 1e-12):  # rounding must not swap for ever
            return chosen
        chosen[place], total = candidate, totals[place, candidate]


def _total(distances: np.ndarray, chosen: np.ndarray) -> float:
    return float(distances[:, chosen].min(axis=1).sum())
