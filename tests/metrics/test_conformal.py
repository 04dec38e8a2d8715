"""Conformal thresholds: by hand, against brute force, and on populations whose coverage is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.conformal import (
    Interval,
    area_interval,
    area_range,
    area_score,
    coverage,
    inner_score,
    mask_order,
    nested_weights,
    outer_score,
    patient_quantile,
)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0.5, 5),
        (0.8, 8),
        (0.81, 9),
        (0.9, 9),
        (0.91, math.inf),
    ],  # the smallest k with k / 10 ≥ level, of nine patients
)
def test_quantile_of_one_score_per_patient(level: float, expected: float) -> None:
    scores = np.arange(9, 0, -1).astype(np.float64)
    assert patient_quantile(scores, weights=np.ones(9), level=level) == expected


def test_quantile_weighs_patients_not_gradings() -> None:
    # One patient has 100 bad gradings, three have one good one each: 3 of 4 + 1 patients are good.
    scores = np.array([9.0] * 100 + [1.0, 2.0, 3.0])
    weights = np.array([0.01] * 100 + [1.0, 1.0, 1.0])
    assert patient_quantile(scores, weights=weights, level=0.6) == 3
    assert patient_quantile(scores, weights=weights, level=0.61) == 9
    assert patient_quantile(scores, weights=weights, level=0.81) == math.inf
    assert coverage(scores, weights=weights, threshold=3.0) == pytest.approx(0.75)


def test_weights_by_hand() -> None:
    # Patient a: image 0 with gradings yes, yes, no; image 1 with yes; image 2 with no. Patient b: image 0 with no.
    found = nested_weights(
        patients=["a"] * 5 + ["b"], images=[0, 0, 0, 1, 2, 0], counts=[True, True, False, True, False, False]
    )
    np.testing.assert_allclose(found, [0.25, 0.25, 0, 0.5, 0, 0])


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 2.0])
def test_impossible_levels_are_refused(level: float) -> None:
    with pytest.raises(ConfigError, match="guarantee"):
        patient_quantile(np.ones(3), weights=np.ones(3), level=level)
    with pytest.raises(DataError, match="scores"):
        patient_quantile(np.array([math.nan]), weights=np.ones(1), level=0.5)


@pytest.mark.parametrize(("num_patients", "level"), [(19, 0.9), (30, 0.8)])
def test_coverage_of_a_continuous_population_is_the_known_one(num_patients: int, level: float) -> None:
    # With one continuous score each, a new patient is covered with probability ⌈(K + 1) · level⌉ / (K + 1), exactly.
    rng = np.random.default_rng(0)
    expected = math.ceil((num_patients + 1) * level - 1e-9) / (num_patients + 1)
    hits = [
        patient_quantile(row[:-1], weights=np.ones(num_patients), level=level) >= row[-1]
        for row in rng.normal(size=(4000, num_patients + 1))
    ]
    assert np.mean(hits) == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 4000))


def test_coverage_holds_where_images_of_a_patient_are_alike_and_their_numbers_depend_on_the_score() -> None:
    # Hard patients have twenty images, easy ones one: thresholds of pooled easy and hard images would differ.
    rng = np.random.default_rng(1)
    level, num = 0.8, 24
    shares = []
    for _ in range(1500):
        hard = rng.random(num + 1) < 0.3
        own = rng.normal(size=num + 1) + 3 * hard
        images = [own[i] + 0.1 * rng.normal(size=20 if hard[i] else 1) for i in range(num + 1)]
        patients = [i for i in range(num) for _ in images[i]]
        scores = np.concatenate(images[:num])
        weights = nested_weights(patients=patients, images=list(range(len(scores))), counts=[True] * len(scores))
        shares.append(np.mean(images[num] <= patient_quantile(scores, weights=weights, level=level)))
    mean, error = np.mean(shares), np.std(shares) / math.sqrt(len(shares))
    assert level - 3 * error <= mean <= level + 1 / (num + 1) + 3 * error


ORDER = np.array([[0.1, 0.1, 0.4], [0.4, 0.6, 2.0]])


@pytest.mark.parametrize(
    ("rows", "miss_rate", "outer", "inner"),
    [
        (["110", "000"], 0.0, 0.1, -0.4),  # {≤ 0.1} is marked; 0.4 adds what is not
        (["110", "110"], 0.0, 0.6, -0.4),
        (["111", "110"], 0.0, 0.6, -2.0),
        (["111", "111"], 0.0, 2.0, -math.inf),
        (["011", "111"], 0.0, 2.0, -0.1),
        (["111", "110"], 0.2, 0.4, -math.inf),  # one of five may be missed; one of six, 0.17, may be outside
        (["000", "000"], 0.0, -math.inf, -0.1),
    ],
)
def test_scores_of_masks_by_hand(rows: list[str], miss_rate: float, outer: float, inner: float) -> None:
    marked = np.array([[letter == "1" for letter in row] for row in rows])
    assert outer_score(ORDER, marked=marked, miss_rate=miss_rate) == outer
    assert inner_score(ORDER, marked=marked, miss_rate=miss_rate) == inner


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.3]))
def test_scores_are_where_losses_of_masks_begin(seed: int, miss_rate: float) -> None:
    rng = np.random.default_rng(seed)
    order, marked = rng.integers(0, 9, (5, 6)) / 4, rng.random((5, 6)) < 0.5
    if not marked.any():
        return
    outer = outer_score(order, marked=marked, miss_rate=miss_rate)
    inner = inner_score(order, marked=marked, miss_rate=miss_rate)
    missed = [float((marked & (order > t)).sum() / marked.sum()) for t in np.unique(order)]
    assert missed == sorted(missed, reverse=True)  # the loss is monotone
    assert [m <= miss_rate + 1e-12 for m in missed] == [bool(t >= outer) for t in np.unique(order)]
    first = [t for t in np.unique(order) if (order <= t)[~marked].sum() > miss_rate * (order <= t).sum() + 1e-9]
    assert inner == -min(first, default=math.inf)


def test_order_by_hand() -> None:
    samples = np.zeros((4, 1, 6), dtype=np.bool_)
    samples[0, 0, :2] = samples[1, 0, :1] = True  # two of four mark something
    mean = np.array([[0.5, 0.25, 0.05, 0.0, 0.0, 0.0]], dtype=np.float32)
    # Among samples that mark something, the probabilities are 1, 0.5, 0.1 and 0, which counts as a millionth.
    # Their mean area is 1.5, so their radius is below a pixel, and taken as one.
    expected = [0, -np.log10(0.5), 1 + 0.25, 6 + 0.5, 6 + 0.75, 6 + 1]
    np.testing.assert_allclose(mask_order(samples, mean=mean)[0], expected, atol=1e-6)


def test_order_without_any_marked_sample_follows_the_mean_and_ends_at_the_whole_image() -> None:
    mean = np.array([[0.0, 0.01, 0.04, 0.03, 0.0]], dtype=np.float32)
    order = mask_order(np.zeros((3, 1, 5), dtype=np.bool_), mean=mean)[0]
    assert order.argmin() == 2
    assert order[3] < order[1] < order[0]
    nothing = mask_order(np.zeros((3, 2, 2), dtype=np.bool_), mean=np.zeros((2, 2), dtype=np.float32))
    assert np.isfinite(nothing).all()


def test_areas_by_hand() -> None:
    samples = np.zeros((5, 1, 40), dtype=np.bool_)
    for number, pixels in enumerate((10, 20, 30, 0, 40)):
        samples[number, 0, :pixels] = True
    found = area_range(samples, level=0.5)  # of 10, 20, 30, 40: the quartiles lie between their neighbours
    logs = np.log([11, 21, 31, 41])
    assert found == pytest.approx((0.25 * logs[0] + 0.75 * logs[1], 0.75 * logs[2] + 0.25 * logs[3]))
    assert area_score(found, area=25.0) < 0
    assert area_score(found, area=100.0) == pytest.approx(math.log(101) - found.high)
    assert area_score(found, area=1.0) == pytest.approx(found.low - math.log(2))
    exact = area_interval(found, threshold=area_score(found, area=100.0), largest=1000.0)
    assert exact.high == pytest.approx(100)
    assert area_interval(found, threshold=math.inf, largest=1000.0) == Interval(0, 1000)
    point = area_interval(found, threshold=-5.0, largest=1000.0)
    assert point.low == point.high
    assert area_range(samples[3:4], level=0.9) == Interval(0, 0)


@pytest.mark.parametrize("spacing", [None, (2.0, 0.5, 0.5)])
def test_mask_order_of_volumes_takes_balls_and_distances_in_mm(spacing: tuple[float, ...] | None) -> None:
    samples = np.zeros((4, 5, 9, 9), dtype=np.bool_)
    samples[:3, 2, 3:6, 3:6] = True  # 9 voxels in three of four samples
    mean = samples.mean(axis=0, dtype=np.float32)
    order = mask_order(samples, mean=mean, spacing=spacing)
    assert (order[2, 3:6, 3:6] == 0).all()
    sides = spacing or (1.0, 1.0, 1.0)
    radius = (3 * 9 * sides[0] * sides[1] * sides[2] / (4 * np.pi)) ** (1 / 3)
    away = {(4, 4, 4): 2 * sides[0], (2, 4, 8): 3 * sides[2], (3, 4, 6): math.hypot(sides[0], sides[2])}
    for place, distance in away.items():
        assert order[place] == pytest.approx(6 + 0.25 * distance / radius)  # probability 0 counts as 1e-6
    assert outer_score(order, marked=samples[0], miss_rate=0.0) == 0
    assert np.expm1(area_range(samples, level=0.9)) == pytest.approx([9, 9])
