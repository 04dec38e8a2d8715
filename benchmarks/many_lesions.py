"""From few lesions to many: models trained on images of one or two, sampled on images of six, with known truth.

    python benchmarks/many_lesions.py --out DIR [--seeds 0,1] [--images 50] [--samples 64]

Trains the models of `hpunet demo` on synthetic lesions, one or two per image of 64×64 (runs in DIR are used again),
and compares samples with as many draws of the truth, which has sampling noise alone: as trained; on images of 96×64,
whose cells are as large; and of six lesions there. `many-lesions.png` shows samples of one image of six.

A lesion is a core and three sides of a halo. A part counts as marked if more than half of its pixels are, and as
clear if fewer than a tenth or more than nine tenths are.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from hpunet.config.settings import load_settings
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.lesions import NUM_SIDES
from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.demo.run import MODELS
from hpunet.models.base import SegmentationModel
from hpunet.sampling.sample import sample
from hpunet.training.loop import train
from hpunet.utils.label_painter import contrast_palette, overlay
from hpunet.utils.pictures import grey_or_colour, save_picture, sheet, stretched
from hpunet.weights.load import load_trained

FEW, MANY = (1, 2), (6, 6)
SETS: dict[str, dict[str, Any]] = {
    "1 or 2 lesions, 64×64": {"num_lesions": FEW, "size": (64, 64)},
    "1 or 2 lesions, 96×64": {"num_lesions": FEW, "size": (96, 64)},
    "6 lesions, 96×64": {"num_lesions": MANY, "size": (96, 64)},
}
TRUTH = "truth"
COLUMNS = ("frequency of parts, error", "states, TV", "combinations", "joint states", "correlation", "clear parts")
EXPLAINED = """
frequency of parts, error: |share of samples that mark a part − its probability|, mean over parts and lesions
states, TV: total variation between the 9 states of a lesion among samples and their probabilities, mean over lesions
combinations, joint states: distinct sets of marked lesions, and distinct states of all lesions, among the samples
correlation: of being marked between two lesions of an image, over samples, mean over pairs
clear parts: share of parts that are marked almost wholly or almost not at all"""


def main() -> None:
    """Read the arguments, train what is missing, print one table per seed, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    parser.add_argument("--images", type=int, default=50, help="test images of each kind")
    parser.add_argument("--samples", type=int, default=64)
    args = parser.parse_args()
    errors = Console(stderr=True)
    for seed in args.seeds:
        models = {name: _trained(preset, args.out, seed=seed) for name, preset in MODELS.items()}
        print(f"\nseed {seed}, {args.images} images, {args.samples} samples each\n")
        print("| images | samples of | " + " | ".join(COLUMNS) + " |\n" + "|---" * (2 + len(COLUMNS)) + "|")
        for title, options in SETS.items():
            source = open_synthetic("lesions", split="test", num_images=args.images, **options)
            for name, model in {**models, TRUTH: None}.items():
                rows = [
                    lesion_scores(_drawn(model, source, i, args.samples), source.distribution(i))
                    for i in track(range(len(source)), f"{title}: {name}", console=errors, transient=True)
                ]
                means = np.nanmean(np.array([row for row in rows if row]), axis=0)
                digits = (3, 3, 1, 1, 2, 3)
                words = [f"{mean:.{n}f}" for mean, n in zip(means, digits, strict=True)]
                print(f"| {title} | {name} | " + " | ".join(words) + " |", flush=True)
        if seed == args.seeds[0]:
            print(save_picture(_picture(models, source), args.out / "many-lesions.png"))
    print(EXPLAINED)


def _trained(preset: str, out: Path, *, seed: int) -> SegmentationModel:
    folder = out / f"{preset}-{seed}"
    if not (folder / "checkpoints").is_dir():
        settings = load_settings(preset, [f"seed={seed}", f"data.options.num_lesions={list(FEW)}"])
        train(settings, data="synthetic:lesions", run=folder)
    return load_trained(folder, device="cpu").model


def _drawn(model: SegmentationModel | None, source: SyntheticSource, index: int, num_samples: int) -> np.ndarray:
    """Samples (s, h, w) of a model, or of the truth."""
    if model is None:
        return source.distribution(index).sample(np.random.default_rng(index), num_samples)
    image = torch.from_numpy(source[index].image)[None]
    how: dict[str, Any] = {"num_samples": num_samples, "generator": torch.Generator().manual_seed(index)}
    return sample(model, image=image, **how, return_logits=False).labels[0].numpy()


def lesion_scores(labels: np.ndarray, truth: KnownDistribution) -> tuple[float, ...] | None:
    """The `COLUMNS` of samples (s, h, w); None if an outline leaves a part of a lesion without pixels."""
    num_parts, num_lesions = 1 + NUM_SIDES, len(truth.p_state)
    areas = np.bincount(truth.regions.ravel(), minlength=1 + num_parts * num_lesions)[1:]
    if not areas.all():
        return None
    shares = part_shares(labels, truth.regions, areas=areas).reshape(len(labels), num_lesions, num_parts)
    marked = shares > 0.5
    marked[..., 1:] &= marked[..., :1]  # as in the truth, no side without its core
    states = np.where(marked[..., 0], 1 + marked[..., 1:] @ (1 << np.arange(NUM_SIDES)[::-1]), 0)
    p_state = truth.p_call * truth.p_state
    p_state[:, 0] += 1 - truth.p_call
    found = np.stack([np.bincount(of_lesion, minlength=p_state.shape[1]) for of_lesion in states.T]) / len(labels)
    parts_of_state = np.array([(0,) * num_parts, *((1, *s) for s in itertools.product((0, 1), repeat=NUM_SIDES))])
    return (
        float(np.abs(marked.mean(axis=0) - p_state @ parts_of_state).mean()),
        float(np.abs(found - p_state).sum(axis=1).mean() / 2),
        len(np.unique(marked[..., 0], axis=0)),
        len(np.unique(states, axis=0)),
        _correlation(marked[..., 0]),
        float(((shares < 0.1) | (shares > 0.9)).mean()),
    )


def part_shares(labels: np.ndarray, regions: np.ndarray, *, areas: np.ndarray) -> np.ndarray:
    """The share of pixels of each region (from 1 on) that each of the maps (s, h, w) marks: (s, regions)."""
    counts = [np.bincount(regions.ravel(), weights=each.ravel(), minlength=1 + len(areas))[1:] for each in labels]
    return np.array(counts) / areas


def _correlation(marked: np.ndarray) -> float:
    """The mean correlation of two columns of (s, lesions), of those that vary; NaN without a pair."""
    varies = marked.std(axis=0) > 0
    if varies.sum() < 2:
        return float("nan")
    table = np.corrcoef(marked[:, varies].T.astype(float))
    return float(table[np.triu_indices(len(table), 1)].mean())


def _picture(models: dict[str, SegmentationModel], source: SyntheticSource, index: int = 0) -> Any:
    """An image of six lesions, the probability that each pixel is marked, and draws of truth and models."""
    image, num_shown = source[index].image, 8
    palette = contrast_palette([image], [source[index].labels])

    rows, titles = [], []
    for name, model in {TRUTH: None, **models}.items():
        maps = _drawn(model, source, index, 64)
        draws = [overlay(image=image, labels=each, palette=palette) for each in maps[:num_shown]]
        rows.append([grey_or_colour(stretched(image)), grey_or_colour(maps.mean(axis=0)[None]), *draws])
        titles.append(name)
    columns = ["image", "mean of 64", *(f"draw {n}" for n in range(1, num_shown + 1))]
    return sheet(rows, columns=columns, row_titles=titles, tile=128, text=15)


if __name__ == "__main__":
    main()
