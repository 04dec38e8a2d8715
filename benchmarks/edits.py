"""What edits in latent space do: to lesions of known truth, far away from the region, and in how long.

    python benchmarks/edits.py lesions RUN [--images 100]   RUN: hpunet train demo --data synthetic:lesions --out RUN
    python benchmarks/edits.py far [--images 3]             the published LIDC model on the examples
    python benchmarks/edits.py drag [--repeats 30]          a latent of the published model, moved again and again

lesions: of images with three lesions, one is redrawn, or taken from another hypothesis. A lesion is what is marked of
its core and of the three sides of its halo, each by majority of its pixels.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import torch

import hpunet
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.predict.edit import with_features
from hpunet.predict.prediction import Prediction

NUM_LESIONS, NUM_PARTS, NUM_SAMPLES = 3, 4, 8
FAR = 32
"""Pixels."""


def parts_marked(labels: np.ndarray, truth: KnownDistribution) -> np.ndarray:
    """(samples, lesions, parts): whether most pixels of a core or a side of a halo are marked."""
    regions = truth.regions.ravel()
    sizes = np.bincount(regions, minlength=1 + NUM_LESIONS * NUM_PARTS)
    counts = np.stack([np.bincount(regions, weights=one.ravel(), minlength=len(sizes)) for one in labels])
    return (counts / np.maximum(sizes, 1) > 0.5)[:, 1:].reshape(len(labels), NUM_LESIONS, NUM_PARTS)


def lesions_edited(run: Path, *, num_images: int, split: str = "test") -> Counter[str]:
    """Counts of cases: of one lesion of one hypothesis, redrawn or taken from another hypothesis."""
    predictor = hpunet.load(run)
    source = open_synthetic("lesions", split=split, **predictor.settings.data.options)
    assert isinstance(source, SyntheticSource)
    counts: Counter[str] = Counter()
    for index in range(len(source)):
        truth = source.distribution(index)
        if len(truth.p_state) != NUM_LESIONS:
            continue
        pixels = source[index].image
        first = predictor(pixels, num_samples=NUM_SAMPLES, seed=0, window=(0.0, 1.0))
        other = predictor(pixels, num_samples=NUM_SAMPLES, seed=1, window=(0.0, 1.0))
        before, theirs = (parts_marked(each.samples, truth) for each in (first, other))
        for lesion in range(NUM_LESIONS):
            region = (truth.regions > NUM_PARTS * lesion) & (truth.regions <= NUM_PARTS * (lesion + 1))
            rest = [each for each in range(NUM_LESIONS) if each != lesion]
            redrawn = parts_marked(first.redraw(region=region, seed=2).samples, truth)
            combined = parts_marked(first.combine(other, region=region).samples, truth)
            same = {
                "own changed": (redrawn[:, lesion] != before[:, lesion]).any(axis=1),
                "others kept": (redrawn[:, rest] == before[:, rest]).all(axis=(1, 2)),
                "differ": (theirs[:, lesion] != before[:, lesion]).any(axis=1),
                "combined": (combined[:, lesion] == theirs[:, lesion]).all(axis=1)
                & (combined[:, rest] == before[:, rest]).all(axis=(1, 2)),
            }
            counts["cases"] += NUM_SAMPLES
            counts.update({name: int(found.sum()) for name, found in same.items()})
            counts["kept where own changed"] += int((same["own changed"] & same["others kept"]).sum())
            counts["combined where they differ"] += int((same["differ"] & same["combined"]).sum())
        counts["images"] += 1
        if counts["images"] == num_images:
            break
    return counts


def report_lesions(counts: Counter[str]) -> None:
    """Print shares."""
    print(f"{counts['images']} images with {NUM_LESIONS} lesions, {counts['cases']} cases")
    shares = [
        ("redrawn: this lesion changed", "own changed", "cases"),
        ("redrawn: the other two as before", "others kept", "cases"),
        ("redrawn: the other two as before, where this one changed", "kept where own changed", "own changed"),
        ("combined: A's lesion, and B's others", "combined", "cases"),
        ("combined: the same, where A and B differ in the lesion", "combined where they differ", "differ"),
    ]
    for words, name, total in shares:
        print(f"{words:60} {counts[name]:6d} of {counts[total]:6d}  {counts[name] / max(1, counts[total]):6.1%}")


def far_changes(*, num_images: int) -> None:
    """How much changes how far from a lesion that is redrawn: of 32 hypotheses of each image."""
    predictor = hpunet.load("lidc-hpu-2026")
    changed = far = total = moved = 0
    for name in [f"lidc-{number + 1}" for number in range(num_images)]:
        example = hpunet.example(name)
        before = predictor(example.image, num_samples=32, seed=0)
        rows, columns = np.nonzero(before.mean > 0.25)
        box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
        after = before.redraw(region=box)
        y, x = np.mgrid[: before.mean.shape[0], : before.mean.shape[1]]
        outside = [np.maximum.reduce([low - at, at - (high - 1), 0 * at]) for at, low, high in
                   ((x, box[0], box[2]), (y, box[1], box[3]))]  # fmt: skip
        differs = after.samples != before.samples
        is_far = np.hypot(*outside) > FAR
        changed, far = changed + int(differs.sum()), far + int(differs[:, is_far].sum())
        total, moved = total + int(is_far.sum()) * len(differs), moved + int(differs.any(axis=(1, 2)).sum())
        print(f"{name}: box {box}; {after.notes[-1]}")
    print(f"{moved} of {32 * num_images} hypotheses changed, in {changed:,} labels; more than {FAR} pixels away:")
    print(f"{far:,} labels, {far / max(1, changed):.2%} of those that changed, {far / total:.4%} of all there")


def drag(*, repeats: int) -> None:
    """Median time of a new outline while a latent of one hypothesis is dragged, encoder's features known."""
    predictor = hpunet.load("lidc-hpu-2026")
    base: Prediction = with_features(predictor(hpunet.example("lidc-2").image, num_samples=4).pick(0))
    seconds = []
    for number in range(repeats + 3):
        start = time.perf_counter()
        base.nudge(scale=number % len(base.latents), at=(64, 64), by=number / repeats)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(f"median {1000 * median(seconds[3:]):.0f} ms of {repeats}, on {predictor.trained.device}")


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lesions", "far", "drag"])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    if options.what == "lesions":
        report_lesions(lesions_edited(options.run, num_images=options.images or 100))
    elif options.what == "far":
        far_changes(num_images=options.images or 3)
    else:
        drag(repeats=options.repeats)


if __name__ == "__main__":
    main()
