"""Clusters samples into instances: greedy Hamming clustering (Algorithm 1) and its post-processing (App. G and H).

Pixels of one object change their label together from sample to sample, so pixels whose labels agree in most samples
belong together. Everything here is numpy, for one image.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from jaxtyping import Float, Float64, Int32, Integer
from scipy import ndimage

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import numbered

EROSION = 5
"""Side of the square that an instance has to contain (App. H)."""
_MAX_SAMPLES_IN_WORD = 64


def cluster(
    samples: Integer[np.ndarray, "s h w"], *, num_classes: int, threshold: int, seed: int, background: int = 0
) -> Int32[np.ndarray, "h w"]:
    """Algorithm 1: pixels within Hamming distance `threshold` (α) of a cluster's prototype join the cluster.

    The prototype of cluster 0 is background in every sample. Further prototypes are random unassigned pixels, whose
    order numbers the clusters. As in the paper, a sample with a different label counts twice (one-hot vectors).

    The algorithm works on the distinct vectors of labels, drawn in proportion to their number of pixels. Sorted
    exponential waiting times, with rates proportional to those numbers, give the whole order at once.
    """
    if samples.ndim != 3 or 0 in samples.shape or not np.issubdtype(samples.dtype, np.integer):
        raise DataError(f"samples: expected integer maps (s h w), got {samples.dtype} of shape {samples.shape}")
    if not 0 <= background < num_classes or threshold < 0:
        raise ConfigError(
            f"background must lie in 0...{num_classes - 1} and threshold be at least 0, got {background}, {threshold}"
        )
    if samples.min() < 0 or samples.max() >= num_classes:
        raise DataError(f"samples: values must lie in 0...{num_classes - 1}, found {samples.min()}...{samples.max()}")
    num_samples, h, w = samples.shape
    labels = samples.reshape(num_samples, h * w).astype(np.min_scalar_type(num_classes - 1), copy=False)
    num_bits = max(1, (num_classes - 1).bit_length())
    example, vector_of_run, lengths = _distinct_vectors(labels, num_bits=num_bits)
    num_pixels = np.bincount(vector_of_run, weights=lengths)
    order = (np.random.default_rng(seed).standard_exponential(len(example)) / num_pixels).argsort()
    background_vector = np.full((num_samples, 1), background, dtype=labels.dtype)
    clusters = np.empty(len(example), dtype=np.int32)
    clusters[order] = _cluster_in_order(
        _bit_planes(labels.take(example[order], axis=1), num_bits=num_bits),
        background=_bit_planes(background_vector, num_bits=num_bits),
        max_differing=threshold // 2,
    )
    return clusters.take(vector_of_run).repeat(lengths).reshape(h, w)


def _distinct_vectors(labels: np.ndarray, *, num_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct columns of `labels` (s, n), by first position; distinct column and length of each run."""
    starts_run = np.ones(labels.shape[1], dtype=np.bool_)
    starts_run[1:] = (labels[:, 1:] != labels[:, :-1]).any(axis=0)
    starts = np.flatnonzero(starts_run)
    keys = _packed(labels.take(starts, axis=1), num_bits=num_bits)
    order = np.lexsort(keys)  # stable: the first of equal columns stays first
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0)
    first = order[is_new]
    by_position = first.argsort()
    number = np.empty_like(by_position)
    number[by_position] = np.arange(len(first))
    column_of_run = np.empty_like(order)
    column_of_run[order] = number[is_new.cumsum() - 1]
    return starts[first[by_position]], column_of_run, np.diff(starts, append=labels.shape[1])


def _packed(labels: np.ndarray, *, num_bits: int) -> np.ndarray:
    """The columns of `labels` (s, n) packed into (m, n) 64-bit words, `num_bits` per label."""
    per_word = 64 // num_bits
    words = np.zeros((-(-len(labels) // per_word), labels.shape[1]), dtype=np.uint64)
    for i, row in enumerate(labels):
        words[i // per_word] |= row.astype(np.uint64) << np.uint64(num_bits * (i % per_word))
    return words


def _bit_planes(labels: np.ndarray, *, num_bits: int) -> np.ndarray:
    """Labels (s, n) as (words, bits, n): bit i of word v in plane j is bit j of the label in sample 64·v + i."""
    groups = [labels[i : i + _MAX_SAMPLES_IN_WORD] for i in range(0, len(labels), _MAX_SAMPLES_IN_WORD)]
    dtype = np.min_scalar_type((1 << len(groups[0])) - 1)
    planes = np.zeros((len(groups), num_bits, labels.shape[1]), dtype=dtype)
    for word, group in zip(planes, groups, strict=True):
        for i, row in enumerate(group):
            for j in range(num_bits):
                word[j] |= ((row >> j) & 1).astype(dtype) << i
    return planes


def _cluster_in_order(planes: np.ndarray, *, background: np.ndarray, max_differing: int) -> np.ndarray:
    """The cluster (n,) of each vector of (words, bits, n). Unassigned vectors become prototypes in their order."""
    clusters = np.zeros(planes.shape[-1], dtype=np.int32)
    unassigned = _num_differing(planes, background) > max_differing
    position, c = 0, 0
    while (step := int(unassigned[position:].argmax())) or unassigned[position : position + 1].any():
        position, c = position + step, c + 1
        near = _num_differing(planes[..., position:], planes[..., position : position + 1]) <= max_differing
        near &= unassigned[position:]
        clusters[position:][near] = c
        unassigned[position:] ^= near
    return clusters


def _num_differing(planes: np.ndarray, prototype: np.ndarray) -> np.ndarray:
    """Number of samples in which each vector (words, bits, n) differs from the prototype (words, bits, 1)."""
    counts = []
    for word, target in zip(planes, prototype, strict=True):
        differing = word[0] ^ target[0]
        for plane, bit in zip(word[1:], target[1:], strict=True):
            differing |= plane ^ bit
        counts.append(np.bitwise_count(differing))
    return counts[0] if len(counts) == 1 else np.asarray(np.sum(counts, axis=0, dtype=np.int32))


def connected_parts(instances: Integer[np.ndarray, "h w"]) -> Int32[np.ndarray, "h w"]:
    """Make each connected part (8 neighbours) of an instance its own instance (not in the paper).

    This separates objects that share a cluster by chance. Not for objects that an image can show in several parts.
    """
    parts = np.zeros(instances.shape, dtype=np.int32)
    num_parts = 0
    for c, box in enumerate(ndimage.find_objects(instances), start=1):
        if box is not None:
            labelled, count = ndimage.label(instances[box] == c, structure=np.ones((3, 3)))
            parts[box] += np.where(labelled > 0, labelled + num_parts, 0)
            num_parts += count
    return parts


def postprocess(
    instances: Integer[np.ndarray, "h w"], *, keep_unmatched: bool, erosion: int = EROSION, box: int | None = None
) -> Int32[np.ndarray, "h w"]:
    """Remove clusters that are too thin (App. H): those that contain no `erosion`×`erosion` square inside the image.

    Clusters are processed in ascending order, without the background 0; one may have grown by then. Pixels of a thin
    cluster get, in raster order, the most frequent other foreground label in the `box`×`box` square around them (by
    default 2 · `erosion` + 1, as in the paper; ties: the smallest). Without one, they keep their label
    (`keep_unmatched`, SNEMI3D) or become background.
    """
    if instances.ndim != 2 or not np.issubdtype(instances.dtype, np.integer) or instances.min(initial=0) < 0:
        raise DataError(f"instances: expected integers of at least 0 (h w), got {instances.dtype} {instances.shape}")
    box = 2 * erosion + 1 if box is None else box
    if erosion < 1 or box < 1 or box % 2 == 0:
        raise ConfigError(f"erosion must be at least 1 and box odd, got {erosion} and {box}")
    # Numbers without gaps in the same order, so that counts of them are short.
    ids, numbers, _ = numbered(np.append(instances, 0))
    height, width = instances.shape
    painted = numbers[:-1].reshape(height, width).astype(np.int32)
    is_thin = np.ones(len(ids), dtype=np.bool_)
    is_thin[_survivors(painted, erosion=erosion)] = is_thin[0] = False
    thin = np.flatnonzero(is_thin)
    members: dict[int, list[int]] = {c: [] for c in thin.tolist()}
    pixels = np.flatnonzero(is_thin[painted])
    for pixel, c in zip(pixels.tolist(), painted.ravel()[pixels].tolist(), strict=True):
        members[c].append(pixel)
    for c in thin.tolist():
        mine = sorted(members[c])
        if len(mine) >= erosion**2 and _contains_square(painted, c, np.array(mine), side=erosion):
            continue
        for pixel in mine:
            y, x = divmod(pixel, width)
            label = _majority_around(painted, y, x, radius=box // 2, ignored=c)
            if label is None:
                label = c if keep_unmatched else 0
            painted[y, x] = label
            if label in members and label != c:
                members[label].append(pixel)
    return ids.astype(np.int32).take(painted)


def _survivors(instances: np.ndarray, *, erosion: int) -> np.ndarray:
    """The clusters that contain a square of this side."""
    h, w = instances.shape
    if min(h, w) < erosion:
        return np.empty(0, dtype=instances.dtype)
    low, high = (each(instances, size=erosion) for each in (ndimage.minimum_filter, ndimage.maximum_filter))
    before, after = erosion // 2, (erosion - 1) // 2
    inside = np.s_[before : h - after, before : w - after]
    return numbered(low[inside][low[inside] == high[inside]])[0]


def _contains_square(instances: np.ndarray, c: int, pixels: np.ndarray, *, side: int) -> bool:
    """Whether cluster c, with these flat pixel indices, contains a square of this side."""
    y, x = np.divmod(pixels, instances.shape[1])
    around = instances[y.min() : y.max() + 1, x.min() : x.max() + 1] == c
    for _ in range(2):  # first along one axis, then along the other
        length = len(around) - side + 1
        if length < 1:
            return False
        around = reduce(np.logical_and, [around[i : i + length] for i in range(side)]).T
    return bool(around.any())


def _majority_around(instances: np.ndarray, y: int, x: int, *, radius: int, ignored: int) -> int | None:
    """The most frequent label around a pixel, without background and `ignored`; None if there is none."""
    around = instances[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
    counts = np.bincount(around.ravel(), minlength=ignored + 1)
    counts[0] = counts[ignored] = 0
    label = int(counts.argmax())
    return label if counts[label] else None


def clustering_threshold(alpha: int | None, *, num_samples: int) -> int:
    """α of the clustering; the default is the number of samples (App. G)."""
    if alpha is not None and not 0 <= alpha < 2 * num_samples:
        raise ConfigError(
            f"alpha must be at least 0 and below {2 * num_samples} (twice the samples makes one cluster), got {alpha}"
        )
    return num_samples if alpha is None else alpha


def merge_to_background(
    samples: Integer[np.ndarray, "s h w"], *, stochastic_classes: Sequence[int]
) -> Integer[np.ndarray, "s h w"]:
    """Map the stochastic classes to 1, 2, ... in this order, all others to 0 (Cityscapes, before clustering)."""
    if not stochastic_classes or min(stochastic_classes) < 0 or samples.min() < 0:
        raise ConfigError(
            f"expected samples and at least one stochastic class, none negative, got {list(stochastic_classes)}"
        )
    first, number = stochastic_classes[0], len(stochastic_classes)
    consecutive = list(stochastic_classes) == list(range(first, first + number))
    if consecutive and 0 < first <= np.iinfo(samples.dtype).max:  # several times as fast
        merged = np.maximum(samples, samples.dtype.type(first - 1)) - samples.dtype.type(first - 1)
        merged *= merged <= number
        return np.asarray(merged)
    table = np.zeros(max(int(samples.max()), *stochastic_classes) + 1, dtype=np.int32)
    table[list(stochastic_classes)] = np.arange(1, len(stochastic_classes) + 1)
    return table.take(samples)


def instance_scores(
    instances: Integer[np.ndarray, "h w"], *, stochastic_probs: Float[np.ndarray, "s h w"]
) -> Float64[np.ndarray, " ids"]:
    """Confidence of each instance i (App. B), as entry i: the mean of `stochastic_probs` over its pixels and samples.

    `stochastic_probs` is the softmax summed over the stochastic classes. Background and ids without pixels score 0.
    """
    if stochastic_probs.shape[1:] != instances.shape:
        raise DataError(f"stochastic_probs {stochastic_probs.shape} do not go with instances {instances.shape}")
    mean = stochastic_probs.mean(axis=0, dtype=np.float64)
    areas = np.bincount(instances.ravel())
    scores = np.bincount(instances.ravel(), weights=mean.ravel()) / np.maximum(areas, 1)
    scores[0] = 0
    return scores
