"""A lesion in registered images of one place over time, with the exact distribution of what comes next.

Between two images the lesion grows, rests or regresses, with probabilities and rates of its own. The past shows
them: the brightness of the lesion is the probability of growth, that of a halo around it the rate of growth, that of
the tissue the probability of regress if it does not grow; each image is noisy. Its logarithmic area is a random walk
with these steps. The outline has a bulge in one of eight directions, chosen again for each image.

Intervals are uneven and known. Times are in years.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64, UInt8
from scipy.special import ndtr

from hpunet.data.synthetic.texture import smooth_noise, to_bytes

NUM_MOMENTS = 6
STATES = ("grow", "rest", "regress")
SPREAD = 0.12  # of the logarithmic area after a year, around its rate
_REGRESS = -0.35  # rate of the logarithmic area per year
_P_GROW, _RATE, _P_REGRESS = (0.1, 0.8), (0.15, 0.45), (0.1, 0.9)  # of each lesion, uniform
_INTERVAL = (0.4, 1.2)
_DAYS = 365.25
_NUM_BULGES, _BULGE = 8, 0.22
_HALO = 1.7  # its outer radius, relative to the lesion's
_LESION, _GLOW, _TISSUE = (0.65, 0.95), (0.05, 0.25), (0.12, 0.32)  # brightness; that of the halo is added to tissue
_NOISE = 0.04


@dataclass(frozen=True)
class KnownFuture:
    """The exact distribution of a lesion's masks after the moment number `present`.

    From one moment to the next the lesion is in a state s with probability `p_state[s]`; its logarithmic area then
    changes by `rates[s]` per year and a normal number of variance SPREAD² per year. The mask has the first pixels, as
    many as its area, in the order of one of the `ranks`, all equally likely.
    """

    ranks: Int32[np.ndarray, "outlines h w"]
    log_areas: Float64[np.ndarray, " d"]
    """What happened, at all moments; the present one is known, later ones are not used."""
    times: Float64[np.ndarray, " d"]
    p_state: Float64[np.ndarray, "3"]
    rates: Float64[np.ndarray, "3"]
    present: int = 0

    def after(self, present: int) -> "KnownFuture":
        """The same lesion seen from another moment."""
        return replace(self, present=range(len(self.times) - 1)[present])

    @property
    def intervals(self) -> Float64[np.ndarray, " m"]:
        """Years between the moments from the present on."""
        return np.diff(self.times[self.present :])

    @property
    def area(self) -> int:
        """Pixels of the mask at present."""
        return int(self.areas(self.log_areas)[self.present])

    def walk(self, rng: np.random.Generator, n: int) -> Float64[np.ndarray, "n m"]:
        """Logarithmic areas of `n` independent futures."""
        years = self.intervals
        states = (rng.random((n, len(years), 1)) >= self.p_state.cumsum()[:-1]).sum(axis=2)
        steps = self.rates[states] * years + SPREAD * np.sqrt(years) * rng.standard_normal((n, len(years)))
        return np.asarray(self.log_areas[self.present] + steps.cumsum(axis=1))

    def draw(self, rng: np.random.Generator, log_areas: Float64[np.ndarray, "*n"]) -> Int32[np.ndarray, "*n h w"]:
        """Masks of these logarithmic areas."""
        outlines = rng.integers(len(self.ranks), size=log_areas.shape)
        return np.asarray(self.ranks[outlines] < self.areas(log_areas)[..., None, None], dtype=np.int32)

    def sample(self, rng: np.random.Generator, n: int) -> Int32[np.ndarray, "n m h w"]:
        """`n` independent futures: 1 is lesion."""
        return self.draw(rng, self.walk(rng, n))

    def area_cdf(self, moment: int = -1) -> Float64[np.ndarray, " areas"]:
        """P(area ≤ 0, 1, 2, … all pixels) at a moment of the future, by default the last."""
        years, (_, *size) = self.intervals, self.ranks.shape
        years = years[: range(len(years))[moment] + 1]
        means, p = self.log_areas[self.present, None], np.ones(1)
        for interval in years:  # each state of each interval: a mixture of normal distributions
            means = (means[:, None] + self.rates * interval).ravel()
            p = (p[:, None] * self.p_state).ravel()
        pixels = int(np.prod(size))
        ends = np.log(np.arange(pixels) + 0.5)  # areas are rounded
        below = ndtr((ends[:, None] - means) / (SPREAD * np.sqrt(years.sum()))) @ p
        return np.asarray(np.append(below, 1.0))

    def p_growth(self, *, beyond: float = 0.25, moment: int = -1) -> float:
        """Probability that the area becomes more than `beyond` larger than at present."""
        most = int(np.floor((1 + beyond) * self.area + 1e-9))
        cdf = self.area_cdf(moment)
        return float(1 - cdf[min(most, len(cdf) - 1)])

    @property
    def marginals(self) -> Float64[np.ndarray, "m h w"]:
        """Probability that a pixel is in the mask of each moment of the future."""
        return np.stack([(1 - self.area_cdf(j)[self.ranks]).mean(axis=0) for j in range(len(self.intervals))])

    def expected_crps(self, moment: int = -1) -> float:
        """Expected CRPS (`metrics.crps`) of the areas of a perfect sampler, of any number of samples: ½·E|Y − Y'|."""
        below = self.area_cdf(moment)
        return float((below * (1 - below)).sum())

    def areas(self, log_areas: Float64[np.ndarray, "*n"]) -> Int64[np.ndarray, "*n"]:
        """Pixels of masks of these logarithmic areas."""
        return np.asarray(np.minimum(np.rint(np.exp(log_areas)), self.ranks[0].size), dtype=np.int64)


def make_growth(
    rng: np.random.Generator, *, size: tuple[int, int, int]
) -> tuple[UInt8[np.ndarray, "d h w"], Int32[np.ndarray, "d h w"], Float32[np.ndarray, " d"], KnownFuture]:
    """Images of a lesion at d moments, its masks, the times, and what was to be expected at any moment."""
    d, h, w = size
    days = np.rint(_DAYS * rng.uniform(*_INTERVAL, d - 1)).cumsum()
    times = np.concatenate([[0.0], days / _DAYS]).astype(np.float32)
    shown = rng.uniform(0, 1, 3)
    p_grow, rate, regress = _between(shown, _P_GROW, _RATE, _P_REGRESS)
    lesion, glow, level = _between(shown, _LESION, _GLOW, _TISSUE)
    known = KnownFuture(
        ranks=_ranks(rng, size=(h, w)),
        log_areas=np.full(d, np.log(np.pi * (min(h, w) * rng.uniform(0.1, 0.14)) ** 2)),
        times=times.astype(np.float64),
        p_state=np.array([p_grow, (1 - p_grow) * (1 - regress), (1 - p_grow) * regress]),
        rates=np.array([rate, 0.0, _REGRESS]),
    )
    known = replace(known, log_areas=np.concatenate([known.log_areas[:1], known.walk(rng, 1)[0]]))
    outlines = rng.integers(len(known.ranks), size=d)
    radii = np.sqrt((known.ranks[outlines] + 0.5) / np.exp(known.log_areas)[:, None, None])  # 1 on the outline
    labels = (known.ranks[outlines] < known.areas(known.log_areas)[:, None, None]).astype(np.int32)
    tissue = level + 0.03 * smooth_noise(rng, size=(h, w), scale=max(min(h, w) / 8, 2.0))
    image = np.where(labels == 1, lesion, tissue + glow * (radii < _HALO)).astype(np.float32)
    image += _NOISE * rng.standard_normal(size, dtype=np.float32)
    return to_bytes(image), labels, times, known


def _between(shares: np.ndarray, *ranges: tuple[float, float]) -> list[float]:
    """A number of each range, at its share of the way from one end to the other."""
    return [float(low + (high - low) * share) for share, (low, high) in zip(shares, ranges, strict=True)]


def _ranks(rng: np.random.Generator, *, size: tuple[int, int]) -> Int32[np.ndarray, "outlines h w"]:
    """For each outline, the place of every pixel in the order from the lesion's centre outwards."""
    y, x = (np.arange(n) - n * rng.uniform(0.42, 0.58) for n in size)
    distance, angle = np.hypot(y[:, None], x), np.arctan2(y[:, None], x)
    turns = rng.uniform(0, 2 * np.pi, 2)
    round_by = 1 + 0.1 * np.cos(2 * (angle - turns[0])) + 0.06 * np.cos(3 * (angle - turns[1]))
    directions = 2 * np.pi / _NUM_BULGES * np.arange(_NUM_BULGES)
    bulges = 1 + _BULGE * np.exp(4 * (np.cos(angle - directions[:, None, None]) - 1))
    order = (distance / (round_by * bulges)).reshape(_NUM_BULGES, -1).argsort(axis=1, kind="stable")
    ranks = np.empty_like(order, dtype=np.int32)
    np.put_along_axis(ranks, order, np.arange(order.shape[1], dtype=np.int32)[None], axis=1)
    return ranks.reshape(_NUM_BULGES, *size)
