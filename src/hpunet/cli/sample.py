"""`hpunet sample`, and what it shares with `hpunet instances`: options, progress, going on after a bad image."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table

from hpunet.cli.progress import LogLines
from hpunet.cli.weights import Orientations, Temperature, parse_temperature
from hpunet.errors import ConfigError, HPUNetError

if TYPE_CHECKING:
    from hpunet.sampling.hypotheses import Hypothesis

T = TypeVar("T")
Work = Callable[[T, Callable[[int], None], Callable[[int], None]], None]
"""Does one item; tells a first function how many samples it will draw, a second one how many more it has drawn."""

console = Console()
notes = Console(stderr=True)


def _check_window(window: tuple[float, float] | None) -> tuple[float, float] | None:
    if window is not None and not -math.inf < window[0] < window[1] < math.inf:
        raise ConfigError(f"--window: expected LOW below HIGH, got {window[0]:g} {window[1]:g}")
    return window


Run = Annotated[Path, typer.Argument(help="Folder of a run, or the name of published weights.")]
Images = Annotated[
    list[Path], typer.Argument(help="Images: PNG, JPEG, TIFF, .npy, or NIfTI volumes, slice by slice.")
]
Out = Annotated[Path, typer.Option(help="Folder; each image gets its own in it, by its name.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.", min=0)]
Checkpoint = Annotated[str, typer.Option(help="latest, best, or a name in the run's checkpoints folder.")]
Tile = Annotated[
    str, typer.Option(help="Large images: auto, whole, or the side of the tiles; the result is the same.")
]
Window = Annotated[
    tuple[float, float] | None,
    typer.Option(
        help="Stored pixel values that become 0 and 1; by default as in training.",
        metavar="LOW HIGH",
        callback=_check_window,
    ),
]
Slices = Annotated[str | None, typer.Option(help="Slices of volumes, first:end, the end not included.")]
Nifti = Annotated[bool, typer.Option("--nifti", help="Write NIfTI beside the PNGs also for pictures.")]
Kernels = Annotated[
    str, typer.Option(help="fused: bf16 on fused GPU kernels, for throughput; auto and torch: float32.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace results of the same images that are there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]


def sample_command(
    run: Run,
    images: Images,
    out: Out,
    samples: Annotated[int, typer.Option(help="Samples an image.", min=1)] = 16,
    scales: Annotated[
        str, typer.Option(help="What is drawn: full, global, local, or scales such as 0,2; the others at their mean.")
    ] = "full",
    seed: Seed = 0,
    checkpoint: Checkpoint = "latest",
    tile: Tile = "auto",
    temperature: Temperature = "1",
    orientations: Orientations = None,
    same_iou: Annotated[
        float, typer.Option(help="IoU from which on two samples are one hypothesis.", min=0.01, max=1)
    ] = 0.5,
    window: Window = None,
    slices: Slices = None,
    nifti: Nifti = False,
    kernels: Kernels = "auto",
    replace: Replace = False,
    quiet: Quiet = False,
) -> None:
    """Draw hypotheses of images, and group them: which are distinct, and how often each comes up."""
    refuse_folders(images)
    factors = parse_temperature(temperature)
    with loading(quiet=quiet):
        from hpunet.data.io.inputs import read_input
        from hpunet.kernels.dispatch import fast_sampler
        from hpunet.predict.samples import SamplingOptions, sample_file, scale_choices, slice_numbers, with_tiles
        from hpunet.sampling.sample import temperature_per_scale
        from hpunet.training.build import autocast_for
        from hpunet.weights.load import load, with_orientations

        trained = with_orientations(load(run, checkpoint=checkpoint), orientations)
        autocast_for("fp32", trained.device)  # no TF32: tiles give what the whole image gives
        trained = dataclasses.replace(
            trained, sampler=fast_sampler(trained.model, kernels=kernels, device=trained.device)
        )
    named = named_images(images)
    chosen = parse_slices(slices)
    # Impossible choices end here, not at every image.
    num_scales = len(trained.model.latent_dims)
    scale_choices(scales, num_scales=num_scales)
    given = factors[0] if len(factors) == 1 else factors
    temperature_per_scale(given, num_scales=num_scales)
    with_tiles(trained.model, size=(1, 1), tile=tile, sampler=trained.sampler)
    how = SamplingOptions(num_samples=samples, scales=scales, temperature=given, seed=seed, tile=tile, window=window)
    if trained.info.has_instances and not quiet:
        words = "The ids of instances differ from sample to sample; hpunet instances puts them together."
        notes.print(words, highlight=False, soft_wrap=True)

    def work(item: tuple[str, Path], begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        name, path = item
        source = read_input(path, name=name, info=trained.info, window=window)
        numbers = slice_numbers(source, chosen, where=str(path))
        begin(len(numbers) * samples)
        found = sample_file(
            trained,
            source=source,
            out=out,
            how=how,
            slices=numbers,
            same_iou=same_iou,
            nifti=nifti,
            replace=replace,
            advance=advance,
        )
        if not quiet:
            for where, hypotheses in found.items():
                if hypotheses:
                    console.print(_hypotheses_table(where, hypotheses))
            console.print(str(out / name), highlight=False, markup=False, soft_wrap=True)

    left, there = not_there_yet(named, [name for name, _ in named], out=out, replace=replace)
    one_after_the_other(left, work, command="sample", quiet=quiet, num_there=there)


def _hypotheses_table(name: str, hypotheses: Sequence["Hypothesis"]) -> Table:
    from hpunet.predict.samples import sample_name

    num_samples = sum(len(hypothesis.members) for hypothesis in hypotheses)
    title = f"{name}: {len(hypotheses)} distinct among {num_samples} samples"
    table = Table("share", "samples", "what it shows", "typical", title=escape(title), title_justify="left")
    for hypothesis in hypotheses:
        share, count = f"{float(hypothesis.share):.0%}", str(len(hypothesis.members))
        table.add_row(share, count, hypothesis.description, sample_name(hypothesis.representative))
    return table


def loading(*, quiet: bool) -> Status:
    """Shown while torch and the model are loaded."""
    return Console(stderr=True, quiet=quiet).status("loading the model")


def refuse_folders(images: Sequence[Path], *, data_option: bool = False) -> None:
    """Say what to give instead of a folder or an archive: its images, or, where the command has it, --data."""
    from hpunet.data.io.archives import is_archive
    from hpunet.data.io.inputs import ENDINGS

    for path in images:
        if not path.is_dir() and not is_archive(path):
            continue
        folder = path / "images" if (path / "images").is_dir() else path
        files = sorted(folder.iterdir()) if path.is_dir() else []
        ending = next((end for file in files for end in ENDINGS if file.name.lower().endswith(end)), ".png")
        what = f"name its images, {folder}/*{ending}" if path.is_dir() else "unpack it and name its images"
        kind = "a folder" if path.is_dir() else "an archive"
        data = f"for data with instances say --data {path}, else " if data_option else ""
        raise ConfigError(f"{path}: is {kind}, not an image; {data}{what}")


def not_there_yet(items: Sequence[T], names: Sequence[str], *, out: Path, replace: bool) -> tuple[list[T], int]:
    """The items that have no results in `out` yet, and how many have; one error for all of these."""
    there = set() if replace else {name for name in names if (out / name).exists()}
    if there:
        first = next(name for name in names if name in there)
        others = f" and {len(there) - 1} more" if len(there) > 1 else ""
        notes.print(
            f"[bold red]error:[/bold red] {escape(str(out / first))}: exists already{others}; replace such results "
            "with --replace, or choose another --out",
            highlight=False,
            soft_wrap=True,
        )
    return [item for item, name in zip(items, names, strict=True) if name not in there], len(there)


def named_images(images: Sequence[Path]) -> list[tuple[str, Path]]:
    """What results are called: the files' names, or, if two are alike, paths below the folder that holds all.

    A `ConfigError` if two would still be written to one folder, or one into another's.
    """
    from hpunet.data.io.inputs import input_name

    names = [input_name(path) for path in images]
    if len(set(names)) < len(names):
        folders = [os.path.abspath(path.parent) for path in images]
        shared = os.path.commonpath(folders)
        names = [
            (Path(folder).relative_to(shared) / name).as_posix() for folder, name in zip(folders, names, strict=True)
        ]
    for name, count in Counter(names).items():
        if not name or count > 1:
            raise ConfigError(f"images: {count} called {name!r}; results go by names, so use several --out")
        if inside := {str(parent) for parent in PurePosixPath(name).parents} & set(names):
            raise ConfigError(f"images: {name!r} would lie in the results of {inside.pop()!r}; use several --out")
    return list(zip(names, images, strict=True))


def parse_slices(text: str | None) -> tuple[int, int] | None:
    """`first:end` as numbers."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise ConfigError(f"slices: expected first:end such as 10:20, got {text!r}")
    return int(first), int(end)


def one_after_the_other(items: Sequence[T], work: Work[T], *, command: str, quiet: bool, num_there: int = 0) -> None:
    """Do all; an item that fails is named, the rest goes on, and the exit code is 1.

    So it is where so many others were not begun, since they have results already.
    """
    failed = num_there
    lines = LogLines(command, console=notes, quiet=quiet)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    hidden = quiet or not notes.is_terminal
    with Progress(*columns, console=notes, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)
        for number, item in enumerate(items, start=1):
            progress.reset(task, total=None, description=f"image {number} of {len(items)}")
            counts = {"drawn": 0, "of": 1}

            def begin(total: int, counts: dict[str, int] = counts) -> None:
                counts["of"] = total
                progress.update(task, total=total)

            def advance(count: int, before: int = number - 1, counts: dict[str, int] = counts) -> None:
                counts["drawn"] += count
                progress.advance(task, count)
                if len(items) == 1:
                    lines.update(counts["drawn"], counts["of"], "samples")
                else:
                    lines.update(before + counts["drawn"] / max(counts["of"], 1), len(items))

            try:
                work(item, begin, advance)
            except (HPUNetError, OSError) as error:
                failed += 1
                message = f"[bold red]error:[/bold red] {escape(str(error))}"
                notes.print(message, highlight=False, soft_wrap=True)
    if failed:
        notes.print(f"{failed} of {len(items) + num_there} failed.", highlight=False)
        raise typer.Exit(1)
