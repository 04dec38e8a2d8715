"""`hpunet compare`: evaluated runs next to each other."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hpunet.cli.options import run_names
from hpunet.cli.progress import mean_and_std, metric_title
from hpunet.cli.terminal import console, notes
from hpunet.errors import ConfigError
from hpunet.utils.text import as_utf8

_ALSO_OVER_SUBSET = ("ged2", "ged2_unbiased", "hm_iou", "iou_rec")
_MODELS = (
    "Evaluated runs, or folders of evaluations. RUN,RUN… or NAME=RUN,RUN… is one model trained with several seeds."
)
_SAMPLES = "Samples per image of the evaluations; by default 16, or 32 where a run has only that."
_OUT = "Folder for comparison-SPLIT-SAMPLES.json, .png and .svg; by default the first run."
_CSV = "Write one line per run, metric and subset to this file."


def compare_command(
    models: Annotated[list[str], typer.Argument(help=_MODELS, metavar="MODELS...")],
    split: Annotated[str, typer.Option(help="Split of the evaluations: train, val or test.")] = "val",
    samples: Annotated[int | None, typer.Option(help=_SAMPLES, min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of the evaluations.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help=_CSV)] = None,
) -> None:
    """Compare evaluated runs: all metrics, and paired bootstrap differences to the first run."""
    from hpunet.evaluation.compare import compare, comparison_csv, read_evaluated
    from hpunet.evaluation.rows import folder_name
    from hpunet.reports.comparison import draw_comparison
    from hpunet.utils.files import atomic_write, dump_json

    given = [_model(text) for text in models]
    runs = [run for _, own in given for run in own]
    found = {
        run: read_evaluated(run, split=split, num_samples=samples, num_seeds=seeds, name=name)
        for run, name in zip(runs, run_names(runs), strict=True)
    }
    by_name = {name or "+".join(found[run].name for run in own): [found[run] for run in own] for name, own in given}
    if len(by_name) < len(given):
        raise ConfigError("two models have the same name; give each its own")
    comparison = compare(by_name)
    numbers = {key: comparison[key] for key in ("split", "num_samples", "num_seeds")}
    files = (out or runs[0]) / f"comparison-{folder_name(**numbers)}"
    contents = {"json": dump_json(comparison, name="comparison")}
    if find_spec("matplotlib") is None:
        notes.print("no figure: it needs matplotlib (pip install matplotlib)")
    else:
        contents |= draw_comparison(comparison)
    for kind, content in contents.items():
        atomic_write(files.with_name(f"{files.name}.{kind}"), content)
    if csv_file:
        atomic_write(csv_file, as_utf8(comparison_csv(comparison)))
    _print_comparison(comparison)
    for kind in contents:
        console.print(f"{files}.{kind}")


def _model(text: str) -> tuple[str, list[Path]]:
    """The name (may be empty) and the runs of RUN, RUN,RUN or NAME=RUN,RUN."""
    if Path(text).exists():
        return "", [Path(text)]
    equals = [("", text), *((text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "=")]
    there = (each for each in equals if all(run and Path(run).exists() for run in each[1].split(",")))
    name, runs = next(there, equals[-1])  # a run may hold "=", as in lr=0.1
    if (runs != text and not name) or not all(runs.split(",")):
        raise ConfigError(f"{text!r}: expected a run, RUN,RUN… or NAME=RUN,RUN…")
    return name, [Path(run) for run in runs.split(",")]


def _print_comparison(comparison: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import counts, listed, plural
    from hpunet.reports.saved_run import VOLUME_NOTE, volume_unit

    names = [run["name"] for run in comparison["runs"]]
    values = Table("mean ± std over images", *names, title=counts(comparison), title_justify="left")
    gaps = Table(title=f"difference to {names[0]}: mean ± std [95 % interval]", title_justify="left")
    gaps.add_column("", no_wrap=True)
    gaps.add_column("over images")
    gaps.add_column("over patients")
    parts = (("", comparison, listed(comparison)), (" (B)", comparison["subset_b"], _ALSO_OVER_SUBSET))
    for where, part, metrics in parts:
        for name in metrics:
            if any(part[name]["runs"]):
                values.add_row(metric_title(name) + where, *(mean_and_std(entry) for entry in part[name]["runs"]))
            for other, gap in zip(names[1:], part[name]["differences"], strict=True):
                if gap is not None:
                    which = f", {other}" if len(names) > 2 else ""
                    gaps.add_row(metric_title(name) + where + which, _interval(gap, ""), _interval(gap, "patient_"))
    values.caption, values.caption_justify = "(B): subset B, images that every grader marked", "left"
    console.print(values)
    console.print(gaps)
    if unit := volume_unit(comparison):
        notes.print(f"volume_crps is in {unit}. {VOLUME_NOTE}")
    if comparison["num_failed"]:
        failed = plural(comparison["num_failed"], "image")
        notes.print(f"excluded, since a run failed on them: {failed}")
    if not comparison["same_data"]:
        notes.print("the images have the same names, but their files differ (or one set is a pack)")


def _interval(gap: Mapping[str, Any], prefix: str) -> str:
    mean, std, low, high = (gap[prefix + key] for key in ("mean", "std", "low", "high"))
    return f"{mean:+.4f} ± {std:.4f} [{low:+.4f}, {high:+.4f}]"
