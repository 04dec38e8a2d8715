"""`hpunet evaluate`: scores of runs on a data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hpunet.cli import options as cli
from hpunet.cli.progress import PeriodicLog, mean_and_std, metric_title, progress_bar
from hpunet.cli.terminal import console, line, notes, print_warning
from hpunet.config.settings import MAX_SAMPLES, MAX_SEEDS, parse_assignments
from hpunet.utils.text import printable

_RUNS = (
    "Run folders, or names of published weights. Several also get one pooled summary: means over runs, and standard "
    "deviations that include the differences between runs."
)
_OUT = (
    "Output folder, with a subfolder per run; by default RUN/evaluation/SPLIT-SAMPLES, or "
    "evaluation/NAME/SPLIT-SAMPLES for published weights; with -raw at the end for raw weights."
)
_SAMPLES = "Samples per image; by default the paper's number: 16, or 32 for instances with few random ids."
_LIMIT = "Maximum number of images; always the same selection."
_JSON = "Write the (pooled) summary to this file."
_SEEDS = "Number of seeds, starting at --seed; scores per image are means over them."
_BATCH = "Images per batch; by default a fast size for the device. Large whole images go one by one."
_WHOLE = "Score whole images, or their centre, as large as the crop of training; by default as in the run's settings."
_SAVE = "Also save all samples, one file per image, into the folder samples of the results; see hpunet score."
_REPRESENTATIVES = (
    "Also reduce the samples of each image to so many, with weights, and score those apart (representatives_ged2, "
    "representatives_hm_iou)."
)
_REPLACE = "Overwrite results made with other options."


def evaluate_command(
    runs: Annotated[list[Path], typer.Argument(help=_RUNS)],
    data: cli.Data,
    split: cli.Split = "val",
    samples: Annotated[int | None, typer.Option(help=_SAMPLES, min=1, max=MAX_SAMPLES)] = None,
    limit: Annotated[int | None, typer.Option(help=_LIMIT, min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON)] = None,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    checkpoint: cli.Checkpoint = "latest",
    weights: cli.Weights = "ema",
    seed: cli.Seed = 0,
    seeds: Annotated[int, typer.Option(help=_SEEDS, min=1, max=MAX_SEEDS)] = 1,
    temperature: cli.Temperature = "1",
    orientations: cli.Orientations = None,
    batch: Annotated[int | None, typer.Option(help=_BATCH, min=1)] = None,
    alpha: cli.Alpha = None,
    connected: cli.Connected = False,
    erosion: cli.Erosion = None,
    representatives: Annotated[int | None, typer.Option(help=_REPRESENTATIVES, min=1, max=MAX_SAMPLES)] = None,
    whole: Annotated[bool | None, typer.Option("--whole/--crop", help=_WHOLE)] = None,
    kernels: cli.Kernels = "auto",
    options: cli.DataOptions = None,
    save_samples: Annotated[bool, typer.Option("--save-samples", help=_SAVE)] = False,
    replace: Annotated[bool, typer.Option("--replace", help=_REPLACE)] = False,
) -> None:
    """Score runs on a split: one row per image (CSV), and the mean over images ± its standard deviation.

    The standard deviation of the mean is estimated by bootstrap, over images and over patients. Re-run the command to
    resume. Images that cannot be read get a row with the error; the exit code is then 1.
    With several GPUs: torchrun --nproc-per-node 8 -m hpunet evaluate RUN --data DIR
    """
    with notes.status("loading torch"):
        from hpunet.evaluation.summary import pooled
        from hpunet.training.build import autocast_for
        from hpunet.training.loop import pick_device
        from hpunet.utils.distributed import destroy_process_group, init_process_group, rank
        from hpunet.utils.files import atomic_write, dump_json

    device = pick_device()
    autocast_for("fp32", device)  # no TF32: rounding must not depend on what is in a batch
    init_process_group(device)
    try:
        how: dict[str, Any] = {"data": data, "split": split, "changes": parse_assignments(options or [])}
        how |= {
            "checkpoint": checkpoint,
            "weights": weights,
            "orientations": orientations,
            "kernels": kernels,
            "device": device,
        }
        how |= {"temperature": cli.parse_temperature(temperature)}
        how |= {"limit": limit, "batch_size": batch, "replace": replace, "whole": whole, "save_samples": save_samples}
        scoring: dict[str, Any] = {"seed": seed, "num_seeds": seeds, "alpha": alpha, "connected": connected}
        scoring |= {"erosion": erosion, "representatives": representatives}
        summaries: list[dict[str, Any]] = []
        for run, name in zip(runs, cli.run_names(runs), strict=True):
            summaries.append(_evaluate_run(run, name=name, out=out, samples=samples, scoring=scoring, **how))
            samples = summaries[0]["num_samples"]  # of all, so that they can be pooled
        summary = pooled(summaries)
        summary["runs"] = [entry for each in summaries for entry in each["runs"]]
        summary["duration_s"] = round(sum(each["duration_s"] for each in summaries), 3)
        if rank() == 0:
            if json_file:
                atomic_write(json_file, dump_json(summary, name=str(json_file)))
            print_summary(summary)
    finally:
        destroy_process_group()
    if summary["num_failed"]:
        raise typer.Exit(1)


def _own_folder(run: Path, *, name: str) -> Path:
    """The default folder of a run's evaluations; folders of published weights are not written to."""
    from hpunet.weights.published import is_published

    return run / "evaluation" if run.is_dir() and not is_published(run) else Path("evaluation") / name


def _evaluate_run(
    run: Path,
    *,
    name: str,
    out: Path | None,
    samples: int | None,
    data: str,
    split: str,
    changes: Mapping[str, Any],
    checkpoint: str,
    weights: str,
    orientations: int | None,
    temperature: Sequence[float],
    kernels: str,
    device: Any,
    whole: bool | None,
    save_samples: bool,
    scoring: Mapping[str, Any],
    **how: Any,
) -> dict[str, Any]:
    from hpunet.data.field_of_view import differences
    from hpunet.data.open import adapt_options, open_split
    from hpunet.evaluation.images import read_item
    from hpunet.evaluation.rows import SAMPLES_FOLDER, folder_name
    from hpunet.evaluation.run import default_processes, evaluate
    from hpunet.evaluation.scorer import Scorer
    from hpunet.evaluation.scores import default_num_samples
    from hpunet.kernels.dispatch import fast_sampler
    from hpunet.utils.distributed import rank
    from hpunet.weights.load import load_trained, require_posterior, set_orientations, set_temperature

    trained = load_trained(run, checkpoint=checkpoint, weights=weights, device=device, name=name)
    trained = set_orientations(trained, orientations)
    require_posterior(trained, where=run)
    set_temperature(trained, temperature)
    model, info, settings = trained.model, trained.info, trained.settings.data
    options = adapt_options(data, kind=info.kind, options=settings.options, changes=changes, ndim=info.ndim)
    source = open_split(data, split=split, options=options)
    sampler = fast_sampler(model, kernels=kernels, device=device)
    samples = samples or default_num_samples(info, clustered=not settings.extrapolate)
    numbers = {name: scoring[name] for name in ("num_seeds", "representatives")}
    own = folder_name(split=split, num_samples=samples, **numbers)
    own += "-raw" if weights == "raw" else ""
    folder = out / name if out else _own_folder(run, name=name) / own
    whole = settings.evaluate == "whole" if whole is None else whole
    crop = None if whole else settings.crop
    trained_on: dict[str, Any] = {"info": info, "crop": crop, "extrapolate": settings.extrapolate}
    trained_on |= {"samples_folder": folder / SAMPLES_FOLDER if save_samples else None}
    scorer = Scorer(model=model, sampler=sampler, device=device, num_samples=samples, **trained_on, **scoring)
    listed = {"name": name, "folder": str(run), "step": trained.step, "rows": str(folder / "rows.csv")}
    about = {"runs": [listed], "data": data}

    def say(words: str) -> None:
        if rank() == 0:
            notes.print(f"{name}: {words}")

    first = read_item(source, 0, info).sample
    if rank() == 0 and first is not None:
        for words in differences(first.image, info=info, crop=settings.crop):
            print_warning(f"{name}, first image: {words}")
    log = PeriodicLog(f"evaluate {name}", console=notes, quiet=rank() != 0)
    with progress_bar(hidden=rank() != 0) as progress:
        task = progress.add_task(printable(name), total=None)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            log.update(done, total)

        how |= {"options": options, "about": about, "watch": watch, "say": say}
        how |= {"processes": default_processes(scorer)}
        return evaluate(scorer, source=source, folder=folder, **how)


def print_summary(summary: Mapping[str, Any]) -> None:
    """The table of a summary, why metrics are undefined, and what failed."""
    from hpunet.evaluation.summary import counts, listed, metric_note, plural, scored_part

    subset = summary["subset_b"]
    runs = ", ".join(
        run["name"] + (f" (iteration {run['step']})" if "step" in run else "") for run in summary["runs"]
    )
    what = ", ".join(filter(None, [counts(summary), scored_part(summary)]))
    table = Table(title=f"{runs}: {what}", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("mean ± std", "± patients", "subset B"):
        table.add_column(column)
    marked = plural(subset["num_images"], "image")
    table.caption = f"std of the mean, by bootstrap; subset B: {marked} that every grader marked"
    table.caption_justify = "left"
    below = []
    undefined: dict[str, list[str]] = {}  # by reason
    for name in listed(summary):
        entry = summary[name]
        if entry is None:
            undefined.setdefault(summary["reasons"][name], []).append(name)
            continue
        below.append(metric_note(summary, name))
        some = f" ({plural(entry['num_images'], 'image')})" if entry["num_images"] < summary["num_images"] else ""
        numbers = (mean_and_std(entry) + some, f"{entry['patient_std']:.4f}", mean_and_std(subset[name]))
        table.add_row(metric_title(name), *numbers)
    console.print(table)
    below += [f"no {', '.join(names)}: {reason}" for reason, names in undefined.items()]
    for reason in filter(None, below):
        console.print(reason)
    if summary["num_failed"]:
        failed, first = plural(summary["num_failed"], "image"), summary["failed"][0]
        words = f", the first: {first['error']}; all errors are in {summary['runs'][0]['rows']}"
        notes.print(Text(f"{failed} failed", "bold red"), line(words), sep="")
