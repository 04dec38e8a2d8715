"""The comparison of several runs as a figure."""

from collections.abc import Mapping
from typing import Any

from hpunet.evaluation.rows import CLASS_METRICS
from hpunet.evaluation.summary import DIRECTIONS, counts, listed
from hpunet.reports.curves import run_style
from hpunet.reports.layout import as_png, as_svg, figure_text, new_figure


def draw_comparison(comparison: Mapping[str, Any]) -> dict[str, bytes]:
    """The comparison as a figure, by format: png and svg.

    On the left the metrics of each run, on the right the differences to the first run with 95 % intervals.
    """
    names = [figure_text(run["name"]) for run in comparison["runs"]]
    scores = [name for name in listed(comparison) if name not in CLASS_METRICS]  # pixels have no place on this axis
    shown = [name for name in scores if any(comparison[name]["runs"])]
    figure = new_figure(layout="constrained", figsize=(12, 1.6 + (0.25 + 0.2 * len(names)) * len(shown)))
    left, right = figure.subplots(1, 2, sharey=True)
    for number, name in enumerate(names):
        style = run_style(number)
        for place, metric in enumerate(shown):
            y = place + (number - (len(names) - 1) / 2) * 0.7 / len(names)
            label = name if place == 0 else None
            if entry := comparison[metric]["runs"][number]:
                left.errorbar(entry["mean"], y, xerr=entry["std"], label=label, capsize=3, **style)
            if number and (gap := comparison[metric]["differences"][number - 1]):
                below = y + 0.25 / len(names)
                ends, patient_ends = (gap["low"], gap["high"]), (gap["patient_low"], gap["patient_high"])
                right.plot(ends, (y, y), color=style["color"], linewidth=3.2)
                right.plot(patient_ends, (below, below), color=style["color"], linewidth=1)
                right.plot(gap["mean"], y, **style)
    left.set_yticks(range(len(shown)), [f"{name} {DIRECTIONS.get(name, '')}".strip() for name in shown])
    left.invert_yaxis()
    right.axvline(0, color="black", linewidth=1)
    left.set_title("mean ± std over images", fontsize=11)
    right.set_title(f"difference to {names[0]}: 95 % over images (thick) and patients (thin)", fontsize=11)
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(counts(comparison) + "; ↑ higher is better, ↓ lower is better", fontsize=12)
    how: dict[str, Any] = {"loc": "outside lower center", "ncols": min(4, len(names)), "frameon": False}
    figure.legend(*left.get_legend_handles_labels(), **how)
    return {"png": as_png(figure, dpi=110), "svg": as_svg(figure)}
