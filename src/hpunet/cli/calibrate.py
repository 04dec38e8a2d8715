"""`hpunet calibrate`: guarantees and the review flag of a model, from images that it was not trained on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpunet.cli import options as cli
from hpunet.cli.progress import loading, progress_bar
from hpunet.cli.terminal import console, notes
from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError

if TYPE_CHECKING:
    from hpunet.weights.calibration import Calibration

_OUT = (
    "Output folder; by default the run's, or, for published weights, calibration/NAME beside the cache of weights, "
    "where `hpunet sample` finds it."
)
_GUARANTEE = "Probability with which a statement about a new patient holds; may be repeated."
_MISS_RATE = "Share of a grader's pixels that the outer mask may miss, and of the inner mask that they may not mark."
_GROUPS = (
    "Calibrate groups of images by themselves: ascending bounds of the samples' median area in pixels (of volumes "
    "voxels), 100,400."
)


def calibrate_command(
    run: cli.Run,
    data: cli.Data,
    split: cli.Split = "val",
    guarantee: Annotated[list[float], typer.Option(help=_GUARANTEE)] = [0.8, 0.9, 0.95],  # noqa: B006
    miss_rate: Annotated[float, typer.Option(help=_MISS_RATE)] = 0.05,
    samples: cli.Samples = 16,
    groups: Annotated[str | None, typer.Option(help=_GROUPS)] = None,
    seed: cli.Seed = 0,
    checkpoint: cli.Checkpoint = "latest",
    weights: cli.Weights = "ema",
    kernels: cli.Kernels = "auto",
    options: cli.DataOptions = None,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    replace: cli.Replace = False,
) -> None:
    """Calibrate a model, so that statements about new patients hold as often as stated.

    Gives `hpunet sample --guarantee` its thresholds: inner and outer masks, intervals of areas; and the review flag
    its statistic, from training images, and threshold. The patients must not be those of training.
    """
    bounds = cli.parse_numbers("groups", groups, example="100,400") if groups else ()
    with loading(quiet=False):
        from hpunet.data.open import adapt_options, open_split
        from hpunet.data.types import refuse_other_data
        from hpunet.predict import calibrate as work
        from hpunet.predict.predictor import load
        from hpunet.weights import calibration as files

        work.check_numbers(guarantees=guarantee, miss_rate=miss_rate, groups=bounds)
        trained = load(run, checkpoint=checkpoint, weights=weights, kernels=kernels).trained
    info, settings = trained.info, trained.settings.data
    if info.has_instances or settings.extrapolate:
        raise ConfigError(f"{trained.name}: guarantees are for classes, not for instances or partly given labels")
    if split == "train":
        raise ConfigError(
            "--split train: guarantees need patients that the model was not trained on; use val or test"
        )
    changes = parse_assignments(options or [])
    chosen = adapt_options(data, kind=info.kind, options=settings.options, changes=changes, ndim=info.ndim)
    source = open_split(data, split=split, options=chosen)
    refuse_other_data(source, info=info)
    folder = out or files.own_folder(trained)
    if (folder / files.CALIBRATION).exists() and not replace:
        raise ConfigError(f"{folder / files.CALIBRATION}: exists already; use --replace or another --out")
    crop = None if settings.evaluate == "whole" else settings.crop
    how: dict[str, Any] = {"crop": crop, "seed": seed}
    with progress_bar(hidden=False) as progress:
        task = progress.add_task("training images", total=None, visible=False)
        statistic, patients = work.review_statistic(
            trained, source, data=data, options=chosen, **how,
            begin=lambda total: progress.update(task, total=total, visible=True),
            advance=lambda number: progress.advance(task, number),
        )  # fmt: skip
    if statistic is None and info.ndim == 2:
        notes.print(f"{data}: has no split train, so no review statistic is made")
    with progress_bar(hidden=False) as progress:
        task = progress.add_task(f"{split} images", total=len(source))
        levels = sorted(set(guarantee))
        how |= {"levels": levels, "miss_rate": miss_rate, "num_samples": samples, "statistic": statistic}
        scores, reviews = work.collect_scores(
            trained, source, **how, advance=lambda number: progress.advance(task, number)
        )
    calibration = work.make_calibration(
        trained, source, scores, reviews if statistic is not None else None, levels=levels, groups=bounds,
        miss_rate=miss_rate, num_samples=samples, options=chosen, hashes_known=bool(len(patients)),
    )  # fmt: skip
    if statistic is not None:
        files.write_review(folder, statistic, patients=patients, weights=calibration.weights_sha256)
    files.write_calibration(folder, calibration)
    _print(calibration, size="area" if info.ndim == 2 else "volume")
    console.print(str(folder / files.CALIBRATION))
    if out is None and trained.folder is not None and folder != trained.folder:
        console.print(
            f"It is used for {trained.name} from now on, also in place of one that came with it; delete it to undo."
        )


def _print(calibration: "Calibration", *, size: str) -> None:
    title = f"{calibration.model}: {calibration.num_images} images of {calibration.num_patients} patients"
    table = Table(title=title, title_justify="left")
    for column in ("guarantee", f"median {size}", "outer ≤", "inner <", f"{size} ±", "patients", "images"):
        table.add_column(column)
    for level in calibration.levels:
        low, high = level.areas
        group = "all" if (low, high) == (0, None) else f"{low:g}–{'' if high is None else f'{high:g}'}"
        numbers = ("–" if each is None else f"{each:.3f}" for each in (level.outer, level.inner, level.area))
        table.add_row(f"{level.guarantee:g}", group, *numbers, str(level.num_patients), str(level.num_images))
    console.print(table)
    if calibration.review_threshold is not None:
        console.print(f"review flag: score above {calibration.review_threshold:.3f}")
    for note in calibration.notes:
        console.print(note)
