from collections import Counter

import numpy as np
import pytest

from hpunet.errors import ConfigError, DataError
from hpunet.sampling.hypotheses import distinct_hypotheses, representatives, summarise


def disc(radius: float, *, x: int = 32, y: int = 32, size: int = 64) -> np.ndarray:
    rows, columns = np.mgrid[:size, :size]
    return ((rows - y) ** 2 + (columns - x) ** 2 <= radius**2).astype(np.int64)


def with_border_noise(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some pixels next to a border flip, as in samples of a network."""
    padded = np.pad(labels, 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).reshape(*labels.shape, 9)
    at_border = windows.min(axis=2) != windows.max(axis=2)
    return np.where(at_border & (rng.random(labels.shape) < 0.1), 1 - labels, labels)


@pytest.mark.parametrize("seed", range(5))
def test_group_recovers_a_known_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    opinions = [np.zeros((64, 64), dtype=np.int64), disc(10), disc(20)]
    drawn = rng.choice(3, p=[0.4, 0.35, 0.25], size=40)
    samples = np.stack([with_border_noise(opinions[i], rng) for i in drawn])
    found = distinct_hypotheses(samples, num_classes=2)
    assert [h.share for h in found] == [n / 40 for _, n in Counter(drawn.tolist()).most_common()]
    for hypothesis in found:
        opinion = drawn[hypothesis.representative]
        assert hypothesis.members == tuple(np.flatnonzero(drawn == opinion).tolist())
        assert (hypothesis.description == "nothing marked") == (opinion == 0)


def test_group_threshold_decides_what_is_the_same() -> None:
    samples = np.zeros((2, 1, 10), dtype=np.int64)
    samples[0, 0, :10], samples[1, 0, :7] = 1, 1  # IoU 0.7
    assert len(distinct_hypotheses(samples, num_classes=2, same_iou=0.7)) == 1
    assert len(distinct_hypotheses(samples, num_classes=2, same_iou=0.71)) == 2
    with pytest.raises(ConfigError, match="same_iou"):
        distinct_hypotheses(samples, num_classes=2, same_iou=0.0)


def test_group_members_are_all_alike() -> None:
    """Not only neighbours in a chain: discs that grow slowly are several opinions."""
    samples = np.stack([disc(r) for r in np.linspace(5, 25, 21)])
    found = distinct_hypotheses(samples, num_classes=2, same_iou=0.6)
    assert 1 < len(found) < 21
    for hypothesis in found:
        first, last = hypothesis.members[0], hypothesis.members[-1]
        assert (samples[first] & samples[last]).sum() / (samples[first] | samples[last]).sum() >= 0.6


def test_representative_is_the_medoid_and_is_described() -> None:
    small, middle, large = disc(10), disc(10.7), disc(11.4)
    far = disc(3, x=5, y=5) | disc(3, x=58, y=58)
    (first, second) = distinct_hypotheses(np.stack([small, far, large, middle]), num_classes=2)
    assert (first.representative, first.members) == (3, (0, 2, 3))
    assert first.description == f"{middle.sum()} pixels in 1 part"
    assert second.description == f"{far.sum()} pixels in 2 parts"
    diagonal = np.eye(5, dtype=np.int64)[None]
    assert distinct_hypotheses(diagonal, num_classes=2)[0].num_parts == 1  # corners touch


def test_group_looks_at_the_chosen_classes_only() -> None:
    samples = np.stack([disc(10), disc(10) * 2, disc(10) * 3])
    assert [h.members for h in distinct_hypotheses(samples, num_classes=4)] == [(0,), (1,), (2,)]
    assert [h.members for h in distinct_hypotheses(samples, num_classes=4, classes=(3,))] == [(0, 1), (2,)]
    assert distinct_hypotheses(samples, num_classes=4, classes=(3,))[0].description == "nothing marked"


def random_discs(*, size: int, count: int, share: float) -> np.ndarray:
    """16 maps of many discs; each sample shows a `share` of them."""
    rng = np.random.default_rng(0)
    places = rng.integers(8, size - 8, (count, 2))
    discs = np.stack([disc(3, x=x, y=y, size=size) for x, y in places])
    return np.stack([discs[rng.random(count) < share].max(axis=0) for _ in range(16)])


def test_group_threshold_is_lowered_until_groups_say_something() -> None:
    diffuse = random_discs(size=128, count=200, share=0.5)
    assert len(distinct_hypotheses(diffuse, num_classes=2, same_iou=0.5)) > 8
    found = distinct_hypotheses(diffuse, num_classes=2)
    assert len(found) <= 5
    assert {h.same_iou for h in found} < {0.4, 0.3, 0.2, 0.1}
    assert f"grouped at IoU {found[0].same_iou:g}" in summarise(found)
    assert "differ" not in summarise(found)
    clear = np.stack([disc(10), disc(20), disc(10), 0 * disc(1)])
    assert {h.same_iou for h in distinct_hypotheses(clear, num_classes=2)} == {0.5}


def test_groups_that_cannot_summarise_say_so() -> None:
    apart = random_discs(size=128, count=100, share=0.05)
    found = distinct_hypotheses(apart, num_classes=2)
    assert len(found) > 5
    assert found[0].same_iou == 0.1
    assert "samples differ in many places" in summarise(found)


def test_more_samples_than_can_be_compared_are_refused() -> None:
    samples = np.broadcast_to(np.zeros((1, 1), dtype=np.uint8), (100_000, 1, 1))  # 74 GiB of IoUs
    with pytest.raises(DataError, match=r"at most .* are compared"):
        distinct_hypotheses(samples, num_classes=2)


def test_a_single_group_says_how_to_look_closer() -> None:
    samples = np.zeros((3, 8, 8), dtype=np.int64)
    assert "--same-iou" not in summarise(distinct_hypotheses(samples, num_classes=2))
    samples[:, :4] = 1
    samples[0, 3] = 0
    assert "--same-iou" in summarise(distinct_hypotheses(samples, num_classes=2))


@pytest.mark.parametrize("num_samples", [16, 100])  # all subsets are tried, or swaps
def test_representatives_are_a_known_mixture_with_its_weights(num_samples: int) -> None:
    rng = np.random.default_rng(num_samples)
    opinions = [np.zeros((64, 64), dtype=np.int64), disc(8), disc(13), disc(20)]
    drawn = np.concatenate([np.arange(4), rng.choice(4, p=[0.4, 0.3, 0.2, 0.1], size=num_samples - 4)])
    samples = np.stack([with_border_noise(opinions[i], rng) for i in drawn])
    found = representatives(samples, num=4, num_classes=2)
    assert len(found) == 4
    assert [h.share for h in found] == sorted(np.bincount(drawn) / num_samples, reverse=True)
    for hypothesis in found:
        opinion = drawn[hypothesis.representative]
        assert hypothesis.members == tuple(np.flatnonzero(drawn == opinion).tolist())
        inside = [samples[member] for member in hypothesis.members]
        pairs = [(a & b).sum() / (a | b).sum() if (a | b).any() else 1.0 for a in inside for b in inside]
        assert hypothesis.same_iou == pytest.approx(min(pairs))
        np.testing.assert_array_equal(hypothesis.labels, samples[hypothesis.representative])
    exact = representatives(np.stack([opinions[i] for i in drawn]), num=8, num_classes=2)
    assert len(exact) == 4  # no more differ


def test_hypotheses_of_volumes_are_counted_in_voxels() -> None:
    samples = np.zeros((3, 4, 8, 8), dtype=np.int64)
    samples[:2, 1:3, 2:5, 2:5] = 1
    samples[:2, 3, 7, 7] = 1
    first, second = distinct_hypotheses(samples, num_classes=2)
    assert (first.share, first.description) == (2 / 3, "19 voxels in 2 parts")
    assert second.description == "nothing marked"
