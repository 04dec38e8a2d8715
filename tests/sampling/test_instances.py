"""Clustering and post-processing against line-by-line transcriptions of the paper's algorithms."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import ndimage

from hpunet.data.synthetic.source import open_synthetic
from hpunet.errors import ConfigError, DataError
from hpunet.metrics import rand_error
from hpunet.sampling.instances import (
    cluster,
    clustering_threshold,
    connected_parts,
    instance_scores,
    merge_to_background,
    postprocess,
)


def turns_of_pixels(samples: np.ndarray, seed: int) -> list[int]:
    """The random choices of `cluster`: distinct vectors, in raster order, wait at the rate of their pixels.

    The first unassigned pixel in this list is the one that is drawn.
    """
    vectors = [tuple(v) for v in samples.reshape(len(samples), -1).T.tolist()]
    count = Counter(vectors)
    waits = np.random.default_rng(seed).standard_exponential(len(count)) / np.array(list(count.values()))
    wait_of = dict(zip(count, waits.tolist(), strict=True))
    return sorted(range(len(vectors)), key=lambda pixel: wait_of[vectors[pixel]])


def algorithm_1(
    samples: np.ndarray, *, num_classes: int, alpha: int, background: int, choices: list[int]
) -> np.ndarray:
    """Algorithm 1 as printed, pixel by pixel, on one-hot vectors of length n·C."""
    n, h, w = samples.shape
    Y = np.eye(num_classes, dtype=int)[samples].transpose(1, 2, 0, 3).reshape(h * w, n * num_classes)
    instances = np.full(h * w, -1)
    U = list(range(h * w))
    p = np.tile(np.eye(num_classes, dtype=int)[background], n)
    c = 0
    while U:
        if c > 0:
            i = next(pixel for pixel in choices if pixel in U)
            p = Y[i]
            instances[i] = c
            U.remove(i)
        for j in list(U):
            if (Y[j] != p).sum() <= alpha:
                instances[j] = c
                U.remove(j)
        c += 1
    return instances.reshape(h, w)


def noisy_samples(rng: np.random.Generator, *, num_samples: int, num_classes: int, size: int) -> np.ndarray:
    """Blocks whose class changes from sample to sample, and some noise."""
    blocks = np.kron(rng.integers(0, 5, (size // 3 + 1,) * 2), np.ones((3, 3), dtype=int))[:size, :size]
    samples = np.stack([np.append(0, rng.integers(0, num_classes, 4))[blocks] for _ in range(num_samples)])
    noise = rng.random(samples.shape) < 0.1
    return np.where(noise, rng.integers(0, num_classes, samples.shape), samples)


@pytest.mark.parametrize(
    ("num_samples", "num_classes", "alpha"), [(1, 2, 0), (4, 2, 2), (5, 3, 3), (8, 16, 8), (17, 23, 16), (70, 3, 60)]
)
def test_cluster_equals_the_algorithm_as_printed(num_samples: int, num_classes: int, alpha: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        samples = noisy_samples(rng, num_samples=num_samples, num_classes=num_classes, size=7)
        background = int(rng.integers(num_classes))
        how = {"num_classes": num_classes, "background": background}
        found = cluster(samples, **how, threshold=alpha, seed=seed)
        expected = algorithm_1(samples, **how, alpha=alpha, choices=turns_of_pixels(samples, seed))
        assert np.array_equal(found, expected)
        assert found.max() > 0


@pytest.mark.parametrize("num_clusters", [1, 63, 64, 65, 200])
def test_cluster_leaves_what_has_a_cluster_behind(num_clusters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(num_clusters).permutation(np.repeat(1 + np.arange(num_clusters), 3))
    samples = np.stack([labels % 15 + 1, labels // 15 + 1])[:, None]
    how = {"num_classes": 20, "threshold": 0, "seed": 0}
    found = cluster(samples, **how)
    assert found.max() == num_clusters
    assert rand_error(prediction=found[None], truth=labels[None, None]) == pytest.approx([0])
    for turns in (1, 10**9):  # after each cluster, and never
        monkeypatch.setattr("hpunet.sampling.instances._TURNS", turns)
        assert np.array_equal(cluster(samples, **how), found)


@pytest.mark.parametrize("size", [(2, 7, 7), (7, 2, 7)])
def test_cluster_of_a_volume_is_that_of_its_voxels_as_an_image(size: tuple[int, ...]) -> None:
    image = noisy_samples(np.random.default_rng(5), num_samples=6, num_classes=4, size=14)[:, :, :7]
    how = {"num_classes": 4, "threshold": 4, "seed": 3}
    found = cluster(image.reshape(6, *size), **how)
    assert np.array_equal(found, cluster(image, **how).reshape(size))
    assert found.max() > 1


def test_cluster_draws_prototypes_in_proportion_to_their_pixels() -> None:
    # Three kinds of 1, 2 and 3 pixels, none near another: the first two clusters show what was drawn.
    samples = np.array([[[1, 2, 2, 3, 3, 3]]])
    firsts = Counter()
    for seed in range(3000):
        found = cluster(samples, num_classes=4, threshold=0, seed=seed)[0]
        firsts[tuple(samples[0, 0][found.tolist().index(c)].item() for c in (1, 2))] += 1
    pixels = {1: 1, 2: 2, 3: 3}
    for (first, second), number in firsts.items():
        expected = pixels[first] / 6 * pixels[second] / (6 - pixels[first])
        assert abs(number / 3000 - expected) < 4 * (expected * (1 - expected) / 3000) ** 0.5
    assert len(firsts) == 6


def test_cluster_counts_a_differing_label_twice() -> None:
    samples = np.array([[[0, 1, 1, 1]], [[0, 1, 1, 1]], [[0, 1, 1, 2]], [[0, 1, 2, 2]]])  # pixels differ in 1, 2 or 4
    assert len(np.unique(cluster(samples, num_classes=3, threshold=1, seed=0))) == 4
    assert np.unique(cluster(samples, num_classes=3, threshold=4, seed=0)).tolist() == [0, 1]
    assert np.unique(cluster(samples, num_classes=3, threshold=8, seed=0)).tolist() == [0]


def test_clustering_threshold_follows_the_samples_and_never_joins_everything() -> None:
    assert clustering_threshold(None, num_samples=8) == 8
    assert (clustering_threshold(0, num_samples=8), clustering_threshold(15, num_samples=8)) == (0, 15)
    for alpha in (-1, 16):
        with pytest.raises(ConfigError, match=f"alpha must be at least 0 and below 16.*got {alpha}"):
            clustering_threshold(alpha, num_samples=8)


def test_cluster_gives_background_number_0_even_where_there_is_none() -> None:
    samples = np.full((3, 2, 2), 1)
    assert cluster(samples, num_classes=2, threshold=2, seed=0).tolist() == [[1, 1], [1, 1]]
    assert cluster(samples, num_classes=2, threshold=2, seed=0, background=1).tolist() == [[0, 0], [0, 0]]


def test_cluster_is_deterministic_and_finds_neurites() -> None:
    cells = open_synthetic("neurites", split="val", num_images=1, size=64)[0].labels[0]
    rng = np.random.default_rng(0)
    samples = np.stack([np.append(0, rng.integers(1, 16, cells.max()))[cells] for _ in range(16)])
    edge = ndimage.maximum_filter(cells, 3) != ndimage.minimum_filter(cells, 3)
    flipped = edge & (rng.random(samples.shape) < 0.03)
    samples = np.where(flipped, rng.integers(0, 16, samples.shape), samples)
    found = cluster(samples, num_classes=16, threshold=16, seed=0)
    assert np.array_equal(found, cluster(samples.astype(np.uint8), num_classes=16, threshold=16, seed=0))
    assert rand_error(prediction=found[None], truth=cells[None]) < 0.01
    # Another order of prototypes numbers the same cells otherwise.
    other = cluster(samples, num_classes=16, threshold=16, seed=1)
    assert not np.array_equal(found, other)
    assert rand_error(prediction=found[None], truth=other[None]) < 0.01


def test_cluster_refuses_what_it_cannot_work_on() -> None:
    with pytest.raises(DataError, match=r"values must lie in 0\.\.\.1, found 0\.\.\.2"):
        cluster(np.array([[[0, 2]]]), num_classes=2, threshold=0, seed=0)
    with pytest.raises(ConfigError, match="background must lie"):
        cluster(np.zeros((1, 2, 2), dtype=int), num_classes=2, threshold=0, background=2, seed=0)


# Post-processing


def slow_postprocess(instances: np.ndarray, *, erosion: int, box: int, keep_unmatched: bool) -> np.ndarray:
    """App. H as written, with scipy's erosion of the whole map for every cluster."""
    painted, reach = instances.copy(), box // 2
    for c in sorted(set(instances.ravel().tolist()) - {0}):
        if ndimage.binary_erosion(painted == c, structure=np.ones((erosion, erosion))).any():
            continue
        for y, x in np.argwhere(painted == c):
            around = painted[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
            votes = Counter(around[(around != c) & (around != 0)].tolist())
            most = max(votes.values(), default=0)
            if votes:
                painted[y, x] = min(label for label, number in votes.items() if number == most)
            elif not keep_unmatched:
                painted[y, x] = 0
    return painted


@pytest.mark.parametrize("keep_unmatched", [True, False])
@pytest.mark.parametrize(("erosion", "box"), [(5, 11), (3, 5), (2, 3)])
def test_postprocess_equals_the_text(erosion: int, box: int, keep_unmatched: bool) -> None:
    how = {"erosion": erosion, "box": box, "keep_unmatched": keep_unmatched}
    num_grown = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        instances = np.kron(rng.integers(0, 9, (6, 6)), np.ones((erosion - 1 + seed % 2,) * 2, dtype=int))
        instances[rng.random(instances.shape) < 0.05] = 11
        instances[rng.random(instances.shape) < 0.3] = 0
        expected = slow_postprocess(instances, **how)
        found = postprocess(instances, **how)
        assert np.array_equal(found, expected)
        num_grown += int((found != instances).sum())
    assert num_grown > 0


def test_postprocess_paints_thin_clusters_and_leaves_the_rest() -> None:
    instances = np.zeros((20, 20), dtype=np.int32)
    instances[:, :8] = 3
    instances[5:9, 8:12] = 7  # 4×4: no 5×5 square fits
    before = instances.copy()
    found = postprocess(instances, keep_unmatched=True)
    assert np.array_equal(instances, before)  # the argument is not painted on
    assert (found[5:9, 8:12] == 3).all()
    assert (found[:, 12:] == 0).all()
    instances[4:9, 8:13] = 7
    assert np.array_equal(postprocess(instances, keep_unmatched=True), instances)


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_connected_parts_equal_a_flood_of_each(seed: int, ndim: int) -> None:
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 9 if ndim == 2 else 6, size=ndim).tolist()
    instances = rng.integers(0, rng.integers(1, 5), size=size, dtype=np.int32)
    expected, number = np.zeros_like(instances), 0
    for place in sorted(np.ndindex(*size), key=lambda place: instances[place]):
        if instances[place] and not expected[place]:
            number += 1
            todo = [place]
            while todo:
                here = todo.pop()
                expected[here] = number
                steps = itertools.product((-1, 0, 1), repeat=ndim)
                around = (tuple(at + step for at, step in zip(here, by, strict=True)) for by in steps)
                todo += [
                    there
                    for there in around
                    if all(0 <= at < side for at, side in zip(there, size, strict=True))
                    and not expected[there] and instances[there] == instances[place]
                ]  # fmt: skip
    assert (connected_parts(instances) == expected).all()


def slow_postprocess_of_volumes(
    instances: np.ndarray, *, erosion: int, box: int, keep_unmatched: bool, spacing: tuple[float, ...] | None
) -> np.ndarray:
    """The same with a ball and a cube, each slice by its distance in units of the in-plane pixel."""
    thickness = 1.0 if spacing is None else spacing[0] / spacing[1]
    radius, reach = erosion // 2, box // 2
    slices, reach_slices = (int(np.floor(r / thickness + 0.5)) for r in (radius, reach))
    members = [
        (z, y, x)
        for z, y, x in np.ndindex(2 * slices + 1, 2 * radius + 1, 2 * radius + 1)
        if ((z - slices) / (slices or 1)) ** 2 + ((y - radius) ** 2 + (x - radius) ** 2) / (radius or 1) ** 2 <= 1
    ]
    ball = np.zeros((2 * slices + 1, 2 * radius + 1, 2 * radius + 1), dtype=bool)
    ball[tuple(zip(*members, strict=True))] = True
    painted = instances.copy()
    for c in sorted(set(instances.ravel().tolist()) - {0}):
        if ndimage.binary_erosion(painted == c, structure=ball).any():
            continue
        for z, y, x in np.argwhere(painted == c):
            low = [max(0, z - reach_slices), max(0, y - reach), max(0, x - reach)]
            around = painted[low[0] : z + reach_slices + 1, low[1] : y + reach + 1, low[2] : x + reach + 1]
            votes = Counter(around[(around != c) & (around != 0)].tolist())
            if votes:
                painted[z, y, x] = min(label for label, n in votes.items() if n == max(votes.values()))
            elif not keep_unmatched:
                painted[z, y, x] = 0
    return painted


@pytest.mark.parametrize("keep_unmatched", [True, False])
@pytest.mark.parametrize(
    ("erosion", "box", "spacing"),
    [
        (5, 5, None),
        (5, 7, (1.0, 1.0, 1.0)),
        (5, 11, (2.5, 1.0, 1.0)),  # 0.8 of a slice up and down: 1; cube 2
        (3, 3, (3.0, 0.7, 0.7)),  # none: a disc, and a square
        (3, 5, (0.5, 1.0, 1.0)),  # slices nearer than pixels
        (4, 3, None),  # as 5
    ],
)
def test_postprocess_of_volumes_takes_a_ball_and_a_cube(
    erosion: int, box: int, spacing: tuple[float, ...] | None, keep_unmatched: bool
) -> None:
    how = {"erosion": erosion, "box": box, "spacing": spacing, "keep_unmatched": keep_unmatched}
    num_changed = num_kept = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        instances = np.kron(rng.integers(0, 9, (3, 4, 4)), np.ones((2 + seed % 2, 4, 4), dtype=int))
        instances[rng.random(instances.shape) < 0.02] = 11
        instances[rng.random(instances.shape) < 0.02] = 0
        expected, found = slow_postprocess_of_volumes(instances, **how), postprocess(instances, **how)
        assert np.array_equal(found, expected)
        num_changed += int((found != instances).sum())
        num_kept += len(np.unique(found)) - 1
    assert num_changed > 0
    assert num_kept > 0


def test_a_ball_fits_where_its_cube_does_not() -> None:
    z, y, x = np.mgrid[-3:4, -4:5, -4:5]
    ball = (z**2 + y**2 + x**2 <= 4).astype(np.int32)
    assert np.array_equal(postprocess(ball, keep_unmatched=False), ball)
    ball[3, 4, 6] = 0  # one voxel less
    assert not postprocess(ball, keep_unmatched=False).any()
    assert postprocess(ball, keep_unmatched=False, spacing=(5.0, 1.0, 1.0)).any() == 0  # nor its disc
    ball[2] = ball[3] = (y**2 + x**2 <= 4)[0]
    assert postprocess(ball, keep_unmatched=False, spacing=(5.0, 1.0, 1.0)).any()
    flat = np.ones(
        (2, 9, 9), dtype=np.int32
    )  # two slices hold no ball of five, of any spacing that has more than one
    assert not postprocess(flat, keep_unmatched=False).any()
    assert not postprocess(flat, keep_unmatched=False, spacing=(1e-9, 1.0, 1.0)).any()
    assert postprocess(flat, keep_unmatched=False, spacing=(4.1, 1.0, 1.0)).all()


def test_postprocess_with_no_neighbour_keeps_or_clears() -> None:
    instances = np.zeros((15, 15), dtype=np.int32)
    instances[7, 7] = 4
    assert np.array_equal(postprocess(instances, keep_unmatched=True), instances)
    assert not postprocess(instances, keep_unmatched=False).any()


def test_postprocess_paints_in_place_and_breaks_ties_by_the_smaller_number() -> None:
    # Cluster 1 is one line; its left end sees 2, its right end nothing but what has been painted before.
    line = np.array([[2, 1, 1, 1, 1]])
    assert postprocess(line, keep_unmatched=True, erosion=2, box=3).tolist() == [[2, 2, 2, 2, 2]]
    tie = np.array([[5, 5, 1, 4, 4], [5, 5, 0, 4, 4]])
    assert postprocess(tie, keep_unmatched=True, erosion=1).tolist() == tie.tolist()  # everything survives a 1×1
    assert postprocess(tie, keep_unmatched=True, erosion=2, box=3)[0, 2] == 4


def test_postprocess_looks_again_at_a_cluster_that_has_grown() -> None:
    # 1 becomes 2 and completes its 2×2 square, so that 2 stays.
    instances = np.array([[1, 2, 0, 3], [2, 2, 0, 3]])
    assert postprocess(instances, keep_unmatched=True, erosion=2, box=3).tolist() == [[2, 2, 0, 3], [2, 2, 0, 3]]


# Scores


def test_merge_to_background_renumbers_the_stochastic_classes() -> None:
    samples = np.array([[[0, 18, 3], [20, 17, 19]]])
    merged = merge_to_background(samples, stochastic_classes=(18, 19, 20))
    assert merged.tolist() == [[[0, 1, 0], [3, 0, 2]]]
    for dtype in (np.uint8, np.int64):
        for classes in ((18, 19), (2, 3), (19, 18), (3, 18), (0, 1), (300, 301)):  # by steps of one, and not
            expected = [[[classes.index(c) + 1 if c in classes else 0 for c in row] for row in samples[0].tolist()]]
            assert merge_to_background(samples.astype(dtype), stochastic_classes=classes).tolist() == expected
    assert merge_to_background(samples, stochastic_classes=(30,)).tolist() == [[[0, 0, 0], [0, 0, 0]]]
    with pytest.raises(ConfigError, match="at least one"):
        merge_to_background(samples, stochastic_classes=())


def test_instance_scores_are_means_over_pixels_and_samples() -> None:
    instances = np.array([[0, 1, 1, 3]])
    probs = np.array([[[0.9, 0.2, 0.4, 1.0]], [[0.9, 0.6, 0.8, 0.5]]], dtype=np.float32)
    assert instance_scores(instances, stochastic_probs=probs) == pytest.approx([0, 0.5, 0, 0.75])
