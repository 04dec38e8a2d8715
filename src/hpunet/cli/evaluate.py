"""`hpunet evaluate` and `hpunet compare`: trained models on a data set, and beside each other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hpunet.cli.progress import LogLines
from hpunet.cli.weights import Orientations, Temperature, parse_temperature
from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError

console = Console()
notes = Console(stderr=True)
_ALSO_OVER_SUBSET = ("ged2", "ged2_unbiased", "hm_iou", "iou_rec")


def evaluate_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs' folders, or names of published weights; several are pooled.")
    ],
    data: Annotated[str, typer.Option(help="Folder, archive or pack; or synthetic:lesions and the like.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    samples: Annotated[int, typer.Option(help="Samples an image.", min=1)] = 16,
    limit: Annotated[int | None, typer.Option(help="So many images only, always the same ones.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the (pooled) summary to this file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder that gets one for each run; by default RUN/evaluation/SPLIT-SAMPLES, and for published "
            "weights evaluation/NAME/SPLIT-SAMPLES here."
        ),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a name such as step-00001000.")] = "latest",
    seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0)] = 0,
    seeds: Annotated[
        int, typer.Option(help="So many seeds, from --seed on: scores of an image are means over them.", min=1)
    ] = 1,
    temperature: Temperature = "1",
    orientations: Orientations = None,
    batch: Annotated[
        int | None, typer.Option(help="Images that go through the network together; by default as is fast.", min=1)
    ] = None,
    alpha: Annotated[
        int | None,
        typer.Option(help="Instances: threshold α of the clustering; by default as many as samples.", min=0),
    ] = None,
    connected: Annotated[
        bool,
        typer.Option("--connected", help="Parts of an instance that do not touch are instances of their own."),
    ] = False,
    kernels: Annotated[
        str, typer.Option(help="fused: bf16 on fused GPU kernels, for throughput; auto and torch: float32.")
    ] = "auto",
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the data's kind; by default as in training.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace another evaluation that is there.")] = False,
) -> None:
    """Score runs on a split: one row an image (CSV), and mean ± std by bootstrap over images and patients.

    An interrupted evaluation goes on when the same command is run again. Images that cannot be read get a row that
    says why; then the exit code is 1. With several GPUs:
    torchrun --nproc-per-node 8 -m hpunet evaluate RUN --data DIR
    """
    with notes.status("loading torch"):
        from hpunet.evaluation.rows import folder_name
        from hpunet.evaluation.summary import pooled
        from hpunet.training.build import autocast_for
        from hpunet.training.loop import pick_device
        from hpunet.utils.distributed import destroy_process_group, init_process_group, rank
        from hpunet.utils.files import atomic_write, dump_json

    device = pick_device()
    autocast_for("fp32", device)  # no TF32: rounding must not depend on what is in a batch
    init_process_group(device)
    try:
        names = _names(runs)
        usual = folder_name(split=split, num_samples=samples, num_seeds=seeds)
        summaries = [
            _evaluate_run(
                run,
                name=name,
                data=data,
                split=split,
                samples=samples,
                limit=limit,
                folder=out / name if out else _own_folder(run, name=name) / usual,
                checkpoint=checkpoint,
                seed=seed,
                seeds=seeds,
                temperature=parse_temperature(temperature),
                orientations=orientations,
                batch=batch,
                alpha=alpha,
                connected=connected,
                kernels=kernels,
                options=parse_assignments(options or []),
                replace=replace,
                device=device,
            )
            for run, name in zip(runs, names, strict=True)
        ]
        summary = pooled(summaries)
        summary["runs"] = [entry for each in summaries for entry in each["runs"]]
        summary["duration_s"] = round(sum(each["duration_s"] for each in summaries), 3)
        if rank() == 0:
            if json_file:
                atomic_write(json_file, dump_json(summary, name=str(json_file)))
            _print_summary(summary)
            _print_failed(summary)
    finally:
        destroy_process_group()
    if summary["num_failed"]:
        raise typer.Exit(1)


def _own_folder(run: Path, *, name: str) -> Path:
    """Where a run's evaluations go by default. Published weights are never written into."""
    from hpunet.weights.published import is_published

    return run / "evaluation" if run.is_dir() and not is_published(run) else Path("evaluation") / name


def _evaluate_run(
    run: Path, *, name: str, data: str, split: str, folder: Path, checkpoint: str, device: Any, **how: Any
) -> dict[str, Any]:
    from hpunet.data.open import open_split, options_of_run
    from hpunet.evaluation.run import evaluate
    from hpunet.evaluation.scorer import Scorer
    from hpunet.kernels.dispatch import fast_sampler
    from hpunet.utils.distributed import rank
    from hpunet.weights.load import check_posterior, load, set_temperature, with_orientations

    trained = with_orientations(load(run, checkpoint=checkpoint, device=device, name=name), how["orientations"])
    check_posterior(trained, where=run)
    set_temperature(trained, how["temperature"])
    options = options_of_run(
        data, kind=trained.info.kind, options=trained.settings.data.options, changes=how["options"]
    )
    source = open_split(data, split=split, options=options)
    scorer = Scorer(
        model=trained.model,
        info=trained.info,
        crop=trained.settings.data.crop,
        num_samples=how["samples"],
        seed=how["seed"],
        num_seeds=how["seeds"],
        alpha=how["alpha"],
        connected=how["connected"],
        extrapolate=trained.settings.data.extrapolate,
        device=device,
        sampler=fast_sampler(trained.model, kernels=how["kernels"], device=device),
    )

    def say(words: str) -> None:
        if rank() == 0:
            notes.print(f"{name}: {words}", highlight=False, markup=False, soft_wrap=True)

    columns = (TextColumn(escape(name)), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = rank() != 0 or not notes.is_terminal
    lines = LogLines(f"evaluate {name}", console=notes, quiet=rank() != 0)
    with Progress(*columns, console=notes, transient=True, disable=quiet) as progress:
        task = progress.add_task(name, total=None)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            lines.update(done, total)

        return evaluate(
            scorer,
            source=source,
            folder=folder,
            options=options,
            about={
                "runs": [{"name": name, "folder": str(run), "step": trained.step, "rows": str(folder / "rows.csv")}],
                "data": data,
            },
            limit=how["limit"],
            batch_size=how["batch"],
            replace=how["replace"],
            watch=watch,
            say=say,
        )


def compare_command(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Runs that were evaluated, or folders of evaluations; RUN,RUN… or NAME=RUN,RUN… are one model "
            "that was trained with several seeds.",
            metavar="MODELS...",
        ),
    ],
    split: Annotated[str, typer.Option(help="Which of their evaluations.")] = "val",
    samples: Annotated[int, typer.Option(help="Likewise.", min=1)] = 16,
    seeds: Annotated[int, typer.Option(help="Likewise.", min=1)] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for comparison-SPLIT-SAMPLES.json, .png, .svg; by default the first run."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one line a run, metric and subset to this file.")
    ] = None,
) -> None:
    """Compare evaluated runs: all metrics, and paired bootstrap differences to the first one."""
    from hpunet.evaluation.compare import compare, comparison_csv, read_evaluated
    from hpunet.evaluation.rows import folder_name
    from hpunet.reports.comparison import draw_comparison
    from hpunet.utils.files import atomic_write, dump_json

    given = [_model(text) for text in models]
    runs = [run for _, own in given for run in own]
    found = {
        run: read_evaluated(run, split=split, num_samples=samples, num_seeds=seeds, name=name)
        for run, name in zip(runs, _names(runs), strict=True)
    }
    by_name = {name or "+".join(found[run].name for run in own): [found[run] for run in own] for name, own in given}
    if len(by_name) < len(given):
        raise ConfigError("two models have the same name; give each its own")
    comparison = compare(by_name)
    numbers = {key: comparison[key] for key in ("split", "num_samples", "num_seeds")}
    files = (out or runs[0]) / f"comparison-{folder_name(**numbers)}"
    contents = {"json": dump_json(comparison, name="comparison"), **draw_comparison(comparison)}
    for kind, content in contents.items():
        atomic_write(files.with_name(f"{files.name}.{kind}"), content)
    if csv_file:
        atomic_write(csv_file, comparison_csv(comparison).encode())
    _print_comparison(comparison)
    for kind in contents:
        console.print(f"{files}.{kind}", highlight=False, soft_wrap=True)


def _model(text: str) -> tuple[str, list[Path]]:
    """The name, if there is one, and the runs of what is given as RUN, RUN,RUN or NAME=RUN,RUN."""
    if Path(text).exists():
        return "", [Path(text)]
    name, equals, runs = text.rpartition("=")
    if (equals and not name) or not all(runs.split(",")):
        raise ConfigError(f"{text!r}: expected a run, RUN,RUN… or NAME=RUN,RUN…")
    return name, [Path(run) for run in runs.split(",")]


def _names(runs: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths, dashed, where these are not unique; refuses one given twice."""
    folders = [run.resolve() for run in runs]
    if twice := [run for i, run in enumerate(runs) if folders[i] in folders[:i]]:
        raise ConfigError(f"{twice[0]}: given twice; give each run once")
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    return ["-".join(part for part in run.resolve().parts if part != run.anchor) for run in runs]


def _print_summary(summary: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import counted, counts, listed, scored_part, why_fewer

    subset = summary["subset_b"]
    runs = ", ".join(f"{run['name']} (iteration {run['step']})" for run in summary["runs"])
    what = ", ".join(filter(None, [counts(summary), scored_part(summary)]))
    table = Table(title=f"{escape(runs)}: {what}", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("mean ± std", "± patients", "subset B"):
        table.add_column(column)
    table.caption = (
        f"std by bootstrap; subset B: the {counted(subset['num_images'], 'image')} that every grader marked"
    )
    table.caption_justify = "left"
    below = []
    for name in listed(summary):
        entry = summary[name]
        if entry is None:
            below.append(f"no {name}: {summary['reasons'][name]}")
            continue
        below.append(why_fewer(summary, name))
        some = f" ({counted(entry['num_images'], 'image')})" if entry["num_images"] < summary["num_images"] else ""
        table.add_row(_titled(name), _number(entry) + some, f"{entry['patient_std']:.4f}", _number(subset[name]))
    console.print(table)
    for reason in filter(None, below):
        console.print(reason, highlight=False)


def _print_failed(summary: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import counted

    if summary["num_failed"]:
        failed, first = counted(summary["num_failed"], "image"), summary["failed"][0]
        notes.print(
            f"[bold red]{failed} failed[/bold red], the first: {escape(first['error'])}; "
            f"the error column of {escape(summary['runs'][0]['rows'])} has all",
            highlight=False,
            soft_wrap=True,
        )


def _print_comparison(comparison: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import counted, counts, listed

    names = [escape(run["name"]) for run in comparison["runs"]]
    values = Table("mean ± std over images", *names, title=counts(comparison), title_justify="left")
    gaps = Table(title=f"difference to {names[0]}: mean ± std [95 % interval]", title_justify="left")
    gaps.add_column("", no_wrap=True)
    gaps.add_column("over images")
    gaps.add_column("over patients")
    parts = (("", comparison, listed(comparison)), (" (B)", comparison["subset_b"], _ALSO_OVER_SUBSET))
    for where, part, metrics in parts:
        for name in metrics:
            if any(part[name]["runs"]):
                values.add_row(_titled(name) + where, *(_number(entry) for entry in part[name]["runs"]))
            for other, gap in zip(names[1:], part[name]["differences"], strict=True):
                if gap is not None:
                    which = f", {other}" if len(names) > 2 else ""
                    gaps.add_row(_titled(name) + where + which, _interval(gap, ""), _interval(gap, "patient_"))
    values.caption, values.caption_justify = "(B): over subset B, images that every grader marked", "left"
    console.print(values)
    console.print(gaps)
    if comparison["num_failed"]:
        failed = counted(comparison["num_failed"], "image")
        notes.print(f"left out, since some run failed on them: {failed}", highlight=False)
    if not comparison["same_data"]:
        notes.print("the data have the same images by name, but not the same fingerprint", highlight=False)


def _interval(gap: Mapping[str, Any], prefix: str) -> str:
    mean, std, low, high = (gap[prefix + key] for key in ("mean", "std", "low", "high"))
    return f"{mean:+.4f} ± {std:.4f} \\[{low:+.4f}, {high:+.4f}]"


def _titled(name: str) -> str:
    from hpunet.evaluation.summary import DIRECTIONS

    return f"{name} {DIRECTIONS.get(name, '')}".strip()


def _number(entry: Mapping[str, Any] | None) -> str:
    return "–" if entry is None else f"{entry['mean']:.4f} ± {entry['std']:.4f}"
