"""Synthetic data: the same everywhere, apart by split, and true to the distributions they claim."""

import hashlib
import inspect
import itertools
import subprocess
import sys

import numpy as np
import pytest
from scipy import ndimage, stats
from scipy.optimize import linear_sum_assignment

from hpunet.data.cityscapes.classes import CAR, FIXED_CLASSES
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.synthetic.streets import make_street
from hpunet.data.types import SPLITS, Sample, Source
from hpunet.errors import ConfigError

KINDS = tuple(INFO)


def fingerprint(sample: Sample) -> str:
    parts = (sample.image, sample.labels, sample.valid, sample.graders)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def pixel_iou(one: np.ndarray, other: np.ndarray) -> float:
    union = np.logical_or(one, other).sum()
    return 1.0 if union == 0 else np.logical_and(one, other).sum() / union


def pixel_ious(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.array([[pixel_iou(one, other) for other in others] for one in ones])


def pixel_ged(samples: np.ndarray, graders: np.ndarray) -> float:
    pairs = ((samples, graders), (samples, samples), (graders, graders))
    cross, within_samples, within_graders = (1 - pixel_ious(*pair).mean() for pair in pairs)
    return 2 * cross - within_samples - within_graders


def pixel_matched_iou(samples: np.ndarray, graders: np.ndarray) -> float:
    """Optimal 1:1 match of two sets of the same size."""
    ious = pixel_ious(samples, graders)
    return ious[linear_sum_assignment(ious, maximize=True)].mean()


def distribution_of(num_lesions: int) -> KnownDistribution:
    """The first small lesion image with this number of complete lesions."""
    source = open_synthetic("lesions", split="val", size=32)
    for i in range(len(source)):
        known = source.distribution(i)
        areas = np.bincount(known.regions.ravel(), minlength=1 + 4 * num_lesions)
        if len(known.p_state) == num_lesions and areas.min() > 0:
            return known
    raise AssertionError(f"no image with {num_lesions} lesions")


@pytest.mark.parametrize("kind", KINDS)
def test_open_synthetic_yields_a_source_within_the_contract(kind):
    ndim = INFO[kind].ndim
    for size in (None, 64, (7, 49, 70)[-ndim:]):
        source = open_synthetic(kind, split="train", num_images=6, size=size)
        assert isinstance(source, Source)
        assert len(source) == len({identity.key for identity in source.identities}) == 6
        patients = [identity.patient for identity in source.identities]
        per_patient = 4 if ndim == 2 else 1
        assert [patient == patients[0] for patient in patients] == [i < per_patient for i in range(6)]
        for i in range(2):
            sample = source[i]
            assert sample.identity == source.identities[i]
            assert sample.image.shape == (source.info.in_channels, *source.size)
            assert sample.labels.shape == (source.info.num_graders, *source.size)
            assert sample.graders.all()
            assert sample.image.std() > 0.02
            assert not sample.labels[:, ~sample.valid].any()
            on_8_bits = sample.image * 255
            np.testing.assert_allclose(on_8_bits, np.rint(on_8_bits), atol=1e-4)


def test_open_synthetic_describes_the_classes_of_the_paper():
    lesions, neurites, streets, hard_streets, nodules, growth = (INFO[kind] for kind in KINDS)
    assert (nodules.num_classes, nodules.num_graders, nodules.ndim, nodules.spacing) == (2, 4, 3, (2.0, 0.8, 0.8))
    assert (growth.num_classes, growth.num_graders, growth.ndim, growth.axis0) == (2, 1, 3, "time")
    assert (hard_streets.kind, hard_streets.fixed_classes) == ("synthetic-hard-streets", streets.fixed_classes)
    assert (lesions.num_classes, lesions.num_graders, lesions.has_instances) == (2, 4, False)
    assert (neurites.num_classes, neurites.stochastic_classes) == (16, tuple(range(1, 16)))
    assert (streets.num_classes, streets.stochastic_classes) == (23, (18, 19, 20, 21, 22))
    assert streets.fixed_classes[0] == "road"
    assert "car" not in streets.fixed_classes


@pytest.mark.parametrize("kind", [*KINDS[:3], "nodules3d"])
def test_synthetic_source_depends_on_nothing_but_its_settings(kind):
    settings = {"split": "val", "size": 64, "seed": 3}
    source = open_synthetic(kind, num_images=8, **settings)
    backwards = [fingerprint(source[i]) for i in (5, 2)][::-1]
    longer = open_synthetic(kind, num_images=20, **settings)
    assert backwards == [fingerprint(longer[i]) for i in (2, 5)]
    assert fingerprint(source[-1]) == fingerprint(source[7])
    with pytest.raises(IndexError):
        source[8]


def test_synthetic_source_is_the_same_in_another_process():
    here = [fingerprint(open_synthetic(kind, split="test", size=64)[1]) for kind in KINDS]
    script = f"import hashlib\nfrom hpunet.data.synthetic.source import *\n{inspect.getsource(fingerprint)}"
    script += "for kind in INFO: print(fingerprint(open_synthetic(kind, split='test', size=64)[1]))"
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert here == there


@pytest.mark.parametrize("kind", [*KINDS[:3], "nodules3d"])  # hard-streets differ only in what paints them
def test_synthetic_source_shares_nothing_between_splits_and_seeds(kind):
    images, patients = [], []
    for split, seed in itertools.product(SPLITS, (0, 1)):
        source = open_synthetic(kind, split=split, num_images=8, size=32, seed=seed)
        images += [source[i].image.tobytes() for i in range(len(source))]
        patients += sorted({identity.patient for identity in source.identities})
    assert len(images) == len(set(images)) == 48
    assert len(patients) == len(set(patients)) == 6 * (2 if INFO[kind].ndim == 2 else 8)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("kidneys", {}, "kidneys.*lesions, neurites, streets, hard-streets, nodules3d"),
        ("lesions", {"split": "dev"}, "train, val, test"),
        ("lesions", {"num_images": 0}, "num_images"),
        ("lesions", {"size": 8}, "at least 16.*8x8"),
        ("streets", {"seed": -1}, "seed"),
        ("lesions", {"num_lesions": (0, 2)}, "num_lesions.*least and most"),
        ("lesions", {"num_lesions": (3, 2)}, "num_lesions"),
        ("lesions", {"num_lesions": (1, 17)}, "num_lesions.*16"),
        ("neurites", {"num_lesions": (1, 2)}, "num_lesions.*neurites"),
        ("lesions", {"size": (16, 16, 16)}, "lesions have height and width"),
        ("nodules3d", {"size": (64, 64)}, "depth, height and width"),
        ("nodules3d", {"size": (3, 64, 64)}, "at least 16.*4 slices.*3x64x64"),
        ("lesions", {"volumes": True}, "volumes: lesions are images.*nodules3d"),
    ],
)
def test_open_synthetic_names_what_is_wrong(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        open_synthetic(name, **{"split": "train", **settings})


@pytest.mark.parametrize(("size", "cells"), [((96, 64), (3, 2)), ((64, 96), (2, 3)), ((64, 64), (2, 2))])
def test_lesions_are_as_many_as_asked_for_one_per_cell(size, cells):
    most = cells[0] * cells[1]
    source = open_synthetic("lesions", split="val", num_images=12, size=size, num_lesions=(most - 1, most))
    numbers = set()
    for i in range(len(source)):
        known = source.distribution(i)
        numbers.add(len(known.p_state))
        assert source[i].image.shape == (1, *size)
        in_cells = known.regions.reshape(cells[0], 32, cells[1], 32).swapaxes(1, 2).reshape(most, -1)
        lesions = [set(((inside[inside > 0] - 1) // 4).tolist()) for inside in in_cells]
        assert sorted(n for inside in lesions for n in inside) == list(range(len(known.p_state)))
        assert max(map(len, lesions)) == 1
    assert numbers == {most - 1, most}


def test_synthetic_source_has_no_distribution_of_instances():
    with pytest.raises(ConfigError, match="only lesions and nodules3d"):
        open_synthetic("neurites", split="train").distribution(0)


def test_scene_is_what_the_sample_is_made_of():
    for kind in ("streets", "hard-streets"):
        source = open_synthetic(kind, split="train", size=64)
        (image, ids), sample = source.scene(3), source[3]
        np.testing.assert_array_equal(image, np.rint(sample.image * 255))
        np.testing.assert_array_equal(ids // 1000 == CAR, sample.labels[0] >= len(FIXED_CLASSES))
    with pytest.raises(ConfigError, match="Cityscapes"):
        open_synthetic("lesions", split="train").scene(0)


@pytest.mark.parametrize("num_lesions", [1, 2, 3])
def test_known_distribution_is_whole(num_lesions):
    known = distribution_of(num_lesions)
    assert known.states.shape == (9**num_lesions, num_lesions)
    assert known.probabilities.min() > 0
    np.testing.assert_allclose(known.probabilities.sum(), 1)
    np.testing.assert_allclose(known.p_state.sum(axis=1), 1)
    assert not known.support[0].any()
    assert len(np.unique(known.support.reshape(9**num_lesions, -1), axis=0)) == 9**num_lesions
    p_empty = 1 - known.p_call + known.p_call * known.p_state[:, 0].prod()
    np.testing.assert_allclose(known.probabilities[0], p_empty)


def test_known_distribution_marginals_are_the_mean_of_the_support():
    known = distribution_of(3)
    mean = np.einsum("m,mhw->hw", known.probabilities, known.support)
    np.testing.assert_allclose(known.marginals, mean, atol=1e-12)
    assert len(np.unique(known.marginals)) == 1 + 4 * 3


def test_known_distribution_iou_agrees_with_the_pixels():
    known = distribution_of(2)
    assert known.iou[0, 0] == 1
    np.testing.assert_allclose(known.iou, pixel_ious(known.support, known.support))


def test_known_distribution_worked_out_by_hand():
    regions = np.array([[1, 2, 3, 0]], dtype=np.int32)  # a core, two sides of one pixel, a third side of none
    p_state = np.zeros((1, 9))
    p_state[0, [1, 5]] = 0.5  # the core alone, or with the first side
    known = KnownDistribution(regions=regions, p_call=0.5, p_state=p_state)
    np.testing.assert_allclose(known.probabilities, [0.5, 0.25, 0, 0, 0, 0.25, 0, 0, 0])
    np.testing.assert_allclose(known.marginals, [[0.5, 0.25, 0, 0]])
    # Empty against either outline is 1 apart, twice 1/2 · 1/2; one outline is 1/2 from the other, twice 1/4 · 1/4.
    assert known.mean_distance == pytest.approx(0.5 + 0.125 * 0.5)
    assert known.expected_ged(num_samples=16, num_graders=4) == pytest.approx((1 / 16 + 1 / 4) * 0.5625)


def test_known_distribution_samples_follow_its_probabilities():
    known = distribution_of(2)
    draws = known.sample(np.random.default_rng(0), 4000)
    number = {labels.tobytes(): i for i, labels in enumerate(known.support)}
    counts = np.bincount([number[labels.tobytes()] for labels in draws], minlength=81)
    assert stats.chisquare(counts, 4000 * known.probabilities).pvalue > 0.01
    np.testing.assert_allclose(draws.mean(axis=0), known.marginals, atol=4 * 0.5 / np.sqrt(4000))


def test_lesion_graders_are_drawn_from_the_distribution():
    source = open_synthetic("lesions", split="train", num_images=400, size=32)
    num_empty, p_empty, distances, expected = [], [], [], []
    for i in range(len(source)):
        labels, known = source[i].labels, source.distribution(i)
        num_empty.append((labels.max(axis=(1, 2)) == 0).sum())
        p_empty.append(known.probabilities[0])
        distances.append(np.mean([1 - pixel_iou(a, b) for a, b in itertools.combinations(labels, 2)]))
        expected.append(known.mean_distance)
    p = np.array(p_empty)
    assert abs(np.sum(num_empty) - 4 * p.sum()) < 3 * np.sqrt(4 * (p * (1 - p)).sum())
    difference = np.array(distances) - expected
    assert abs(difference.mean()) < 3 * difference.std() / np.sqrt(len(difference))


def test_lesion_probabilities_can_be_seen_in_the_image():
    source = open_synthetic("lesions", split="train", num_images=150, size=64)
    contrast, p_call, brightness, p_marked = [], [], [], []
    for i in range(len(source)):
        image, known = source[i].image[0], source.distribution(i)
        contrast.append(np.median(image[known.regions == 0]))
        p_call.append(known.p_call)
        for lesion, p_state in enumerate(known.p_state):
            core = image[known.regions == 1 + 4 * lesion].mean()
            brightness.append((core - np.median(image[known.regions == 0])) / known.p_call)
            p_marked.append(1 - p_state[0])
    assert np.corrcoef(contrast, p_call)[0, 1] < -0.5
    assert np.corrcoef(brightness, p_marked)[0, 1] > 0.7


def test_known_distribution_mean_distance_agrees_with_draws():
    known, rng = distribution_of(3), np.random.default_rng(1)
    distances = [1 - pixel_iou(a, b) for a, b in zip(known.sample(rng, 4000), known.sample(rng, 4000), strict=True)]
    assert np.mean(distances) == pytest.approx(known.mean_distance, abs=3 * np.std(distances) / np.sqrt(4000))


def test_known_distribution_expected_ged_agrees_with_draws():
    known, rng = distribution_of(2), np.random.default_rng(2)
    geds = [pixel_ged(known.sample(rng, 8), known.sample(rng, 4)) for _ in range(200)]
    expected = known.expected_ged(num_samples=8, num_graders=4)
    assert np.mean(geds) == pytest.approx(expected, abs=3 * np.std(geds) / np.sqrt(200))


def test_known_distribution_gives_the_exact_matched_iou():
    known, rng = distribution_of(1), np.random.default_rng(3)
    p, iou = known.probabilities, known.iou
    exact = sum(
        p[a] * p[b] * p[c] * p[d] * max(iou[a, c] + iou[b, d], iou[a, d] + iou[b, c]) / 2
        for a, b, c, d in itertools.product(range(9), repeat=4)
    )
    matched = [pixel_matched_iou(known.sample(rng, 2), known.sample(rng, 2)) for _ in range(2000)]
    assert exact > 1 - known.mean_distance
    assert np.mean(matched) == pytest.approx(exact, abs=3 * np.std(matched) / np.sqrt(2000))


def test_neurites_are_connected_cells_behind_dark_membranes():
    source = open_synthetic("neurites", split="train", num_images=4, size=128)
    for i in range(len(source)):
        image, cells = source[i].image[0], source[i].labels[0]
        assert cells.max() >= 8
        for cell in range(1, cells.max() + 1):
            assert ndimage.label(cells == cell)[1] == 1
        for one, other in ((cells[1:], cells[:-1]), (cells[:, 1:], cells[:, :-1])):
            assert ((one == other) | (one == 0) | (other == 0)).all()
        assert image[cells == 0].mean() < image[cells > 0].mean() - 0.15
        assert 0.05 < (cells == 0).mean() < 0.4


def test_streets_hold_single_cars_groups_and_ignored_pixels():
    source = open_synthetic("streets", split="train", num_images=8, size=128)
    group_seen = False
    for i in range(len(source)):
        _, ids = make_street(source.rng(i), size=source.size)
        labels, valid = source[i].labels[0], source[i].valid
        cars = np.unique(labels[labels >= len(FIXED_CLASSES)])
        np.testing.assert_array_equal(cars, len(FIXED_CLASSES) + np.arange(len(cars)))
        assert len(cars) >= 2
        group_seen |= bool((ids == CAR).any())
        assert not valid[np.isin(ids, (1, 2, CAR))].any()
        assert not valid[-1, 128]
        assert 0.7 < valid.mean() < 1
        assert {"road", "sky"} <= {FIXED_CLASSES[k] for k in np.unique(labels[valid]) if k < len(FIXED_CLASSES)}
    assert group_seen
