"""Nodules in volumes: true to the distributions they claim, the same in slices, several slices deep."""

import pickle
from itertools import product

import numpy as np
import pytest
from scipy import ndimage, stats

from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.nodules3d import SPACING
from hpunet.data.synthetic.source import open_synthetic
from hpunet.metrics import crps

SMALL = (8, 32, 32)


def distribution_of(num_lesions: int) -> KnownDistribution:
    """The first small volume with this number of nodules, all of whose parts have voxels."""
    source = open_synthetic("nodules3d", split="val", size=SMALL, num_lesions=(num_lesions, num_lesions))
    for i in range(len(source)):
        known = source.distribution(i)
        if np.bincount(known.regions.ravel(), minlength=1 + 4 * num_lesions).min() > 0:
            return known
    raise AssertionError(f"no volume with {num_lesions} complete nodules")


def p_parts(known: KnownDistribution) -> np.ndarray:
    """Of each nodule the probability of being marked, and of its optional parts if it is: (nodules, 4)."""
    marked = 1 - known.p_state[:, :1]
    states = np.array(list(product((0, 1), repeat=3)))
    return np.concatenate([marked, known.p_state[:, 1:] @ states / marked], axis=1)


def enumerated(known: KnownDistribution) -> dict[bytes, float]:
    """The probability of each label volume: anything at all, then nodule by nodule and part by part."""
    found: dict[bytes, float] = {}
    for chosen in product((0, 1), repeat=1 + 4 * len(known.p_state)):
        call, parts = chosen[0], np.array(chosen[1:]).reshape(-1, 4)
        p_all = p_parts(known)
        probability = known.p_call if call else 1 - known.p_call
        labels = np.zeros(known.regions.shape, np.int32)
        for nodule, (drawn, p) in enumerate(zip(parts, p_all, strict=True)):
            probability *= np.where(drawn, p, 1 - p).prod()
            for part in range(4) if call and drawn[0] else ():
                if drawn[part]:
                    labels[known.regions == 1 + 4 * nodule + part] = 1
        found[labels.tobytes()] = found.get(labels.tobytes(), 0) + probability
    return found


@pytest.mark.parametrize("num_lesions", [1, 2])
def test_distribution_agrees_with_an_enumeration_of_all_decisions(num_lesions):
    known = distribution_of(num_lesions)
    found = enumerated(known)
    assert len(found) == 9**num_lesions
    for labels, probability in zip(known.support, known.probabilities, strict=True):
        assert found[labels.tobytes()] == pytest.approx(probability, rel=1e-9)
    maps = np.stack([np.frombuffer(content, np.int32).reshape(known.regions.shape) for content in found])
    p = np.array(list(found.values()))
    np.testing.assert_allclose(known.marginals, np.einsum("m,mdhw->dhw", p, maps), atol=1e-12)
    flat = maps.reshape(len(maps), -1)
    both, sizes = flat @ flat.T, flat.sum(axis=1)
    union = sizes[:, None] + sizes - both
    distance = np.where(union == 0, 0, 1 - both / np.maximum(union, 1))
    assert known.mean_distance == pytest.approx(p @ distance @ p)
    np.testing.assert_allclose(known.p_size, np.bincount(sizes, weights=p), atol=1e-12)
    assert known.expected_crps == pytest.approx(p @ np.abs(sizes[:, None] - sizes) @ p / 2)


def test_samples_follow_the_probabilities():
    known = distribution_of(1)
    draws = known.sample(np.random.default_rng(0), 4000)
    number = {labels.tobytes(): i for i, labels in enumerate(known.support)}
    counts = np.bincount([number[labels.tobytes()] for labels in draws], minlength=9)
    assert stats.chisquare(counts, 4000 * known.probabilities).pvalue > 0.01
    np.testing.assert_allclose(draws.mean(axis=0), known.marginals, atol=4 * 0.5 / np.sqrt(4000))


def test_expected_crps_is_that_of_perfect_samples():
    known, rng = distribution_of(2), np.random.default_rng(1)
    sizes = known.sample(rng, 500 * 20).sum(axis=(1, 2, 3)).reshape(500, 20).astype(float)
    scores = crps(sizes[:, :16], sizes[:, 16:])
    assert scores.mean() == pytest.approx(known.expected_crps, abs=3 * scores.std() / np.sqrt(500))


def test_graders_mark_a_part_in_all_of_its_slices_or_in_none():
    source = open_synthetic("nodules3d", split="train", num_images=20, size=SMALL)
    volumes, num_deep = 0, 0
    for i in range(len(source)):
        known = source.distribution(i)
        for region in range(1, 1 + known.regions.max()):
            inside = known.regions == region
            shares = source[i].labels[:, inside].mean(axis=1) if inside.any() else np.zeros(4)
            assert set(shares.tolist()) <= {0.0, 1.0}
            num_deep += inside.any(axis=(1, 2)).sum() > 1
        assert not source[i].labels[:, known.regions == 0].any()
        volumes += bool(source[i].labels.any())
    assert volumes > 15
    assert num_deep > 60


def test_nodules_are_smooth_and_several_slices_deep():
    source = open_synthetic("nodules3d", split="train", num_images=40)
    assert source.size == (16, 64, 64)
    spans, numbers, overlaps, ratios = [], set(), [], []
    for i in range(len(source)):
        known = source.distribution(i)
        numbers.add(len(known.p_state))
        for nodule in range(len(known.p_state)):
            core = known.regions == 1 + 4 * nodule
            assert ndimage.label(core)[1] == 1
            spans.append(core.any(axis=(1, 2)).sum())
            middle = core[core.sum(axis=(1, 2)).argmax() :][:2]
            overlaps.append((middle[0] & middle[1]).sum() / (middle[0] | middle[1]).sum())
            height = core.any(axis=(0, 2)).sum()
            ratios.append(spans[-1] * SPACING[0] / (height * SPACING[1]))
    assert numbers == {1, 2}
    assert np.median(spans) >= 4
    assert min(spans) >= 3
    assert np.median(overlaps) > 0.75
    assert 0.8 < np.median(ratios) < 1.6  # as deep in mm as high


def test_every_probability_can_be_seen_in_the_image():
    source = open_synthetic("nodules3d", split="train", num_images=150)
    by_part = [[] for _ in range(4)]
    contrast, p_call = [], []
    for i in range(len(source)):
        image, known = source[i].image[0], source.distribution(i)
        around = np.median(image[known.regions == 0])
        contrast.append(around)
        p_call.append(known.p_call)
        for nodule, p in enumerate(p_parts(known)):
            for part in range(4):
                inside = known.regions == 1 + 4 * nodule + part
                if inside.sum() > 20:
                    by_part[part].append(((np.median(image[inside]) - around) / known.p_call, p[0], p[part]))
    assert np.corrcoef(contrast, p_call)[0, 1] < -0.5
    assert np.corrcoef(np.array(by_part[0]).T)[0, 1] > 0.7
    for brightness, p_marked, p in (np.array(rows).T for rows in by_part[1:]):
        assert np.mean(brightness > 0.025) > 0.97  # the noise of one voxel
        assert np.corrcoef(brightness / (0.12 + 0.38 * p_marked), p)[0, 1] > 0.5


def test_vessels_run_through_slices_beside_the_nodules():
    source = open_synthetic("nodules3d", split="train", num_images=12)
    depths = []
    for i in range(len(source)):
        image, known = source[i].image[0], source.distribution(i)
        away = ndimage.distance_transform_edt(known.regions == 0, sampling=(2.5, 1, 1)) > 4
        bright, count = ndimage.label((image > np.median(image) + 0.1) & away)
        spans = [part[0].stop - part[0].start for part in ndimage.find_objects(bright)]
        volumes = np.bincount(bright.ravel(), minlength=1 + count)[1:]
        depths += [max((s for s, v in zip(spans, volumes, strict=True) if v > 30), default=0)]
    assert np.median(depths) >= 8


def test_slices_are_those_of_the_volumes():
    volumes = open_synthetic("nodules3d", split="val", num_images=3, size=SMALL, seed=4)
    slices = open_synthetic("nodules3d", split="val", num_images=3, size=SMALL, seed=4, volumes=False)
    assert (slices.info.ndim, slices.info.spacing, slices.info.kind) == (2, SPACING[1:], volumes.info.kind)
    assert len(slices) == 3 * 8
    for index in (23, 0, 9, 8, 15):
        volume, z = divmod(index, 8)
        sample, whole = slices[index], volumes[volume]
        assert sample.identity == (whole.identity.patient, f"{whole.identity.key}/z-{z:03d}")
        np.testing.assert_array_equal(sample.pixels, whole.pixels[:, z])
        np.testing.assert_array_equal(sample.labels, whole.labels[:, z])
        one, other = slices.distribution(index), volumes.distribution(volume)
        np.testing.assert_array_equal(one.marginals, other.marginals[z])
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert slices[-1].identity == slices.identities[23]
    with pytest.raises(IndexError):
        slices[24]


def test_a_copy_for_another_process_leaves_the_volume_behind():
    slices = open_synthetic("nodules3d", split="val", num_images=2, volumes=False)
    before = slices[20]
    content = pickle.dumps(slices)
    assert len(content) < 16 * 64 * 64
    np.testing.assert_array_equal(pickle.loads(content)[20].pixels, before.pixels)


@pytest.mark.parametrize(("size", "num_lesions"), [(SMALL, (1, 1)), ((8, 48, 32), (5, 6)), ((4, 16, 16), (2, 2))])
def test_nodules_are_as_many_as_asked_for(size, num_lesions):
    source = open_synthetic("nodules3d", split="val", num_images=10, size=size, num_lesions=num_lesions)
    numbers = set()
    for i in range(len(source)):
        known = source.distribution(i)
        numbers.add(len(known.p_state))
        assert source[i].image.shape == (1, *size)
        assert all((known.regions == 1 + 4 * nodule).any() for nodule in range(len(known.p_state)))
    assert numbers == set(range(num_lesions[0], num_lesions[1] + 1))
