"""`hpunet report`: one HTML page about runs, or about published weights."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hpunet.cli.progress import loading, logged
from hpunet.cli.terminal import console
from hpunet.utils.files import real_path

_RUNS = "Run folders; the curves of several are drawn together. Or the name of published weights."
_OUT = "Page to write; by default report.html in the first run, or NAME.html for published weights."
_FIGURES = "Folder for all figures as PNG (300 dpi) and SVG, with captions.txt."


def report_command(
    runs: Annotated[list[Path], typer.Argument(help=_RUNS)],
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    figures: Annotated[Path | None, typer.Option(help=_FIGURES)] = None,
) -> None:
    """Write an HTML page about runs: training curves, evaluations, predictions, and what each scale decides.

    Of published weights, it shows what they are, their data, settings, scores, and samples of example images.

    It contains the paper's figures where they apply: graders, reconstructions and samples; samples scale by scale;
    training dynamics; instances and the hardest of them; extrapolations.
    """
    from hpunet.reports.page import write_report

    drawing = partial(logged, title="drawing", command="report", unit="figures")
    how: dict[str, Any] = {"figures": figures, "progress": drawing}
    if len(runs) == 1 and not (runs[0] / "settings.json").exists() and (name := _published(runs[0])):
        with loading(quiet=False):
            from hpunet.reports.published import write_published_report

        page = write_published_report(str(runs[0]), out or Path(f"{name}.html"), **how)
    else:
        page = write_report(runs, out or runs[0] / "report.html", **how)
    for path in filter(None, (page, figures)):
        console.print(str(path))


def _published(run: Path) -> str | None:
    """The name of published weights, if this is their name or folder."""
    from hpunet.weights.published import find_published, is_published

    return real_path(run).name if is_published(run) or (not run.exists() and find_published(str(run))) else None
