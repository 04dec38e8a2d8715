"""`hpunet report` and `hpunet demo`: pages to look at."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpunet.cli.progress import LogLines
from hpunet.cli.train import ProgressLine
from hpunet.config.settings import Settings

if TYPE_CHECKING:
    from hpunet.reports.contents import Drawing
    from hpunet.training.loop import Callback

console = Console()
notes = Console(stderr=True)


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several, seeds for instance, are overlaid.")],
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first run.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as PNG (300 dpi) and SVG, with captions.txt.")
    ] = None,
) -> None:
    """Write one HTML page about runs: how they trained, what they predict, what each scale decides.

    It holds the paper's figures as far as they apply: graders, reconstructions and samples; samples scale by scale;
    training dynamics; instances and the hardest of them; extrapolations. Evaluations in RUN/evaluation are shown too.
    """
    from hpunet.reports.page import write_report

    page = write_report(runs, out or runs[0] / "report.html", figures=figures, progress=_drawing)
    console.print(str(page), highlight=False, soft_wrap=True)
    if figures is not None:
        console.print(str(figures), highlight=False, soft_wrap=True)


def _drawing(drawings: "Iterable[Drawing]", count: int) -> "Iterator[Drawing]":
    quiet, lines = not notes.is_terminal, LogLines("report", console=notes)
    shown = track(drawings, description="drawing", total=count, console=notes, transient=True, disable=quiet)
    for done, drawing in enumerate(shown):
        lines.update(done, count, "figures")
        yield drawing


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder; replaces an earlier demonstration.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights, training and samples.")] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of both: optimiser.iterations=5000.")
    ] = None,
) -> None:
    """Train a small HPU-Net and a small Probabilistic U-Net on synthetic lesions, and compare them with the truth.

    Takes about five minutes on a CPU. Ctrl-C stops it; run again, it starts anew.
    """
    start = time.perf_counter()
    with notes.status("loading torch"):
        from hpunet.demo.run import run_demo
        from hpunet.utils.signals import Interrupted
    try:
        result = run_demo(out, seed=seed, changes=change or [], display=_training, say=_say)
    except Interrupted as stop:
        notes.print(f"Stopped. What there is lies in {out}; the same command starts anew.", highlight=False)
        raise typer.Exit(128 + stop.signal_number) from None
    for shown in result.tables():
        table = Table(*shown.columns, title=shown.title, title_justify="left")
        for row in shown.rows:
            table.add_row(*row)
        console.print(table)
        console.print(shown.says, highlight=False)
    console.print(f"Took {time.perf_counter() - start:.0f} seconds. Look at the page:", highlight=False)
    console.print(str(result.report), highlight=False, soft_wrap=True)


def _say(message: str) -> None:
    notes.print(message, highlight=False)


@contextmanager
def _training(name: str, settings: Settings) -> Iterator["Callback"]:
    _say(f"training the {name}")
    with ProgressLine(settings, quiet=False) as line:
        yield line.update
