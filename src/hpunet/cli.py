"""The command line. Errors that we raise on purpose are printed as one line, without a traceback."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpunet import __version__
from hpunet.cli_data import app as data_app
from hpunet.cli_init import init_command
from hpunet.cli_train import train_command
from hpunet.errors import HPUNetError

app = typer.Typer(
    help="Segment ambiguous images as a distribution over hypotheses.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.command(name="init")(init_command)
app.command(name="train")(train_command)
console = Console()


def _show_version(value: bool) -> None:
    if value:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights and samples.")] = 0,
) -> None:
    """Build a small HPU-Net and sample from it. It is not trained: that comes with `hpunet train`."""
    with console.status("building a small HPU-Net and drawing hypotheses from it"):
        from hpunet.demo import run_demo

        result = run_demo(out, seed=seed)
    console.print(
        f"Built an HPU-Net of {result.num_parameters:,} parameters with latents (channels, height, width) "
        f"{result.latent_shapes}, coarsest first."
    )
    console.print("[bold]It is untrained[/bold]: its hypotheses differ, as they should, but mean nothing yet.")
    table = Table("scales sampled (the others stay at their mean)", "pixels that differ from the first hypothesis")
    for name, share in result.differing.items():
        table.add_row(name, f"{share:.1%}")
    console.print(table)
    console.print(f"Picture: {result.picture}")


def main() -> None:
    """Entry point of the `hpunet` command."""
    try:
        app()
    except (HPUNetError, OSError) as error:
        message = f"[bold red]error:[/bold red] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
