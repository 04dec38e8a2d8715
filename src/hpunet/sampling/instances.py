"""Instances from samples: greedy Hamming clustering (Algorithm 1) and its post-processing (App. G and H).

Pixels of one object change their label together from sample to sample, so that pixels whose labels agree in most
samples belong together. Everything here is numpy, on one image.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int32, Integer
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage

from hpunet.errors import ConfigError, DataError

_MAX_SAMPLES_IN_WORD = 64


def cluster(
    samples: Integer[np.ndarray, "s h w"], *, num_classes: int, threshold: int, seed: int, background: int = 0
) -> Int32[np.ndarray, "h w"]:
    """Algorithm 1: pixels within Hamming distance `threshold` (α) of a cluster's prototype join the cluster.

    The prototype of cluster 0 is background in every sample; the next ones are those of random pixels that are still
    unassigned, until none is left. Clusters are numbered in the order they are made. As in the paper the distance is
    that of one-hot vectors, where a sample with another label counts twice.

    Pixels with the same labels always fall together, so the work is done once for each distinct vector of labels,
    and it is vectors that are drawn, each with a probability proportional to the number of its pixels. All turns are
    drawn beforehand: exponential waiting times, at rates proportional to those numbers, end in just that order.
    """
    if samples.ndim != 3 or 0 in samples.shape or not np.issubdtype(samples.dtype, np.integer):
        raise DataError(f"samples: expected integer maps (s h w), got {samples.dtype} of shape {samples.shape}")
    if not 0 <= background < num_classes or threshold < 0:
        raise ConfigError(
            f"background must lie in 0...{num_classes - 1} and threshold from 0 on, got {background} and {threshold}"
        )
    if samples.min() < 0 or samples.max() >= num_classes:
        raise DataError(f"samples: values must lie in 0...{num_classes - 1}, found {samples.min()}...{samples.max()}")
    num_samples, h, w = samples.shape
    labels = samples.reshape(num_samples, h * w).astype(np.min_scalar_type(num_classes - 1), copy=False)
    num_bits = max(1, (num_classes - 1).bit_length())
    example, vector_of_run, lengths = _distinct_vectors(labels, num_bits=num_bits)
    num_pixels = np.bincount(vector_of_run, weights=lengths)
    orientation_ids = (np.random.default_rng(seed).standard_exponential(len(example)) / num_pixels).argsort()
    background_vector = np.full((num_samples, 1), background, dtype=labels.dtype)
    clusters = np.empty(len(example), dtype=np.int32)
    clusters[orientation_ids] = _cluster_in_order(
        _bit_planes(labels.take(example[orientation_ids], axis=1), num_bits=num_bits),
        background=_bit_planes(background_vector, num_bits=num_bits),
        max_differing=threshold // 2,
    )
    return clusters.take(vector_of_run).repeat(lengths).reshape(h, w)


def _distinct_vectors(labels: np.ndarray, *, num_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each distinct column of `labels` (s, n) stands first; column and length of each run of equal ones.

    Distinct columns are numbered by where they stand first. Most pixels are like their left neighbour, so there are
    far fewer runs than pixels.
    """
    starts_run = np.ones(labels.shape[1], dtype=np.bool_)
    starts_run[1:] = (labels[:, 1:] != labels[:, :-1]).any(axis=0)
    starts = np.flatnonzero(starts_run)
    keys = _packed(labels.take(starts, axis=1), num_bits=num_bits)
    order = np.lexsort(keys)  # stable: of equal columns the first stays first
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0)
    first = order[is_new]
    by_place = first.argsort()
    number = np.empty_like(by_place)
    number[by_place] = np.arange(len(first))
    of_run = np.empty_like(order)
    of_run[order] = number[is_new.cumsum() - 1]
    return starts[first[by_place]], of_run, np.diff(starts, append=labels.shape[1])


def _packed(labels: np.ndarray, *, num_bits: int) -> np.ndarray:
    """The columns of `labels` (s, n) as (m, n) 64 bit numbers, `num_bits` a label."""
    in_word = 64 // num_bits
    words = np.zeros((-(-len(labels) // in_word), labels.shape[1]), dtype=np.uint64)
    for i, row in enumerate(labels):
        words[i // in_word] |= row.astype(np.uint64) << np.uint64(num_bits * (i % in_word))
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
    """The cluster (n,) of each vector of (words, bits, n), where vectors become prototypes in the order they have."""
    clusters = np.zeros(planes.shape[-1], dtype=np.int32)
    unassigned = _num_differing(planes, background) > max_differing
    turn, c = 0, 0
    while (step := int(unassigned[turn:].argmax())) or unassigned[turn : turn + 1].any():
        turn, c = turn + step, c + 1
        near = _num_differing(planes[..., turn:], planes[..., turn : turn + 1]) <= max_differing
        near &= unassigned[turn:]
        clusters[turn:][near] = c
        unassigned[turn:] ^= near
    return clusters


def _num_differing(planes: np.ndarray, prototype: np.ndarray) -> np.ndarray:
    """In how many samples the labels of vectors (words, bits, n) differ from the prototype's (words, bits, 1)."""
    counts = []
    for word, target in zip(planes, prototype, strict=True):
        differing = word[0] ^ target[0]
        for plane, bit in zip(word[1:], target[1:], strict=True):
            differing |= plane ^ bit
        counts.append(np.bitwise_count(differing))
    return counts[0] if len(counts) == 1 else np.asarray(np.sum(counts, axis=0, dtype=np.int32))


def connected_parts(instances: Integer[np.ndarray, "h w"]) -> Int32[np.ndarray, "h w"]:
    """Every connected part of an instance as one of its own; diagonal neighbours are connected.

    Not in the paper. Instances that got the same ids in most samples by chance are one cluster; if they do not touch,
    they come apart here. Not for objects that a slice may cut into several parts.
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
    instances: Integer[np.ndarray, "h w"], *, keep_unmatched: bool, erosion: int = 5, box: int = 11
) -> Int32[np.ndarray, "h w"]:
    """Paint over the clusters that are too thin (App. H), those that hold no `erosion`×`erosion` square.

    Clusters are looked at by ascending number (0, the background, never), each as the map then is: it may have grown
    since. One that does not survive the erosion, where beyond the image's edge is outside, is painted over pixel by
    pixel in raster order, in place: with the label that most pixels of the `box`×`box` square around have, its own
    and background not counted, the smallest number among equals. With no such label the pixel stays as it is
    (`keep_unmatched`, as in the paper on SNEMI3D) or becomes background (on Cityscapes).
    """
    if instances.ndim != 2 or not np.issubdtype(instances.dtype, np.integer) or instances.min(initial=0) < 0:
        raise DataError(f"instances: expected numbers from 0 on (h w), got {instances.dtype} {instances.shape}")
    if erosion < 1 or box < 1 or box % 2 == 0:
        raise ConfigError(f"erosion must be at least 1 and box odd, got {erosion} and {box}")
    painted = instances.astype(np.int32)
    width = painted.shape[1]
    thin = np.setdiff1d(painted, np.append(_survivors(painted, erosion=erosion), 0))
    members: dict[int, list[int]] = {int(c): [] for c in thin}
    pixels = np.flatnonzero(np.isin(painted, thin))
    for pixel, c in zip(pixels.tolist(), painted.ravel()[pixels].tolist(), strict=True):
        members[c].append(pixel)
    for c in thin.tolist():
        mine = sorted(members[c])
        if len(mine) >= erosion**2 and _holds_square(painted, c, np.array(mine), side=erosion):
            continue
        for pixel in mine:
            y, x = divmod(pixel, width)
            label = _majority_around(painted, y, x, reach=box // 2, not_counted=c)
            if label is None:
                label = c if keep_unmatched else 0
            painted[y, x] = label
            if label in members and label != c:
                members[label].append(pixel)
    return painted


def _survivors(instances: np.ndarray, *, erosion: int) -> np.ndarray:
    """Numbers of the clusters that hold a square of this side, within the image."""
    h, w = instances.shape
    if min(h, w) < erosion:
        return np.empty(0, dtype=instances.dtype)
    low, high = (each(instances, size=erosion) for each in (ndimage.minimum_filter, ndimage.maximum_filter))
    before, after = erosion // 2, (erosion - 1) // 2
    inside = np.s_[before : h - after, before : w - after]
    return np.unique(low[inside][low[inside] == high[inside]])


def _holds_square(instances: np.ndarray, c: int, pixels: np.ndarray, *, side: int) -> bool:
    """Whether the cluster with these (flat) pixels holds a square."""
    y, x = np.divmod(pixels, instances.shape[1])
    around = instances[y.min() : y.max() + 1, x.min() : x.max() + 1] == c
    return min(around.shape) >= side and bool(sliding_window_view(around, (side, side)).all(axis=(2, 3)).any())


def _majority_around(instances: np.ndarray, y: int, x: int, *, reach: int, not_counted: int) -> int | None:
    """The most frequent number in the square around a pixel, or None where nothing counts."""
    around = instances[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
    counted = around[(around != not_counted) & (around != 0)]
    if counted.size == 0:
        return None
    numbers, how_often = np.unique(counted, return_counts=True)
    return int(numbers[how_often.argmax()])


def clustering_threshold(alpha: int | None, *, num_samples: int) -> int:
    """α of the clustering, by default the number of samples (App. G); one that would join everything is refused."""
    if alpha is not None and not 0 <= alpha < 2 * num_samples:
        raise ConfigError(
            f"alpha must be at least 0 and below {2 * num_samples}, twice the samples, where all is one cluster; "
            f"got {alpha}"
        )
    return num_samples if alpha is None else alpha


def merge_to_background(
    samples: Integer[np.ndarray, "s h w"], *, stochastic_classes: Sequence[int]
) -> Int32[np.ndarray, "s h w"]:
    """Samples where the stochastic classes are 1, 2, ... in the order given, and every other class is background, 0.

    Done before clustering on Cityscapes, so that road against pavement makes no instances; `num_classes` is then
    1 + the number of stochastic classes.
    """
    if not stochastic_classes or min(stochastic_classes) < 0 or samples.min() < 0:
        raise ConfigError(
            f"expected samples and stochastic classes from 0 on, at least one class, got {list(stochastic_classes)}"
        )
    table = np.zeros(max(int(samples.max()), *stochastic_classes) + 1, dtype=np.int32)
    table[list(stochastic_classes)] = np.arange(1, len(stochastic_classes) + 1)
    return table.take(samples)


def instance_scores(
    instances: Integer[np.ndarray, "h w"], *, stochastic_probs: Float[np.ndarray, "s h w"]
) -> Float64[np.ndarray, " ids"]:
    """Confidence in each instance (App. B): the mean of `stochastic_probs` over its pixels and all samples.

    `stochastic_probs` is the softmax summed over the stochastic classes, for each sample. The score of instance i is
    entry i; that of the background, and of numbers without a pixel, is 0.
    """
    if stochastic_probs.shape[1:] != instances.shape:
        raise DataError(f"stochastic_probs {stochastic_probs.shape} do not go with instances {instances.shape}")
    mean = stochastic_probs.mean(axis=0, dtype=np.float64)
    areas = np.bincount(instances.ravel())
    scores = np.bincount(instances.ravel(), weights=mean.ravel()) / np.maximum(areas, 1)
    scores[0] = 0
    return scores
