"""What the review flag catches, and at what rate of false alarms.

    python benchmarks/review_flag.py lidc-hpu-2026 --data LIDC [--other NAME=FOLDER …] [--figure FILE.svg]

Scores of the calibration's patients and of images that are not as in training: altered ones of these patients, noise,
synthetic images, and pictures of other kinds (folders of PNG or TIFF files, or one stack), stretched and resized. The
threshold is that of the calibration's patients. False alarms are checked by cross-fitting: thresholds from random
halves of the patients, 1,000 times, applied to the others.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageSequence
from scipy import ndimage

import hpunet
from hpunet.data.alterations import KINDS, altered
from hpunet.data.open import open_split
from hpunet.data.synthetic.source import open_synthetic
from hpunet.metrics.bootstrap import bootstrap, group_numbers
from hpunet.metrics.conformal import nested_weights, patient_quantile
from hpunet.sampling.review import pooled_features
from hpunet.weights.calibration import REVIEW, find_files, read_review

RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
SHIFTS, CLOSER = (16, 24, 32, 48, 64), (1.5, 2.0, 3.0)


def stretched(image: np.ndarray) -> np.ndarray:
    """From 0 to 1."""
    image = image.astype(np.float32)
    return (image - image.min()) / max(float(np.ptp(image)), 1e-6)


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Stretched, as large as the crops of training."""
    picture = Image.fromarray(np.rint(255 * stretched(image)).astype(np.uint8))
    return stretched(np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR)))


def moved(image: np.ndarray, distance: float, rng: np.random.Generator) -> np.ndarray:
    """The crop around a point at this distance; what lies outside is mirrored."""
    angle, (h, w) = rng.uniform(0, 2 * np.pi), image.shape
    down, right = (round(distance * each) for each in (np.sin(angle), np.cos(angle)))
    return stretched(
        np.pad(image, ((h, h), (w, w)), mode="symmetric")[h + down : 2 * h + down, w + right : 2 * w + right]
    )


def closer(image: np.ndarray, factor: float) -> np.ndarray:
    """The middle, enlarged."""
    h, w = (round(side / factor) for side in image.shape)
    top, left = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
    return resized(image[top : top + h, left : left + w], image.shape)


def pictures(folder: Path) -> Iterator[np.ndarray]:
    """All pages of all pictures, grey."""
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix in (".png", ".tif")) if folder.is_dir() else [folder]
    )
    for path in paths:
        with Image.open(path) as opened:
            for page in ImageSequence.Iterator(opened):
                yield np.asarray(page.convert("L"))


def unlike(images: list[np.ndarray], *, others: dict[str, Path], num: int) -> dict[str, list[np.ndarray]]:
    """Images that should be flagged, by kind."""
    rng, size = np.random.default_rng(0), images[0].shape
    found: dict[str, list[np.ndarray]] = {}
    for name, folder in others.items():
        every = list(pictures(folder))
        chosen = [every[i] for i in np.linspace(0, len(every) - 1, min(num, len(every))).astype(int)]
        found[f"other kind: {name}"] = [resized(image, size) for image in chosen]
    for name in ("lesions", "neurites"):
        source = open_synthetic(name, split="val", num_images=num)
        found[f"other kind: synthetic {name}"] = [resized(source[i].image[0], size) for i in range(num)]
    found["uniform noise"] = [rng.random(size) for _ in range(num)]
    found["smooth noise"] = [
        stretched(ndimage.gaussian_filter(rng.normal(size=size), rng.uniform(1, 8))) for _ in range(num)
    ]
    chosen = [images[i] for i in rng.permutation(len(images))[:num]]
    for kind in KINDS:
        found[f"made like those of the fit: {kind}"] = [altered(x[None], kind=kind, rng=rng)[0] for x in chosen]
    for distance in SHIFTS:
        found[f"centre moved by {distance} pixels"] = [moved(image, distance, rng) for image in chosen]
    for factor in CLOSER:
        found[f"middle enlarged {factor:g} times"] = [closer(image, factor) for image in chosen]
    return found


def figure(rates: np.ndarray, caught: dict[str, np.ndarray], file: Path) -> None:
    """The curves as a picture; without kinds of which nearly all are caught at 5 %."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "hpunet", "svg.fonttype": "none", "font.size": 9})
    shown, axes = plt.subplots(figsize=(7, 3.6))
    for name, values in caught.items():
        if np.interp(0.05, rates, values) > 0.985:
            continue
        axes.plot(100 * rates, 100 * values, label=name)
    axes.axvline(5, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="false alarms, % of images like those of training", ylabel="caught, %", ylim=(0, 101), xlim=(0, 20)
    )
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    shown.tight_layout()
    shown.savefig(file, metadata={"Date": None})


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--other", action="append", default=[])
    parser.add_argument("--images", type=int, default=200, help="of each kind")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    trained = hpunet.load(chosen.run).trained
    paths = find_files(trained, file=REVIEW, folder=chosen.calibration)
    assert paths, "calibrate the model first"
    statistic = read_review(paths[0])[0]
    source = open_split(chosen.data, split=chosen.split, options=trained.settings.data.options)
    images = [source[i].image[0] for i in range(len(source))]
    patients = [identity.patient for identity in source.identities]

    def scores(of: list[np.ndarray]) -> np.ndarray:
        parts = [np.stack(of[i : i + 16])[:, None].astype(np.float32) for i in range(0, len(of), 16)]
        features = [pooled_features(trained.model, image=torch.from_numpy(x).to(trained.device)) for x in parts]
        return statistic.score(torch.cat(features)).numpy()

    own = scores(images)
    weights = nested_weights(patients=patients, images=list(range(len(own))), counts=[True] * len(own))
    number = group_numbers(patients, num_images=len(own))
    rng, rates = np.random.default_rng(0), []
    for _ in range(1000):
        half = (rng.permutation(number.max() + 1) < (number.max() + 1) // 2)[number]
        limit = patient_quantile(own[half], weights=weights[half], level=0.95)
        rates.append((weights[~half] * (own[~half] > limit)).sum() / weights[~half].sum())
    limits = {rate: patient_quantile(own, weights=weights, level=1 - rate) for rate in RATES}
    above = np.bincount(number, weights=weights * (own > limits[0.05]))
    print(f"{len(own)} images of {len(above)} patients; threshold {limits[0.05]:.3f}")
    print(f"false alarms at 5 %: {np.mean(rates):.4f} in other patients (cross-fitting, 1,000 halves), ", end="")
    print(f"± {bootstrap(above, seed=0).std:.4f} (bootstrap over patients)")
    print(
        "| kind | images | "
        + " | ".join(f"{rate:.0%}" for rate in RATES)
        + " |\n|---|---"
        + "|---" * len(RATES)
        + "|"
    )
    axis, curves = np.linspace(0.005, 0.2, 40), {}
    at = np.array([patient_quantile(own, weights=weights, level=1 - rate) for rate in axis])
    others = {name: Path(folder) for name, _, folder in (each.partition("=") for each in chosen.other)}
    for kind, made in unlike(images, others=others, num=chosen.images).items():
        found = scores(made)
        caught = " | ".join(f"{(found > limits[rate]).mean():.3f}" for rate in RATES)
        print(f"| {kind} | {len(found)} | {caught} |", flush=True)
        curves[kind] = (found[:, None] > at).mean(axis=0)
    if chosen.figure:
        figure(axis, curves, chosen.figure)


if __name__ == "__main__":
    main()
