"""The numbers of the scripts that measure the claims of the paper's text, worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from tiny_run import tiny_settings

from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.training.loop import train

sys.path.insert(0, str(ROOT / "benchmarks"))
import ambiguity
import car_scales
import many_lesions

REGIONS = np.repeat(np.arange(9, dtype=np.int32)[None], 2, axis=0)  # two lesions: columns 1 to 4, 5 to 8
"""Two pixels of each part, in columns: 0 outside, then core and three sides of each lesion."""


def test_lesion_scores_of_samples_worked_out_by_hand() -> None:
    p_state = np.zeros((2, 9))
    p_state[0, [0, 1]] = 0.5  # the core alone, or nothing
    p_state[1, 8] = 1.0  # all of it
    truth = KnownDistribution(regions=REGIONS, p_call=1.0, p_state=p_state)
    samples = np.zeros((4, 2, 9), dtype=np.int64)
    samples[:2, :, 1] = 1  # the first lesion: twice the core, as often as it should
    samples[:3, :, 5:] = 1  # the second: three of four times, and always whole
    samples[3, :, 6] = 1  # then a side without its core, which counts as nothing
    samples[3, 0, 2] = 1  # and half of a side: not marked, and not clear
    frequency, variation, combinations, joint, correlation, clear = many_lesions.lesion_scores(samples, truth)
    assert frequency == pytest.approx(4 * 0.25 / 8)
    assert variation == pytest.approx((0 + 0.25) / 2)
    assert (combinations, joint) == (3, 3)
    assert correlation == pytest.approx(np.corrcoef([1, 1, 0, 0], [1, 1, 1, 0])[0, 1])
    assert clear == 1 - 1 / 32


def test_lesion_scores_of_draws_of_the_truth_approach_it() -> None:
    p_state = np.array([[0.2, *np.full(8, 0.1)], [0.6, *np.full(8, 0.05)]])
    truth = KnownDistribution(regions=REGIONS, p_call=0.9, p_state=p_state)
    draws = truth.sample(np.random.default_rng(0), 20_000)
    frequency, variation, _, joint, correlation, clear = many_lesions.lesion_scores(draws, truth)
    assert (frequency < 0.01, variation < 0.02, joint, clear) == (True, True, 81, 1)
    p_one, p_other = 0.9 * 0.8, 0.9 * 0.4
    by_hand = (0.9 * 0.8 * 0.4 - p_one * p_other) / np.sqrt(p_one * (1 - p_one) * p_other * (1 - p_other))
    assert correlation == pytest.approx(by_hand, abs=0.02)


def test_lesion_scores_leave_out_images_with_a_part_without_pixels() -> None:
    truth = KnownDistribution(regions=np.minimum(REGIONS, 7), p_call=1.0, p_state=np.full((2, 9), 1 / 9))
    assert many_lesions.lesion_scores(np.zeros((2, 2, 9), dtype=np.int64), truth) is None


def test_regions_are_those_on_which_graders_differ_agree_and_mark_nothing() -> None:
    graders = np.zeros((2, 40, 40), dtype=bool)
    graders[:, 10:20, 10:20] = True
    graders[0, 10:20, 20:25] = True  # of the first alone
    graders[1, 30:32, 30:32] = True  # too small to count
    found = ambiguity.regions_of(graders)
    assert [int(region.sum()) for region in found["some graders"]] == [50]
    assert [int(region.sum()) for region in found["all"]] == [100]
    beside = found["none, beside"]
    assert len(beside) == 2  # around the large ones together, and around the small one
    assert not (beside[0] | beside[1])[graders.any(axis=0)].any()
    samples = np.zeros((10, 40, 40), dtype=np.int64)
    samples[:3, 10:20, 20:23] = 1  # 30 of 50 pixels
    assert ambiguity.marked_by(samples, graders, found["some graders"][0]) == (0.3, 0.5)
    assert ambiguity.marked_by(samples, graders, found["all"][0]) == (0, 1)


def test_class_flips_names_fixed_classes_that_take_turns() -> None:
    samples = np.zeros((20, 2, 3), dtype=np.int64)
    samples[:, 0, 0] = 5  # an id, in a minority
    samples[:4] = 2
    samples[4:5] = 1  # too rare
    assert ambiguity.class_flips(samples, np.ones((2, 3), dtype=bool), num_fixed=3) == [(0, 2)]


def test_differences_are_those_of_pairs_of_samples() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=(5, 7))
    pairs = [(a, b) for a in range(5) for b in range(a)]
    expected = np.mean([labels[a] != labels[b] for a, b in pairs], axis=0)
    np.testing.assert_allclose(car_scales.pairs_that_differ(labels), expected)
    car = np.array([[3, 3, 3, 3], [3, 3, 3, 4], [4, 4, 4, 3]])  # the whole car changes once, one pixel three times
    in_pixels, of_car = car_scales.differences(car, num_classes=5)
    assert in_pixels == pytest.approx((3 * 2 / 3 + 2 / 3) / 4)
    assert of_car == pytest.approx(2 / 3)


def test_size_bins_hold_as_many_cars_each() -> None:
    bins = car_scales.size_bins(np.array([50, 7, 900, 8, 60, 1000]), num_bins=3)
    assert [(low, high, inside.sum()) for low, high, inside in bins] == [(7, 8, 2), (50, 60, 2), (900, 1000, 2)]


def test_car_scales_and_ambiguity_read_a_run_on_streets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["data.options={num_images=4, size=[32, 64]}", "data.crop=[32,64]", "model.latent_dims=[1,0,1]"]
    changes += ["model.channels=[4,6,6,6]", "optimiser.iterations=1", "logging.validate_every=1"]
    train(tiny_settings(*changes), data="synthetic:streets", run=tmp_path / "run")
    words = [str(tmp_path / "run"), "--data", "synthetic:streets", "--images", "3", "--samples", "4"]
    monkeypatch.setattr(sys, "argv", ["car_scales.py", *words])
    car_scales.main()
    printed = capsys.readouterr().out
    assert "| id: pixels of a car | cars | all | scale 0 | scale 2 | share |" in printed
    monkeypatch.setattr(sys, "argv", ["ambiguity.py", *words])
    ambiguity.main()
    assert "classes that take turns" in capsys.readouterr().out
