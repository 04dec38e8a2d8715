"""`hpunet demo`: two small models on synthetic lesions, compared with the truth."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hpunet.cli.progress import TrainingProgress
from hpunet.cli.terminal import console, notes
from hpunet.config.settings import Settings

if TYPE_CHECKING:
    from hpunet.training.loop import Callback

_SET = "Change a setting of both models: optimiser.iterations=5000."


def demo_command(
    out: Annotated[Path, typer.Option(help="Output folder; a demonstration in it is replaced.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Random seed of weights, training and samples.")] = 0,
    change: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
) -> None:
    """Train a small HPU-Net and a small Probabilistic U-Net on synthetic lesions, and compare them with the truth.

    Takes about five minutes on a CPU. After Ctrl-C, the next run starts from the beginning.
    """
    start = time.perf_counter()
    with notes.status("loading torch"):
        from hpunet.demo.run import run_demo
        from hpunet.utils.signals import Interrupted
    try:
        result = run_demo(out, seed=seed, changes=change or [], display=_training, say=_say)
    except Interrupted as stop:
        notes.print(f"Stopped. Partial results are in {out}; the next run replaces them.")
        raise typer.Exit(128 + stop.signal_number) from None
    for shown in result.tables():
        table = Table(*shown.columns, title=shown.title, title_justify="left")
        for row in shown.rows:
            table.add_row(*row)
        console.print(table)
        console.print(shown.caption)
    console.print(f"Took {time.perf_counter() - start:.0f} seconds. Open the page:")
    console.print(str(result.report))


def _say(message: str) -> None:
    notes.print(message)


@contextmanager
def _training(name: str, settings: Settings) -> Iterator["Callback"]:
    _say(f"training the {name}")
    with TrainingProgress(settings, quiet=False) as line:
        yield line.update
