"""`hpunet sample`: samples and distinct hypotheses of image files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpunet.cli import options as cli
from hpunet.cli.progress import Notes, loading, process_each, skip_existing
from hpunet.cli.terminal import console
from hpunet.errors import ConfigError
from hpunet.utils.text import printable

if TYPE_CHECKING:
    from hpunet.predict.prediction import Prediction
    from hpunet.sampling.hypotheses import Hypothesis

_SCALES = (
    "Scales to sample: full, global (only the coarsest), local (only the finest), or numbers such as 0,2 (0 is the "
    "coarsest); the others use the mean."
)
_COLOUR = (
    "Colour of outlines on the sheet, a CSS name or #rrggbb; by default the one that differs most from the image."
)
_AT = "A point in the object, column and row from 0: the crop around it that the model was trained on is cut out."
_BOX = "A box around the object, instead of a point."
_SPACING = "Distance of an image's pixels in mm to resample to; by default stored pixels are used."
_STATE = "Redraw the samples of this state.json (one image); sampling options come from the file."
_SAME_IOU = "Samples with at least this IoU are the same hypothesis; default: 0.5, or less where groups are too many."
_REPRESENTATIVES = "Also choose so many samples that, with weights, stand best for all: representatives.json."
_GUARANTEE = (
    "Also write inner and outer masks and an area interval that hold with this probability (calibrated models)."
)
_CALIBRATION = "Folder that `hpunet calibrate --out` wrote; by default that of the model."


def sample_command(
    run: cli.Run,
    images: cli.Images,
    out: cli.Out,
    samples: cli.Samples = 16,
    scales: Annotated[str, typer.Option(help=_SCALES)] = "full",
    seed: cli.Seed = 0,
    checkpoint: cli.Checkpoint = "latest",
    weights: cli.Weights = "ema",
    tile: cli.Tile = "auto",
    temperature: cli.Temperature = "1",
    orientations: cli.Orientations = None,
    same_iou: Annotated[float | None, typer.Option(help=_SAME_IOU, min=0.01, max=1)] = None,
    representatives: Annotated[int | None, typer.Option(help=_REPRESENTATIVES, min=1)] = None,
    colour: Annotated[str | None, typer.Option(help=_COLOUR)] = None,
    window: cli.Window = None,
    at: Annotated[str | None, typer.Option(help=_AT, metavar="X,Y")] = None,
    box: Annotated[str | None, typer.Option(help=_BOX, metavar="X0,Y0,X1,Y1")] = None,
    spacing: Annotated[float | None, typer.Option(help=_SPACING)] = None,
    slices: cli.Slices = None,
    formats: cli.Formats = None,
    visible: cli.Visible = None,
    labels: cli.Labels = None,
    state: Annotated[Path | None, typer.Option(help=_STATE)] = None,
    guarantee: Annotated[float | None, typer.Option(help=_GUARANTEE)] = None,
    calibration: Annotated[Path | None, typer.Option(help=_CALIBRATION)] = None,
    kernels: cli.Kernels = "auto",
    replace: cli.Replace = False,
    quiet: cli.Quiet = False,
) -> None:
    """Sample segmentations of images and group similar ones into distinct hypotheses with their shares."""
    from hpunet.predict.export.registry import check_formats, parse_formats
    from hpunet.predict.inputs import check_image_files, name_images, parse_slices, select_slices

    chosen_formats = parse_formats(formats)
    check_image_files(images)
    for option, given in (("state", state), ("visible", visible), ("labels", labels)):
        if given is not None and len(images) != 1:
            raise ConfigError(f"--{option}: is of one image, got {len(images)}")
    factors = cli.parse_temperature(temperature)
    with loading(quiet=quiet):
        from hpunet.evaluation.summary import plural
        from hpunet.predict.crop import Region
        from hpunet.predict.draw import SamplingOptions
        from hpunet.predict.export.writer import export
        from hpunet.predict.measurements import require_classes
        from hpunet.predict.predictor import load
        from hpunet.predict.state import read_state
        from hpunet.predict.visible import check_visible
        from hpunet.utils.label_painter import parse_colour

        how: dict[str, Any] = {"kernels": kernels, "orientations": orientations, "calibration": calibration}
        predictor = load(run, checkpoint=checkpoint, weights=weights, **how)
    named = name_images(images)
    chosen = parse_slices(slices)
    sampling: dict[str, Any] = {"num_samples": samples, "scales": scales, "seed": seed, "tile": tile}
    sampling |= {"temperature": factors[0] if len(factors) == 1 else factors, "window": window, "same_iou": same_iou}
    options = SamplingOptions(**sampling, region=Region(**cli.parse_region(at, box), spacing=spacing))
    kept = None if state is None else read_state(state)
    if kept is not None:
        kept.check_model(predictor.trained)
        options, chosen, samples = kept.options, kept.slices, kept.options.num_samples
    predictor.check(options)
    check_visible(predictor.trained, visible=visible, labels=labels)
    if representatives is not None:
        require_classes(predictor.info, what="--representatives")
        if representatives > samples:
            raise ConfigError(f"--representatives: expected at most {samples}, the samples, got {representatives}")
    if guarantee is not None:
        if kept is not None:
            raise ConfigError("--guarantee: is for samples as they are drawn; omit --state")
        Notes(quiet=quiet)(*predictor.calibrated.check(options, level=guarantee).notes)
    if colour is not None:
        parse_colour(colour)
    say = Notes(quiet=quiet)
    if predictor.info.has_instances:
        say("Instance ids differ between samples; use hpunet instances to cluster samples into instances.")

    def sample_one(item: tuple[str, Path], begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        name, path = item
        source = predictor.read(path, name=name, options=options, visible=visible, labels=labels)
        numbers = select_slices(len(source.images), chosen, where=str(path))
        has_regions = not predictor.info.has_instances
        check_formats(chosen_formats or (), place=source.place, has_regions=has_regions, where=str(path))
        begin((len(numbers) if predictor.info.ndim == 2 else 1) * samples)
        tables: list[Table | str] = []
        given = None if kept is None else kept.given(numbers)

        def parts() -> Iterator["Prediction"]:
            how: dict[str, Any] = {"numbers": numbers, "given": given, "advance": advance}
            for part in predictor.each_slice(source, options=options, **how):
                if kept is not None:
                    kept.check_image(part)
                say(*part.notes)
                if guarantee is not None:
                    tables.append(part.guarantee(guarantee).note)
                if part.hypotheses:
                    tables.append(_hypotheses_table(part))
                if representatives is not None:
                    few = part.representatives(representatives)
                    title = f"{part.name}: {plural(len(few), 'representative')}, weighted"
                    tables.append(_table_of(few, title=title))
                yield part

        what: dict[str, Any] = {"formats": chosen_formats, "colour": colour, "representatives": representatives}
        export(parts(), out / name, **what, guarantee=guarantee, replace=replace)
        if quiet:
            return
        for table in tables:
            console.print(table)
        console.print(str(out / name))

    left, num_skipped = skip_existing(named, [name for name, _ in named], out=out, replace=replace)
    process_each(left, sample_one, command="sample", quiet=quiet, num_skipped=num_skipped)


def _hypotheses_table(part: "Prediction") -> Table:
    """Distinct hypotheses; below them sizes over all samples."""
    from hpunet.sampling.hypotheses import summarise

    table = _table_of(part.hypotheses, title=f"{part.name}: {summarise(part.hypotheses)}")
    table.caption, table.caption_justify = "\n".join(_size_lines(part)), "left"
    return table


def _size_lines(part: "Prediction") -> Iterator[str]:
    for name, sizes in part.measurements.classes.items():
        size = next(iter(sizes))  # area or volume
        if not sizes[size].values.any():
            continue
        words = []
        for quantity in (size, "longest_diameter"):
            found, (low, high) = sizes[quantity], sizes[quantity].interval()
            words.append(f"{quantity.replace('_', ' ')} {found.median:.4g} {found.unit} ({low:.4g} to {high:.4g})")
        yield printable(f"{name}: median and 5 to 95 % of samples: {', '.join(words)}")


def _table_of(hypotheses: Sequence["Hypothesis"], *, title: str) -> Table:
    from hpunet.predict.export.collector import sample_name

    table = Table("share", "samples", "what it shows", "typical", title=title, title_justify="left")
    for hypothesis in hypotheses:
        share, count = f"{hypothesis.share:.0%}", str(len(hypothesis.members))
        table.add_row(share, count, hypothesis.description, sample_name(hypothesis.representative))
    return table
