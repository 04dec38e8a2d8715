"""Series of a growing lesion: true to the distribution they claim, and the past shows what it depends on."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from hpunet.data.synthetic.growth import SPREAD, KnownFuture
from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError
from hpunet.metrics import crps

SIZE = (6, 32, 32)


def test_area_distribution_of_one_interval_is_the_mixture_written_out() -> None:
    known = KnownFuture(
        ranks=np.arange(400, dtype=np.int32).reshape(1, 20, 20),
        log_areas=np.log([80.0, 100.0, 7.0]),
        times=np.array([0.0, 1.0, 3.0]),
        p_state=np.array([0.5, 0.3, 0.2]),
        rates=np.array([0.3, 0.0, -0.4]),
        present=1,
    )
    sigma = SPREAD * np.sqrt(2)
    for area in (50, 100, 180):
        parts = [
            p * norm.cdf(np.log((area + 0.5) / 100), r * 2, sigma) for p, r in ((0.5, 0.3), (0.3, 0), (0.2, -0.4))
        ]
        assert known.area_cdf()[area] == pytest.approx(sum(parts), rel=1e-9)
    assert known.p_growth() == pytest.approx(1 - known.area_cdf()[125], rel=1e-12)
    assert known.marginals[0, 2, 10] == pytest.approx(1 - known.area_cdf()[50], rel=1e-12)  # the 51st pixel


@pytest.mark.parametrize("present", [0, 3, 4])
def test_future_agrees_with_its_samples(present: int) -> None:
    known, n = open_synthetic("growth", split="val", size=SIZE).future(1, present=present), 4000
    drawn = known.sample(np.random.default_rng(0), n)
    assert drawn.shape == (n, 5 - present, 32, 32)
    assert np.abs(drawn.mean(axis=0) - known.marginals).max() < 4 * 0.5 / np.sqrt(n)
    for moment in range(5 - present):
        areas = drawn[:, moment].sum(axis=(1, 2))
        found = np.bincount(areas, minlength=1025).cumsum() / n
        assert np.abs(found - known.area_cdf(moment)).max() < 1.63 / np.sqrt(n)  # 1 % of Kolmogorov–Smirnov tests
        grown = (areas > 1.25 * known.area).mean()
        assert grown == pytest.approx(known.p_growth(moment=moment), abs=4 * 0.5 / np.sqrt(n))
        sets = areas.reshape(-1, 2).astype(float)
        expected = crps(sets, areas[::-1][: len(sets), None].astype(float)).mean()
        assert known.expected_crps(moment) == pytest.approx(expected, rel=0.08)


def test_area_distribution_does_not_see_what_happened_after_the_present() -> None:
    known = open_synthetic("growth", split="val", size=SIZE).future(0, present=2)
    other = replace(known, log_areas=np.where(np.arange(6) > 2, 9.0, known.log_areas))
    assert np.array_equal(known.area_cdf(), other.area_cdf())
    assert np.array_equal(known.marginals, other.marginals)


def test_series_come_true_as_often_as_their_distributions_say() -> None:
    source = open_synthetic("growth", split="train", num_images=400, size=SIZE)
    ranks = [source.future(i, present=3).area_cdf()[source[i].labels[0, -1].sum()] for i in range(len(source))]
    assert np.mean(ranks) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / 400))
    assert np.mean(np.array(ranks) < 0.25) == pytest.approx(0.25, abs=4 * 0.433 / 20)


def test_images_show_the_probabilities_and_the_rate() -> None:
    source, shown, true = open_synthetic("growth", split="test", num_images=60, size=(6, 48, 48)), [], []
    for i in range(len(source)):
        known, first = source.future(i, present=0), source[i]
        radii = np.sqrt((known.ranks + 0.5) / known.area).mean(axis=0)
        zones = radii < 0.85, (radii > 1.15) & (radii < 1.55), radii > 1.9
        lesion, halo, tissue = (float(first.image[0, 0][zone].mean()) for zone in zones)
        shown.append([lesion, halo - tissue, tissue])
        grow, _, regress = known.p_state
        true.append([grow, known.rates[0], regress / (1 - grow)])
    for brightness, value in zip(np.array(shown).T, np.array(true).T, strict=True):
        assert np.corrcoef(brightness, value)[0, 1] > 0.94


def test_series_have_uneven_times_and_one_of_six_moments() -> None:
    source = open_synthetic("growth", split="train", num_images=5)
    sample = source[3]
    assert source.info.axis0 == "time"
    assert sample.image.shape == (1, 6, 64, 64)
    assert sample.times[0] == 0
    assert 0.39 < np.diff(sample.times).min() < np.diff(sample.times).max() < 1.21
    assert np.array_equal(sample.labels[0].sum(axis=(1, 2))[2], source.future(3, present=2).area)


def test_growth_names_what_is_wrong() -> None:
    for options, message in (({"volumes": False}, "volumes.*series"), ({"size": (3, 64, 64)}, "4 moments")):
        with pytest.raises(ConfigError, match=message):
            open_synthetic("growth", split="train", **options)
    with pytest.raises(ConfigError, match="only growth"):
        open_synthetic("lesions", split="train").future(0, present=1)
    with pytest.raises(IndexError):
        open_synthetic("growth", split="train", size=SIZE).future(0, present=5)
