"""What the metrics and the clustering cost, against the plain numpy that one would write first.

    python benchmarks/metrics.py [--repeats 5]

Every row is measured in this run: the contestants take turns and the table gives medians and their ratio. Before the
time is taken, both are checked to give the same result. Metrics are of 16 samples and 4 graders at 128×128.
"""

import argparse
import os
import platform
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from hpunet.data.batch import Batch
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.workers import workers
from hpunet.evaluation.counts import Counts, count_maps, scores_from_counts
from hpunet.evaluation.instance_scores import Clustering, InstanceMaps, score_instances
from hpunet.evaluation.scores import image_scores, instances_of, marginal_scores, metric_arguments
from hpunet.metrics import iou_rec, match_instances, pair_ious, rand_error
from hpunet.sampling.instances import cluster, postprocess
from timing import medians

BATCH = 32


def lesion_masks(num_images: int, *, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples (b, 16, h, w) and labels (b, 4, h, w) from the known distributions of generated lesions."""
    source = open_synthetic("lesions", split="val", num_images=num_images, size=size)
    drawn = [source.distribution(i).sample(np.random.default_rng(i), 20) for i in range(num_images)]
    maps = np.stack(drawn).astype(np.uint8)
    return maps[:, :16].copy(), maps[:, 16:].copy()


def distribution_metrics(samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """GED² and matched IoU (2, b), ours."""
    pairs = pair_ious(samples=samples, labels=labels, num_classes=2)
    return np.stack([pairs.ged2(), pairs.hungarian_iou()])


def one_by_one(samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same, one call an image."""
    rows = zip(samples[:, None], labels[:, None], strict=True)
    return np.concatenate([distribution_metrics(s, y) for s, y in rows], axis=1)


def distribution_metrics_by_loop(samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same, pair by pair."""
    rows = []
    for ours, theirs in zip(samples.astype(np.bool_), labels.astype(np.bool_), strict=True):
        between = np.array([[loop_iou(a, b) for b in theirs] for a in ours])
        among_samples = np.array([[loop_iou(a, b) for b in ours] for a in ours])
        among_labels = np.array([[loop_iou(a, b) for b in theirs] for a in theirs])
        ged2 = 2 * (1 - between).mean() - (1 - among_samples).mean() - (1 - among_labels).mean()
        repeated = between.repeat(len(ours) // len(theirs), axis=1)
        rows.append((ged2, repeated[linear_sum_assignment(repeated, maximize=True)].mean()))
    return np.array(rows).T


def loop_iou(a: np.ndarray, b: np.ndarray) -> float:
    """IoU of two masks; empty against empty is 1."""
    union = (a | b).sum()
    return float((a & b).sum() / union) if union else 1.0


def neurite_samples(*, size: tuple[int, int], num_samples: int) -> np.ndarray:
    """What a good model would draw: each cell in one of 15 ids, 3 % of the boundary pixels wrong in each sample."""
    cells = open_synthetic("neurites", split="val", num_images=1, size=size)[0].labels[0]
    rng = np.random.default_rng(0)
    boundary = ndimage.maximum_filter(cells, 3) != ndimage.minimum_filter(cells, 3)
    samples = np.empty((num_samples, *size), dtype=np.uint8)
    for sample in samples:
        sample[:] = np.append(0, rng.integers(1, 16, cells.max()))[cells]
        flipped = boundary & (rng.random(size) < 0.03)
        sample[flipped] = rng.integers(0, 16, flipped.sum())
    return samples


def cluster_by_pixels(samples: np.ndarray, *, threshold: int, one_row_a_pixel: bool) -> np.ndarray:
    """Algorithm 1 with one vectorised pass over all pixels for each prototype."""
    num_samples, h, w = samples.shape
    labels = samples.reshape(num_samples, h * w)
    vectors = np.ascontiguousarray(labels.T) if one_row_a_pixel else labels
    axis = 1 if one_row_a_pixel else 0
    order = np.random.default_rng(0).permutation(h * w)
    instances = np.full(h * w, -1, dtype=np.int32)
    prototype, c, turn = np.zeros_like(labels[:, 0]), 0, 0
    while turn < len(order):
        differing = (vectors != (prototype if one_row_a_pixel else prototype[:, None])).sum(axis=axis)
        instances[(2 * differing <= threshold) & (instances < 0)] = c
        while turn < len(order) and instances[order[turn]] >= 0:
            turn += 1
        if turn < len(order):
            prototype, c = labels[:, order[turn]].copy(), c + 1
    return instances.reshape(h, w)


def clusterings(samples: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Ours and two layouts of the plain one; α is the number of samples, as in the paper."""
    alpha = len(samples)
    return {
        "ours": lambda: cluster(samples, num_classes=16, threshold=alpha, seed=0),
        "row a pixel": lambda: cluster_by_pixels(samples, threshold=alpha, one_row_a_pixel=True),
        "row a sample": lambda: cluster_by_pixels(samples, threshold=alpha, one_row_a_pixel=False),
    }


def street_maps(num_images: int, *, size: tuple[int, int], num_samples: int) -> list[InstanceMaps]:
    """What a good model would draw of street scenes: each car in one of 5 ids, a part of the borders wrong."""
    source, maps = open_synthetic("streets", split="val", num_images=num_images, size=size), []
    info = source.info
    first, num_ids = info.num_fixed_classes, info.num_random_ids
    clustering = Clustering(info, alpha=num_samples, seed=0, connected=False)
    for number in range(num_images):
        rng, image = np.random.default_rng(number), source[number]
        labels, truth = image.labels[0], np.maximum(image.labels[0] - first + 1, 0).astype(np.int32)
        border = ndimage.maximum_filter(truth, 5) != ndimage.minimum_filter(truth, 5)
        samples = np.empty((num_samples, *size), dtype=np.uint8)
        for sample in samples:
            sample[:] = np.where(
                truth > 0, np.append(0, rng.integers(first, first + num_ids, truth.max()))[truth], labels
            )
            wrong = border & (rng.random(size) < 0.3)
            sample[wrong] = rng.integers(0, first + num_ids, wrong.sum())
        maps.append(InstanceMaps(clustering, samples, truth, image.valid, rng.random(size, dtype=np.float32)))
    return maps


def matches_by_sorting(maps: InstanceMaps, predicted: np.ndarray) -> np.ndarray:
    """The IoUs of `match_instances`, with labels numbered by `np.unique`."""
    true_ids, true_of_pixel, true_areas = np.unique(maps.truth * maps.valid, return_inverse=True, return_counts=True)
    ids, of_pixel, areas = np.unique(predicted, return_inverse=True, return_counts=True)
    pairs = of_pixel.ravel() * len(true_ids) + true_of_pixel.ravel()
    shared = np.bincount(pairs, minlength=len(ids) * len(true_ids)).reshape(len(ids), len(true_ids))
    return (shared / (areas[:, None] + true_areas - shared))[ids > 0][:, true_ids > 0]


def compare_instances(table: Table, *, repeats: int) -> None:
    """Matching by counting and by sorting; all scores of instances in one process and in all."""
    maps = street_maps(16, size=(256, 512), num_samples=32)
    (one, *_), predicted = maps, instances_of(maps[0].samples, **maps[0].clustering._asdict())
    scores = np.ones(int(predicted.max()) + 1)
    contestants = {
        "ours": lambda: (
            match_instances(prediction=predicted, scores=scores, truth=one.truth, valid=one.valid, min_region=0).iou
        ),
        "by sorting": lambda: matches_by_sorting(one, predicted),
    }
    assert np.array_equal(*(run() for run in contestants.values()))
    compare(table, "matching instances, 256×512", contestants, repeats=repeats)
    cores = len(os.sched_getaffinity(0))
    with workers(cores) as run:
        contestants = {
            f"{cores} processes": lambda: [*run(score_instances, maps)],
            "one process": lambda: [*map(score_instances, maps)],
        }
        one_by_one, together = (contestants[name]() for name in reversed(contestants))
        assert [row[0] for row in one_by_one] == [row[0] for row in together]
        compare(table, "clustering, post-processing, AP of 16 scenes, 256×512×32", contestants, repeats=repeats)


def compare_counts(table: Table, samples: np.ndarray, labels: np.ndarray, *, repeats: int) -> None:
    """All scores of a batch from counts that the device makes, and from maps that are copied to the CPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    b, r, h, w = labels.shape
    graders = np.ones((b, r), dtype=np.bool_)
    batch = Batch(
        torch.zeros(b, 1, h, w), *map(torch.from_numpy, (labels, np.ones((b, h, w), dtype=np.bool_), graders))
    )
    info, there = open_synthetic("lesions", split="val", num_images=1).info, batch.to(device)
    drawn = torch.from_numpy(samples).to(device)

    def count() -> Counts:
        counts = count_maps(samples=drawn, reconstructions=there.labels, **metric_arguments(there, info))
        return counts._make(each.cpu().numpy() for each in counts)

    def scores(counts: Counts) -> np.ndarray:
        return np.stack([*scores_from_counts(counts, graders=graders, skip_empty=False).values()])

    def map_by_map() -> np.ndarray:
        maps = drawn.cpu()
        pairs = image_scores(samples=maps, reconstructions=there.labels.cpu(), batch=batch, info=info)
        return np.stack([*pairs.values(), *marginal_scores(samples=maps, batch=batch, info=info).values()])

    counts = count()
    contestants = {
        "ours": lambda: scores(counts),
        f"counting on the {device.type} included": lambda: scores(count()),
        "map by map": map_by_map,
    }
    assert np.allclose(scores(counts), map_by_map(), atol=1e-12, equal_nan=True)
    compare(table, f"all scores of {b} images from counts", contestants, repeats=repeats)


def compare_volumes(table: Table, *, repeats: int) -> None:
    """GED² and matched IoU, and the instances of one volume, against its 32 slices as images."""
    rng, size = np.random.default_rng(0), (32, 256, 256)
    z, y, x = np.meshgrid(*(np.arange(side) - side / 2 for side in size), indexing="ij", sparse=True)
    radii = rng.uniform(20, 40, 20)[:, None, None, None]
    maps = ((5 * z) ** 2 + y**2 + x**2 <= radii**2).astype(np.uint8)
    samples, labels = maps[None, :16].copy(), maps[None, 16:].copy()
    slices = [np.ascontiguousarray(each[0].swapaxes(0, 1)) for each in (samples, labels)]
    assert distribution_metrics(samples, labels).shape == (2, 1)
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: distribution_metrics(samples, labels),
        "its slices as images": lambda: one_by_one(*slices),
    }
    compare(table, "GED² + matched IoU of one volume, 32×256×256", contestants, repeats=repeats)
    cells = neurite_samples(size=size[1:], num_samples=16)
    volume = np.stack([np.roll(cells, 2 * z, axis=2) for z in range(size[0])], axis=1)  # oblique neurites

    def instances(drawn: np.ndarray) -> np.ndarray:
        return postprocess(cluster(drawn, num_classes=16, threshold=16, seed=0), keep_unmatched=True)

    contestants = {
        "ours": lambda: instances(volume),
        "its slices as images": lambda: np.stack([instances(volume[:, z]) for z in range(size[0])]),
    }
    for run in contestants.values():
        assert run().shape == size
    compare(table, "clustering and post-processing, 32×256×256×16", contestants, repeats=repeats)


def compare(table: Table, question: str, contestants: dict[str, Callable[[], object]], *, repeats: int) -> None:
    """One row for each rival of the first contestant; all have been run before."""
    times = medians(contestants, repeats=repeats, warmup=0)
    ours, *rivals = times
    for rival in rivals:
        table.add_row(
            f"{question}, {rival}",
            f"{times[ours] * 1e3:.1f} ms",
            f"{times[rival] * 1e3:.1f} ms",
            f"{times[rival] / times[ours]:.1f}×",
        )


def evaluation_seconds(*, num_images: int) -> float:
    """GED², matched IoU and IoU_rec of stored samples, in batches as an evaluation reads them."""
    samples, labels = lesion_masks(BATCH, size=128)
    reconstructions = np.roll(labels, 1, axis=3)
    start = perf_counter()
    for first in range(0, num_images, BATCH):
        n = min(BATCH, num_images - first)
        distribution_metrics(samples[:n].copy(), labels[:n].copy())
        iou_rec(labels=labels[:n], reconstructions=reconstructions[:n], num_classes=2)
    return perf_counter() - start


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    versions = f"numpy {np.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    table = Table(title=f"CPU, {torch.get_num_threads()} threads, {versions}")
    for column in ("question", "hpunet", "plain numpy", "ratio"):
        table.add_column(column, justify="left" if column == "question" else "right")

    samples, labels = lesion_masks(BATCH, size=128)
    assert np.allclose(one_by_one(samples, labels), distribution_metrics_by_loop(samples, labels), atol=1e-12)
    for how, ours in (("one a call", one_by_one), ("in a batch", distribution_metrics)):
        contestants = {
            "ours": lambda ours=ours: ours(samples, labels),
            "pair by pair": lambda: distribution_metrics_by_loop(samples, labels),
        }
        compare(table, f"GED² + matched IoU of {BATCH} images {how}", contestants, repeats=args.repeats)

    for size, num_samples in (((256, 256), 16), ((512, 1024), 32)):
        contestants = clusterings(neurite_samples(size=size, num_samples=num_samples))
        found = [run()[None] for run in contestants.values()]
        assert all(rand_error(prediction=other, truth=found[0])[0] < 1e-3 for other in found[1:])
        compare(table, f"clustering, {size[0]}×{size[1]}×{num_samples}", contestants, repeats=args.repeats)
    compare_volumes(table, repeats=args.repeats)
    compare_counts(table, samples, labels, repeats=args.repeats)
    compare_instances(table, repeats=args.repeats)
    noise = np.random.default_rng(0).integers(0, 16, (16, 48, 48)).astype(np.uint8)
    compare(table, "clustering, random labels 48²×16", clusterings(noise), repeats=args.repeats)

    table.add_row(
        "GED², matched IoU, IoU_rec of 2,000 images in memory", f"{evaluation_seconds(num_images=2000):.1f} s", "", ""
    )
    Console().print(table)


if __name__ == "__main__":
    main()
