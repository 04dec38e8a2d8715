"""Sizes as distributions, growth against the truth of a generator, CRPS against its definition."""

import math

import numpy as np
import pytest
import torch

from hpunet.errors import ConfigError, DataError
from hpunet.metrics import Measurements, Sizes, area_crps, crps, measure, volume_crps


def disc(radius: float, *, size: int = 48, spacing: float = 1.0) -> np.ndarray:
    y, x = (np.mgrid[:size, :size] - size / 2 + 0.3) * spacing
    return (y**2 + x**2 <= radius**2).astype(np.uint8)


def test_measure_gives_every_quantity_of_every_class_and_sample() -> None:
    samples = np.zeros((3, 6, 8), dtype=np.uint8)
    samples[0, 1, 1:5] = 1
    samples[1, 1:3, 1:3] = samples[1, 4, 6] = 1
    samples[1, 0, 7] = samples[2, :, 0] = 2
    found = measure(samples, classes={"tumour": 1, "vessel": 2}, spacing=(2.0, 0.5))
    values = {
        (name, quantity): sizes.values.tolist()
        for name, each in found.classes.items()
        for quantity, sizes in each.items()
    }
    assert values["tumour", "area"] == [4, 5, 0]
    assert values["tumour", "num_parts"] == [1, 2, 0]
    assert values["vessel", "area"] == [0, 1, 6]
    assert values["tumour", "longest_diameter"] == pytest.approx([math.hypot(2, 1.5), math.hypot(4, 0.5), 0])
    assert values["vessel", "longest_diameter"][2] == 12
    assert values["vessel", "perpendicular_diameter"][2] == 0.5
    units = {quantity: sizes.unit for quantity, sizes in found.classes["vessel"].items()}
    assert units == {"area": "mm²", "longest_diameter": "mm", "perpendicular_diameter": "mm", "num_parts": ""}
    assert found.of("area", class_name="vessel").median == 1
    with pytest.raises(ConfigError, match="tumour, vessel"):
        found.of("area")
    with pytest.raises(ConfigError, match="whole volume"):
        found.of("volume", class_name="vessel")


def test_volumes_are_those_of_samples_of_volumes() -> None:
    samples = np.zeros((2, 4, 6, 8), dtype=np.uint8)
    samples[1, 1:3, 2:4, 3:6] = 1
    found = measure(samples, classes={"lesion": 1}, spacing=(2.5, 0.5, 0.5))
    assert found.of("volume").values.tolist() == [0, 12 * 2.5 * 0.25 / 1000]
    assert found.of("volume").unit == "ml"
    assert found.of("num_parts").values.tolist() == [0, 1]
    assert "area" not in found.classes["lesion"]
    assert measure(samples, classes={"lesion": 1}).of("volume").unit == "voxels"
    for spacing in ((1.0, 1.0), (0.0, 1.0, 1.0), (1.0, math.nan, 1.0)):
        with pytest.raises(DataError, match="spacing"):
            measure(samples, classes={"lesion": 1}, spacing=spacing)


def ball(radius: float, *, spacing: tuple[float, float, float]) -> np.ndarray:
    """Of this radius in mm, in a volume of 24 × 60 × 60 mm."""
    sides = [np.arange(0, side, step) - side / 2 + 0.2 for side, step in zip((24, 60, 60), spacing, strict=True)]
    z, y, x = np.meshgrid(*sides, indexing="ij")
    return (z**2 + y**2 + x**2 <= radius**2).astype(np.uint8)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.5, 0.7, 0.7), (2.0, 0.5, 1.0)])
def test_measurements_of_balls_are_those_of_geometry(spacing: tuple[float, float, float]) -> None:
    radii = (10.0, 8.0, 11.0)
    samples = np.stack([ball(radius, spacing=spacing) for radius in radii])
    found = measure(samples, classes={"lesion": 1}, spacing=spacing)
    volumes = [4 / 3 * math.pi * radius**3 / 1000 for radius in radii]  # 4.2, 2.1 and 5.6 ml
    assert found.of().values == pytest.approx(volumes, rel=0.04)
    assert found.of().unit == "ml"
    assert found.of("longest_diameter").values == pytest.approx(np.multiply(radii, 2), abs=2 * max(spacing[1:]))
    twice = measure(np.stack([ball(10.0 * 2 ** (1 / 3), spacing=spacing)]), classes={"lesion": 1}, spacing=spacing)
    assert found.growth(twice, more_than=0.25) == 1
    assert found.growth(twice, more_than=0.9) == pytest.approx(2 / 3)  # the largest has grown by half only
    with pytest.raises(DataError, match="ml and in voxels"):
        found.growth(measure(samples, classes={"lesion": 1}))


def test_volume_crps_is_in_ml_of_the_spacing() -> None:
    samples, labels = np.zeros((2, 3, 2, 4, 5), dtype=np.uint8), np.zeros((2, 2, 2, 4, 5), dtype=np.uint8)
    samples[0, 0], samples[0, 1, 0], labels[0, 0, :, 0] = 1, 1, 1  # 40, 20 and 0 voxels against 10 and 0
    # E|X − y| is (30 + 10 + 10)/3 and (40 + 20 + 0)/3; E|X − X'| is (20 + 40 + 20)/3.
    in_voxels = (50 / 3 + 60 / 3) / 2 - 80 / 3 / 2
    assert volume_crps(samples=samples, labels=labels, num_classes=2) == pytest.approx([in_voxels, 0])
    found = volume_crps(samples=samples, labels=labels, num_classes=2, spacing=(2.5, 0.5, 0.8))
    assert found == pytest.approx([in_voxels / 1000, 0])
    valid = np.ones((2, 2, 4, 5), dtype=np.bool_)
    valid[0, 1] = False  # 20, 20 and 0 against 5 and 0
    seen = volume_crps(samples=samples, labels=labels, num_classes=2, valid=valid)
    assert seen == pytest.approx([(35 / 3 + 40 / 3) / 2 - 40 / 3 / 2, 0])


def test_distribution_is_that_of_the_samples() -> None:
    sizes = Sizes(np.arange(101.0), "mm²")
    assert (sizes.median, *sizes.interval(), *sizes.interval(0.5)) == pytest.approx((50, 5, 95, 25, 75))
    assert [sizes.larger_than(t) for t in (-1.0, 0.0, 50.0, 99.5, 100.0)] == [1, 100 / 101, 50 / 101, 1 / 101, 0]
    with pytest.raises(ConfigError, match="share"):
        sizes.interval(1.0)


def test_growth_counts_all_pairs() -> None:
    rng = np.random.default_rng(0)
    for more_than in (0.25, 0.0, -0.5, 1.0):
        before, after = rng.integers(0, 12, 40).astype(float), rng.integers(0, 12, 25).astype(float)
        expected = np.mean([b > a * (1 + more_than) for a in before for b in after])
        assert Sizes(before, "mm²").growth(Sizes(after, "mm²"), more_than=more_than) == pytest.approx(expected)
    # Exactly 25 % more is not more, for any size of a pixel.
    for pixel in (0.1, 0.49, 0.7**2, 1 / 3):
        assert Sizes(np.array([4 * pixel]), "mm²").growth(Sizes(np.array([5 * pixel]), "mm²")) == 0
        assert Sizes(np.array([400 * pixel]), "mm²").growth(Sizes(np.array([501 * pixel]), "mm²")) == 1
    nothing, something = Sizes(np.zeros(3), "mm²"), Sizes(np.array([0.0, 1.0]), "mm²")
    assert (nothing.growth(something), nothing.growth(nothing), something.growth(nothing)) == (0.5, 0, 0)
    with pytest.raises(DataError, match="spacing"):
        nothing.growth(Sizes(np.ones(3), "pixels"))
    with pytest.raises(ConfigError, match="more_than"):
        nothing.growth(nothing, more_than=math.nan)


def test_growth_is_the_truth_of_a_generator() -> None:
    """Discs whose area has a known log-normal distribution, drawn in pixels of 0.4 mm for two times."""
    rng = np.random.default_rng(1)
    spacing, spread = 0.4, 0.3

    def drawn(log_area: float, count: int) -> Measurements:
        radii = np.sqrt(np.exp(rng.normal(log_area, spread, count)) / np.pi)
        samples = np.stack([disc(radius, size=64, spacing=spacing) for radius in radii])
        return measure(samples, classes={"lesion": 1}, spacing=(spacing, spacing))

    before = drawn(4.0, 400)
    for log_growth in (0.0, 0.2, 0.5):
        after = drawn(4.0 + log_growth, 400)
        for more_than in (0.25, 0.0):
            # The difference of two normal distributions is normal.
            gap = (log_growth - math.log1p(more_than)) / (spread * math.sqrt(2))
            truth = 0.5 * math.erfc(-gap / math.sqrt(2))
            # The standard error of all pairs of 400 and 400 is at most sqrt(1/4 / 400) = 0.025.
            assert before.growth(after, more_than=more_than) == pytest.approx(truth, abs=0.075)
        for limit in (40.0, 60.0, 80.0):
            truth = 0.5 * math.erfc((math.log(limit) - 4.0 - log_growth) / spread / math.sqrt(2))
            assert after.of("area").larger_than(limit) == pytest.approx(truth, abs=0.075)
        # The median diameter is that of the median area.
        diameter = 2 * math.sqrt(math.exp(4.0 + log_growth) / np.pi)
        assert after.of("longest_diameter").median == pytest.approx(diameter, rel=0.06)


def crps_by_integral(samples: np.ndarray, observed: float) -> float:
    """∫ (F(x) − 1{x ≥ y})² dx of the empirical distribution: between neighbouring sizes nothing changes."""
    places = np.sort(np.append(samples, observed))
    below = np.array([np.mean(samples <= place) for place in places[:-1]])
    return float((np.diff(places) * (below - (places[:-1] >= observed)) ** 2).sum())


def test_crps_is_its_definition() -> None:
    rng = np.random.default_rng(2)
    for s, r in ((2, 1), (5, 3), (16, 4)):
        samples, observed = rng.integers(0, 30, (4, s)).astype(float), rng.integers(0, 30, (4, r)).astype(float)
        graders = rng.random((4, r)) < 0.7
        graders[:, 0] = True
        found = crps(samples, observed, graders=graders)
        for i in range(4):
            own = observed[i][graders[i]]
            plain = np.mean([crps_by_integral(samples[i], y) for y in own])
            pairs = np.mean(np.abs(samples[i][:, None] - samples[i]))
            # The integral counts pairs of a sample with itself: less spread by (s − 1)/s.
            assert found[i] == pytest.approx(plain - 0.5 * pairs / (s - 1))
    assert crps(np.array([3.0, 3.0]), np.array([3.0])) == 0
    assert crps(np.array([2.0, 6.0]), np.array([9.0])) == pytest.approx(5 - 2)
    assert np.isnan(crps(np.array([2.0]), np.array([2.0])))


def test_crps_does_not_depend_on_the_number_of_samples() -> None:
    rng = np.random.default_rng(3)
    expected = 2 * (1 / math.sqrt(2 * math.pi)) - 1 / math.sqrt(math.pi)  # of N(0, 1) at its middle
    for s in (2, 4, 64):
        values = crps(rng.normal(size=(20_000, s)), np.zeros((20_000, 1)))
        assert values.mean() == pytest.approx(expected, abs=4 * values.std() / math.sqrt(20_000))


def test_crps_is_least_for_the_graders_own_distribution() -> None:
    rng = np.random.default_rng(4)
    observed = rng.normal(100, 20, (2000, 4))
    scores = {
        (mean, std): crps(rng.normal(mean, std, (2000, 16)), observed).mean()
        for mean, std in ((100, 20), (110, 20), (100, 40), (100, 5))
    }
    assert min(scores, key=lambda which: scores[which]) == (100, 20)


def test_area_crps_counts_valid_pixels_of_each_class() -> None:
    rng = np.random.default_rng(5)
    samples, labels = rng.integers(0, 4, (3, 6, 5, 7)), rng.integers(0, 4, (3, 2, 5, 7))
    valid, graders = rng.random((3, 5, 7)) < 0.8, np.array([[True, True], [True, False], [False, True]])
    options = {"num_classes": 4, "classes": (1, 3)}
    found = area_crps(samples=samples, labels=labels, valid=valid, graders=graders, **options)
    for i in range(3):
        each = []
        for c in (1, 3):
            drawn = np.array([((m == c) & valid[i]).sum() for m in samples[i]], dtype=float)
            marked = [((m == c) & valid[i]).sum() for m in labels[i][graders[i]]]
            spread = np.abs(drawn[:, None] - drawn).sum() / (6 * 5)
            each.append(np.mean([np.abs(drawn - y).mean() for y in marked]) - spread / 2)
        assert found[i] == pytest.approx(np.mean(each))
    tensors = area_crps(samples=torch.from_numpy(samples[:1]), labels=torch.from_numpy(labels[:1] * 0), num_classes=4)
    assert isinstance(tensors, torch.Tensor)
    empty = area_crps(samples=0 * samples, labels=0 * labels, **options)
    assert empty.tolist() == [0, 0, 0]
