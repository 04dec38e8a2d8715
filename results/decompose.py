"""What a model's GED² on two-class data is made of.

    python results/decompose.py RUN --data PACK [--split val] [--images 400] [--warp none|rigid|training]
        [--temperature 1,1,1,0]

GED² = 2·d(sample, grader) − d(sample, sample) − d(grader, grader). A model that sees in the image what graders see
has all three distances equal (but for pairs of a map with itself, left out here). One that does not, but knows how
much it does not know, has the first two equal and above the third. Distances among maps that are not empty tell
shapes from the question whether there is anything. What that question alone costs is 2·(q − p)², with q and p the
shares of samples and graders whose maps are not empty; the rest of GED² is of shapes. `--warp` evaluates on images
warped as in the model's training, or only turned and mirrored; RUN may be published weights.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import augment
from hpunet.data.packs import open_pack
from hpunet.metrics.distributions import PairIoUs, pair_ious
from hpunet.sampling.sample import sample
from hpunet.training.build import build_example_builder
from hpunet.weights.load import load_trained

NUM_SAMPLES, BATCH = 16, 8
SPECK = 5
"""Pixels of the largest map that is called a speck."""


def main() -> None:
    """Read the arguments, print the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", type=Path, required=True, help="a pack: hpunet data pack DIR PACK")
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=400, help="so many, evenly spread")
    parser.add_argument("--warp", choices=("none", "rigid", "training"), default="none")
    parser.add_argument("--temperature", type=lambda text: [float(part) for part in text.split(",")], default=1.0)
    args = parser.parse_args()
    trained = load_trained(args.run)
    pack = open_pack(args.data, split=args.split)
    recipe = build_example_builder(trained.settings, info=trained.info)
    warps = {"rigid": AugmentationSettings(elastic=0, shear=0, scale=(1, 1)), "training": recipe.augmentation}
    generator = torch.Generator(trained.device).manual_seed(0)
    ged2, empty, specks, among_all, among_marked = [], [], [], [], []
    for indices in track(torch.linspace(0, len(pack) - 1, args.images).long().split(BATCH), "sampling"):
        batch = pack.batch(indices)
        if args.warp != "none":
            batch = augment(batch, settings=warps[args.warp], crop_size=recipe.crop, seed=1, step=1, index=indices)
        samples = sample(
            trained.model,
            image=batch.image.to(trained.device),
            num_samples=NUM_SAMPLES,
            temperature=args.temperature,
            generator=generator,
            return_logits=False,
        ).labels.cpu()
        pairs = pair_ious(
            samples=samples, labels=batch.labels.long(), num_classes=2, classes=[1], valid=batch.valid, absent="one"
        )
        ged2 += pairs.ged2().tolist()
        for i in range(len(indices)):
            pixels = [maps[i].bool().flatten(1).sum(1).numpy() for maps in (samples, batch.labels)]
            marked = [count > 0 for count in pixels]
            empty.append([1 - some.mean() for some in marked])
            specks.append([((count > 0) & (count <= SPECK)).mean() for count in pixels])
            among_all.append(_distances(pairs, i, np.ones(NUM_SAMPLES, bool), np.ones(len(marked[1]), bool)))
            among_marked.append(_distances(pairs, i, *marked))
    of_samples, of_graders = np.array(empty).T
    print(f"GED² {np.mean(ged2):.4f} on {len(ged2)} images of {args.split}")
    for title, found in (("all maps", among_all), ("maps that are not empty", among_marked)):
        whole = np.array([row for row in found if not np.isnan(row).any()])
        mean = whole.mean(axis=0)
        print(
            f"{title}: sample and grader {mean[0]:.3f}, two samples {mean[1]:.3f}, two graders {mean[2]:.3f}", end=""
        )
        print(f" ({len(whole)} images)")
    print(f"empty maps: {of_samples.mean():.3f} of samples, {of_graders.mean():.3f} of graders;", end="")
    print(f" correlation over images {np.corrcoef(of_samples, of_graders)[0, 1]:.3f}")
    print("maps of 1 to {} pixels: {:.3f} of samples, {:.3f} of graders".format(SPECK, *np.mean(specks, axis=0)))
    asked = (2 * (of_samples - of_graders) ** 2).mean()
    num_graders = batch.labels.shape[1]
    spread = of_graders * (1 - of_graders) * num_graders / (num_graders - 1)  # of one grader, without bias
    perfect = (2 * (1 / NUM_SAMPLES + 1 / num_graders) * spread).mean()
    print(f"of GED²: whether there is anything {asked:.4f} (a perfect sampler {perfect:.4f}), ", end="")
    print(f"shapes {np.mean(ged2) - asked:.4f}")


def _distances(pairs: PairIoUs, i: int, samples: np.ndarray, graders: np.ndarray) -> list[float]:
    """Mean distance of sample and grader, of two different samples, of two different graders; NaN without a pair."""
    cross = 1 - pairs.cross[i][np.ix_(samples, graders)]
    found = [cross.mean() if cross.size else np.nan]
    for iou, chosen in ((pairs.samples[i], samples), (pairs.labels[i], graders)):
        count = chosen.sum()
        found.append((1 - iou[np.ix_(chosen, chosen)]).sum() / (count * (count - 1)) if count > 1 else np.nan)
    return found


if __name__ == "__main__":
    main()
