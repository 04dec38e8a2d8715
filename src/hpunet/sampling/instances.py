"""Clusters samples into instances: greedy Hamming clustering (Algorithm 1) and its post-processing (App. G and H).

Pixels of one object change their label together from sample to sample, so pixels whose labels agree in most samples
belong together. Everything here is numpy, for one image (h, w) or volume (d, h, w): `*s` stands for either.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Float64, Int32, Integer
from scipy import ndimage

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.arrays import numbered

EROSION = 5
"""Side of the square that an instance has to contain (App. H); in volumes, diameter of the ball."""
_MAX_SAMPLES_IN_WORD = 64
_TURNS = 64  # of clusters, after which vectors that have one are left behind if they are most


def cluster(
    samples: Integer[np.ndarray, " n *s"], *, num_classes: int, threshold: int, seed: int, background: int = 0
) -> Int32[np.ndarray, "*s"]:
    """Algorithm 1: pixels within Hamming distance `threshold` (α) of a cluster's prototype join the cluster.

    The prototype of cluster 0 is background in every sample. Further prototypes are random unassigned pixels, whose
    order numbers the clusters. As in the paper, a sample with a different label counts twice (one-hot vectors).

    The algorithm works on the distinct vectors of labels, drawn in proportion to their number of pixels. Sorted
    exponential waiting times, with rates proportional to those numbers, give the whole order at once.
    """
    if samples.ndim < 3 or 0 in samples.shape or not np.issubdtype(samples.dtype, np.integer):
        wanted = "integer maps (n h w) or (n d h w)"
        raise DataError(f"samples: expected {wanted}, got {samples.dtype} of shape {samples.shape}")
    if not 0 <= background < num_classes or threshold < 0:
        raise ConfigError(
            f"background must lie in 0...{num_classes - 1} and threshold be at least 0, got {background}, {threshold}"
        )
    if samples.min() < 0 or samples.max() >= num_classes:
        raise DataError(f"samples: values must lie in 0...{num_classes - 1}, found {samples.min()}...{samples.max()}")
    num_samples, *size = samples.shape
    labels = samples.reshape(num_samples, -1).astype(np.min_scalar_type(num_classes - 1), copy=False)
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
    return clusters.take(vector_of_run).repeat(lengths).reshape(size)


def _distinct_vectors(labels: np.ndarray, *, num_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct columns of `labels` (s, n), by first position; distinct column and length of each run."""
    starts_run = np.zeros(labels.shape[1], dtype=np.bool_)
    starts_run[0] = True
    for row in labels:
        starts_run[1:] |= row[1:] != row[:-1]
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
    places, position, c = np.arange(len(unassigned)), 0, 0
    while (step := int(unassigned[position:].argmax())) or unassigned[position : position + 1].any():
        position, c = position + step, c + 1
        near = _num_differing(planes[..., position:], planes[..., position : position + 1]) <= max_differing
        near &= unassigned[position:]
        clusters[places[position:][near]] = c
        unassigned[position:] ^= near
        if c % _TURNS == 0 and 0 < 2 * np.count_nonzero(unassigned) < len(unassigned) - position:
            places, planes, position = places[unassigned], planes[..., unassigned], 0
            unassigned = unassigned[unassigned]
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


def connected_parts(instances: Integer[np.ndarray, "*s"]) -> Int32[np.ndarray, "*s"]:
    """Make each connected part (8 neighbours, 26 in volumes) of an instance its own instance (not in the paper).

    This separates objects that share a cluster by chance. Not for objects that an image can show in several parts.
    """
    parts = np.zeros(instances.shape, dtype=np.int32)
    num_parts = 0
    for c, box in enumerate(ndimage.find_objects(instances), start=1):
        if box is not None:
            labelled, count = ndimage.label(instances[box] == c, structure=np.ones((3,) * parts.ndim))
            parts[box] += np.where(labelled > 0, labelled + num_parts, 0)
            num_parts += count
    return parts


def postprocess(
    instances: Integer[np.ndarray, "*s"],
    *,
    keep_unmatched: bool,
    erosion: int = EROSION,
    box: int | None = None,
    spacing: Sequence[float] | None = None,
) -> Int32[np.ndarray, "*s"]:
    """Remove clusters that are too thin (App. H): those that contain no `erosion`×`erosion` square inside the image.

    Clusters are processed in ascending order, without the background 0; one may have grown by then. Pixels of a thin
    cluster get, in raster order, the most frequent other foreground label in the `box`×`box` square around them (by
    default 2 · `erosion` + 1, as in the paper; ties: the smallest). Without one, they keep their label
    (`keep_unmatched`, SNEMI3D) or become background.

    In a volume (not in the paper) the squares are a ball of radius `erosion` // 2 and a cube of radius `box` // 2
    pixels, each as many slices up and down as `spacing` (slices, rows, columns) gives; see `_radii`.
    """
    if instances.ndim < 2 or not np.issubdtype(instances.dtype, np.integer) or instances.min(initial=0) < 0:
        wanted = "integers of at least 0 (h w) or (d h w)"
        raise DataError(f"instances: expected {wanted}, got {instances.dtype} {instances.shape}")
    box = 2 * erosion + 1 if box is None else box
    if erosion < 1 or box < 1 or box % 2 == 0:
        raise ConfigError(f"erosion must be at least 1 and box odd, got {erosion} and {box}")
    # Numbers without gaps in the same order, so that counts of them are short.
    ids, numbers, _ = numbered(np.append(instances, 0))
    painted = numbers[:-1].reshape(instances.shape).astype(np.int32)
    flat = painted.reshape(-1)
    element = _element(erosion, size=painted.shape, spacing=spacing)
    reach = _radii(box // 2, size=painted.shape, spacing=spacing)
    is_thin = np.ones(len(ids), dtype=np.bool_)
    is_thin[_survivors(painted, sides=element.shape)] = is_thin[0] = False
    places = np.flatnonzero(is_thin[painted])
    owners = flat[places]
    places = places[owners.argsort(kind="stable")]
    counts = np.bincount(owners, minlength=len(ids))
    ends, joined = counts.cumsum(), dict[int, list[int]]()  # what was painted in the colour of a cluster
    for c in np.flatnonzero(counts).tolist():
        mine = np.sort(np.append(places[ends[c] - counts[c] : ends[c]], joined.pop(c, [])).astype(np.int64))
        if len(mine) >= np.count_nonzero(element) and _contains(painted, mine, element):
            continue
        for place, around in zip(mine.tolist(), _boxes(painted, mine, reach=reach), strict=True):
            label = _majority(around, ignored=c)
            if label is None:
                label = c if keep_unmatched else 0
            flat[place] = label
            if is_thin[label] and label != c:
                joined.setdefault(label, []).append(place)
    return ids.astype(np.int32).take(painted)


def _radii(radius: int, *, size: Sequence[int], spacing: Sequence[float] | None) -> tuple[int, ...]:
    """A radius in pixels along each axis: in a volume, along its slices, as many as are nearest in mm, at most all.

    Without `spacing`, slices are as far apart as pixels.
    """
    if len(size) == 2 or spacing is None:
        return (radius,) * len(size)
    slices = radius * math.sqrt(spacing[1] * spacing[2]) / spacing[0]
    return min(int(slices + 0.5), size[0]), radius, radius


def _element(erosion: int, *, size: Sequence[int], spacing: Sequence[float] | None) -> Bool[np.ndarray, "*sides"]:
    """What an instance has to contain: a square of this side in an image, a ball of this diameter in a volume."""
    if len(size) == 2:
        return np.ones((erosion, erosion), dtype=np.bool_)
    radii = _radii(erosion // 2, size=size, spacing=spacing)
    distances = np.meshgrid(*(np.arange(-r, r + 1) / max(r, 1) for r in radii), indexing="ij", sparse=True)
    return np.asarray(sum(along**2 for along in distances) <= 1 + 1e-9)


def _survivors(instances: np.ndarray, *, sides: Sequence[int]) -> np.ndarray:
    """The clusters that contain a box of these sides."""
    if any(there < side for there, side in zip(instances.shape, sides, strict=True)):
        return np.empty(0, dtype=instances.dtype)
    low, high = (each(instances, size=tuple(sides)) for each in (ndimage.minimum_filter, ndimage.maximum_filter))
    sizes = zip(instances.shape, sides, strict=True)
    inside = tuple(slice(side // 2, there - (side - 1) // 2) for there, side in sizes)
    return numbered(low[inside][low[inside] == high[inside]])[0]


def _contains(instances: np.ndarray, places: np.ndarray, element: np.ndarray) -> bool:
    """Whether the cluster at these flat places contains the element."""
    flat, c, members = instances.reshape(-1), instances.reshape(-1)[places[0]], np.argwhere(element)
    fits = np.ones(len(places), dtype=np.bool_)  # each place as the element's first member
    for along, first, there, side in zip(
        np.unravel_index(places, instances.shape), members[0], instances.shape, element.shape, strict=True
    ):
        fits &= (along >= first) & (along - first + side <= there)
    fitting = places[fits]
    steps = members @ np.array(instances.strides) // instances.itemsize
    for step in (steps - steps[0])[:0:-1].tolist():  # the last one first, which fits least
        fitting = fitting[flat[fitting + step] == c]
    return bool(fitting.size)


def _boxes(instances: np.ndarray, places: np.ndarray, *, reach: Sequence[int]) -> Iterator[np.ndarray]:
    """The part of the map around each of these flat places, as it is then."""
    for place in zip(*(along.tolist() for along in np.unravel_index(places, instances.shape)), strict=True):
        yield instances[tuple(slice(max(0, at - r), at + r + 1) for at, r in zip(place, reach, strict=True))]


def _majority(around: np.ndarray, *, ignored: int) -> int | None:
    """The most frequent label, without background and `ignored`; None if there is none."""
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
    samples: Integer[np.ndarray, " n *s"], *, stochastic_classes: Sequence[int]
) -> Integer[np.ndarray, " n *s"]:
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
    instances: Integer[np.ndarray, "*s"], *, stochastic_probs: Float[np.ndarray, " n *s"]
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
