"""`hpunet score`: scores of samples in files, of any method."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hpunet.cli import options as cli
from hpunet.cli.evaluate import print_summary
from hpunet.cli.progress import PeriodicLog, progress_bar
from hpunet.cli.terminal import notes
from hpunet.errors import ConfigError
from hpunet.utils.text import printable

_SAMPLES = (
    "Folder or tar archive with the samples; `hpunet evaluate --save-samples` and `hpunet sample` write such ones."
)
_LABELS = "Data with the graders' labels, in any form that --data of hpunet train takes."
_PATTERN = (
    "Files of the samples: '{name}.npz' (also .npy, .nii.gz) has all samples of an image, "
    "'{name}/sample-{number}.png' has one; {name} is the key of the image. By default the first of both that fits."
)
_NUMBERS = "Numbers of samples to score, such as 16,32,50,100: each time the first ones of every image."
_CROP = "Score the centre of this size (of volumes D,H,W), as evaluations of crops do; by default whole images."
_LIMIT = "Maximum number of images; always the same selection."
_SKIP = "Leave out images without samples instead of refusing them."
_OUT = (
    "Output folder, with a subfolder SPLIT-SAMPLES per number; by default evaluation/NAME of the samples' folder, "
    "evaluation/RUN-val-16 for RUN/evaluation/val-16/samples."
)
_JSON = "Write the summaries to this file, by number of samples."


def score_command(
    samples: Annotated[Path, typer.Option(help=_SAMPLES)],
    labels: Annotated[str, typer.Option(help=_LABELS)],
    split: cli.Split = "val",
    samples_per_image: Annotated[str, typer.Option(help=_NUMBERS)] = "16",
    pattern: Annotated[str | None, typer.Option(help=_PATTERN)] = None,
    crop: Annotated[str | None, typer.Option(help=_CROP, metavar="H,W")] = None,
    limit: Annotated[int | None, typer.Option(help=_LIMIT, min=1)] = None,
    skip_missing: Annotated[bool, typer.Option("--skip-missing", help=_SKIP)] = False,
    graders: cli.Graders = None,
    patient: cli.Patient = None,
    options: Annotated[list[str] | None, typer.Option("--set", help="Data option, such as size=128.")] = None,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite results made with other options.")] = False,
) -> None:
    """Score samples of any method: one row per image, and the mean over images ± its standard deviation.

    Metrics, bootstraps and files are those of hpunet evaluate, without what needs a model; hpunet compare takes both.
    """
    with notes.status("loading torch"):
        from hpunet.data.open import open_split
        from hpunet.evaluation.rows import folder_name
        from hpunet.evaluation.sample_files import SampleFiles
        from hpunet.evaluation.score import score_samples
        from hpunet.utils.files import atomic_write, dump_json

    numbers = _whole_numbers("samples-per-image", samples_per_image, example="16,32,50,100")
    chosen = cli.data_options(options, graders=graders, patient=patient)
    source = open_split(labels, split=split, options=chosen)
    axes, example = source.info.ndim, "128,128" if source.info.ndim == 2 else "32,128,128"
    centre = None if crop is None else _whole_numbers("crop", crop, example=example, count=axes)
    files = SampleFiles(samples, keys=[identity.key for identity in source.identities], pattern=pattern)
    name = _name(samples)
    out = Path("evaluation") / name if out is None else out
    log = PeriodicLog(f"score {name}", console=notes, quiet=False)
    summaries: dict[str, Any] = {}
    for number in dict.fromkeys(numbers):
        folder = out / folder_name(split=split, num_samples=number)
        run = {"name": name, "folder": str(samples), "rows": str(folder / "rows.csv")}
        how: dict[str, Any] = {"options": chosen, "limit": limit, "skip_missing": skip_missing}
        how |= {"crop": None if centre is None else tuple(centre), "replace_rows": replace}
        how |= {"about": {"runs": [run], "data": labels}, "say": lambda words: notes.print(f"{name}: {words}")}
        with progress_bar(hidden=False) as progress:
            task = progress.add_task(printable(f"{name}, {number} samples"), total=None)

            def watch(done: int, total: int, progress: Any = progress, task: Any = task) -> None:
                progress.update(task, completed=done, total=total)
                log.update(done, total)

            summary = score_samples(files, source=source, folder=folder, num_samples=number, watch=watch, **how)
        print_summary(summary)
        summaries[str(number)] = summary
    if json_file:
        atomic_write(json_file, dump_json(summaries, name=str(json_file)))
    if any(summary["num_failed"] for summary in summaries.values()):
        raise typer.Exit(1)


def _name(samples: Path) -> str:
    """That of the file or folder; the `samples` of an evaluation are called after the run and the evaluation."""
    from hpunet.evaluation.rows import IDENTITY_FILE, SAMPLES_FOLDER
    from hpunet.utils.files import real_path

    path = real_path(samples)
    if path.name != SAMPLES_FOLDER or not (path.parent / IDENTITY_FILE).is_file():
        return path.name
    return "-".join([part for part in path.parent.parts[1:] if part != "evaluation"][-2:])


def _whole_numbers(name: str, text: str, *, example: str, count: int | None = None) -> list[int]:
    numbers = cli.parse_numbers(name, text, example=example, count=count)
    if any(number < 1 or number != int(number) for number in numbers):
        raise ConfigError(f"--{name}: expected whole numbers from 1 on such as {example}, got {text!r}")
    return [int(number) for number in numbers]
