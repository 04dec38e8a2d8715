"""What clustering makes of perfect samples: a mark for models' Rand error and AP50, by ids and samples.

    python results/perfect_instances.py --data DATA [--split val] [--images 32] [--ids 5,15]
        [--samples 4,8,16,32] [--connected] [--erosion 5] [--set NAME=VALUE …]

A perfect sampler draws an id for every true instance and shows it without a wrong pixel. Two instances that draw the
same one in half of the samples or more become one cluster, which fewer ids and fewer samples make likelier; and
instances that hold no square of --erosion pixels are painted over (App. H); by default they scale with street scenes.
"""

import argparse
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from hpunet.config.settings import parse_assignments
from hpunet.data.open import open_data
from hpunet.data.types import Source
from hpunet.evaluation.scores import instances_of
from hpunet.metrics import average_precision, match_instances, rand_error
from hpunet.sampling.instances import instance_scores
from hpunet.utils.pictures import spread


def main() -> None:
    """Read the arguments, print a row for each number of ids and samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=32, help="so many, evenly spread")
    parser.add_argument("--ids", type=_numbers, default=[5, 15])
    parser.add_argument("--samples", type=_numbers, default=[4, 8, 16, 32])
    parser.add_argument("--connected", action="store_true", help="parts of a cluster that do not touch come apart")
    parser.add_argument("--erosion", type=int, help="side of the square that an instance must contain")
    parser.add_argument("--set", dest="change", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    print("| ids | samples | Rand error | AP50 |\n|---|---|---|---|")
    for num_ids in args.ids:
        options = {**parse_assignments(args.change), "num_random_ids": num_ids}
        source = open_data(args.data, split=args.split, options=options)
        for num_samples in args.samples:
            how = {"connected": args.connected, "erosion": args.erosion}
            errors, ap50 = _scores(source, args.images, num_samples=num_samples, how=how)
            print(
                f"| {num_ids} | {num_samples} | {np.mean(errors):.4f} ± {np.std(errors):.4f} | {ap50} |", flush=True
            )


def _scores(source: Source, num_images: int, *, num_samples: int, how: dict[str, Any]) -> tuple[list[float], str]:
    """Rand errors of images that have instances, and AP50 where instances are among other classes."""
    info, errors, matches = source.info, [], []
    for index in track(
        spread(num_images, of=len(source)), "clustering", console=Console(stderr=True), transient=True
    ):
        found, rng = source[index], np.random.default_rng(index)
        truth = np.maximum(found.labels[0].astype(np.int32) - info.num_fixed_classes + 1, 0)
        ids = rng.integers(info.num_fixed_classes, info.num_classes, (num_samples, truth.max() + 1))
        samples = np.where(truth > 0, ids[:, truth], found.labels[0]).astype(np.uint8)
        instances = instances_of(samples, info=info, alpha=num_samples, seed=0, **how)
        error = rand_error(prediction=instances[None], truth=truth[None], valid=found.valid[None])[0]
        errors += [float(error)] if np.isfinite(error) else []
        if info.num_fixed_classes > 1:
            sure = instance_scores(instances, stochastic_probs=np.ones((1, *truth.shape)))
            matches.append(match_instances(prediction=instances, scores=sure, truth=truth, valid=found.valid))
    return errors, f"{average_precision(matches).ap50:.3f}" if matches else ""


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
