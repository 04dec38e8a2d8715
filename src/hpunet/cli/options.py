"""Options that several commands share, and the checks of their values."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from hpunet.config.settings import MAX_EROSION, MAX_SAMPLES, MAX_SEED, parse_assignments
from hpunet.data.io import windows
from hpunet.errors import ConfigError
from hpunet.utils.files import real_path

if TYPE_CHECKING:
    pass

_DATA = (
    "Folder, archive, or pack (made by `hpunet data pack`); or synthetic:lesions, synthetic:neurites, "
    "synthetic:streets, synthetic:hard-streets, synthetic:nodules3d, synthetic:growth."
)
_ORIENTATIONS = (
    "Number of image orientations to sample from: 2 adds the left-right mirror image, 4 also up-down, 8 also 90° "
    "rotations; by default as in the model's settings."
)
_TEMPERATURE = (
    "Factor on the prior's standard deviation, or one per scale, coarsest first: 0.9,1,1,0.7. It multiplies the "
    "factors that published weights already contain."
)
_GRADERS = (
    "Folders of images: the file of each grader, such as '{name}_1.png' '{name}_2.png' beside the images or "
    "'masks/{name}_1.png'; {name} is the name of the image without its ending."
)
_PATIENT = "Folders of images: regular expression whose group is the patient in the name of an image: 'Image_(\\d+)'."
_FORMAT = (
    "Formats of results, separated by commas: png, nifti, dicom-seg, rtstruct, geojson, imagej; by default png, and "
    "nifti of volumes."
)
_ALPHA = (
    "Instances: largest Hamming distance within a cluster. A sample in which two pixels differ counts 2, so the "
    "default, --samples, lets them differ in half of the samples."
)


def _parse_window(text: str | None) -> windows.Window | None:
    """Two numbers or a word; see `data/io/windows.py`."""
    window: windows.Window | None = text
    parts = (text or "").split()
    if len(parts) == 2 and all(map(_is_number, parts)):
        window = float(parts[0]), float(parts[1])
    windows.check_window(window, option="--window")
    return window


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


_window = typer.Option(
    help="Stored values that map to 0 and 1, such as -1000 400; auto: the range of each image or slice; file: the "
    f"window of a DICOM file; {', '.join(windows.NAMED)}: of CT, in HU. By default as in training.",
    metavar="LOW HIGH|WORD",
    parser=str,
    callback=_parse_window,
)
Run = Annotated[Path, typer.Argument(help="Run folder, or name of published weights.")]
Data = Annotated[str, typer.Option(help=_DATA)]
DataArgument = Annotated[str, typer.Argument(help=_DATA)]
Images = Annotated[
    list[Path],
    typer.Argument(
        help="Images: PNG, JPEG, TIFF, GIF, .npy, DICOM, or volumes: NIfTI, a folder of a DICOM series; also stacks."
    ),
]
Out = Annotated[Path, typer.Option(help="Output folder; each image gets a subfolder with its name.")]
NewFolder = Annotated[Path, typer.Argument(help="Output folder; must not exist yet.")]
Samples = Annotated[int, typer.Option(help="Number of samples per image.", min=1, max=MAX_SAMPLES)]
Seed = Annotated[int, typer.Option(help="Random seed of the samples.", min=0, max=MAX_SEED)]
Split = Annotated[str, typer.Option(help="train, val or test.")]
Checkpoint = Annotated[
    str, typer.Option(help="latest, best (in validation, by default of GED²), or a name such as step-00001000.")
]
Weights = Annotated[
    str, typer.Option(help="ema: the averaged weights if the run has them; raw: those of the last step.")
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--set", help="Data option, such as size=128; by default as in training."),
]
Tile = Annotated[
    str,
    typer.Option(
        help="auto, whole, or the tile side in pixels or voxels. Changes the memory needed, not the result."
    ),
]
Window = Annotated[Any, _window]  # a `windows.Window` or None, which typer cannot spell
Slices = Annotated[str | None, typer.Option(help="Slices of volumes to use, FIRST:END; END is excluded.")]
Formats = Annotated[str | None, typer.Option("--format", help=_FORMAT, metavar="NAMES")]
Visible = Annotated[
    Path | None,
    typer.Option(help="Models trained with data.extrapolate: a map of the image, 0 where the model is to continue."),
]
Labels = Annotated[
    Path | None, typer.Option(help="With --visible: a label map; labels of the hidden part are not used.")
]
Kernels = Annotated[
    str,
    typer.Option(
        help="auto: bf16 if the GPU runs fused kernels, else float32; fused: bf16, also on some CPUs, or an error; "
        "torch: float32."
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace existing results.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
Alpha = Annotated[int | None, typer.Option(help=_ALPHA, min=0)]
_EROSION = (
    "Remove instances that contain no square of this side, in pixels; by default 5, for street scenes 5 at a height "
    "of 512 and in proportion at others."
)
Erosion = Annotated[int | None, typer.Option(help=_EROSION, min=1, max=MAX_EROSION)]
Connected = Annotated[bool, typer.Option("--connected", help="Split instances into connected parts.")]
Temperature = Annotated[str, typer.Option(help=_TEMPERATURE)]
Orientations = Annotated[int | None, typer.Option(help=_ORIENTATIONS)]


Graders = Annotated[list[str] | None, typer.Option(help=_GRADERS, metavar="PATTERN ...")]
Patient = Annotated[str | None, typer.Option(help=_PATIENT)]


class CommandWithWindow(TyperCommand):
    """A command whose --window takes two numbers or one word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join two numbers after the option, because click's options have a fixed number of values."""
        joined: list[str] = []
        for word in args:
            if joined[-2:-1] == ["--window"] and _is_number(word) and _is_number(joined[-1]):
                joined[-1] += f" {word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


class CommandWithGraders(TyperCommand):
    """A command whose --graders takes several patterns after one another."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further pattern, which is how click takes several values."""
        repeated: list[str] = []
        for word in args:
            follows = repeated[-2:-1] == ["--graders"] or (repeated[-1:] and repeated[-1].startswith("--graders="))
            if follows and "{name}" in word and not word.startswith("-"):
                repeated.append("--graders")
            repeated.append(word)
        return super().parse_args(ctx, repeated)


class CommandWithBoth(CommandWithGraders, CommandWithWindow):
    """A command with --graders and --window."""


def data_options(
    assignments: Sequence[str] | None, *, graders: Sequence[str] | None, patient: str | None
) -> dict[str, Any]:
    """The data options of a command line."""
    chosen = parse_assignments(assignments or [])
    return chosen | as_data_options(graders=graders, patient=patient)


def as_data_options(*, graders: Sequence[str] | None, patient: str | None) -> dict[str, Any]:
    """--graders and --patient as data options."""
    given = {"graders": list(graders) if graders else None, "patient": patient}
    return {name: value for name, value in given.items() if value is not None}


def parse_temperature(text: str) -> list[float]:
    """One number, or several separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"temperature: expected numbers such as 0.8 or 0.9,1,1,0.7, got {text!r}") from None


def parse_region(at: str | None, box: str | None) -> dict[str, Any]:
    """--at and --box as numbers, by name."""
    given = (("at", at, "250,131"), ("box", box, "230,110,270,150"))
    return {
        name: None if text is None else parse_numbers(name, text, example=example, count=example.count(",") + 1)
        for name, text, example in given
    }


def parse_numbers(name: str, text: str, *, example: str, count: int | None = None) -> tuple[float, ...]:
    """Numbers separated by commas, so many if `count` is given; `name` is the option's."""
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or len(numbers) != (count or len(numbers)) or not all(map(isfinite, numbers)):
        raise ConfigError(f"--{name}: expected numbers such as {example}, got {text!r}")
    return numbers


def run_names(runs: Sequence[Path]) -> list[str]:
    """Folder names, or whole paths with dashes if those repeat; refuses a run given twice."""
    folders = [real_path(run) for run in runs]
    if twice := [run for i, run in enumerate(runs) if folders[i] in folders[:i]]:
        raise ConfigError(f"{twice[0]}: given twice; give each run once")
    names = [folder.name for folder in folders]
    repeat = len(set(names)) < len(names)
    return ["-".join(folder.relative_to(folder.anchor).parts) for folder in folders] if repeat else names
