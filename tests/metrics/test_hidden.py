"""Metrics of a hidden part against numbers worked out by hand, and pixel by pixel."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from hpunet.errors import ConfigError, DataError
from hpunet.metrics import border_agreement, hidden_accuracy, hidden_iou, hidden_sample_disagreement, iou

NUM_RANDOM_CASES = 300


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def slow_iou(one: np.ndarray, other: np.ndarray, where: list, *, classes: list[int], absent: str) -> float:
    of_class = []
    for c in classes:
        both = sum(one[p] == c and other[p] == c for p in where)
        either = sum(one[p] == c or other[p] == c for p in where)
        if either:
            of_class.append(both / either)
        elif absent == "one":
            of_class.append(1.0)
    return mean(of_class) if of_class else 1.0


def slow_border(one: np.ndarray, labels: np.ndarray, *, seen: set, hidden: set, classes: list[int]) -> list[float]:
    """1 or 0 for each pair."""
    pairs = []
    for here in seen:
        for axis, step in itertools.product(range(labels.ndim), (-1, 1)):
            there = tuple(at + step * (i == axis) for i, at in enumerate(here))
            if labels[here] in classes and there in hidden:
                pairs.append(float(one[there] == labels[here]))
    return pairs


def slow_metrics(case: dict[str, Any], image: int) -> dict[str, float]:
    maps, labels = list(case["maps"][image]), case["labels"][image]
    valid = [p for p in np.ndindex(labels.shape) if case["valid"][image][p]]
    hidden = [p for p in valid if not case["visible"][image][p]]
    classes = case["classes"] or list(range(1, case["num_classes"]))
    how = {"classes": classes, "absent": case["absent"]}
    sides = {"seen": set(valid) - set(hidden), "hidden": set(hidden), "classes": classes}
    differing = [float(a[p] != b[p]) for a, b in itertools.combinations(maps, 2) for p in hidden]
    return {
        "iou": mean([slow_iou(each, labels, hidden, **how) for each in maps]) if hidden else math.nan,
        "accuracy": mean([float(each[p] == labels[p]) for each in maps for p in hidden]),
        "border": mean([pair for each in maps for pair in slow_border(each, labels, **sides)]),
        "disagreement": mean(differing),
    }


def fast_metrics(case: dict[str, Any]) -> dict[str, Any]:
    pixels = {name: case[name] for name in ("visible", "valid", "num_classes")}
    both = {"maps": case["maps"], "labels": case["labels"], **pixels}
    return {
        "iou": hidden_iou(**both, classes=case["classes"], absent=case["absent"]),
        "accuracy": hidden_accuracy(**both),
        "border": border_agreement(**both, classes=case["classes"]),
        "disagreement": hidden_sample_disagreement(samples=case["maps"], **pixels),
    }


def random_case(seed: int, *, ndim: int) -> dict[str, Any]:
    """Two small images or volumes: anything may be invalid, hidden or absent, as a whole too."""
    rng = np.random.default_rng(seed)
    s, num_classes = int(rng.integers(1, 5)), int(rng.integers(2, 5))
    size = rng.integers(1, 6, ndim).tolist()
    valid = rng.random((2, *size)) < rng.choice([0.0, 0.6, 1.0], p=[0.1, 0.4, 0.5])
    labels = rng.integers(0, num_classes, (2, *size)) * (rng.random((2, *[1] * ndim)) < 0.8)
    guesses = rng.integers(0, num_classes, (2, s, *size))
    first = int(rng.integers(1, num_classes))
    return {
        "maps": np.where(rng.random(guesses.shape) < 0.5, guesses, labels[:, None]),
        "labels": np.where(valid, labels, 255),
        "visible": rng.random((2, *size)) < rng.choice([0.0, 0.5, 1.0], p=[0.1, 0.8, 0.1]),
        "valid": valid,
        "num_classes": num_classes,
        "classes": None if rng.random() < 0.5 else list(range(first, num_classes)),
        "absent": str(rng.choice(["skip", "one"])),
    }


@pytest.mark.parametrize(("ndim", "num_cases"), [(2, NUM_RANDOM_CASES), (3, NUM_RANDOM_CASES // 3)])
def test_metrics_agree_with_loops_over_pixels(ndim: int, num_cases: int) -> None:
    undefined: Counter[str] = Counter()
    for seed in range(num_cases):
        case = random_case(seed, ndim=ndim)
        found = fast_metrics(case)
        for image in range(2):
            for name, expected in slow_metrics(case, image).items():
                assert found[name][image] == pytest.approx(expected, rel=0, abs=1e-12, nan_ok=True), (seed, name)
                undefined[name] += math.isnan(expected)
    assert 0 < undefined["iou"] == undefined["accuracy"] < undefined["border"] < 400
    assert undefined["accuracy"] < undefined["disagreement"] < 400  # a single sample besides


def drawn(*rows: str) -> np.ndarray:
    """(1, h, w): a map of digits."""
    return np.array([[[int(digit) for digit in row] for row in rows]])


TRUTH = drawn("1120", "1122", "0133")
SAMPLE = drawn("0010", "0012", "0033")  # the visible part is never looked at
BACKGROUND = np.zeros_like(TRUTH)
HALF = drawn("1100", "1100", "1100") == 1


def test_metrics_by_hand() -> None:
    """Hidden are the two columns on the right: six pixels, and three pairs of neighbours at the border."""
    maps = np.stack([SAMPLE, BACKGROUND], axis=1)
    common = {"labels": TRUTH, "visible": HALF, "num_classes": 4}
    one, background = maps[:, :1], maps[:, 1:]
    assert hidden_iou(maps=one, **common) == pytest.approx([(0 / 2 + 1 / 3 + 2 / 2) / 3])
    assert hidden_iou(maps=background, **common) == [0]
    assert hidden_accuracy(maps=one, **common) == [4 / 6]
    assert hidden_accuracy(maps=background, **common) == [1 / 6]
    assert hidden_accuracy(maps=maps, **common) == [5 / 12]
    assert border_agreement(maps=one, **common) == [2 / 3]
    assert border_agreement(maps=TRUTH[:, None], **common) == [0]
    assert border_agreement(maps=maps, **common) == [1 / 3]
    assert hidden_sample_disagreement(samples=maps, visible=HALF, num_classes=4) == [5 / 6]


def test_a_hidden_pixel_in_a_corner_has_two_visible_neighbours() -> None:
    labels, visible = drawn("12", "01"), drawn("11", "10") == 1
    corner = {"labels": labels, "visible": visible, "num_classes": 3}
    assert border_agreement(maps=labels[:, None], **corner) == [0]  # of one pair: the label on its left is background
    for row, expected in (("01", 1), ("21", 1), ("11", 1 / 2)):
        found = border_agreement(maps=drawn("00", "02")[:, None], **corner | {"labels": drawn("12", row)})
        assert found == [expected]


def test_undefined_values_are_nan_and_only_those() -> None:
    maps, common = np.stack([SAMPLE, TRUTH], axis=1), {"labels": TRUTH, "num_classes": 4}
    for visible, valid in ((HALF | True, None), (HALF, HALF)):  # nothing is hidden; nothing of it is valid
        pixels = {"visible": visible, "valid": valid}
        for metric in (hidden_iou, hidden_accuracy, border_agreement):
            assert np.isnan(metric(maps=maps, **common, **pixels))
        assert np.isnan(hidden_sample_disagreement(samples=maps, num_classes=4, **pixels))
    assert np.isnan(hidden_sample_disagreement(samples=maps[:, :1], visible=HALF, num_classes=4))
    assert np.isnan(border_agreement(maps=maps, **common, visible=HALF, classes=[2]))  # none in what is given
    empty = {"maps": BACKGROUND[:, None], "labels": BACKGROUND, "visible": HALF, "num_classes": 4}
    assert np.isnan(border_agreement(**empty))
    assert (hidden_iou(**empty), hidden_accuracy(**empty)) == (1, 1)  # nothing there, and rightly so


def test_where_all_is_hidden_the_iou_is_that_of_the_whole_image() -> None:
    maps = {"num_classes": 4, "classes": [1, 3]}
    found = hidden_iou(maps=SAMPLE[:, None], labels=TRUTH, visible=HALF & False, **maps)
    assert found == iou(SAMPLE, TRUTH, **maps)


def test_hidden_metrics_take_mixed_types() -> None:
    maps, labels, visible = np.stack([SAMPLE, BACKGROUND], axis=1), torch.from_numpy(TRUTH), torch.from_numpy(HALF)
    samples = torch.from_numpy(maps).to(torch.uint8)
    both = {"maps": samples, "labels": labels.int(), "visible": visible, "num_classes": 4}
    for metric in (hidden_iou, hidden_accuracy, border_agreement):
        found = metric(**both)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float64
        assert found == metric(maps=maps, labels=TRUTH, visible=HALF, num_classes=4)
    assert isinstance(hidden_sample_disagreement(samples=samples, visible=visible, num_classes=4), torch.Tensor)


def test_wrong_arguments_are_refused_by_name() -> None:
    good: dict[str, Any] = {"maps": SAMPLE[:, None], "labels": TRUTH, "visible": HALF, "num_classes": 4}
    for metric in (hidden_iou, hidden_accuracy, border_agreement):
        with pytest.raises(DataError, match=r"maps.*9"):
            metric(**{**good, "maps": np.where(HALF, 0, 9)[:, None]})
        with pytest.raises(DataError, match=r"labels.*3"):
            metric(**{**good, "num_classes": 3, "maps": BACKGROUND[:, None]})
    with pytest.raises(ConfigError, match="classes"):
        border_agreement(**good, classes=[4])
    with pytest.raises(DataError, match="samples"):
        hidden_sample_disagreement(samples=SAMPLE[:, None], visible=HALF, num_classes=2)
