"""The command line. Expected errors are printed as one line, without a traceback."""

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hpunet import __version__
from hpunet.cli.bench import bench_command
from hpunet.cli.calibrate import calibrate_command
from hpunet.cli.compare import compare_command
from hpunet.cli.convert_tf import convert_tf_command
from hpunet.cli.data import app as data_app
from hpunet.cli.demo import demo_command
from hpunet.cli.edit import edit_command
from hpunet.cli.evaluate import evaluate_command
from hpunet.cli.examples import examples_command
from hpunet.cli.export import export_command
from hpunet.cli.init import init_command
from hpunet.cli.instances import instances_command
from hpunet.cli.measure import measure_command
from hpunet.cli.options import CommandWithBoth, CommandWithGraders, CommandWithWindow
from hpunet.cli.report import report_command
from hpunet.cli.sample import sample_command
from hpunet.cli.score import score_command
from hpunet.cli.start import raise_again
from hpunet.cli.terminal import console, flush_streams, notes, prepare_streams, print_error
from hpunet.cli.train import train_command
from hpunet.cli.view import view_command
from hpunet.errors import HPUNetError
from hpunet.utils.source import source_commit
from hpunet.utils.text import printable

_KEPT = {
    "train": "Saved checkpoints are kept.",
    **dict.fromkeys(("evaluate", "score"), "Finished rows are kept; re-run the command to resume."),
    **dict.fromkeys(("sample", "instances"), "Finished images are kept."),
    "view": "What you did is kept; re-run the command to go on.",
}


class _Commands(TyperGroup):
    """Ctrl-C ends a command with a line that says what is kept."""

    def main(self, *args: Any, **how: Any) -> Any:
        """Run a command."""
        prepare_streams()
        return super().main(*args, **how)

    def make_context(self, *args: Any, **how: Any) -> Any:
        """Read the options that stand before the command."""
        with _printable_messages():
            return super().make_context(*args, **how)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's options, and do it."""
        raise_again()
        try:
            with _printable_messages():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            kept = _KEPT.get(ctx.invoked_subcommand or "", "Finished results are kept.")
            notes.print(f"Stopped. {kept}")
            raise typer.Exit(130) from None


@contextmanager
def _printable_messages() -> Iterator[None]:
    """Errors about arguments, which typer prints, show names of files as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=_Commands,
    help="Segmentation of ambiguous images: sample, score and compare several plausible hypotheses per image.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(name="demo")(demo_command)
app.add_typer(data_app, name="data")
app.command(name="init", cls=CommandWithGraders)(init_command)
app.command(name="train", cls=CommandWithGraders)(train_command)
app.command(name="evaluate")(evaluate_command)
app.command(name="score", cls=CommandWithGraders)(score_command)
app.command(name="calibrate")(calibrate_command)
app.command(name="compare")(compare_command)
app.command(name="examples")(examples_command)
app.command(name="sample", cls=CommandWithWindow)(sample_command)
app.command(name="edit")(edit_command)
app.command(name="measure")(measure_command)
app.command(name="instances", cls=CommandWithWindow)(instances_command)
app.command(name="view", cls=CommandWithBoth)(view_command)
app.command(name="report")(report_command)
app.command(name="export")(export_command)
app.command(name="convert-tf")(convert_tf_command)
app.command(name="bench")(bench_command)


def _show_version(value: bool) -> bool:
    if value:
        console.print(*_versions(), sep="\n")
        raise typer.Exit
    return value


def _versions() -> list[str]:
    source = source_commit()
    commit = f"commit {source['commit'][:12]}" if source["commit"] else "commit unknown"
    packages = [f"{name} {metadata.version(name)}" for name in ("torch", "numpy")]  # without importing them
    return [
        f"hpunet {__version__} ({commit}{', changed' if source['dirty'] else ''})",
        ", ".join([f"Python {platform.python_version()}", *packages]),
    ]


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the `hpunet` command."""
    try:
        try:
            app()
        finally:
            flush_streams()
    except (HPUNetError, OSError) as error:
        print_error(error)
        sys.exit(2)
