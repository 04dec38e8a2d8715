"""Where samples differ, against where graders or the known truth do; and what flips between samples as a whole.

    python benchmarks/ambiguity.py RUN --data DATA [--split val] [--images 200] [--samples 32] [--set NAME=VALUE …]

RUN is a run folder or published weights. With two classes: the standard deviation over samples of each pixel, of its
probability (as in figures) and of its label, against that of the graders' labels, or of `synthetic:lesions` that of
their known distribution. A region flips if at least a tenth of the samples mark more than half of it and a tenth do
not: of regions that some graders mark and others do not, that all mark, and, which should not flip, that none marks
although they lie beside one. With more classes, as in street scenes:
which pairs of fixed classes take turns in a true region; ids of instances are left out.
"""

import argparse
import itertools
from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import ndimage

from drawing import Drawer, open_drawer
from hpunet.data.synthetic.source import SyntheticSource
from hpunet.utils.pictures import spread

LEAST_PIXELS = 20
"""Of a region that is counted: thin rims between outlines are left out."""
BESIDE = 4
"""Pixels around a lesion; those beyond the first are beside it."""
LEAST_SHARE = 0.1
"""Of the samples, that show the rarer of two states."""


def main() -> None:
    """Read the arguments, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=200, help="so many, evenly spread")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--set", dest="change", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    drawer = open_drawer(args.run, data=args.data, split=args.split, changes=args.change, num_samples=args.samples)
    source = drawer.source
    indices = spread(args.images, of=len(source))
    print(f"{args.run}, {len(indices)} of {len(source)} images of {args.data} ({args.split}), {args.samples} samples")
    shown = track(indices, "sampling", console=Console(stderr=True), transient=True)
    if drawer.info.num_classes == 2:
        _two_classes(drawer, shown)
    else:
        _many_classes(drawer, shown)


def _two_classes(drawer: Drawer, indices: Any) -> None:
    by_probability, by_label, ratios, truth_mean = [], [], [], []
    regions: dict[str, list[tuple[float, float]]] = {}
    presence: dict[int, list[tuple[float, bool]]] = {}
    source = drawer.source
    known = isinstance(source, SyntheticSource)
    for index in indices:
        batch, samples, std = drawer.draw(index)
        graders, valid = batch.labels[0][batch.graders[0]].numpy() > 0, batch.valid[0].numpy()
        frequency, count = samples.mean(axis=0), len(samples)
        unbiased = frequency * (1 - frequency) * count / (count - 1)
        if known:
            marginals = source.distribution(index).marginals
            variance = marginals * (1 - marginals)
            expected = np.sqrt(variance)
        elif len(graders) > 1:
            share = graders.mean(axis=0)
            expected = np.sqrt(share * (1 - share))
            variance = expected**2 * len(graders) / (len(graders) - 1)
        else:
            raise SystemExit("needs several graders per image, or synthetic:lesions")
        if expected[valid].std() > 0:
            by_probability.append(correlation(std[valid], expected[valid]))
            by_label.append(correlation(np.sqrt(unbiased[valid]), expected[valid]))
        ratios.append(unbiased[valid].sum())
        truth_mean.append(variance[valid].sum())
        for name, inside in regions_of(graders & valid).items():
            regions.setdefault(name, []).extend(marked_by(samples, graders, each) for each in inside)
        some = samples.any(axis=(1, 2)).mean()
        both = LEAST_SHARE <= some <= 1 - LEAST_SHARE
        presence.setdefault(int(graders.any(axis=(1, 2)).sum()), []).append((float(some), both))
    against = "the known truth" if known else "the graders"
    print(f"standard deviation by pixel against {against}, correlation within an image, mean of {len(by_label)}:")
    print(f"  of probabilities {np.nanmean(by_probability):.3f}, of labels {np.nanmean(by_label):.3f}")
    print(f"variance of labels, all images together, samples / {against}: {sum(ratios) / sum(truth_mean):.3f}")
    print(f"\n| regions of {LEAST_PIXELS} pixels or more that … mark | regions | graders | samples | flip |")
    print("|---|---|---|---|---|")
    for name, shares in regions.items():
        of_samples, of_graders = np.array(shares or [(np.nan, np.nan)]).T
        flip = np.mean((of_samples >= LEAST_SHARE) & (of_samples <= 1 - LEAST_SHARE))
        print(f"| {name} | {len(shares)} | {of_graders.mean():.3f} | {of_samples.mean():.3f} | {flip:.3f} |")
    print("graders, samples: the share of them that mark more than half of the region\n")
    print(
        "| graders that mark something | images | samples that do | images where samples do both |\n|---|---|---|---|"
    )
    for number, found in sorted(presence.items()):
        shares, both = np.array(found).T
        print(f"| {number} | {len(found)} | {shares.mean():.3f} | {both.mean():.3f} |")


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; 0 if samples do not differ anywhere."""
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def regions_of(graders: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Connected regions (h, w) that some but not all graders (r, h, w) mark, that all do, and that none does."""
    every, some = graders.all(axis=0), graders.any(axis=0)
    beside = ndimage.binary_dilation(some, iterations=BESIDE) & ~ndimage.binary_dilation(some)
    return {"some graders": components(some & ~every), "all": components(every), "none, beside": components(beside)}


def components(inside: np.ndarray) -> list[np.ndarray]:
    """The connected components of a map that are large enough."""
    labels, count = ndimage.label(inside)
    return [r for r in (labels == n for n in range(1, count + 1)) if r.sum() >= LEAST_PIXELS]


def marked_by(samples: np.ndarray, graders: np.ndarray, region: np.ndarray) -> tuple[float, float]:
    """The shares of samples and graders (n, h, w) that mark more than half of a region."""
    of_samples, of_graders = (float((maps[:, region].mean(axis=1) > 0.5).mean()) for maps in (samples, graders))
    return of_samples, of_graders


def _many_classes(drawer: Drawer, indices: Any) -> None:
    pairs: Counter[tuple[str, str]] = Counter()
    count: Counter[str] = Counter()
    names = drawer.info.fixed_classes
    for index in indices:
        batch, samples, _ = drawer.draw(index)
        labels, valid = batch.labels[0, 0].numpy(), batch.valid[0].numpy()
        for number, name in enumerate(names):
            for region in components((labels == number) & valid):
                count[name] += 1
                pairs.update((names[a], names[b]) for a, b in class_flips(samples, region, num_fixed=len(names)))
    print("| classes that take turns | true regions in which they do | regions of the two |\n|---|---|---|")
    for (one, other), number in pairs.most_common(15):
        print(f"| {one}, {other} | {number} | {count[one] + count[other]} |")


def class_flips(samples: np.ndarray, region: np.ndarray, *, num_fixed: int) -> list[tuple[int, int]]:
    """Pairs of fixed classes that are each the most frequent of a region in `LEAST_SHARE` of the samples."""
    inside = samples[:, region]
    most = np.array([np.bincount(each, minlength=num_fixed).argmax() for each in inside])
    shown = [c for c in range(num_fixed) if (most == c).mean() >= LEAST_SHARE]
    return list(itertools.combinations(shown, 2))


if __name__ == "__main__":
    main()
