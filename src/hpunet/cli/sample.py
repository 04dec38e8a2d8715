"""`hpunet sample`: samples and distinct hypotheses of image files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from hpunet.cli import options as cli
from hpunet.cli.progress import console, loading, notes, process_each, skip_existing

if TYPE_CHECKING:
    from hpunet.sampling.hypotheses import Hypothesis

_SCALES = (
    "Scales to sample: full, global (only the coarsest), local (only the finest), or numbers such as 0,2 (0 is the "
    "coarsest); the others use the mean."
)
_COLOUR = (
    "Colour of outlines on the sheet, a CSS name or #rrggbb; by default the one that differs most from the image."
)
_SAME_IOU = "Samples with at least this IoU are the same hypothesis; default: 0.5, or less where groups are too many."


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
    colour: Annotated[str | None, typer.Option(help=_COLOUR)] = None,
    window: cli.Window = None,
    slices: cli.Slices = None,
    nifti: cli.Nifti = False,
    kernels: cli.Kernels = "auto",
    replace: cli.Replace = False,
    quiet: cli.Quiet = False,
) -> None:
    """Sample segmentations of images and group similar ones into distinct hypotheses with their shares."""
    from hpunet.predict.inputs import check_image_files, name_images, parse_slices, select_slices

    check_image_files(images)
    factors = cli.parse_temperature(temperature)
    with loading(quiet=quiet):
        from hpunet.data.io.inputs import read_input
        from hpunet.kernels.dispatch import fast_sampler
        from hpunet.predict.draw import SamplingOptions, parse_scales
        from hpunet.predict.samples import sample_file
        from hpunet.sampling.sample import temperature_per_scale
        from hpunet.sampling.tiling import choose_sampler
        from hpunet.training.build import autocast_for
        from hpunet.utils.label_painter import parse_colour
        from hpunet.weights.load import load, set_orientations

        trained = set_orientations(load(run, checkpoint=checkpoint, weights=weights), orientations)
        autocast_for("fp32", trained.device)  # no TF32: tiles give what the whole image gives
        sampler = fast_sampler(trained.model, kernels=kernels, device=trained.device)
        trained = dataclasses.replace(trained, sampler=sampler)
    named = name_images(images)
    chosen = parse_slices(slices)
    # Check the options once, not for every image.
    if colour is not None:
        parse_colour(colour)
    num_scales = len(trained.model.latent_dims)
    parse_scales(scales, num_scales=num_scales)
    given = factors[0] if len(factors) == 1 else factors
    temperature_per_scale(given, num_scales=num_scales)
    choose_sampler(trained.model, size=(1, 1), tile=tile, sampler=trained.sampler)
    sampling: dict[str, Any] = {"num_samples": samples, "scales": scales, "temperature": given, "seed": seed}
    options = SamplingOptions(**sampling, tile=tile, window=window)
    how: dict[str, Any] = {
        "options": options,
        "same_iou": same_iou,
        "colour": colour,
        "nifti": nifti,
        "replace": replace,
    }
    if trained.info.has_instances and not quiet:
        words = "Instance ids differ between samples; use hpunet instances to cluster samples into instances."
        notes.print(words, highlight=False, soft_wrap=True)

    def sample_one(item: tuple[str, Path], begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        name, path = item
        source = read_input(path, name=name, info=trained.info, window=window)
        numbers = select_slices(source, chosen, where=str(path))
        begin(len(numbers) * samples)
        found = sample_file(trained, source=source, out=out, slices=numbers, advance=advance, **how)
        if quiet:
            return
        for where, hypotheses in found.items():
            if hypotheses:
                console.print(_hypotheses_table(where, hypotheses))
        console.print(str(out / name), highlight=False, markup=False, soft_wrap=True)

    left, num_skipped = skip_existing(named, [name for name, _ in named], out=out, replace=replace)
    process_each(left, sample_one, command="sample", quiet=quiet, num_skipped=num_skipped)


def _hypotheses_table(name: str, hypotheses: Sequence["Hypothesis"]) -> Table:
    from hpunet.predict.samples import sample_name
    from hpunet.sampling.hypotheses import summarise

    title = f"{name}: {summarise(hypotheses)}"
    table = Table("share", "samples", "what it shows", "typical", title=escape(title), title_justify="left")
    for hypothesis in hypotheses:
        share, count = f"{float(hypothesis.share):.0%}", str(len(hypothesis.members))
        table.add_row(share, count, hypothesis.description, sample_name(hypothesis.representative))
    return table
