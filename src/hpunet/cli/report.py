"""`hpunet report`: one HTML page about runs."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hpunet.cli.progress import console, logged

_FIGURES = "Folder for all figures as PNG (300 dpi) and SVG, with captions.txt."


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the curves of several are drawn together.")],
    out: Annotated[Path | None, typer.Option(help="Page to write; by default report.html in the first run.")] = None,
    figures: Annotated[Path | None, typer.Option(help=_FIGURES)] = None,
) -> None:
    """Write an HTML page about runs: training curves, evaluations, predictions, and what each scale decides.

    It contains the paper's figures where they apply: graders, reconstructions and samples; samples scale by scale;
    training dynamics; instances and the hardest of them; extrapolations.
    """
    from hpunet.reports.page import write_report

    drawing = partial(logged, title="drawing", command="report", unit="figures")
    page = write_report(runs, out or runs[0] / "report.html", figures=figures, progress=drawing)
    for path in filter(None, (page, figures)):
        console.print(str(path), highlight=False, soft_wrap=True)
