"""The exact distribution of gradings of a synthetic image or volume with lesions.

A lesion is a core with three optional parts. The states of all lesions are few enough to list, so what a perfect
sampler scores on average is known exactly.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

NUM_OPTIONAL = 3  # parts of a lesion that a grader includes or leaves out
NUM_PARTS = 1 + NUM_OPTIONAL
_STATES = np.array([(0,) * NUM_PARTS, *((1, *more) for more in product((0, 1), repeat=NUM_OPTIONAL))], dtype=np.int64)
"""The parts that a grader can draw: none, or the core with any of the optional ones."""
NUM_STATES = len(_STATES)


def p_of_states(marked: float, p_optional: Float64[np.ndarray, " parts"]) -> Float64[np.ndarray, " states"]:
    """Probability of each state of a lesion that is marked so often, its optional parts independently."""
    chosen = np.where(_STATES[:, 1:] == 1, p_optional, 1 - p_optional).prod(axis=1)
    return np.where(_STATES[:, 0] == 1, marked * chosen, 1 - marked)


@dataclass(frozen=True)
class KnownDistribution:
    """The exact, finite distribution of the label maps of one image, or of one volume.

    A grader marks anything at all with probability `p_call`; if so, lesion i is in state j (0 not marked, else the
    core with some optional parts) with probability `p_state[i, j]`, independently of other lesions. A part is marked
    as a whole: in a volume, in all of its slices.
    """

    regions: Int32[np.ndarray, "*s"]
    """0 outside, else 1 + 4 · lesion + the part: 0 core, 1 to 3 an optional part."""
    p_call: float
    p_state: Float64[np.ndarray, "lesions 9"]

    @property
    def cores(self) -> Bool[np.ndarray, "*s"]:
        """The lesions without their optional parts."""
        return np.asarray((self.regions > 0) & ((self.regions - 1) % NUM_PARTS == 0))

    def sample(self, rng: np.random.Generator, n: int) -> Int32[np.ndarray, " n *s"]:
        """`n` independent label maps: 1 is lesion."""
        thresholds = self.p_state.cumsum(axis=1)[:, :-1]
        states = (rng.random((n, len(self.p_state), 1)) >= thresholds).sum(axis=2)
        return self._draw(np.where(rng.random((n, 1)) < self.p_call, states, 0))

    @property
    def states(self) -> Int64[np.ndarray, "m lesions"]:
        """All combinations of lesion states, 9 to the power of their number; the first is the empty one."""
        num_lesions = len(self.p_state)
        return np.indices((len(_STATES),) * num_lesions).reshape(num_lesions, -1).T.astype(np.int64)

    @property
    def support(self) -> Int32[np.ndarray, " m *s"]:
        """The label map of each of the `states`."""
        return self._draw(self.states)

    @property
    def probabilities(self) -> Float64[np.ndarray, " m"]:
        """Probability of each of the `states`."""
        probabilities = np.asarray(self.p_call * np.take_along_axis(self.p_state, self.states.T, axis=1).prod(axis=0))
        probabilities[0] += 1 - self.p_call
        return probabilities

    @property
    def overlaps(self) -> Int64[np.ndarray, "m m"]:
        """Positions that both of two `states` mark; on the diagonal the `sizes`."""
        drawn = _STATES[self.states].reshape(len(self.states), -1)  # m, parts of all lesions, which are disjoint
        part_sizes = np.bincount(self.regions.ravel(), minlength=1 + drawn.shape[1])[1:]
        return np.asarray((drawn * part_sizes.astype(np.int64)) @ drawn.T)

    @property
    def iou(self) -> Float64[np.ndarray, "m m"]:
        """IoU of each pair of `states`; empty against empty is 1."""
        overlaps = self.overlaps
        union = overlaps.diagonal()[:, None] + overlaps.diagonal() - overlaps
        return np.where(union == 0, 1.0, overlaps / np.maximum(union, 1))

    @property
    def mean_distance(self) -> float:
        """D, the expected 1 − IoU of two independent label maps."""
        return float(self.probabilities @ (1 - self.iou) @ self.probabilities)

    def expected_ged(self, *, num_samples: int, num_graders: int | None) -> float:
        """Expected GED² (with self-pairs, App. B) of a perfect sampler: (1/samples + 1/graders) · D.

        Without `num_graders`, against the whole distribution in place of graders.
        """
        return (1 / num_samples + (1 / num_graders if num_graders else 0)) * self.mean_distance

    @property
    def sizes(self) -> Int64[np.ndarray, " m"]:
        """Pixels or voxels that each of the `states` marks."""
        return self.overlaps.diagonal()

    @property
    def p_size(self) -> Float64[np.ndarray, " sizes"]:
        """Probability that 0, 1, 2, … pixels or voxels are marked, up to all parts together."""
        return np.bincount(self.sizes, weights=self.probabilities)

    @property
    def expected_crps(self) -> float:
        """Expected CRPS (`metrics.crps`) of the sizes of a perfect sampler, of any number of samples: ½·E|Y − Y'|."""
        below = self.p_size.cumsum()
        return float((below * (1 - below)).sum())

    @property
    def marginals(self) -> Float64[np.ndarray, "*s"]:
        """Probability that a position is marked."""
        table = np.concatenate([[0.0], (self.p_call * self.p_state @ _STATES).ravel()])
        return np.asarray(table[self.regions])

    def _draw(self, states: np.ndarray) -> Int32[np.ndarray, " n *s"]:
        """Label maps of lesion states (n, lesions)."""
        parts = _STATES[states].reshape(len(states), -1)
        return np.pad(parts, ((0, 0), (1, 0))).astype(np.int32)[:, self.regions]
