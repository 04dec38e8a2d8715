"""What a sampler scores that is perfect per slice: against every combination of slices, and against draws."""

from itertools import product

import numpy as np
import pytest

from hpunet.data.synthetic.independent_slices import IndependentSlices
from hpunet.data.synthetic.known_distribution import KnownDistribution, p_of_states
from hpunet.data.synthetic.source import open_synthetic
from hpunet.metrics import crps, ged2


def known_of(regions: list[list[list[int]]], *, p_call: float = 0.8) -> KnownDistribution:
    """One nodule with these regions, which is marked in 0.7 of the calls."""
    p_state = p_of_states(0.7, np.array([0.3, 0.5, 0.9]))[None]
    return KnownDistribution(regions=np.array(regions, np.int32), p_call=p_call, p_state=p_state)


DEEP = known_of([[[1, 2, 0]], [[1, 1, 2]], [[3, 0, 4]], [[0, 0, 0]]])


def distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """1 − IoU of maps (n, …) and (m, …): (n, m)."""
    a, b = one.reshape(len(one), -1), other.reshape(len(other), -1)
    both = a @ b.T
    union = a.sum(axis=1)[:, None] + b.sum(axis=1) - both
    return np.where(union == 0, 0, 1 - both / np.maximum(union, 1))


def all_volumes(independent: IndependentSlices) -> tuple[np.ndarray, np.ndarray]:
    """Every combination of the slices' states that mark something, and its probability."""
    slices = [known for known in independent.slices if known.regions.any()]
    maps, p = [], []
    for states in product(range(9), repeat=len(slices)):
        maps.append(np.stack([known.support[state] for known, state in zip(slices, states, strict=True)]))
        p.append(np.prod([known.probabilities[state] for known, state in zip(slices, states, strict=True)]))
    return np.stack(maps), np.array(p)


@pytest.mark.parametrize("p_call", [0.8, 1.0])
def test_independent_slices_agree_with_every_combination(p_call):
    truth = KnownDistribution(regions=DEEP.regions, p_call=p_call, p_state=DEEP.p_state)
    independent = IndependentSlices(truth)
    maps, p = all_volumes(independent)
    assert p.sum() == pytest.approx(1)
    graders, p_graders = truth.support[:, :3], truth.probabilities
    to_graders = p @ distances(maps, graders) @ p_graders
    among = p @ distances(maps, maps) @ p
    np.testing.assert_allclose(independent.mean_distances, (to_graders, among), rtol=1e-12)
    expected = 2 * to_graders - among * 15 / 16 - truth.mean_distance * 3 / 4
    assert independent.expected_ged(num_samples=16, num_graders=4) == pytest.approx(expected)
    sizes, marked = maps.sum(axis=(1, 2, 3)), graders.sum(axis=(1, 2, 3))
    np.testing.assert_allclose(independent.p_size, np.bincount(sizes, weights=p), atol=1e-12)
    apart = p @ np.abs(sizes[:, None] - marked) @ p_graders
    assert independent.expected_crps == pytest.approx(apart - p @ np.abs(sizes[:, None] - sizes) @ p / 2)


def test_independent_slices_of_one_slice_are_the_truth():
    truth = known_of([[[1, 2, 3, 0], [1, 1, 4, 4]]])
    independent = IndependentSlices(truth)
    expected = truth.expected_ged(num_samples=16, num_graders=4)
    assert independent.expected_ged(num_samples=16, num_graders=4) == pytest.approx(expected, rel=1e-12)
    assert independent.expected_crps == pytest.approx(truth.expected_crps)
    np.testing.assert_allclose(independent.p_size, truth.p_size, atol=1e-15)


def test_independent_slices_score_what_is_expected():
    source = open_synthetic("nodules3d", split="val", size=(8, 32, 32), num_lesions=(1, 1))
    truth, rng, n = source.distribution(0), np.random.default_rng(0), 300
    independent = IndependentSlices(truth)
    samples = independent.sample(rng, n * 8).reshape(n, 8, -1, 32)
    graders = truth.sample(rng, n * 4).reshape(n, 4, -1, 32)
    scores = ged2(samples=samples, labels=graders, num_classes=2)
    expected = independent.expected_ged(num_samples=8, num_graders=4)
    assert scores.mean() == pytest.approx(expected, abs=3 * scores.std() / np.sqrt(n))
    drawn, marked = (maps.sum(axis=(2, 3)).astype(float) for maps in (samples, graders))
    found = crps(drawn, marked)
    assert found.mean() == pytest.approx(independent.expected_crps, abs=3 * found.std() / np.sqrt(n))
    np.testing.assert_allclose(samples.mean(axis=(0, 1)), truth.marginals.reshape(-1, 32), atol=0.05)


def test_flickering_costs_a_perfect_sampler_of_slices_most_of_its_score():
    """Expected over 100 test volumes, 16 samples: GED² 0.036 of a perfect sampler, 0.209 if only perfect by slice.

    CRPS of the volume 0.434 and 0.543 ml (`python benchmarks/volumes.py`). Here the first eight of these volumes.
    """
    source = open_synthetic("nodules3d", split="test", num_images=8)
    truths = [source.distribution(i) for i in range(len(source))]
    flickering = [IndependentSlices(truth) for truth in truths]
    ml = np.prod(source.info.spacing) / 1000
    ged = [np.mean([s.expected_ged(num_samples=16, num_graders=None) for s in each]) for each in (truths, flickering)]
    volume = [ml * np.mean([s.expected_crps for s in each]) for each in (truths, flickering)]
    np.testing.assert_allclose(ged, (0.0369, 0.1871), rtol=0.01)
    np.testing.assert_allclose(volume, (0.466, 0.575), rtol=0.01)
