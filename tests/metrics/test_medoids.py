"""Representatives against a search through all subsets, and what they score."""

from collections.abc import Collection
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog

from hpunet.errors import ConfigError
from hpunet.metrics import k_medoids, medoids, pair_ious


def random_distances(rng: np.random.Generator, n: int) -> np.ndarray:
    points = rng.normal(size=(n, 2)) + rng.integers(0, 3, (n, 1)) * 3
    return np.linalg.norm(points[:, None] - points, axis=2)


def cost(distances: np.ndarray, chosen: Collection[int]) -> float:
    return float(distances[:, list(chosen)].min(axis=1).mean())


@pytest.mark.parametrize("max_subsets", [medoids.MAX_SUBSETS, 0])
def test_chosen_maps_are_the_best_of_all_subsets(max_subsets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medoids, "MAX_SUBSETS", max_subsets)
    rng = np.random.default_rng(0)
    num_best = 0
    for _ in range(40):
        n = int(rng.integers(2, 10))
        distances, num = random_distances(rng, n), int(rng.integers(1, min(n, 5) + 1))
        found = k_medoids(distances, num=num)
        best = min(cost(distances, part) for part in combinations(range(n), num))
        chosen = set(found.chosen.tolist())
        swaps = [cost(distances, chosen - {one} | {other}) for one in chosen for other in set(range(n)) - chosen]
        assert cost(distances, chosen) <= min(swaps, default=np.inf) + 1e-12
        assert found.nearest.tolist() == distances[:, found.chosen].argmin(axis=1).tolist()
        num_best += cost(distances, chosen) <= best + 1e-12
    assert num_best >= (40 if max_subsets else 39)  # swaps may end in a local optimum


@pytest.mark.parametrize(("num", "num_starts"), [(40, medoids.NUM_STARTS), (41, 1)])
def test_many_maps_have_one_start(num: int, num_starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medoids, "MAX_FOR_STARTS", 50 * 40)
    started: list[int] = []
    swapped = medoids._swapped
    monkeypatch.setattr(medoids, "_swapped", lambda *given: started.append(1) or swapped(*given))
    distances = random_distances(np.random.default_rng(3), 50)
    chosen = set(k_medoids(distances, num=num).chosen.tolist())
    assert len(started) == num_starts
    swaps = [cost(distances, chosen - {one} | {other}) for one in chosen for other in set(range(50)) - chosen]
    assert cost(distances, chosen) <= min(swaps) + 1e-12


def test_weights_are_the_best_transport() -> None:
    """No other weights on the chosen maps have a smaller Wasserstein distance to all."""
    distances = random_distances(np.random.default_rng(1), 12)
    found = k_medoids(distances, num=3)
    n, k = 12, 3
    mass = np.zeros((n, n * k))
    for i in range(n):
        mass[i, i * k : (i + 1) * k] = 1
    plan = linprog(distances[:, found.chosen].ravel(), A_eq=mass, b_eq=np.full(n, 1 / n))
    assert plan.fun == pytest.approx(cost(distances, found.chosen.tolist()))
    shares = np.bincount(found.nearest, minlength=k) / n
    assert plan.x.reshape(n, k).sum(axis=0) == pytest.approx(shares)


def test_equal_maps_are_chosen_once() -> None:
    kind = np.array([0, 0, 1, 1, 1])
    found = k_medoids((kind[:, None] != kind).astype(float), num=4)
    assert found.chosen.tolist() == [0, 2]
    assert found.nearest.tolist() == kind.tolist()
    for num in (0, 6):
        with pytest.raises(ConfigError, match="expected 1 to 5"):
            k_medoids(np.zeros((5, 5)), num=num)


def test_scores_of_representatives_are_weighted() -> None:
    """GED² by sums over weights; matched IoU by a transport plan."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        opinions = rng.random((3, 6, 6)) < 0.4
        maps = opinions[rng.choice(3, p=[0.5, 0.3, 0.2], size=12)] ^ (rng.random((12, 6, 6)) < 0.05)
        labels = opinions[rng.integers(0, 3, 4)] ^ (rng.random((4, 6, 6)) < 0.05)
        pairs = pair_ious(samples=maps[None].astype(int), labels=labels[None].astype(int), num_classes=2)
        iou, cross, among = pairs.samples[0], pairs.cross[0], pairs.labels[0]
        found = k_medoids(1 - iou, num=3)
        weights, k = np.bincount(found.nearest) / 12, len(found.chosen)
        few = pairs.represented(3)
        to_labels = (weights[:, None] / 4 * (1 - cross[found.chosen])).sum()
        spread = weights @ (1 - iou[np.ix_(found.chosen, found.chosen)]) @ weights
        assert few.ged2()[0] == pytest.approx(2 * to_labels - spread - (1 - among).mean())
        sums = [np.kron(np.eye(k), np.ones(4)), np.kron(np.ones(k), np.eye(4))]
        given = np.concatenate([weights, np.full(4, 0.25)])
        plan = linprog(-cross[found.chosen].ravel(), A_eq=np.concatenate(sums), b_eq=given)
        assert few.hungarian_iou()[0] == pytest.approx(-plan.fun)
    assert pairs.represented(12).ged2() == pytest.approx(pairs.ged2())
    assert pairs.represented(12).hungarian_iou() == pytest.approx(pairs.hungarian_iou())
