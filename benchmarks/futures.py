"""Predicted futures against the exact ones, on `synthetic:growth`, whose distribution of futures is known.

    python benchmarks/futures.py RUN [--cases 200] [--split test] [--samples 64] [--picture calibration.svg]

RUN is a run folder of a model that was trained with data.extrapolate="future". Of each series the last third is
hidden. The area is that of the last moment. Printed are:

* the share of series in which a Kolmogorov–Smirnov test at 5 % does not reject that the predicted areas come from the
  exact distribution, also for a sampler that draws from it. Each sample counts: more samples find smaller errors;
* CRPS of the area that came true, in pixels, beside "stays as it is" and beside linear extrapolation of the visible
  areas: its slope, offset and Gaussian error are fitted on training series;
* calibration of the probability that the area grows by more than 25 %;
* which scale of latents decides: the share of the variance over samples of the logarithmic area, and of the shift of
  the outline's centre in radii, that is explained by the coarsest scale.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import kstwo, norm

import hpunet
from hpunet.data.extrapolation import hide_future, num_future
from hpunet.data.synthetic.growth import KnownFuture
from hpunet.data.synthetic.source import SyntheticSource, open_synthetic
from hpunet.metrics import crps
from hpunet.models.hpunet import HPUNet
from hpunet.sampling.sample import Samples

BEYOND = 0.25
_GRID = (16, 8)  # draws of the coarsest latents, and of the others for each of them


@dataclass(frozen=True)
class Cases:
    """What came true, per series: areas at all moments, times, and the exact distributions."""

    areas: np.ndarray  # (n, d)
    times: np.ndarray  # (n, d)
    known: Sequence[KnownFuture]

    @property
    def present(self) -> np.ndarray:
        """Areas of the last visible moment (n)."""
        return np.asarray(self.areas[np.arange(len(self.known)), [each.present for each in self.known]])


def main() -> None:
    """Read the arguments, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--split", default="test")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    run = hpunet.load(args.run)
    options = {name: value for name, value in vars(args).items() if name != "run"}
    report(run.model, size=run.settings.data.crop, **options)


def report(
    model: Any, *, size: tuple[int, ...], cases: int, samples: int, split: str, picture: Path | None = None
) -> None:
    """Everything about a model of series of this size."""
    which = ((split, cases), ("train", 1000))
    source, fitted = (open_synthetic("growth", split=name, num_images=n, size=size) for name, n in which)
    truth, drawn = read_cases(source), []
    for i in _shown(cases, "sampling"):
        labels = draw_futures(model, source, i, num_samples=samples).labels
        drawn.append(labels[0, :, -1].sum(dim=(1, 2)).cpu().numpy())
    predicted = np.array(drawn)
    perfect = np.array(
        [k.sample(np.random.default_rng((i, 1)), samples)[:, -1].sum(axis=(1, 2)) for i, k in enumerate(truth.known)]
    )
    print(f"{cases} series of {split}, {samples} samples each")
    print("\n| samples | not rejected | perfect sampler |\n|---|---|---|")
    for n in sorted({16, 32, samples}):
        shares = [ks_accepted(areas[:, :n], truth.known).mean() for areas in (predicted, perfect)]
        print(f"| {n} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    _print_crps(predicted, truth, read_cases(fitted))
    _print_calibration(predicted, truth, picture=picture)
    _print_shares(model, source, count=min(cases, 30))


def read_cases(source: SyntheticSource) -> Cases:
    """What came true in a source of series."""
    samples = [source[i] for i in _shown(len(source), source.split)]
    present = source.size[0] - num_future(source.size[0]) - 1
    return Cases(
        areas=np.array([sample.labels[0].sum(axis=(1, 2)) for sample in samples]),
        times=np.array([sample.times for sample in samples], dtype=np.float64),
        known=[source.future(i, present=present) for i in range(len(source))],
    )


def draw_futures(
    model: HPUNet, source: SyntheticSource, index: int, *, num_samples: int, latents: Any = "sample"
) -> Samples:
    """Samples (1, s, d, h, w) of a series whose future is hidden."""
    series = source[index]
    assert series.times is not None
    image, labels, times = (torch.from_numpy(each)[None] for each in (series.image, series.labels[0], series.times))
    shown = hide_future(image=image, labels=labels, times=times, num_classes=source.info.num_classes)
    device = next(model.parameters()).device
    return hpunet.sample(
        model,
        image=shown.image.to(device),
        cond=shown.cond.to(device),
        num_samples=num_samples,
        latents=latents,
        generator=[torch.Generator().manual_seed(index)],
        return_logits=False,
    )


def ks_accepted(areas: np.ndarray, known: Sequence[KnownFuture], *, level: float = 0.05) -> np.ndarray:
    """Whether the Kolmogorov–Smirnov test does not reject that areas (n, s) are draws of the exact distributions.

    Areas are whole numbers, of which there are hundreds; for them the test is slightly too kind.
    """
    accepted = []
    for drawn, each in zip(areas, known, strict=True):
        exact = each.area_cdf()
        found = np.bincount(drawn, minlength=len(exact)).cumsum() / len(drawn)
        accepted.append(kstwo.sf(np.abs(found - exact).max(), len(drawn)) > level)
    return np.array(accepted)


def _print_crps(predicted: np.ndarray, truth: Cases, fitted: Cases) -> None:
    observed = truth.areas[:, -1].astype(float)
    rows = {
        "model": crps(predicted.astype(float), observed[:, None]),
        "stays as it is": np.abs(truth.present - observed),
        "linear extrapolation, Gaussian error": linear_crps(truth, fitted),
        "exact distribution, expected": np.array([each.expected_crps() for each in truth.known]),
    }
    print("\n| CRPS of the last area, pixels | mean ± standard error |\n|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f} |")


def linear_crps(truth: Cases, fitted: Cases) -> np.ndarray:
    """CRPS of a Gaussian around present + (a · slope + b · area) · years, of deviation c · √years · area."""

    def inputs(cases: Cases) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = cases.known[0].present + 1
        x = cases.times[:, :n] - cases.times[:, :n].mean(axis=1, keepdims=True)
        slope = (x * cases.areas[:, :n]).sum(axis=1) / (x**2).sum(axis=1)
        years = cases.times[:, -1] - cases.times[:, n - 1]
        scale = np.sqrt(years) * cases.present
        return np.stack([slope * years, cases.present * years], axis=1), cases.areas[:, -1] - cases.present, scale

    design, change, scale = inputs(fitted)
    weights, *_ = np.linalg.lstsq(design / scale[:, None], change / scale, rcond=None)
    sigma = np.std((change - design @ weights) / scale)
    design, change, scale = inputs(truth)
    spread = sigma * scale
    z = (change - design @ weights) / spread
    return np.asarray(spread * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)))


def _print_calibration(predicted: np.ndarray, truth: Cases, *, picture: Path | None) -> None:
    limit = (1 + BEYOND) * truth.present
    p = (predicted > limit[:, None]).mean(axis=1)
    exact = np.array([each.p_growth(beyond=BEYOND) for each in truth.known])
    came = truth.areas[:, -1] > limit
    print(f"\nP(growth > {BEYOND:.0%}): mean difference to the exact one {np.abs(p - exact).mean():.3f}")
    print("\n| predicted | series | mean predicted | mean exact | came true |\n|---|---|---|---|---|")
    points = []
    for low in np.arange(0, 1, 0.2):
        inside = (p >= low) & ((p < low + 0.2) | (low > 0.7))
        if inside.any():
            points.append([p[inside].mean(), exact[inside].mean(), came[inside].mean(), inside.sum()])
            words = " | ".join(f"{value:.2f}" for value in points[-1][:3])
            print(f"| {low:.1f} to {low + 0.2:.1f} | {inside.sum()} | {words} |")
    if picture is not None:
        _draw(picture, p, exact, np.array(points), predicted, truth)


def _draw(
    picture: Path, p: np.ndarray, exact: np.ndarray, points: np.ndarray, predicted: np.ndarray, truth: Cases
) -> None:
    """Predicted against exact probabilities, and where exact distributions have the predicted areas."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    left.plot([0, 1], [0, 1], color="0.7", lw=1)
    left.plot(p, exact, ".", ms=4, alpha=0.5, label="exact, one dot per series")
    left.plot(points[:, 0], points[:, 2], "o-", ms=6, label="share that came true")
    left.set(xlabel="predicted probability of growth by more than 25 %", ylabel="exact, came true")
    left.legend(frameon=False)
    ranks = [each.area_cdf()[drawn] for drawn, each in zip(predicted, truth.known, strict=True)]
    right.hist(np.concatenate(ranks), bins=20, range=(0, 1), density=True, color="0.6")
    right.axhline(1, color="0.3", lw=1)
    right.set(xlabel="exact distribution function at predicted areas", ylabel="density")
    figure.savefig(picture, metadata={"Date": None})


def _print_shares(model: HPUNet, source: SyntheticSource, *, count: int) -> None:
    """Shares of variance by an analysis of variance: several draws of finer latents for each of the coarsest."""
    rows, columns = _GRID
    shares = []
    for i in _shown(count, "variance"):
        # The coarsest Gaussian depends on the image alone: its draws go with any finer latents. NaN: draw a new one.
        first = draw_futures(model, source, i, num_samples=rows).latents[0]
        latents: list[Any] = [first.cpu().repeat_interleave(columns, dim=1)]
        latents += [torch.full((1, 1, *shape), torch.nan) for shape in model.latent_shapes(*source.size)[1:]]
        drawn = draw_futures(model, source, i, num_samples=rows * columns, latents=latents)
        shares.append([_explained(each, rows, columns) for each in states(drawn.labels[0, :, -1].cpu().numpy())])
    means = np.nanmean(np.array(shares), axis=0)
    print("\n| explained by the coarsest latents | share of variance |\n|---|---|")
    print(f"| logarithmic area | {means[0]:.0%} |\n| shift of the centre | {means[1]:.0%} |")


def states(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of masks (s, h, w): the logarithm of the area (s, 1), and the centre relative to the mean radius (s, 2)."""
    areas = np.maximum(masks.sum(axis=(1, 2)), 1)
    y, x = np.indices(masks.shape[1:])
    centres = np.stack([(masks * each).sum(axis=(1, 2)) / areas for each in (y, x)], axis=1)
    return np.log(areas)[:, None], centres / np.sqrt(areas / np.pi)[:, None]


def _explained(values: np.ndarray, rows: int, columns: int) -> float:
    """The share of the variance (rows · columns, v) between rows, without bias."""
    grid = values.reshape(rows, columns, -1)
    within = grid.var(axis=1, ddof=1).mean(axis=0).sum()
    between = grid.mean(axis=1).var(axis=0, ddof=1).sum() - within / columns
    return float(max(between, 0) / (max(between, 0) + within)) if within + between > 0 else float("nan")


def _shown(count: int, name: str) -> Any:
    return track(range(count), name, console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    main()
