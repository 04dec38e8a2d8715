"""What a sampler scores at best that draws the slices of a volume independently of each other."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np
from jaxtyping import Float64, Int32

from hpunet.data.synthetic.known_distribution import KnownDistribution

_STEP = 0.25  # of the trapezoid rule for 1/U, whose relative error is then 1e-15
_TAILS = (-32.0, 3.75)  # where its integrand is negligible, relative to the largest and the smallest union


@dataclass(frozen=True)
class IndependentSlices:
    """A sampler that is perfect in each slice of a volume, while its slices do not know of each other."""

    truth: KnownDistribution
    """Of the volume; its slices have the same distribution."""

    @cached_property
    def slices(self) -> list[KnownDistribution]:
        """The distribution of each slice."""
        return [replace(self.truth, regions=regions) for regions in self.truth.regions]

    def sample(self, rng: np.random.Generator, n: int) -> Int32[np.ndarray, "n d h w"]:
        """`n` independent label volumes."""
        return np.stack([known.sample(rng, n) for known in self.slices], axis=1)

    @property
    def p_size(self) -> Float64[np.ndarray, " sizes"]:
        """Probability that 0, 1, 2, … voxels are marked, up to all parts together."""
        found = np.ones(1)
        for known in self.slices:
            found = np.convolve(found, known.p_size)
        return found

    @property
    def expected_crps(self) -> float:
        """Expected CRPS (`metrics.crps`) of its sizes; `truth.expected_crps` is that of a perfect sampler."""
        apart = self.p_size.cumsum() - self.truth.p_size.cumsum()
        return float((apart**2).sum()) + self.truth.expected_crps

    def expected_ged(self, *, num_samples: int, num_graders: int | None) -> float:
        """Expected GED² (with self-pairs, App. B) of its volumes; arguments as of a `KnownDistribution`."""
        to_graders, among_samples = self.mean_distances
        within = (1 - 1 / num_samples) * among_samples + self.truth.mean_distance
        return 2 * to_graders - within + (self.truth.mean_distance / num_graders if num_graders else 0)

    @cached_property
    def mean_distances(self) -> tuple[float, float]:
        """Expected 1 − IoU of one of its volumes and a grader's, and of two of its volumes.

        With I and U the sums over slices of intersections and unions, E[I/U] is the sum over slices z of E[I_z/U].
        By 1/U = ∫ exp(u − U·eᵘ) du each factorises into the slices, and the trapezoid rule gives the integral.
        """
        p = self.truth.probabilities
        marked = [known.overlaps for known in self.slices if known.regions.any()] or [self.truth.overlaps]
        rates = np.exp(np.arange(_TAILS[0] - log(max(1, self.truth.sizes.max())), _TAILS[1], _STEP))
        # For each slice z and state y of a grader: E exp(−U_z·rate), E I_z·exp(−U_z·rate) and P(U_z = 0) over draws.
        decays, shares, empty = [], [], []
        for overlaps in marked:
            union = overlaps.diagonal()[:, None] + overlaps.diagonal() - overlaps
            decay = np.exp(-union[..., None] * rates) * p[:, None, None]
            decays.append(decay.sum(axis=0))
            shares.append((overlaps[..., None] * decay).sum(axis=0))
            empty.append(p @ (union == 0))
        by_state = np.stack(decays), np.stack(shares), np.stack(empty)
        # In each slice, a draw of its own is distributed as a grader's map.
        of_draws = [np.tensordot(p, part, axes=(0, 1))[:, None] for part in by_state]
        to_graders, among_samples = p @ _mean_iou(*by_state, rates=rates), _mean_iou(*of_draws, rates=rates)[0]
        return 1 - float(to_graders), 1 - float(among_samples)


def _mean_iou(decays: np.ndarray, shares: np.ndarray, empty: np.ndarray, *, rates: np.ndarray) -> np.ndarray:
    """E[I/U] (y,), 1 where all is empty, from slices' expectations (z, y, rates), (z, y, rates) and (z, y)."""
    one = np.ones_like(decays[:1])
    before = np.concatenate([one, decays[:-1]]).cumprod(axis=0)
    after = np.concatenate([one, decays[:0:-1]]).cumprod(axis=0)[::-1]
    return np.asarray(_STEP * (before * shares * after).sum(axis=0) @ rates + empty.prod(axis=0))
