"""Which latent scale decides about near and which about far cars: what changes if one scale alone is sampled.

    python benchmarks/car_scales.py RUN --data STREETS [--split val] [--images 50] [--samples 32] [--set NAME=VALUE …]

The other scales stay at their mean. Of each true car, by its pixels:

labels: the share of pairs of samples that differ in a pixel, mean over its pixels (0: all alike)
id: the same of the most frequent label of the whole car: 0.8 for five ids at random, 0 if it keeps its id

`share` is the part of each scale in the sum over scales that are sampled alone. In the paper, the finest scale
decides about small and far cars, the coarsest about near ones.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from drawing import Drawer, open_drawer
from hpunet.utils.pictures import spread

LEAST_PIXELS = 6


def main() -> None:
    """Read the arguments, print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=50, help="so many, evenly spread")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--bins", type=int, default=4, help="sizes of cars: so many, with as many cars each")
    parser.add_argument("--set", dest="change", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    drawer = open_drawer(args.run, data=args.data, split=args.split, changes=args.change, num_samples=args.samples)
    if not drawer.info.has_instances:
        raise SystemExit(f"{args.run}: was trained on {drawer.info.kind} data, which have no instances")
    scales = [i for i, dim in enumerate(drawer.latent_dims) if dim]
    areas, differ = [], []
    indices = spread(args.images, of=len(drawer.source))
    for index in track(indices, "sampling", console=Console(stderr=True), transient=True):
        found = cars_of(drawer, index, scales=scales)
        areas += [area for area, _ in found]
        differ += [values for _, values in found]
    if not areas:
        raise SystemExit(f"{args.data}: no car of {LEAST_PIXELS} pixels or more in {len(indices)} images")
    print(f"{args.run}, {len(areas)} cars in {len(indices)} images of {args.data} ({args.split}), ", end="")
    print(f"{args.samples} samples; scale 0 is the coarsest")
    names = ["all", *(f"scale {i}" for i in scales)]
    for number, title in enumerate(("labels", "id")):
        print(f"\n| {title}: pixels of a car | cars | " + " | ".join(names) + " | share |")
        print("|---" * (3 + len(names)) + "|")
        values = np.array(differ)[..., number]  # cars, ways
        for low, high, inside in size_bins(np.array(areas), num_bins=args.bins):
            mean = values[inside].mean(axis=0)
            words = " | ".join(f"{value:.3f}" for value in mean)
            shares = " ".join(f"{share:.0%}" for share in mean[1:] / max(mean[1:].sum(), 1e-9))
            print(f"| {low} to {high} | {inside.sum()} | {words} | {shares} |")


def cars_of(drawer: Drawer, index: int, *, scales: Sequence[int]) -> list[tuple[int, list[tuple[float, float]]]]:
    """The pixels of each true car, and how its labels and its id differ: all scales sampled, then each alone."""
    num_scales, info = len(drawer.latent_dims), drawer.info
    ways = ["sample", *(["sample" if i == scale else "mean" for i in range(num_scales)] for scale in scales)]
    found = [drawer.draw(index, latents=way) for way in ways]
    cars, valid = true_cars(drawer, index), found[0].batch.valid[0].numpy()
    regions = [(cars == n) & valid for n in range(1, int(cars.max()) + 1)]
    regions = [region for region in regions if region.sum() >= LEAST_PIXELS]
    return [
        (int(region.sum()), [differences(each.labels[:, region], num_classes=info.num_classes) for each in found])
        for region in regions
    ]


def true_cars(drawer: Drawer, index: int) -> np.ndarray:
    """The true instances (h, w) as evaluation sees them; 0 where there is none."""
    sample = drawer.source[index]
    _, truth = drawer.scorer.prepare([sample], [drawer.source.identities[index].key])
    assert truth is not None
    return truth[0]


def differences(labels: np.ndarray, *, num_classes: int) -> tuple[float, float]:
    """The share of pairs of samples (s, pixels) that differ: in a pixel, and in the most frequent label."""
    most = np.array([np.bincount(each, minlength=num_classes).argmax() for each in labels])
    return float(pairs_that_differ(labels).mean()), float(pairs_that_differ(most[:, None])[0])


def pairs_that_differ(labels: np.ndarray) -> np.ndarray:
    """The share of pairs of different samples (s, n) that have different labels: (n,)."""
    count = len(labels)
    alike = sum(np.square((labels == label).sum(axis=0)) for label in np.unique(labels))
    return (count**2 - alike) / (count * (count - 1))


def size_bins(areas: np.ndarray, *, num_bins: int) -> list[tuple[int, int, np.ndarray]]:
    """Smallest and largest size, and which cars, of as many bins with about as many cars each."""
    order = np.argsort(areas, kind="stable")
    bins = []
    for chosen in np.array_split(order, num_bins):
        if len(chosen):
            inside = np.zeros(len(areas), dtype=bool)
            inside[chosen] = True
            bins.append((int(areas[chosen].min()), int(areas[chosen].max()), inside))
    return bins


if __name__ == "__main__":
    main()
