"""Lesions in lung-like images, with the exact distribution of what a grader would draw.

Every probability can be seen in the image: the overall contrast tells how likely a grader is to mark anything, the
brightness of a lesion how likely it is to be marked, the brightness of its rim and halo how far the outline goes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int32, Int64, UInt8

from hpunet.data.synthetic_texture import smooth_noise, to_bytes

BORDERS = ("core", "rim", "halo")
"""The outlines a grader chooses from, each containing the one before; state 0 of a lesion is 'not marked'."""
_NUM_BORDERS = len(BORDERS)
_NUM_STATES = 1 + _NUM_BORDERS
_OUTLINES = (0.5, 0.75, 1.0)
"""Where the outlines run, relative to the lesion's radius."""


@dataclass(frozen=True)
class KnownDistribution:
    """The finite distribution of the label maps of one image: all of it, exactly.

    A grader marks anything at all with probability `p_call`; if so, lesion i is in state j (0 not marked, else the
    outline) with probability `p_state[i, j]`, independently of the other lesions. Lesions are disjoint and outlines
    nested, so areas of intersections and unions add up over lesions and no pixel has to be looked at.
    """

    regions: Int32[np.ndarray, "h w"]
    """0 outside, else 1 + 3 · lesion + the innermost outline that holds the pixel."""
    p_call: float
    p_state: Float64[np.ndarray, "lesions 4"]

    def sample(self, rng: np.random.Generator, n: int) -> Int32[np.ndarray, "n h w"]:
        """`n` independent label maps: 1 is lesion."""
        thresholds = self.p_state.cumsum(axis=1)[:, :-1]
        states = (rng.random((n, len(self.p_state), 1)) >= thresholds).sum(axis=2)
        return self._draw(np.where(rng.random((n, 1)) < self.p_call, states, 0))

    @property
    def states(self) -> Int64[np.ndarray, "m lesions"]:
        """Every combination of lesion states, at most 4⁴; the first is the empty one."""
        num_lesions = len(self.p_state)
        return np.indices((_NUM_STATES,) * num_lesions).reshape(num_lesions, -1).T.astype(np.int64)

    @property
    def support(self) -> Int32[np.ndarray, "m h w"]:
        """The label map of each of the `states`."""
        return self._draw(self.states)

    @property
    def probabilities(self) -> Float64[np.ndarray, " m"]:
        """Probability of each of the `states`; they add up to 1."""
        given_call = np.take_along_axis(self.p_state, self.states.T, axis=1).prod(axis=0)
        probabilities: np.ndarray = self.p_call * given_call
        probabilities[0] += 1 - self.p_call
        return probabilities

    @property
    def iou(self) -> Float64[np.ndarray, "m m"]:
        """IoU of each pair of `states`; empty against empty is 1."""
        counts = np.bincount(self.regions.ravel(), minlength=1 + _NUM_BORDERS * len(self.p_state))[1:]
        areas = np.pad(counts.reshape(-1, _NUM_BORDERS).cumsum(axis=1), ((0, 0), (1, 0)))
        states = self.states
        one, other = states.T[:, :, None], states.T[:, None, :]
        lesion = np.arange(len(areas))[:, None, None]
        intersection = areas[lesion, np.minimum(one, other)].sum(axis=0)
        union = areas[lesion, np.maximum(one, other)].sum(axis=0)
        return np.where(union == 0, 1.0, intersection / np.maximum(union, 1))

    @property
    def mean_distance(self) -> float:
        """D, the expected 1 − IoU of two independent label maps."""
        probabilities = self.probabilities
        return float(probabilities @ (1 - self.iou) @ probabilities)

    def expected_ged(self, *, num_samples: int, num_graders: int) -> float:
        """Expected GED² (with self-pairs, App. B) of a perfect sampler: (1/samples + 1/graders) · D.

        Of the pairs within a set of n, n are of a map with itself at distance 0, the rest are D apart on average.
        """
        return (1 / num_samples + 1 / num_graders) * self.mean_distance

    @property
    def marginals(self) -> Float64[np.ndarray, "h w"]:
        """Probability of each pixel to be marked."""
        reaches = self.p_state[:, :0:-1].cumsum(axis=1)[:, ::-1]  # by outline: this one or a wider one
        table: np.ndarray = np.concatenate([[0.0], self.p_call * reaches.ravel()])
        return np.asarray(table[self.regions])

    def _draw(self, states: np.ndarray) -> Int32[np.ndarray, "n h w"]:
        """Label maps of lesion states (n, lesions)."""
        marked = states[:, :, None] >= np.arange(1, _NUM_STATES)
        table = np.pad(marked.reshape(len(states), -1), ((0, 0), (1, 0))).astype(np.int32)
        return table[:, self.regions]


def make_lesions(
    rng: np.random.Generator, *, size: tuple[int, int]
) -> tuple[UInt8[np.ndarray, "h w"], KnownDistribution]:
    """An image of 1 to 4 lesions, one in a quarter of the image at most, and the distribution of its gradings."""
    h, w = size
    image = _lung(rng, size=size)
    quarters = rng.permutation(4)[: rng.integers(1, 5)]
    p_call = rng.uniform(0.5, 1.0)
    p_state = np.empty((len(quarters), _NUM_STATES))
    regions = np.zeros(size, dtype=np.int32)
    for lesion, quarter in enumerate(quarters):
        top, left = quarter // 2 * (h // 2), quarter % 2 * (w // 2)
        window = np.s_[top : top + h // 2, left : left + w // 2]
        distance = _distance_from_centre(rng, size=(h // 2, w // 2))
        inside = distance < _OUTLINES[-1]
        innermost = np.searchsorted(_OUTLINES, distance, side="right")
        regions[window] = np.where(inside, 1 + _NUM_BORDERS * lesion + innermost, 0)

        marked, beyond_core, beyond_rim = rng.uniform((0.3, 0.1, 0.1), (1.0, 0.9, 0.9))
        p_state[lesion] = (
            1 - marked,
            marked * (1 - beyond_core),
            marked * beyond_core * (1 - beyond_rim),
            marked * beyond_core * beyond_rim,
        )
        rim = 0.15 + 0.7 * beyond_core
        halo = rim * (0.1 + 0.7 * beyond_rim)
        profile = np.interp(distance, (0.35, 0.6, 0.65, 0.85, 0.9, 1.15), (1, rim, rim, halo, halo, 0))
        image[window] += (0.05 + 0.45 * marked) * profile.astype(np.float32)
    image = 0.35 + (image - 0.35) * np.float32(p_call)
    image += 0.025 * rng.standard_normal(size, dtype=np.float32)
    return to_bytes(image), KnownDistribution(regions=regions, p_call=float(p_call), p_state=p_state)


def _distance_from_centre(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Distance (h, w) from the centre of a wobbly ellipse, 1 on its outline; exactly 0 at one pixel."""
    h, w = size
    side = min(size)
    y = np.arange(h)[:, None] - int(h * rng.uniform(0.36, 0.64))
    x = np.arange(w)[None, :] - int(w * rng.uniform(0.36, 0.64))
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.4)
    radius = side * rng.uniform(0.19, 0.31)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    wobble = np.clip(smooth_noise(rng, size=size, scale=side / 5), -2, 2)
    return np.asarray(np.hypot(along, across * stretch) / radius * (1 + 0.13 * wobble))


def _lung(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Dark, mottled tissue (h, w) with a few vessels, and the chest wall along one side of most images."""
    side = min(size)
    tissue = 0.17 + 0.03 * smooth_noise(rng, size=size, scale=side / 3)
    tissue += 0.012 * smooth_noise(rng, size=size, scale=side / 24)
    vessel = np.abs(smooth_noise(rng, size=size, scale=side / 3.5))
    wide = smooth_noise(rng, size=size, scale=side / 4)
    tissue += 0.3 * np.clip(1 - vessel / (0.04 + 0.08 * np.clip(wide, 0, 2)), 0, 1) * (wide > 0.2)

    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.linspace(-1, 1, size[0])[:, None], np.linspace(-1, 1, size[1])[None, :]
    depth = np.cos(angle) * x + np.sin(angle) * y - rng.uniform(0.65, 1.15)
    depth = depth + 0.08 * smooth_noise(rng, size=size, scale=side / 2)
    wall = np.clip(depth * side / 6, 0, 1).astype(np.float32)
    return np.asarray(tissue + (0.52 - tissue) * wall, dtype=np.float32)
