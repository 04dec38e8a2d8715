"""Every metric against numbers worked out by hand, and against an independent way of computing it."""

import itertools
from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np
import pytest
import torch
from production import check_refused
from scipy.optimize import linprog
from skimage.metrics import adapted_rand_error, contingency_table

from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError, DataError
from hpunet.metrics import (
    InstanceMatches,
    area_crps,
    average_precision,
    best_match_dice,
    best_subset_iou,
    bootstrap,
    calibration_error,
    ged2,
    ged2_unbiased,
    hungarian_iou,
    iou,
    iou_rec,
    match_instances,
    pair_ious,
    rand_error,
    resampled_average_precision,
    sample_diversity,
    subset_b,
    uncertainty_error_ncc,
)
from hpunet.metrics.arrays import numbered

NUM_RANDOM_CASES = 200


def maps(*rows: str) -> np.ndarray:
    """(1, n, 1, w): one map of one line for each row of digits."""
    return np.array([[[[int(digit) for digit in row]] for row in rows]])


def test_best_subset_matches_every_grader_with_a_sample_of_its_own() -> None:
    samples, labels = maps("1100", "0000", "1100", "0011", "1000"), maps("1100", "1110")
    # 1100 fits both: the pairs are 1100 with 1100 (1) and 1100 with 1110 (2/3); no sample is matched twice.
    found = best_subset_iou(samples=samples, labels=labels, num_classes=2)
    assert found == pytest.approx([(1 + 2 / 3) / 2])
    assert best_subset_iou(samples=samples[:, 3:], labels=labels, num_classes=2) == pytest.approx(
        [(1 / 2 + 1 / 4) / 2]
    )
    assert np.isnan(best_subset_iou(samples=samples[:, :1], labels=labels, num_classes=2)).all()
    graders = np.array([[False, True]])
    assert best_subset_iou(samples=samples[:, :1], labels=labels, num_classes=2, graders=graders) == pytest.approx(
        [2 / 3]
    )


def test_best_subset_is_the_best_of_all_assignments() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        s, r = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        samples, labels = rng.integers(0, 2, (1, s, 3, 4)), rng.integers(0, 2, (1, r, 3, 4))
        ious = pair_ious(samples=samples, labels=labels, num_classes=2).cross[0]
        orders = itertools.permutations(range(s), r)
        best = max((sum(ious[i, j] for j, i in enumerate(order)) / r for order in orders), default=np.nan)
        found = best_subset_iou(samples=samples, labels=labels, num_classes=2)
        np.testing.assert_allclose(found, [best], atol=1e-15)


def slow_iou(
    a: np.ndarray, b: np.ndarray, *, classes: list[int], valid: np.ndarray, absent: str = "skip"
) -> Fraction:
    """Set by set, in exact fractions."""
    per_class = []
    for c in classes:
        one = {p for p in np.ndindex(a.shape) if a[p] == c and valid[p]}
        other = {p for p in np.ndindex(b.shape) if b[p] == c and valid[p]}
        if one | other:
            per_class.append(Fraction(len(one & other), len(one | other)))
        elif absent == "one":
            per_class.append(Fraction(1))
    return sum(per_class, Fraction(0)) / len(per_class) if per_class else Fraction(1)


SIZES = [(3, 4), (2, 3, 2)]


def random_case(seed: int, *, size: tuple[int, ...] = (3, 4)) -> dict:
    """Two images of small maps with every complication: invalid pixels, missing graders, absent classes."""
    rng = np.random.default_rng(seed)
    s, r, num_classes = int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(2, 5))
    graders = rng.random((2, r)) < 0.7
    graders[:, rng.integers(r)] = True
    first = int(rng.integers(1, num_classes))
    return {
        "samples": rng.integers(0, num_classes, (2, s, *size)) * shown(rng, 2, s, size),
        "labels": rng.integers(0, num_classes, (2, r, *size)) * shown(rng, 2, r, size),
        "num_classes": num_classes,
        "classes": None if rng.random() < 0.5 else list(range(first, num_classes)),
        "valid": rng.random((2, *size)) < 0.8,
        "graders": graders,
        "absent": str(rng.choice(["skip", "one"])),
    }


def shown(rng: np.random.Generator, b: int, n: int, size: tuple[int, ...]) -> np.ndarray:
    """Some maps are empty."""
    return rng.random((b, n, *[1] * len(size))) < 0.8


def slow_sets(case: dict, image: int) -> tuple[list[np.ndarray], list[np.ndarray], dict]:
    """Samples and existing graders' maps of one image, and the arguments of `slow_iou`."""
    classes = case["classes"] or list(range(1, case["num_classes"]))
    how = {"classes": classes, "valid": case["valid"][image], "absent": case["absent"]}
    truths = [m for m, exists in zip(case["labels"][image], case["graders"][image], strict=True) if exists]
    return list(case["samples"][image]), truths, how


def mean_distance(ones: list, others: list, how: dict, *, self_pairs: bool = True) -> Fraction:
    pairs = [(i, j) for i in range(len(ones)) for j in range(len(others)) if self_pairs or i != j]
    return sum((1 - slow_iou(ones[i], others[j], **how) for i, j in pairs), Fraction(0)) / len(pairs)


# IoU


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("0000", "0000", 1),  # empty and empty
        ("0000", "1111", 0),  # empty and full
        ("1111", "1111", 1),
        ("1000", "1000", 1),  # one pixel
        ("1000", "0001", 0),
        ("1100", "0110", 1 / 3),
    ],
)
def test_iou_of_one_class_by_hand(a: str, b: str, expected: float) -> None:
    one, other = maps(a)[:, 0], maps(b)[:, 0]
    assert iou(one, other, num_classes=2) == pytest.approx([expected])
    assert iou(other, one, num_classes=2) == pytest.approx([expected])


def test_iou_of_several_classes_skips_absent_ones_unless_told() -> None:
    a, b = maps("1200")[:, 0], maps("1003")[:, 0]
    assert iou(a, b, num_classes=5) == pytest.approx([1 / 3])  # class 1: 1, classes 2 and 3: 0, class 4 in neither
    assert iou(a, b, num_classes=5, absent="one") == pytest.approx([1 / 2])
    assert iou(a, b, num_classes=5, classes=[4]) == pytest.approx([1])
    assert iou(a, b, num_classes=5, classes=[1, 4]) == pytest.approx([1])


def test_iou_leaves_invalid_pixels_out_whatever_they_hold() -> None:
    a, b = maps("1100")[:, 0], np.array([[[1, 0, 255, 1]]])
    valid = np.array([[[True, True, False, False]]])
    assert iou(a, b, num_classes=2, valid=valid) == pytest.approx([1 / 2])
    assert iou(a, b, num_classes=2, valid=np.zeros_like(valid)) == pytest.approx([1])


def test_metrics_return_the_type_they_are_given() -> None:
    samples, labels = maps("1100", "0110"), maps("1100", "0000")
    from_numpy = ged2(samples=samples, labels=labels, num_classes=2)
    from_torch = ged2(samples=torch.from_numpy(samples), labels=torch.from_numpy(labels), num_classes=2)
    assert isinstance(from_numpy, np.ndarray)
    assert isinstance(from_torch, torch.Tensor)
    assert from_numpy.dtype == np.float64
    assert from_torch.dtype == torch.float64
    assert from_numpy == from_torch.numpy()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.uint16, np.int32])
def test_metrics_take_every_integer_type_and_read_only_arrays(dtype: type) -> None:
    samples, labels = maps("1100", "0110").astype(dtype), maps("1100", "0000").astype(dtype)
    samples.flags.writeable = False
    assert ged2(samples=samples, labels=labels, num_classes=2) == pytest.approx([1 / 2])


# GED² and matched IoU


def test_ged_by_hand() -> None:
    # d(S,Y) = 0, 1, 2/3, 1; d(S,S') = 0, 2/3, 2/3, 0; d(Y,Y') = 0, 1, 1, 0
    pair = {"samples": maps("1100", "0110"), "labels": maps("1100", "0000"), "num_classes": 2}
    assert ged2(**pair) == pytest.approx([2 * 2 / 3 - 1 / 3 - 1 / 2])
    assert ged2_unbiased(**pair) == pytest.approx([2 * 2 / 3 - 2 / 3 - 1])
    assert hungarian_iou(**pair) == pytest.approx([1 / 2])
    assert best_match_dice(**pair) == pytest.approx([1 / 2])
    assert sample_diversity(samples=pair["samples"], num_classes=2) == pytest.approx([2 / 3])


def test_ged_is_undefined_without_self_pairs_of_one_member() -> None:
    two, one = maps("1100", "0000"), maps("1100")
    assert ged2(samples=two, labels=one, num_classes=2) == pytest.approx([1 / 2])
    assert np.isnan(ged2_unbiased(samples=two, labels=one, num_classes=2))
    assert np.isnan(ged2_unbiased(samples=one, labels=two, num_classes=2))
    assert np.isnan(sample_diversity(samples=one, num_classes=2))
    missing = np.array([[True, False]])
    assert np.isnan(ged2_unbiased(samples=two, labels=two, graders=missing, num_classes=2))


def test_ged_of_a_set_and_itself_is_zero() -> None:
    samples = np.random.default_rng(0).integers(0, 2, (5, 6, 8, 8))
    assert ged2(samples=samples, labels=samples[:, ::-1], num_classes=2) == pytest.approx(np.zeros(5), abs=1e-14)


def test_a_missing_grader_is_no_empty_map() -> None:
    samples, labels = maps("1100", "1100"), maps("1100", "0000")
    with_empty = {"samples": samples, "labels": labels, "num_classes": 2}
    without = with_empty | {"graders": np.array([[True, False]])}
    assert hungarian_iou(**with_empty) == pytest.approx([1 / 2])
    assert hungarian_iou(**without) == pytest.approx([1])
    assert ged2(**with_empty) == pytest.approx([1 - 0 - 1 / 2])
    assert ged2(**without) == pytest.approx([0])


@pytest.mark.parametrize(
    ("samples", "labels", "expected"),
    [
        ("aabb", "aaabbb", 1),
        ("abbb", "aaabbb", 9 / 12),  # lcm 12: 3 a and 9 b against 6 a and 6 b
        ("aab", "aaaabbbbbbbbbbbb", 28 / 48),  # lcm 48: 32 a and 16 b against 12 a and 36 b
        ("a", "ab", 1 / 2),
    ],
)
def test_hungarian_iou_repeats_sets_of_different_sizes(samples: str, labels: str, expected: float) -> None:
    drawn = {"a": "1100", "b": "0011"}
    sets = {"samples": maps(*(drawn[x] for x in samples)), "labels": maps(*(drawn[x] for x in labels))}
    assert hungarian_iou(**sets, num_classes=2) == pytest.approx([expected])
    swapped = {"samples": sets["labels"], "labels": sets["samples"]}
    assert hungarian_iou(**swapped, num_classes=2) == pytest.approx([expected])


@pytest.mark.parametrize("size", SIZES)
def test_distribution_metrics_equal_loops_in_exact_fractions(size: tuple[int, ...]) -> None:
    for seed in range(NUM_RANDOM_CASES):
        case = random_case(seed, size=size)
        pairs = pair_ious(**case)
        found = zip(pairs.ged2(), pairs.ged2_unbiased(), pairs.sample_diversity(), strict=True)
        for image, (with_self_pairs, unbiased, diversity) in enumerate(found):
            samples, truths, how = slow_sets(case, image)
            between = 2 * mean_distance(samples, truths, how)
            among = mean_distance(samples, samples, how) + mean_distance(truths, truths, how)
            assert float(with_self_pairs) == pytest.approx(float(between - among), abs=1e-12)
            assert bool(np.isnan(diversity)) == (len(samples) == 1)
            assert bool(np.isnan(unbiased)) == (len(samples) == 1 or len(truths) == 1)
            if len(samples) > 1:
                apart = mean_distance(samples, samples, how, self_pairs=False)
                assert float(diversity) == pytest.approx(float(apart), abs=1e-12)
                if len(truths) > 1:
                    apart += mean_distance(truths, truths, how, self_pairs=False)
                    assert float(unbiased) == pytest.approx(float(between - apart), abs=1e-12)


def test_hungarian_iou_of_sets_that_hardly_share_a_factor_is_refused() -> None:
    sets = {"samples": np.zeros((1, 821, 1, 1), dtype=np.uint8), "labels": np.zeros((1, 5, 1, 1), dtype=np.uint8)}
    with pytest.raises(DataError, match=r"4105 as least common multiple.* multiple of 5 samples"):
        hungarian_iou(**sets, num_classes=2)


@pytest.mark.parametrize("shape", SIZES)
def test_hungarian_iou_equals_a_search_through_all_matches(shape: tuple[int, ...]) -> None:
    num_searched = 0
    for seed in range(NUM_RANDOM_CASES):
        case = random_case(seed, size=shape)
        for image, found in enumerate(hungarian_iou(**case)):
            samples, truths, how = slow_sets(case, image)
            size = lcm(len(samples), len(truths))
            if size > 4:
                continue
            num_searched += 1
            table = np.array([[float(slow_iou(a, b, **how)) for b in truths] for a in samples])
            table = np.tile(table, (size // len(samples), size // len(truths)))
            best = max(np.mean([table[i, j] for i, j in enumerate(p)]) for p in itertools.permutations(range(size)))
            assert found == pytest.approx(best)
    assert num_searched > NUM_RANDOM_CASES


def transport(similarity: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> float:
    """The largest mean similarity of a coupling of two distributions, by linear programming."""
    m, n = similarity.shape
    margins = np.concatenate([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    result = linprog(-similarity.ravel(), A_eq=margins[:-1], b_eq=np.concatenate([rows, columns])[:-1])
    assert result.success
    return float(-result.fun)


@pytest.mark.parametrize(("s", "r"), [(4, 6), (3, 16), (16, 4), (16, 3)])
def test_hungarian_iou_equals_a_linear_programme(s: int, r: int) -> None:
    rng = np.random.default_rng(s * r)
    samples, labels = rng.integers(0, 2, (3, s, 3, 3)), rng.integers(0, 2, (3, r, 3, 3))
    pairs = pair_ious(samples=samples, labels=labels, num_classes=2)
    expected = [transport(table, np.full(s, 1 / s), np.full(r, 1 / r)) for table in pairs.cross]
    assert pairs.hungarian_iou() == pytest.approx(expected)


def test_values_do_not_depend_on_the_pieces_a_batch_is_worked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(3)
    whole = ged2(**case)
    monkeypatch.setattr("hpunet.metrics.overlap._WORDS_AT_ONCE", 1)
    assert np.array_equal(ged2(**case), whole)


def test_ged_of_a_perfect_sampler_tends_to_its_expectation() -> None:
    source = open_synthetic("lesions", split="val", num_images=3, size=16)
    for index in range(len(source)):
        truth = source.distribution(index)
        draws = truth.sample(np.random.default_rng(index), 400 * 20).reshape(400, 20, 16, 16)
        pairs = pair_ious(samples=draws[:, :16], labels=draws[:, 16:], num_classes=2)
        values = pairs.ged2()
        expected = truth.expected_ged(num_samples=16, num_graders=4)
        assert abs(values.mean() - expected) < 4 * values.std() / 20
        unbiased = pairs.ged2_unbiased()
        assert abs(unbiased.mean()) < 4 * unbiased.std() / 20
        assert values.mean() > 4 * values.std() / 20  # so 0 would have been noticed


def test_matched_iou_of_many_samples_tends_to_the_optimal_transport() -> None:
    truth = open_synthetic("lesions", split="val", num_images=1, size=16).distribution(0)
    rng = np.random.default_rng(0)
    labels = truth.sample(rng, 4)
    of_grader = [int((truth.support == m).all(axis=(1, 2)).nonzero()[0][0]) for m in labels]
    expected = transport(truth.iou[:, of_grader], truth.probabilities, np.full(4, 1 / 4))
    found = hungarian_iou(samples=truth.sample(rng, 600)[None], labels=labels[None], num_classes=2)
    assert found == pytest.approx([expected], abs=0.03)


@pytest.mark.parametrize(
    "labels",
    [[3, 0, 3, 7], [0, 0], [], [10**9, 5, 10**9], [-2, 4, -2]],
    ids=["gaps", "one", "none", "large", "negative"],
)
def test_numbered_labels_are_those_of_a_sort(labels: list[int]) -> None:
    for dtype in (np.int32, np.int64, np.uint8, np.uint64):
        if not labels or np.iinfo(dtype).min <= min(labels) <= max(labels) <= np.iinfo(dtype).max:
            given = np.array(labels, dtype=dtype)
            expected = np.unique(given, return_inverse=True, return_counts=True)
            assert all(np.array_equal(*pair) for pair in zip(numbered(given), expected, strict=True))


# Reconstruction, best match, subset B


def test_iou_rec_is_the_mean_over_existing_graders() -> None:
    labels, drawn = maps("1100", "0000", "1111"), maps("1000", "0000", "0000")
    both = {"labels": labels, "reconstructions": drawn, "num_classes": 2}
    assert iou_rec(**both) == pytest.approx([(1 / 2 + 1 + 0) / 3])
    assert iou_rec(**both, graders=np.array([[True, True, False]])) == pytest.approx([3 / 4])
    assert iou_rec(**both, skip_empty=True) == pytest.approx([(1 / 2 + 0) / 2])
    with_one = np.array([[False, True, False]])
    assert iou_rec(**both, graders=with_one) == [1]
    assert np.isnan(iou_rec(**both, graders=with_one, skip_empty=True))
    nowhere = maps("1100", "1111", "1111")  # wrongly found
    assert iou_rec(**{**both, "reconstructions": nowhere}, graders=with_one, skip_empty=True) == [0]
    unknown = both | {"labels": np.where(np.arange(3)[:, None, None] == 2, 255, labels)}
    assert iou_rec(**unknown, graders=np.array([[True, True, False]])) == pytest.approx([3 / 4])


def test_best_match_dice_takes_the_best_sample_for_each_grader() -> None:
    pair = {"samples": maps("1100", "0000"), "labels": maps("1000", "0111", "0000"), "num_classes": 2}
    assert best_match_dice(**pair) == pytest.approx([(2 / 3 + 2 / 5 + 1) / 3])
    assert best_match_dice(**pair, graders=np.array([[True, False, True]])) == pytest.approx([5 / 6])


def test_subset_b_holds_what_every_existing_grader_marked() -> None:
    labels = np.concatenate([maps("1000", "0100"), maps("1000", "0000"), maps("2000", "0100")])
    all_there = {"labels": labels, "num_classes": 3}
    assert subset_b(**all_there).tolist() == [True, False, True]
    assert subset_b(**all_there, classes=[1]).tolist() == [True, False, False]
    graders = np.array([[True, True], [True, False], [True, True]])
    assert subset_b(**all_there, graders=graders).tolist() == [True, True, True]
    valid = np.array([[[False, True, True, True]]] * 3)
    assert subset_b(**all_there, valid=valid).tolist() == [False, False, False]


# Rand error


def slow_rand_error(prediction: np.ndarray, truth: np.ndarray) -> float:
    """The formula of the challenge, letter by letter."""
    p: dict[tuple[int, int], int] = {}
    for i, j in zip(truth.ravel().tolist(), prediction.ravel().tolist(), strict=True):
        if i > 0:
            p[i, j] = p.get((i, j), 0) + 1
    n = sum(p.values())
    c = sum(count for (_, j), count in p.items() if j == 0)
    A = sum(sum(v for (i, _), v in p.items() if i == row) ** 2 for row in {i for i, _ in p})
    B = sum(sum(v for (_, j), v in p.items() if j == column) ** 2 for column in {j for _, j in p if j > 0}) + c / n
    AB = sum(v**2 for (_, j), v in p.items() if j > 0) + c / n
    precision, recall = AB / B, AB / A
    return 1 - 2 * precision * recall / (precision + recall)


def test_rand_error_by_hand() -> None:
    truth = np.array([[[1, 1, 2, 2, 0]]])
    assert rand_error(prediction=np.array([[[7, 7, 3, 3, 9]]]), truth=truth) == pytest.approx([0])
    # All in one segment: A = 8, B = 16, AB = 8.
    assert rand_error(prediction=np.array([[[1, 1, 1, 1, 1]]]), truth=truth) == pytest.approx([1 / 3])
    # All background: A = 8, B = AB = 1.
    assert rand_error(prediction=np.array([[[0, 0, 0, 0, 0]]]), truth=truth) == pytest.approx([1 - 2 / 9])
    valid = np.array([[[True, True, False, False, True]]])
    assert rand_error(prediction=np.array([[[1, 1, 1, 1, 1]]]), truth=truth, valid=valid) == pytest.approx([0])
    assert np.isnan(rand_error(prediction=truth, truth=np.zeros_like(truth)))


def test_rand_error_equals_the_formula_and_scikit_image() -> None:
    rng = np.random.default_rng(0)
    for case in range(NUM_RANDOM_CASES):
        truth = rng.integers(0, 5, (1, 6, 7)) * 1000
        prediction = rng.integers(case % 2, 6, (1, 6, 7))
        found = rand_error(prediction=prediction, truth=truth)
        assert found == pytest.approx([slow_rand_error(prediction, truth)])
        if case % 2:  # no foreground pixel is predicted as background
            # scikit-image leaves out the pairs of a pixel with itself: they vanish when each pixel counts very often.
            how = {"ignore_labels": [0], "normalize": False, "sparse_type": "array"}
            table = contingency_table(truth[0], prediction[0], **how)
            assert found == pytest.approx([adapted_rand_error(table=table * 1e9)[0]])


# Average precision


def strip(*runs: tuple[int, int]) -> np.ndarray:
    """(1, w): runs of (label, length)."""
    return np.concatenate([np.full(length, label) for label, length in runs])[None]


def ap_of(prediction: np.ndarray, truth: np.ndarray, scores: list[float], **how: object) -> tuple[float, ...]:
    how = {"min_region": 1, "scores": np.array([0.0, *scores]), **how}
    matches = match_instances(prediction=prediction, truth=truth, **how)
    by_overlap = average_precision([matches]).by_overlap
    assert by_overlap is not None
    return by_overlap


def test_average_precision_of_a_perfect_prediction_is_one() -> None:
    truth = strip((0, 3), (4, 10), (9, 10))
    assert ap_of(np.array([0, 1, 2])[np.searchsorted([0, 4, 9], truth)], truth, [0.3, 0.8]) == (1.0,) * 10


def test_average_precision_needs_an_iou_above_the_overlap() -> None:
    truth = strip((1, 20))
    assert ap_of(strip((1, 10), (0, 10)), truth, [0.9]) == (0.0,) * 10  # exactly 0.5
    assert ap_of(strip((1, 15), (0, 5)), truth, [0.9]) == (1.0,) * 5 + (0.0,) * 5  # 0.75: 0.50 ... 0.70


def test_average_precision_is_the_area_under_straight_lines() -> None:
    prediction, truth = strip((1, 10), (2, 10), (3, 10)), strip((1, 10), (0, 10), (2, 10))
    # From (recall 0, precision 1): true 0.9 to (1/2, 1), false 0.8 to (1/2, 1/2), true 0.7 to (1, 2/3).
    assert ap_of(prediction, truth, [0.9, 0.8, 0.7])[0] == pytest.approx(1 / 2 + (1 / 2 + 2 / 3) / 2 / 2)
    # Equal scores are one point: (1/2, 1/2) after two, then (1, 2/3).
    expected = (1 + 1 / 2) / 2 / 2 + (1 / 2 + 2 / 3) / 2 / 2
    assert ap_of(prediction, truth, [0.9, 0.9, 0.7])[0] == pytest.approx(expected)


def test_average_precision_counts_missed_instances() -> None:
    assert ap_of(strip((1, 10), (0, 10)), strip((1, 10), (2, 10)), [0.9])[0] == pytest.approx(1 / 2)


def test_average_precision_leaves_out_predictions_on_ignored_pixels() -> None:
    prediction, truth = strip((1, 10), (2, 10)), strip((1, 10), (0, 10))
    valid = np.arange(20)[None] < 14  # 60 % of prediction 2 are on void or a group
    with_false = (0 + 1 / 2) / 2  # the false one comes first: (0, 0), then (1, 1/2)
    found = ap_of(prediction, truth, [0.5, 0.9], valid=valid)
    assert found[:2] == (1.0, 1.0)
    assert found[2:] == pytest.approx((with_false,) * 8)  # 0.60 is not above 0.60


def test_average_precision_ignores_instances_below_the_minimum_region() -> None:
    prediction, truth = strip((1, 10), (2, 9)), strip((1, 10), (2, 9))
    assert ap_of(prediction, truth, [0.5, 0.9], min_region=10) == (1.0,) * 10
    assert ap_of(prediction, truth, [0.5, 0.9], min_region=9) == (1.0,) * 10
    nothing_on_it = strip((1, 10), (0, 9))
    assert ap_of(nothing_on_it, truth, [0.5], min_region=10) == (1.0,) * 10
    assert ap_of(nothing_on_it, truth, [0.5], min_region=9)[0] == pytest.approx(1 / 2)


def test_average_precision_scales_the_minimum_region_by_area() -> None:
    truth = np.zeros((512, 1024), dtype=np.int64)
    truth[0, :24], truth[2, :25] = 1, 2
    matches = match_instances(prediction=truth, truth=truth, scores=np.ones(3))
    assert matches.iou.tolist() == [[0.0], [1.0]]
    assert matches.ignored_share.tolist() == [1.0, 0.0]


def test_average_precision_takes_the_best_of_several_matches_and_sees_the_rest_as_false() -> None:
    twice = InstanceMatches(iou=np.array([[0.6], [0.7]]), scores=np.array([0.9, 0.4]), ignored_share=np.ones(2))
    result = average_precision([twice])
    assert result.ap50 == pytest.approx(1)  # the true one first, the false one after full recall
    worse_first = replace(twice, iou=np.array([[0.6], [0.9]]), ignored_share=np.zeros(2))
    assert average_precision([worse_first]).by_overlap[4] == pytest.approx((0 + 1 / 2) / 2)  # 0.70: only the second


def test_average_precision_joins_images_and_knows_when_it_is_undefined() -> None:
    empty = InstanceMatches(iou=np.zeros((0, 0)), scores=np.zeros(0), ignored_share=np.zeros(0))
    missed = InstanceMatches(iou=np.zeros((0, 1)), scores=np.zeros(0), ignored_share=np.zeros(0))
    found = InstanceMatches(iou=np.ones((1, 1)), scores=np.ones(1), ignored_share=np.zeros(1))
    assert average_precision([empty]).ap is None
    assert average_precision([]).by_overlap is None
    assert average_precision([missed]).ap == 0
    assert average_precision([empty, missed, found]).ap == pytest.approx(1 / 2)


def test_resampled_average_precision_is_that_of_each_drawn_set() -> None:
    rng = np.random.default_rng(0)
    images = []
    for _ in range(5):
        num_predicted, num_true = rng.integers(0, 6), rng.integers(0, 4)
        iou = rng.random((num_predicted, num_true)) * (rng.random((num_predicted, num_true)) < 0.5)
        scores = rng.integers(0, 4, num_predicted) / 4  # ties
        ignored = rng.choice([0.0, 0.9], num_predicted)
        images.append(InstanceMatches(iou=iou, scores=scores, ignored_share=ignored))
    for groups in (None, ["a", "b", "a", "c", "b"]):
        found = resampled_average_precision(images, seed=3, groups=groups, num=40)
        names = list(range(5)) if groups is None else groups
        unique = list(dict.fromkeys(names))
        draws = np.random.default_rng(3)
        for ap, ap50 in found:
            drawn = draws.integers(len(unique), size=len(unique))
            expected = average_precision([images[i] for g in drawn for i in range(5) if names[i] == unique[g]])
            assert ap == pytest.approx(np.nan if expected.ap is None else expected.ap, nan_ok=True)
            assert ap50 == pytest.approx(np.nan if expected.ap50 is None else expected.ap50, nan_ok=True)
    assert np.isnan(resampled_average_precision(images[:0], seed=0, num=3)).all()


# Pixels


def test_calibration_error_by_hand() -> None:
    # p = 1, 1/2, 1/2, 0; y = 1, 1, 1/2, 1/2. Bins: {1/2, 1/2} is off by 1/2 in sum, {0} by 1/2, {1} by 0.
    pair = {"samples": maps("1100", "1010"), "labels": maps("1110", "1101"), "num_classes": 2}
    assert calibration_error(**pair) == pytest.approx([(1 / 2 + 1 / 2) / 4])
    # One bin: Σp = 2, Σy = 3.
    assert calibration_error(**pair, num_bins=1) == pytest.approx([1 / 4])
    one_grader = np.array([[True, False]])
    assert calibration_error(**pair, graders=one_grader) == pytest.approx([1 / 4])
    valid = np.array([[[True, True, True, False]]])
    assert calibration_error(**pair, valid=valid) == pytest.approx([1 / 2 / 3])
    assert np.isnan(calibration_error(**pair, valid=np.zeros_like(valid)))


def test_calibration_error_falls_to_zero_for_a_perfect_sampler() -> None:
    truth = open_synthetic("lesions", split="val", num_images=1, size=16).distribution(0)
    rng = np.random.default_rng(0)
    samples, labels = truth.sample(rng, 2000)[None], truth.sample(rng, 2000)[None]
    assert calibration_error(samples=samples, labels=labels, num_classes=2) < 0.02
    assert calibration_error(samples=1 - samples, labels=labels, num_classes=2) > 0.2


def slow_ncc(samples: np.ndarray, labels: np.ndarray, num_classes: int) -> float:
    """PHiSeg's definition on one image: correlation of expected cross-entropies, with a floor for log 0."""
    log_probs = np.log(np.eye(num_classes)[samples] + 1e-30)
    uncertainty = -(np.eye(num_classes)[samples].mean(axis=0) * log_probs.mean(axis=0)).sum(axis=-1)
    errors = [-(np.eye(num_classes)[y] * log_probs.mean(axis=0)).sum(axis=-1) for y in labels]
    return float(np.mean([np.corrcoef(uncertainty.ravel(), e.ravel())[0, 1] for e in errors]))


def test_uncertainty_error_ncc_equals_the_cross_entropy_form() -> None:
    rng = np.random.default_rng(0)
    for num_classes in (2, 3):
        samples, labels = rng.integers(0, num_classes, (4, 5, 6, 6)), rng.integers(0, num_classes, (4, 3, 6, 6))
        found = uncertainty_error_ncc(samples=samples, labels=labels, num_classes=num_classes)
        assert found == pytest.approx([slow_ncc(s, y, num_classes) for s, y in zip(samples, labels, strict=True)])


def test_uncertainty_error_ncc_by_hand_and_where_it_is_undefined() -> None:
    # u = 1/2, 1/2, 0, 0 and e = 1/2, 1/2, 0, 0: fully correlated; against the second grader e = 1/2, 1/2, 0, 1.
    samples, labels = maps("1010", "0110"), maps("1110", "1111")
    first = np.array([[True, False]])
    assert uncertainty_error_ncc(samples=samples, labels=labels, num_classes=2, graders=first) == pytest.approx([1])
    both = uncertainty_error_ncc(samples=samples, labels=labels, num_classes=2)
    assert both == pytest.approx([(1 + 0) / 2])
    valid = np.array([[[True, True, True, False]]])
    assert uncertainty_error_ncc(samples=samples, labels=labels, num_classes=2, valid=valid) == pytest.approx([1])
    agreeing = uncertainty_error_ncc(samples=maps("1010", "1010"), labels=labels, num_classes=2)
    assert np.isnan(agreeing)


# Bootstrap


def test_bootstrap_by_hand() -> None:
    assert bootstrap(np.full(7, 0.25), seed=0) == (0.25, 0.0)
    # Two images: the mean of a resample is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4, of variance 1/8.
    mean, std = bootstrap(np.array([0.0, 1.0]), seed=0, num=20000)
    assert mean == pytest.approx(1 / 2, abs=0.01)
    assert std == pytest.approx(8**-0.5, abs=0.01)


def test_bootstrap_over_groups_draws_whole_groups() -> None:
    values, groups = np.array([0.0, 0.0, 1.0, 1.0]), ["a", "a", "b", "b"]
    std = bootstrap(values, seed=0, num=20000, groups=groups).std
    assert std == pytest.approx(8**-0.5, abs=0.01)  # as two images; over four it would be 1/4
    # Unequal groups weigh by their images: aa 0, ab or ba 1/4, bb 1.
    mean = bootstrap(np.array([0.0, 0.0, 0.0, 1.0]), seed=0, num=20000, groups=list("aaab")).mean
    assert mean == pytest.approx(3 / 8, abs=0.01)


def test_bootstrap_pools_over_trained_models_and_is_seeded() -> None:
    values = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert bootstrap(values, seed=0) == (0.5, 0.5)
    noise = np.random.default_rng(0).random(30)
    assert bootstrap(noise, seed=1) == bootstrap(noise, seed=1)
    assert bootstrap(noise, seed=1) != bootstrap(noise, seed=2)


def test_bootstrap_refuses_undefined_values() -> None:
    with pytest.raises(DataError, match="undefined"):
        bootstrap(np.array([0.0, np.nan, 1.0]), seed=0)
    with pytest.raises(DataError, match="groups"):
        bootstrap(np.zeros(3), seed=0, groups=["a"])


# Volumes


def test_metrics_of_volumes_are_those_of_their_voxels_laid_out_as_images() -> None:
    """To the last digit: only the number of axes differs. IoU and GED² have a twin of their own above."""
    of_pairs = (ged2, hungarian_iou, best_subset_iou, best_match_dice)
    of_pixels = (calibration_error, area_crps, uncertainty_error_ncc)
    for seed in range(60):
        case = random_case(seed, size=(2, 3, 4))
        flat = {
            name: v.reshape(*v.shape[:-3], 6, 4) if name in ("samples", "labels", "valid") else v
            for name, v in case.items()
        }
        options = [{k: v for k, v in each.items() if k != "absent"} for each in (case, flat)]
        found = [[function(**each) for function in of_pairs] for each in (case, flat)]
        for these, each in zip(found, options, strict=True):
            without = {k: v for k, v in each.items() if k != "classes"}
            these += [function(**(without if function is uncertainty_error_ncc else each)) for function in of_pixels]
            labels = {k: v for k, v in each.items() if k != "samples"}
            these += [subset_b(**labels), iou_rec(reconstructions=each["labels"][:, ::-1], skip_empty=True, **labels)]
            some = {k: v for k, v in each.items() if k not in ("samples", "labels", "graders")}
            these.append(iou(each["samples"][:, 0], each["labels"][:, 0], **some))
            one_map = {"prediction": each["samples"][:, 0], "truth": each["labels"][:, 0]}
            these.append(rand_error(**one_map, valid=each["valid"]))
            matched = {name: maps[0] for name, maps in one_map.items()}
            matches = match_instances(**matched, scores=np.ones(9), valid=each["valid"][0], min_region=2)
            these += [matches.iou, matches.ignored_share]
        for of_volume, of_image in zip(*found, strict=True):
            np.testing.assert_array_equal(of_volume, of_image)


def test_every_true_instance_of_a_volume_counts_for_average_precision() -> None:
    truth = np.zeros((4, 500, 300), dtype=np.int32)  # as an image, regions below 29 pixels are ignored
    truth[:, :10, 0], truth[0, 400, :28] = 1, 2
    for each, number in ((truth, 2), (truth.reshape(-1, 300), 1)):
        assert match_instances(prediction=each, truth=each, scores=np.ones(3)).iou.shape == (2, number)
    assert match_instances(prediction=truth, truth=truth, scores=np.ones(3), min_region=29).iou.shape == (2, 1)


# What is refused


def test_values_outside_the_classes_are_refused_where_they_count() -> None:
    with pytest.raises(DataError, match=r"samples.*2"):
        ged2(samples=maps("0200"), labels=maps("0000"), num_classes=2)
    with pytest.raises(DataError, match="labels"):
        ged2(samples=maps("0000"), labels=-maps("0010"), num_classes=2)
    with pytest.raises(DataError, match=r"graders.*\[0\]"):
        ged2(samples=maps("0000"), labels=maps("0000"), graders=np.array([[False]]), num_classes=2)
    with pytest.raises(ConfigError, match="classes"):
        ged2(samples=maps("0000"), labels=maps("0000"), classes=[2], num_classes=2)
    with pytest.raises(DataError, match="negative"):
        rand_error(prediction=-maps("0100")[0], truth=maps("0100")[0])
    with pytest.raises(DataError, match="score"):
        match_instances(prediction=strip((3, 2)), truth=strip((1, 2)), scores=np.zeros(2))


REFUSED = {
    "ged2(samples=maps[0], labels=maps, num_classes=2)": "DataError: samples: expected integer maps (b n h w or ",
    "ged2(samples=maps * 1.0, labels=maps, num_classes=2)": "DataError: samples: expected integer maps",
    "ged2(samples=maps, labels=maps[:, :, 1:], num_classes=2)": "DataError: samples and labels: ",
    "ged2(samples=maps, labels=maps, num_classes=2, valid=maps)": "DataError: valid: ",
    "ged2(samples=maps, labels=maps, num_classes=2, absent='no')": "ConfigError: absent: ",
    "ged2(maps, maps, num_classes=2)": "TypeError",
    "iou(maps[0], maps[0, :1], num_classes=2)": "DataError: a and b: ",
    "iou_rec(labels=maps, reconstructions=maps[:, :1], num_classes=2)": "DataError: labels and reconstructions: ",
    "rand_error(prediction=maps[0], truth=maps[0, :, 1:])": "DataError: prediction and truth: ",
}


def test_production_refuses_bad_arguments_without_the_annotations() -> None:
    setup = "from hpunet.metrics import ged2, iou, iou_rec, rand_error"
    check_refused(f"import numpy\n{setup}\nmaps = numpy.zeros((2, 3, 4, 4), dtype=int)", REFUSED)
