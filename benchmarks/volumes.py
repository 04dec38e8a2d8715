"""Volumes sampled as a whole against slice by slice, on `synthetic:nodules3d`, whose truth is known.

    python benchmarks/volumes.py [--images 100] [--split test] [--samples 16] [--device cuda]
        [--hpu-3d RUN …] [--hpu-2d RUN …] [--punet-3d RUN …]

RUNs are run folders, of one seed each, of volumes of one size. Models of images are trained on the slices of the same
volumes (preset `nodules3d-demo-2d`) and sampled in two ways: new noise for each slice, or the same noise for all
slices of a volume. Beside them a perfect sampler, which draws from the truth, and one that is perfect in each slice
but draws slices independently; below the table their expected scores, which are exact.

GED² and CRPS are against the whole distribution of gradings, HM-IoU against as many draws of it, IoU_rec of the four
gradings. 95 % intervals: 1,000 bootstraps over cases, pooled over runs.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import hpunet
from hpunet.data.slices import slices_of_volumes
from hpunet.data.synthetic.independent_slices import IndependentSlices
from hpunet.data.synthetic.known_distribution import KnownDistribution
from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.data.types import Sample
from hpunet.metrics import hungarian_iou, iou_rec, pair_ious
from hpunet.metrics.bootstrap import resampled_means

COLUMNS = ("GED²", "HM-IoU", "IoU_rec", "CRPS, ml", "GED² by slice")
PERFECT, FLICKERING = "perfect sampler", "perfect in each slice alone"
Drawn = tuple[np.ndarray, np.ndarray | None]
"""Samples (s, d, h, w) of a volume, and reconstructions (r, d, h, w) of its gradings if the method makes them."""
Method = Callable[[int], Drawn]


def main() -> None:
    """Read the arguments, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hpu-3d", "hpu-2d", "punet-3d"):
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="RUN")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--split", default="test")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--device", help="by default a GPU if there is one")
    args = parser.parse_args()
    how: dict[str, Any] = {"split": args.split, "num_images": args.images, "size": _size_of(args)}
    volumes, slices = (open_synthetic("nodules3d", **how, volumes=whole) for whole in (True, False))
    rows = {
        name: np.array([[volume_scores(draw(i), volumes, i) for i in _shown(len(volumes), name)] for draw in draws])
        for name, draws in _methods(args, volumes, slices)
    }
    size = "×".join(map(str, volumes.size))
    print(f"{args.images} volumes of {size} of {args.split}, {args.samples} samples each\n")
    _print_table(rows)
    first, *others = rows
    print(f"\nDifference to {first}, of the same volumes\n")
    _print_table({name: (rows[name].mean(axis=0) - rows[first].mean(axis=0))[None] for name in others})
    _print_expected(volumes, num_samples=args.samples)


def _size_of(args: argparse.Namespace) -> tuple[int, ...] | None:
    """That of the volumes of all runs, or of none the usual one."""
    runs = [hpunet.load(run, device="cpu") for run in (*args.hpu_3d, *args.hpu_2d, *args.punet_3d)]
    sizes = {tuple(size) if (size := run.settings.data.options.get("size")) else None for run in runs} or {None}
    if len(sizes) > 1:
        raise SystemExit(f"the runs are of volumes of several sizes: {sizes}")
    return sizes.pop()


def _methods(
    args: argparse.Namespace, volumes: SyntheticSource, slices: SyntheticSource
) -> Iterator[tuple[str, list[Method]]]:
    """What is compared: by name, one way to draw per run."""
    ways: dict[str, tuple[list[str], Callable[..., Drawn]]] = {
        "HPU-Net 3D": (args.hpu_3d, partial(_from_volume, source=volumes)),
        "HPU-Net 2D, slice by slice": (args.hpu_2d, partial(from_slices, source=slices, same_noise=False)),
        "HPU-Net 2D, same noise in all slices": (args.hpu_2d, partial(from_slices, source=slices, same_noise=True)),
        "Prob. U-Net 3D": (args.punet_3d, partial(_from_volume, source=volumes)),
    }
    for name, (runs, draw) in ways.items():
        models = [hpunet.load(run, device=args.device) for run in runs]
        if models:
            yield name, [partial(draw, run=model, num_samples=args.samples) for model in models]
    for name, sampler in {PERFECT: lambda known: known, FLICKERING: IndependentSlices}.items():
        yield name, [partial(_from_truth, source=volumes, sampler=sampler, num_samples=args.samples)]


def _from_truth(index: int, *, source: SyntheticSource, sampler: Callable[..., Any], num_samples: int) -> Drawn:
    """Draws of the truth, which has nothing to reconstruct."""
    return sampler(source.distribution(index)).sample(np.random.default_rng(index), num_samples), None


def _from_volume(index: int, *, source: SyntheticSource, run: hpunet.Predictor, num_samples: int) -> Drawn:
    """A model of volumes."""
    samples, rebuilt = _from_model(run, [source[index]], seeds=[index], num_samples=num_samples)
    return samples[0], rebuilt[0]


def from_slices(
    index: int, *, source: SyntheticSource, run: hpunet.Predictor, num_samples: int, same_noise: bool
) -> Drawn:
    """A model of images; the n-th samples of all slices are the n-th sample of the volume."""
    indices = list(slices_of_volumes(source.identities).values())[index]
    seeds = [index if same_noise else len(source) + i for i in indices]
    samples, rebuilt = _from_model(run, [source[i] for i in indices], seeds=seeds, num_samples=num_samples)
    return samples.swapaxes(0, 1), rebuilt.swapaxes(0, 1)


def _from_model(
    run: hpunet.Predictor, batch: Sequence[Sample], *, seeds: Sequence[int], num_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Samples (b, s, *s) of images or volumes, and reconstructions (b, r, *s) of their gradings."""
    device = next(run.model.parameters()).device
    image = torch.from_numpy(np.stack([sample.image for sample in batch])).to(device)
    labels = torch.from_numpy(np.stack([sample.labels for sample in batch])).long().to(device)
    how: dict[str, Any] = {"generator": [torch.Generator().manual_seed(seed) for seed in seeds]}
    samples = hpunet.sample(run.model, image=image, num_samples=num_samples, **how, return_logits=False).labels
    rebuilt = hpunet.reconstruct(run.model, image=image, labels=labels, return_logits=False).labels
    return samples.cpu().numpy(), rebuilt.cpu().numpy()


def _shown(count: int, name: str) -> Any:
    return track(range(count), name, console=Console(stderr=True), transient=True)


def volume_scores(drawn: Drawn, source: SyntheticSource, index: int) -> list[float]:
    """The `COLUMNS` of a volume."""
    (samples, rebuilt), truth, num_samples = drawn, source.distribution(index), len(drawn[0])
    draws = truth.sample(np.random.default_rng((index, 1)), num_samples)
    rec = np.array([np.nan])
    if rebuilt is not None:
        rec = iou_rec(reconstructions=_flat(rebuilt), labels=_flat(source[index].labels), num_classes=2)
    sizes = samples.sum(axis=(1, 2, 3)).astype(float)
    # The estimator of `crps`, with the probabilities of all states in place of observations.
    to_truth = (np.abs(sizes[:, None] - truth.sizes) @ truth.probabilities).mean()
    among = np.abs(sizes[:, None] - sizes).sum() / (num_samples * (num_samples - 1))
    by_slice = [_ged2(samples[:, z], known) for z, known in enumerate(IndependentSlices(truth).slices)]
    return [
        _ged2(samples, truth),
        float(hungarian_iou(samples=_flat(samples), labels=_flat(draws), num_classes=2)[0]),
        float(rec[0]),
        float(to_truth - among / 2) * _ml(source),
        float(np.mean(by_slice)),
    ]


def _ged2(samples: np.ndarray, truth: KnownDistribution) -> float:
    """GED² of samples (s, *s), self-pairs included, against the whole distribution."""
    pairs = pair_ious(samples=_flat(samples), labels=_flat(truth.support), num_classes=2)
    between = (1 - pairs.cross[0]).mean(axis=0) @ truth.probabilities
    return float(2 * between - (1 - pairs.samples[0]).mean() - truth.mean_distance)


def _flat(maps: np.ndarray) -> np.ndarray:
    """Maps (n, …, w) as those of one image, (1, n, positions, w): the scores here do not ask where positions lie."""
    return maps.reshape(1, len(maps), -1, maps.shape[-1])


def _ml(source: SyntheticSource) -> float:
    """Millilitres of a voxel."""
    return float(np.prod(source.info.spacing or (1.0,))) / 1000


def _print_table(rows: dict[str, np.ndarray]) -> None:
    """Means with 95 % intervals of scores (runs, volumes, columns)."""
    print("| | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    for name, scores in rows.items():
        words = []
        for values in np.moveaxis(scores, 2, 0):
            if np.isfinite(values).all():
                low, high = np.percentile(resampled_means(values, seed=0), (2.5, 97.5))
                words.append(f"{values.mean():.3f} [{low:.3f}, {high:.3f}]")
            else:
                words.append("–")
        print(f"| {name} | " + " | ".join(words) + " |", flush=True)


def _print_expected(source: SyntheticSource, *, num_samples: int) -> None:
    """The exact expectations of the two samplers that know the truth."""
    truths = [source.distribution(i) for i in _shown(len(source), "expected scores")]
    how: dict[str, Any] = {"num_samples": num_samples, "num_graders": None}
    for name, samplers in {PERFECT: truths, FLICKERING: [IndependentSlices(truth) for truth in truths]}.items():
        ged2 = np.mean([sampler.expected_ged(**how) for sampler in samplers])
        volume = np.mean([sampler.expected_crps for sampler in samplers]) * _ml(source)
        print(f"\n{name}, expected: GED² {ged2:.4f}, CRPS {volume:.4f} ml")


if __name__ == "__main__":
    main()
