"""`hpunet evaluate`: scores of runs on a data set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from hpunet.cli.options import (
    Alpha,
    Checkpoint,
    Connected,
    Data,
    DataOptions,
    Kernels,
    Orientations,
    Samples,
    Seed,
    Split,
    Temperature,
    parse_temperature,
    run_names,
)
from hpunet.cli.progress import PeriodicLog, console, mean_and_std, metric_title, notes, progress_bar
from hpunet.config.settings import parse_assignments


def evaluate_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or names of published weights; several are pooled.")
    ],
    data: Data,
    split: Split = "val",
    samples: Samples = 16,
    limit: Annotated[
        int | None, typer.Option(help="Maximum number of images; always the same selection.", min=1)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the (pooled) summary to this file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output folder, with a subfolder per run; by default RUN/evaluation/SPLIT-SAMPLES, or "
            "evaluation/NAME/SPLIT-SAMPLES for published weights."
        ),
    ] = None,
    checkpoint: Checkpoint = "latest",
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds, starting at --seed; scores per image are means over them.", min=1)
    ] = 1,
    temperature: Temperature = "1",
    orientations: Orientations = None,
    batch: Annotated[
        int | None, typer.Option(help="Images per batch; by default a fast size for the device.", min=1)
    ] = None,
    alpha: Alpha = None,
    connected: Connected = False,
    kernels: Kernels = "auto",
    options: DataOptions = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a different evaluation in the folder.")] = False,
) -> None:
    """Score runs on a split: one row per image (CSV), and mean ± std by bootstrap over images and patients.

    Re-run the command to resume. Images that cannot be read get a row with the error; the exit code is then 1.
    With several GPUs: torchrun --nproc-per-node 8 -m hpunet evaluate RUN --data DIR
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
        names = run_names(runs)
        default = folder_name(split=split, num_samples=samples, num_seeds=seeds)
        summaries = [
            _evaluate_run(
                run,
                name=name,
                data=data,
                split=split,
                samples=samples,
                limit=limit,
                folder=out / name if out else _own_folder(run, name=name) / default,
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
    """The default folder of a run's evaluations; folders of published weights are not written to."""
    from hpunet.weights.published import is_published

    return run / "evaluation" if run.is_dir() and not is_published(run) else Path("evaluation") / name


def _evaluate_run(
    run: Path, *, name: str, data: str, split: str, folder: Path, checkpoint: str, device: Any, **how: Any
) -> dict[str, Any]:
    from hpunet.data.open import adapt_options, open_split
    from hpunet.evaluation.run import evaluate
    from hpunet.evaluation.scorer import Scorer
    from hpunet.kernels.dispatch import fast_sampler
    from hpunet.utils.distributed import rank
    from hpunet.weights.load import load, require_posterior, set_orientations, set_temperature

    trained = set_orientations(load(run, checkpoint=checkpoint, device=device, name=name), how["orientations"])
    require_posterior(trained, where=run)
    set_temperature(trained, how["temperature"])
    options = adapt_options(
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

    log = PeriodicLog(f"evaluate {name}", console=notes, quiet=rank() != 0)
    with progress_bar(escape(name), hidden=rank() != 0) as progress:
        task = progress.add_task(name, total=None)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            log.update(done, total)

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


def _print_summary(summary: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import counts, listed, plural, scored_part, undefined_note

    subset = summary["subset_b"]
    runs = ", ".join(f"{run['name']} (iteration {run['step']})" for run in summary["runs"])
    what = ", ".join(filter(None, [counts(summary), scored_part(summary)]))
    table = Table(title=f"{escape(runs)}: {what}", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("mean ± std", "± patients", "subset B"):
        table.add_column(column)
    table.caption = f"std by bootstrap; subset B: {plural(subset['num_images'], 'image')} that every grader marked"
    table.caption_justify = "left"
    below = []
    for name in listed(summary):
        entry = summary[name]
        if entry is None:
            below.append(f"no {name}: {summary['reasons'][name]}")
            continue
        below.append(undefined_note(summary, name))
        some = f" ({plural(entry['num_images'], 'image')})" if entry["num_images"] < summary["num_images"] else ""
        patient_std = f"{entry['patient_std']:.4f}"
        table.add_row(metric_title(name), mean_and_std(entry) + some, patient_std, mean_and_std(subset[name]))
    console.print(table)
    for reason in filter(None, below):
        console.print(reason, highlight=False)


def _print_failed(summary: Mapping[str, Any]) -> None:
    from hpunet.evaluation.summary import plural

    if summary["num_failed"]:
        failed, first = plural(summary["num_failed"], "image"), summary["failed"][0]
        notes.print(
            f"[bold red]{failed} failed[/bold red], the first: {escape(first['error'])}; "
            f"all errors are in {escape(summary['runs'][0]['rows'])}",
            highlight=False,
            soft_wrap=True,
        )
