"""The curves of the report: training dynamics and validation metrics, several runs overlaid."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpunet.reports.layout import WIDTH, figure_text, new_figure
from hpunet.reports.saved_run import SavedRun
from hpunet.utils.label_painter import PALETTE

_LINE_STYLES, _MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "P")
_SMALLEST_KL = 1e-3
_METRICS = {"val_ged2": "GED² (lower is better)", "val_hm_iou": "matched IoU", "val_iou_rec": "IoU_rec"}


def training_dynamics(runs: Sequence[SavedRun]) -> Any:
    """Cross-entropy against κ, λ, and the KL in total and by scale over the iterations; runs overlaid."""
    scales = [[i for i, dim in enumerate(run.settings.model.latent_dims) if dim] for run in runs]
    panels = [("rec", "cross-entropy per counted pixel"), ("lambda", "λ"), ("kl", "KL, all scales (nats)")]
    panels += [(f"kl_{i}", f"KL, scale {i}{_extent(i, scales)}") for i in sorted({i for own in scales for i in own})]
    rows = -(-len(panels) // 3)
    figure = new_figure(layout="constrained", figsize=(WIDTH, 2.4 * rows + 0.4))
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for axis, (name, title) in zip(axes, panels, strict=False):
        _prepare(axis, title)
        for number, run in enumerate(runs):
            if name.startswith("kl_") and int(name.removeprefix("kl_")) not in scales[number]:
                continue  # a scale without latents logs 0
            steps, values = run.series(name)
            if name.startswith("kl"):
                values = values.clip(min=_SMALLEST_KL)
            style = _style(number)
            axis.plot(steps, values, color=style["color"], alpha=0.25, linewidth=0.8)
            axis.plot(steps, values if name == "lambda" else _running_mean(values), **style)  # λ is smooth already
            if name == "rec" and run.settings.objective.kind == "geco":
                axis.axhline(run.settings.objective.kappa, color=style["color"], linestyle=":", linewidth=1.2)
        if name == "lambda" and not any(len(run.series(name)[0]) for run in runs):
            axis.text(0.5, 0.5, "no run uses GECO", transform=axis.transAxes, ha="center")
        else:
            _logarithmic(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    _legend(figure, runs)
    return figure


def validation_curves(runs: Sequence[SavedRun]) -> Any:
    """The validation metrics over the iterations; runs overlaid."""
    figure = new_figure(layout="constrained", figsize=(WIDTH, 2.9))
    for axis, (name, title) in zip(figure.subplots(1, len(_METRICS)), _METRICS.items(), strict=True):
        _prepare(axis, title)
        for number, run in enumerate(runs):
            axis.plot(*run.series(name), marker="o", markersize=4, **_style(number))
        axis.set_xlim(left=0)
        axis.set_ylim(0, axis.get_ylim()[1] * 1.05)
    _legend(figure, runs)
    return figure


def _extent(scale: int, scales: Sequence[Sequence[int]]) -> str:
    """Whether a scale is the most global or local one of all runs that have it, given the scales of each run."""
    ends = {(scale == own[0], scale == own[-1]) for own in scales if scale in own}
    if all(first for first, _ in ends) and not all(last for _, last in ends):
        return " (most global)"
    return " (most local)" if all(last and not first for first, last in ends) else ""


def run_style(number: int) -> dict[str, Any]:
    """Colour and marker of the n-th run, for single values."""
    how = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 6, "linestyle": "none"}
    return {"color": _style(number)["color"], **how}


def _style(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th run: distinct for any colour vision, and in print without colours."""
    colour = PALETTE[(5, 6, 3, 7, 1, 2)[number % 6]] / 255
    return {"color": tuple(colour), "linestyle": _LINE_STYLES[number % len(_LINE_STYLES)], "linewidth": 1.8}


def _prepare(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9.5)
    axis.set_xlabel("iteration", fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _logarithmic(axis: Any) -> None:
    """A logarithmic y axis with plain numbers, labelled between powers of ten where there is room."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    between = LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,))
    axis.yaxis.set_major_locator(MaxNLocator(5) if high / low < 5 else between)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, runs: Sequence[SavedRun]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_style(i), label=figure_text(run.name)) for i, run in enumerate(runs)]
    place = {"loc": "outside upper center", "ncols": min(4, len(runs))}
    figure.legend(handles=handles, **place, frameon=False, fontsize=9.5)


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last tenth of the values up to each one."""
    window = max(1, len(values) // 10)
    total = np.concatenate([[0.0], values.cumsum()])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return np.asarray((total[end] - total[start]) / (end - start))
