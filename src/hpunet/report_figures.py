"""The figures of the report page, as PNG bytes: curves with matplotlib, sheets of pictures with pillow."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpunet.errors import ConfigError
from hpunet.pictures import PALETTE, grey_or_colour, overlay, sheet
from hpunet.saved_run import SavedRun

NUM_SHOWN_SAMPLES = 6
_LINE_STYLES = ("-", "--", "-.", ":")
_SMALLEST_KL = 1e-3
_LARGEST_STD = 0.5
_TILE = 1.7
"""Inches a map."""
_METRICS = {"val_ged2": "GED² (lower is better)", "val_hm_iou": "matched IoU", "val_iou_rec": "IoU_rec"}


def figure(**options: Any) -> Any:
    """A matplotlib figure of its own: no window, no state shared with the caller's figures."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("the report needs matplotlib: pip install hpunet[report]") from None
    drawn = Figure(layout="constrained", **options)
    FigureCanvasAgg(drawn)
    return drawn


def training_dynamics(runs: Sequence[SavedRun]) -> bytes:
    """Reconstruction against κ, λ, and KL altogether and by scale over the iterations; runs overlaid."""
    num_scales = max(len(run.settings.model.latent_dims) for run in runs)
    panels = [("rec", "cross-entropy per counted pixel"), ("lambda", "λ"), ("kl", "KL, all scales (nats)")]
    panels += [(f"kl_{i}", f"KL, scale {i}{_which(i, num_scales)}") for i in range(num_scales)]
    rows = -(-len(panels) // 3)
    page = figure(figsize=(12, 2.9 * rows + 0.4))
    axes = page.subplots(rows, 3, squeeze=False).ravel()
    for axis, (name, title) in zip(axes, panels, strict=False):
        _prepare(axis, title)
        for number, run in enumerate(runs):
            steps, values = run.series(name)
            if name.startswith("kl"):
                values = values.clip(min=_SMALLEST_KL)
            look = _look(number)
            axis.plot(steps, values, color=look["color"], alpha=0.25, linewidth=0.8)
            axis.plot(steps, values if name == "lambda" else _running_mean(values), **look)  # λ is smooth as it is
            if name == "rec" and run.settings.objective.kind == "geco":
                axis.axhline(run.settings.objective.kappa, color=look["color"], linestyle=":", linewidth=1.2)
        if name == "lambda" and not any(len(run.series(name)[0]) for run in runs):
            axis.text(0.5, 0.5, "no run uses GECO", transform=axis.transAxes, ha="center")
        else:
            _logarithmic(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    _legend(page, runs)
    return _png(page)


def validation_curves(runs: Sequence[SavedRun]) -> bytes:
    """The validation metrics over the iterations; runs overlaid."""
    page = figure(figsize=(12, 3.4))
    for axis, (name, title) in zip(page.subplots(1, len(_METRICS)), _METRICS.items(), strict=True):
        _prepare(axis, title)
        for number, run in enumerate(runs):
            axis.plot(*run.series(name), marker="o", markersize=4, **_look(number))
        axis.set_ylim(0, axis.get_ylim()[1] * 1.05)
    _legend(page, runs)
    return _png(page)


def sample_sheet(run: SavedRun) -> bytes:
    """One row an image: the image, what graders drew, its reconstructions, and samples of the prior."""
    shown = run.pictures
    assert shown is not None
    num_graders, num_samples = shown["labels"].shape[1], min(NUM_SHOWN_SAMPLES, shown["samples_full"].shape[1])
    rows = []
    for i, image in enumerate(shown["image"]):
        blank = np.full((*image.shape[1:], 3), 255, dtype=np.uint8)
        there = shown["graders"][i]
        by_grader = [
            _overlay(image, m) if exists else blank
            for maps in (shown["labels"][i], shown["reconstructions"][i])
            for m, exists in zip(maps, there, strict=True)
        ]
        samples = [_overlay(image, m) for m in shown["samples_full"][i][:num_samples]]
        rows.append([grey_or_colour(image), *by_grader, *samples])
    columns = ["image", *(f"{what} {i + 1}" for what in ("grader", "rec.") for i in range(num_graders))]
    columns += [f"sample {i + 1}" for i in range(num_samples)]
    return _pillow_png(sheet(rows, columns=columns, tile=84))


def deviation_maps(run: SavedRun) -> bytes:
    """One row an image: image, prior-mean prediction, and the samples' standard deviation by what was sampled."""
    shown = run.pictures
    assert shown is not None
    several = len(run.settings.model.latent_dims) > 1
    maps = {"std_full": "all scales sampled" if several else "its one scale sampled"}
    if several:
        maps |= {"std_global": "most global only", "std_local": "most local only"}
    b, _, h, w = shown["image"].shape
    num_columns = 2 + len(maps)
    page = figure(figsize=(_TILE * num_columns + 1.0, _TILE * h / w * b + 0.5))
    axes = page.subplots(b, num_columns, squeeze=False)
    drawn = None
    for row, image in enumerate(shown["image"]):
        axes[row, 0].imshow(grey_or_colour(image))
        axes[row, 1].imshow(_overlay(image, shown["prior_mean"][row]))
        for column, name in enumerate(maps, start=2):
            drawn = axes[row, column].imshow(shown[name][row], cmap="cividis", vmin=0, vmax=_LARGEST_STD)
    for axis, title in zip(axes[0], ("image", "prior mean", *maps.values()), strict=True):
        axis.set_title(title, fontsize=11)
    for axis in axes.ravel():
        axis.set_axis_off()
    page.colorbar(drawn, ax=axes, shrink=min(1.0, 3 / b), label="standard deviation of the probability")
    return _png(page)


def _overlay(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return overlay(image=image, labels=labels.astype(np.int64))


def _which(scale: int, num_scales: int) -> str:
    if num_scales == 1:
        return ""
    return {0: " (most global)", num_scales - 1: " (most local)"}.get(scale, "")


_MARKERS = ("o", "s", "^", "D", "v", "P")


def run_look(number: int) -> dict[str, Any]:
    """Colour and marker of the n-th run, for single values."""
    marker = _MARKERS[number % len(_MARKERS)]
    return {"color": _look(number)["color"], "marker": marker, "markersize": 6, "linestyle": "none"}


def _look(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th run: told apart in any colour vision, and in print without colours."""
    colours = [tuple(rgb / 255) for rgb in PALETTE[[5, 6, 3, 7, 1, 2]]]
    return {
        "color": colours[number % len(colours)],
        "linestyle": _LINE_STYLES[number % len(_LINE_STYLES)],
        "linewidth": 1.8,
    }


def _prepare(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("iteration")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _logarithmic(axis: Any) -> None:
    """A logarithmic y axis with plain numbers, and labels between the powers of ten only where there is room."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    few_decades = high / low < 100
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _legend(page: Any, runs: Sequence[SavedRun]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_look(i), label=run.name) for i, run in enumerate(runs)]
    page.legend(handles=handles, loc="outside upper center", ncols=min(4, len(runs)), frameon=False, fontsize=11)


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last tenth of the values up to each one."""
    window = max(1, len(values) // 10)
    total = np.concatenate([[0.0], values.cumsum()])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return np.asarray((total[end] - total[start]) / (end - start))


def _png(page: Any) -> bytes:
    buffer = io.BytesIO()
    page.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _pillow_png(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()
