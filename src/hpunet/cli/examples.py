"""`hpunet examples`: list the example images that ship with the package, or copy them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hpunet.cli.terminal import console


def examples_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Examples to copy; none: list all.", metavar="NAME")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the copies.")] = Path(),
    labels: Annotated[
        bool, typer.Option("--labels", help="Copy the gradings too: a data set with images/ and graders/.")
    ] = False,
) -> None:
    """List the example images that ship with hpunet, or copy them."""
    from hpunet.data.examples.load import copy_example, example, example_names

    if names:
        for name in names:
            for path in copy_example(name, out, labels=labels):
                console.print(str(path))
    else:
        table = Table("name", "what it shows", "size")
        for found in map(example, example_names()):
            table.add_row(found.name, found.description, f"{found.path.stat().st_size / 1000:.0f} kB")
        console.print(table)
    credits = dict.fromkeys(example(name).credit for name in names or example_names())
    for credit in credits:
        console.print(f"Credit: {credit}")
