"""Whether guarantees hold as often as stated, and how large their masks are.

    python benchmarks/coverage.py synthetic [--images 400]       known truth; a perfect sampler, a bad one
    python benchmarks/coverage.py draw RUN --data DIR --out FILE  samples of a split, kept in FILE (.npz)
    python benchmarks/coverage.py splits FILE                     of these

Patients are split at random into halves, 1,000 times: one calibrates, the other is tested. Printed are means over
splits; ± is the standard error by a bootstrap over patients, of each one's mean over the splits that test it. Beside
the nested masks of `hpunet calibrate`: thresholds of the mean probability, pixel by pixel, calibrated likewise.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import ndimage

from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.metrics.bootstrap import bootstrap, group_numbers
from hpunet.metrics.conformal import (
    area_range,
    area_score,
    inner_score,
    mask_order,
    nested_weights,
    outer_score,
    patient_quantile,
)

NUM_SAMPLES, MISS_RATE, GRID = 16, 0.05, 400
Image = tuple[np.ndarray, np.ndarray, list[np.ndarray], str]
"""Samples (s, h, w), mean (h, w), gradings, patient."""


def pixel_order(_: np.ndarray, *, mean: np.ndarray) -> np.ndarray:
    """Thresholds of the mean."""
    return 1 - mean.astype(np.float64)


FAMILIES: dict[str, Callable[..., np.ndarray]] = {"hpunet": mask_order, "mean": pixel_order}


class Study:
    """Scores of all gradings, and the area of every mask of a family on a grid of thresholds, by patient."""

    def __init__(self, images: Sequence[Image], *, level: float) -> None:
        self.level = level
        self.names = [patient for *_, patient in images]
        patients, numbers, counts = [], [], []
        self.scores: dict[str, list[float]] = {
            f"{name} {side}": [] for name in FAMILIES for side in ("outer", "inner")
        }
        self.scores["area"] = []
        self.orders: dict[str, list[np.ndarray]] = {name: [] for name in FAMILIES}
        ranges = []
        for number, (samples, mean, gradings, patient) in enumerate(images):
            found = {name: family(samples, mean=mean) for name, family in FAMILIES.items()}
            spread = area_range(samples, level=level)
            ranges.append(spread)
            for name, order in found.items():
                self.orders[name].append(np.sort(order, axis=None).astype(np.float32))
            for marked in gradings:
                patients.append(patient)
                numbers.append(number)
                counts.append(bool(marked.any()))
                for name, order in found.items():
                    how = {"marked": marked, "miss_rate": MISS_RATE}
                    self.scores[f"{name} outer"].append(outer_score(order, **how))
                    self.scores[f"{name} inner"].append(inner_score(order, **how))
                self.scores["area"].append(area_score(spread, area=float(marked.sum())))
        self.weights = nested_weights(patients=patients, images=numbers, counts=counts)
        self.patient = group_numbers(patients, num_images=len(patients))
        self.owner = group_numbers(self.names, num_images=len(self.names))
        self.num_patients = int(self.patient.max()) + 1
        self.width = np.array([spread.high - spread.low for spread in ranges])
        self.arrays = {name: np.array(values) for name, values in self.scores.items()}

    def mean_area(self, key: str, thresholds: np.ndarray) -> np.ndarray:
        """Area of the masks (patients, thresholds), the mean over a patient's images."""
        family, side = key.split()
        where = "right" if side == "outer" else "left"
        limits = thresholds if side == "outer" else -thresholds
        areas = np.stack([np.searchsorted(order, limits.astype(np.float32), where) for order in self.orders[family]])
        sums = np.stack([np.bincount(self.owner, weights=column) for column in areas.T], axis=1)
        return sums / np.bincount(self.owner)[:, None]

    def run(self, num_splits: int) -> None:
        """Print the table."""
        rng = np.random.default_rng(0)
        halves = [rng.permutation(self.num_patients) < self.num_patients // 2 for _ in range(num_splits)]
        print(f"| {self.level:.0%} | coverage | mean area in pixels |\n|---|---|---|")
        for key, scores in self.arrays.items():
            used = self.weights > 0
            w, s, patient = self.weights[used], scores[used], self.patient[used]
            thresholds = np.array(
                [patient_quantile(s[half[patient]], weights=w[half[patient]], level=self.level) for half in halves]
            )
            # (patients, splits): the share of a patient's gradings for which the statement holds.
            hits = np.stack([np.bincount(patient, weights=w * (s <= t)) for t in thresholds], axis=1)
            tested = ~np.stack(halves, axis=1)
            tested &= np.bincount(patient, weights=w, minlength=self.num_patients)[:, None] > 0
            cover = np.mean([hits[tested[:, j], j].mean() for j in range(num_splits)])
            each = [(hits[i] * tested[i]).sum() / max(tested[i].sum(), 1) for i in range(self.num_patients)]
            error = bootstrap(np.array(each), seed=0).std
            if key == "area":
                ratio = np.exp(np.median(self.width) + 2 * np.median(thresholds))
                size = f"upper/lower end, median image: {ratio:.2f}"
            else:
                finite = thresholds[np.isfinite(thresholds)]
                grid = np.quantile(finite, np.linspace(0, 1, GRID)) if finite.size else np.zeros(1)
                areas = self.mean_area(key, grid)[:, np.searchsorted(grid, np.minimum(thresholds, grid[-1]))]
                sizes = [areas[tested[:, j], j].mean() for j in range(num_splits)]
                per_patient = np.array(
                    [areas[i, tested[i]].mean() for i in range(self.num_patients) if tested[i].any()]
                )
                size = f"{np.mean(sizes):.1f} ± {bootstrap(per_patient, seed=0).std:.1f}"
                if finite.size < num_splits:
                    size += f" ({num_splits - finite.size} splits without a finite threshold)"
            print(f"| {key} | {cover:.4f} ± {error:.4f} | {size} |", flush=True)


def synthetic(num_images: int) -> dict[str, list[Image]]:
    """A perfect sampler, and one whose samples are eroded and shifted, a third of them empty."""
    source = open_synthetic("lesions", split="val", num_images=num_images)
    assert isinstance(source, SyntheticSource)
    found: dict[str, list[Image]] = {"perfect sampler": [], "bad sampler": []}
    rng = np.random.default_rng(0)
    for i in range(len(source)):
        sample, patient = source[i], source.identities[i].patient
        gradings = list(sample.labels == 1)
        good = source.distribution(i).sample(rng, NUM_SAMPLES) == 1
        bad = np.stack([np.roll(ndimage.binary_erosion(each, iterations=2), 4, axis=1) for each in good])
        bad[: NUM_SAMPLES // 3] = False
        for name, samples in (("perfect sampler", good), ("bad sampler", bad)):
            found[name].append((samples, samples.mean(axis=0, dtype=np.float32), gradings, patient))
    return found


def draw(run: str, data: str, split: str, out: Path) -> None:
    """Draw samples as `hpunet calibrate` does, and keep them."""
    import hpunet
    from hpunet.data.open import open_split
    from hpunet.evaluation.scorer import image_seed
    from hpunet.predict.draw import SamplingOptions, sample_image

    trained = hpunet.load(run).trained
    source = open_split(data, split=split, options=trained.settings.data.options)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in ("samples", "graders", "has", "mean")}
    start = time.perf_counter()
    for i, identity in enumerate(source.identities):
        sample = source[i]
        options = SamplingOptions(num_samples=NUM_SAMPLES, seed=image_seed(identity.key, seed=0))
        drawn = sample_image(trained, image=sample.image, options=options)
        foreground = trained.info.foreground
        for name, maps in (("samples", drawn.labels), ("graders", sample.labels)):
            kept[name].append(np.packbits(np.isin(maps, foreground).reshape(len(maps), -1), axis=1))
        kept["has"].append(sample.graders)
        kept["mean"].append(drawn.mean.astype(np.float16))
        if i % 100 == 0:
            print(f"{i} of {len(source)}, {time.perf_counter() - start:.0f} s", flush=True)
    patients = np.array([identity.patient for identity in source.identities])
    np.savez_compressed(out, patients=patients, **{name: np.stack(values) for name, values in kept.items()})


def load(file: Path) -> list[Image]:
    """What `draw` kept."""
    kept = np.load(file)
    mean = kept["mean"].astype(np.float32)
    size = mean.shape[1:]
    samples, graders, has, patients = (kept[name] for name in ("samples", "graders", "has", "patients"))

    def maps(packed: np.ndarray) -> np.ndarray:
        return np.unpackbits(packed, axis=1, count=size[0] * size[1]).astype(np.bool_).reshape(-1, *size)

    return [
        (maps(samples[i]), mean[i], list(maps(graders[i])[has[i]]), str(patients[i])) for i in range(len(patients))
    ]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["synthetic", "draw", "splits"])
    parser.add_argument("where", nargs="?", help="RUN or FILE")
    parser.add_argument("--data")
    parser.add_argument("--split", default="val")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--level", type=float, default=0.9)
    chosen = parser.parse_args()
    if chosen.what == "draw":
        draw(chosen.where, chosen.data, chosen.split, chosen.out)
        return
    sets = synthetic(chosen.images) if chosen.what == "synthetic" else {chosen.where: load(Path(chosen.where))}
    for name, images in sets.items():
        study = Study(images, level=chosen.level)
        print(f"{name}: {len(images)} images of {study.num_patients} patients, {chosen.splits} splits")
        study.run(chosen.splits)


if __name__ == "__main__":
    main()
