"""Lesions in lung-like images, with the exact distribution of the graders' label maps.

Graders differ in whether they mark a lesion, and on which sides of it they include the halo. The image shows every
probability: its contrast that of marking anything, the brightness of a core and of each side of a halo that of
including it.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, UInt8

from hpunet.data.synthetic.texture import smooth_noise, to_bytes

NUM_SIDES = 3  # of a halo, 120 degrees each; a grader includes each independently
NUM_LESIONS = (1, 3)  # least and most per image
_PARTS = 1 + NUM_SIDES  # a lesion's core and the sides of its halo
_STATES = np.array([(0,) * _PARTS, *((1, *sides) for sides in product((0, 1), repeat=NUM_SIDES))], dtype=np.int64)
"""The parts that a grader can draw: none, or the core with any of the sides."""
_CORE = 0.65  # radius of the core relative to the lesion


@dataclass(frozen=True)
class KnownDistribution:
    """The exact, finite distribution of the label maps of one image.

    A grader marks anything at all with probability `p_call`; if so, lesion i is in state j (0 not marked, else the
    core with some sides of the halo) with probability `p_state[i, j]`, independently of other lesions.
    """

    regions: Int32[np.ndarray, "h w"]
    """0 outside, else 1 + 4 · lesion + the part: 0 core, 1 to 3 a side of the halo."""
    p_call: float
    p_state: Float64[np.ndarray, "lesions 9"]

    @property
    def cores(self) -> Bool[np.ndarray, "h w"]:
        """The lesions without their halos."""
        return np.asarray((self.regions > 0) & ((self.regions - 1) % _PARTS == 0))

    def sample(self, rng: np.random.Generator, n: int) -> Int32[np.ndarray, "n h w"]:
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
    def support(self) -> Int32[np.ndarray, "m h w"]:
        """The label map of each of the `states`."""
        return self._draw(self.states)

    @property
    def probabilities(self) -> Float64[np.ndarray, " m"]:
        """Probability of each of the `states`."""
        probabilities = np.asarray(self.p_call * np.take_along_axis(self.p_state, self.states.T, axis=1).prod(axis=0))
        probabilities[0] += 1 - self.p_call
        return probabilities

    @property
    def iou(self) -> Float64[np.ndarray, "m m"]:
        """IoU of each pair of `states`; empty against empty is 1."""
        drawn = _STATES[self.states].reshape(len(self.states), -1)  # m, parts of all lesions, which are disjoint
        part_areas = np.bincount(self.regions.ravel(), minlength=1 + _PARTS * len(self.p_state))[1:]
        weighted = drawn * part_areas.astype(np.int64)
        intersection, areas = weighted @ drawn.T, weighted.sum(axis=1)
        union = areas[:, None] + areas[None, :] - intersection
        return np.where(union == 0, 1.0, intersection / np.maximum(union, 1))

    @property
    def mean_distance(self) -> float:
        """D, the expected 1 − IoU of two independent label maps."""
        return float(self.probabilities @ (1 - self.iou) @ self.probabilities)

    def expected_ged(self, *, num_samples: int, num_graders: int) -> float:
        """Expected GED² (with self-pairs, App. B) of a perfect sampler: (1/samples + 1/graders) · D."""
        return (1 / num_samples + 1 / num_graders) * self.mean_distance

    @property
    def marginals(self) -> Float64[np.ndarray, "h w"]:
        """Probability that a pixel is marked."""
        table = np.concatenate([[0.0], (self.p_call * self.p_state @ _STATES).ravel()])
        return np.asarray(table[self.regions])

    def _draw(self, states: np.ndarray) -> Int32[np.ndarray, "n h w"]:
        """Label maps of lesion states (n, lesions)."""
        parts = _STATES[states].reshape(len(states), -1)
        return np.pad(parts, ((0, 0), (1, 0))).astype(np.int32)[:, self.regions]


def make_lesions(
    rng: np.random.Generator, *, size: tuple[int, int], num_lesions: tuple[int, int] = NUM_LESIONS
) -> tuple[UInt8[np.ndarray, "h w"], KnownDistribution]:
    """An image of at least and at most `num_lesions`, and the distribution of its label maps.

    At most one lesion lies in each cell of a grid, 2 cells along the shorter side of the image and 2 along the
    longer, or as many as the most lesions need.
    """
    (h, w), (least, most) = size, num_lesions
    image = _lung(rng, size=size)
    long = max(2, -(-most // 2))
    down, across = (long, 2) if h >= w else (2, long)
    tall, wide = h // down, w // across
    cells = rng.permutation(down * across)[: rng.integers(least, most + 1)]
    p_call = rng.uniform(0.75, 1.0)
    p_state = np.empty((len(cells), len(_STATES)))
    regions = np.zeros(size, dtype=np.int32)
    for lesion, cell in enumerate(cells):
        top, left = cell // across * tall, cell % across * wide
        window = np.s_[top : top + tall, left : left + wide]
        distance, side = _polar(rng, size=(tall, wide))
        regions[window] = np.where(distance < 1, 1 + _PARTS * lesion + np.where(distance < _CORE, 0, 1 + side), 0)
        marked, p_sides = rng.uniform(0.35, 1.0), rng.uniform(0.1, 0.9, NUM_SIDES)
        chosen = np.where(_STATES[:, 1:] == 1, p_sides, 1 - p_sides).prod(axis=1)
        p_state[lesion] = np.where(_STATES[:, 0] == 1, marked * chosen, 1 - marked)
        halo = (0.1 + 0.75 * p_sides)[side]
        fading = np.interp(distance, (_CORE - 0.15, _CORE + 0.05), (1, 0))  # from the core to the halo
        profile = (fading + (1 - fading) * halo) * np.interp(distance, (0.9, 1.15), (1, 0))
        image[window] += (0.05 + 0.45 * marked) * profile.astype(np.float32)
    image = 0.35 + (image - 0.35) * np.float32(p_call)
    image += 0.025 * rng.standard_normal(size, dtype=np.float32)
    return to_bytes(image), KnownDistribution(regions=regions, p_call=float(p_call), p_state=p_state)


def _polar(rng: np.random.Generator, *, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Distance (h, w) from the centre of a wobbly ellipse, 1 on its outline, exactly 0 at one pixel; side (h, w)."""
    (h, w), shorter = size, min(size)
    y = np.arange(h)[:, None] - int(h * rng.uniform(0.42, 0.58))
    x = np.arange(w)[None, :] - int(w * rng.uniform(0.42, 0.58))
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.3)
    radius = shorter * rng.uniform(0.28, 0.4)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    wobble = np.clip(smooth_noise(rng, size=size, scale=shorter / 5), -2, 2)
    distance = np.asarray(np.hypot(along, across * stretch) / radius * (1 + 0.13 * wobble))
    turn = (np.arctan2(across, along) / (2 * np.pi) + rng.uniform()) % 1
    return distance, np.minimum((turn * NUM_SIDES).astype(np.int64), NUM_SIDES - 1)


def _lung(rng: np.random.Generator, *, size: tuple[int, int]) -> np.ndarray:
    """Dark, mottled tissue (h, w) with a few vessels, and the chest wall along one side of most images."""
    side = min(size)
    tissue = 0.17 + 0.03 * smooth_noise(rng, size=size, scale=side / 3)
    tissue += 0.012 * smooth_noise(rng, size=size, scale=side / 24)
    vessel, wide = (
        np.abs(smooth_noise(rng, size=size, scale=side / 3.5)),
        smooth_noise(rng, size=size, scale=side / 4),
    )
    tissue += 0.3 * np.clip(1 - vessel / (0.04 + 0.08 * np.clip(wide, 0, 2)), 0, 1) * (wide > 0.2)

    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.linspace(-1, 1, size[0])[:, None], np.linspace(-1, 1, size[1])[None, :]
    depth = np.cos(angle) * x + np.sin(angle) * y - rng.uniform(0.65, 1.15)
    depth = depth + 0.08 * smooth_noise(rng, size=size, scale=side / 2)
    wall = np.clip(depth * side / 6, 0, 1).astype(np.float32)
    return np.asarray(tissue + (0.52 - tissue) * wall, dtype=np.float32)
