"""`hpunet instances`: instance maps of image files, or of a data set with their Rand errors."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpunet.cli.sample import (
    Checkpoint,
    Nifti,
    Out,
    Quiet,
    Replace,
    Run,
    Seed,
    Slices,
    Tile,
    Window,
    console,
    loading,
    named_images,
    not_there_yet,
    one_after_the_other,
    parse_slices,
    refuse_folders,
)
from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError

if TYPE_CHECKING:
    from hpunet.data.types import Source
    from hpunet.weights.load import TrainedModel


def instances_command(
    run: Run,
    out: Out,
    images: Annotated[list[Path] | None, typer.Argument(help="Images, as `hpunet sample` takes them.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data with instances, instead of images; gives Rand errors.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the data's kind; by default as in training.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples an image; by default 16, or 32 with fewer than 10 ids.", min=1)
    ] = None,
    alpha: Annotated[
        int | None,
        typer.Option(help="Hamming distance (two a differing sample) in a cluster; by default --samples.", min=0),
    ] = None,
    connected: Annotated[
        bool,
        typer.Option("--connected", help="Parts of an instance that do not touch are instances of their own."),
    ] = False,
    seed: Seed = 0,
    checkpoint: Checkpoint = "latest",
    tile: Tile = "auto",
    window: Window = None,
    slices: Slices = None,
    nifti: Nifti = False,
    replace: Replace = False,
    quiet: Quiet = False,
) -> None:
    """Find instances by clustering samples: 16 bit label maps and coloured overlays."""
    images = images or []
    if (data is None) == (not images):
        raise ConfigError("instances: expected images or --data, one of them")
    refuse_folders(images, data_option=True)
    with loading(quiet=quiet):
        from hpunet.data.io.inputs import Input, read_input
        from hpunet.evaluation.scoring import as_batch, true_instances
        from hpunet.predict.instances import check_has_instances, rand_error_of, segment_file, usual_number
        from hpunet.predict.samples import SamplingOptions, slice_numbers, with_tiles
        from hpunet.sampling.instances import clustering_threshold
        from hpunet.training.build import autocast_for
        from hpunet.weights.load import load

        trained = load(run, checkpoint=checkpoint)
        autocast_for("fp32", trained.device)  # no TF32: tiles give what the whole image gives
    check_has_instances(trained)
    named = named_images(images)
    with_tiles(trained.model, size=(1, 1), tile=tile)
    chosen, num_samples = parse_slices(slices), samples or usual_number(trained.info)
    threshold = clustering_threshold(alpha, num_samples=num_samples)
    how = SamplingOptions(num_samples=num_samples, seed=seed, tile=tile, window=window)
    settings: dict[str, Any] = {
        "out": out,
        "how": how,
        "alpha": threshold,
        "connected": connected,
        "nifti": nifti,
        "replace": replace,
    }

    def from_file(item: tuple[str, Path], begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        name, path = item
        source = read_input(path, name=name, info=trained.info, window=window)
        numbers = slice_numbers(source, chosen, where=str(path))
        begin(len(numbers) * how.num_samples)
        found = segment_file(trained, source=source, slices=numbers, advance=advance, **settings)
        for where, instances in found.items():
            if not quiet:
                number = len(set(instances.ravel().tolist()) - {0})
                console.print(f"{where}: {number} instances", highlight=False, markup=False)

    if data is None:
        left, there = not_there_yet(named, [name for name, _ in named], out=out, replace=replace)
        one_after_the_other(left, from_file, command="instances", quiet=quiet, num_there=there)
        return
    source = _open(data, split=split, options=options or [], trained=trained)
    errors: dict[str, float] = {}

    def from_data(index: int, begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        sample = source[index]
        begin(how.num_samples)
        image = Input(sample.identity.key, sample.image[None], header=None)
        (truth,) = true_instances(as_batch(sample), source.info)
        found = segment_file(trained, source=image, slices=[0], truth=truth, advance=advance, **settings)
        errors[image.name] = rand_error_of(found[image.name], truth=truth, valid=sample.valid)
        if not quiet:
            console.print(f"{image.name}: {_in_words(errors[image.name])}", highlight=False, markup=False)

    try:
        numbers, there = not_there_yet(
            range(len(source)), [identity.key for identity in source.identities], out=out, replace=replace
        )
        one_after_the_other(numbers, from_data, command="instances", quiet=quiet, num_there=there)
    finally:
        _summarise(errors, out=out, quiet=quiet)


def _in_words(error: float) -> str:
    return "Rand error undefined, no instances in truth" if math.isnan(error) else f"Rand error {error:.4f}"


def _summarise(errors: Mapping[str, float], *, out: Path, quiet: bool) -> None:
    """A table on disk of what there is, and the mean."""
    if not errors:
        return
    with (out / "rand_error.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "rand_error"])
        rows.writerows([name, "" if math.isnan(error) else repr(error)] for name, error in errors.items())
    defined = [error for error in errors.values() if not math.isnan(error)]
    if not quiet:
        mean = f"{sum(defined) / len(defined):.4f}" if defined else "undefined"
        left_out = f" ({len(errors) - len(defined)} without instances left out)" if len(defined) < len(errors) else ""
        console.print(
            f"Mean Rand error of {len(defined)} image{'' if len(defined) == 1 else 's'}{left_out}: {mean}",
            highlight=False,
        )


def _open(where: str, *, split: str, options: list[str], trained: "TrainedModel") -> "Source":
    """The data, with the options of training where they are of the same kind, if they fit the model."""
    from hpunet.data.open import open_split, options_of_run
    from hpunet.data.options import in_toml
    from hpunet.data.types import refuse_other_data

    changes = parse_assignments(options)
    chosen = options_of_run(where, kind=trained.info.kind, options=trained.settings.data.options, changes=changes)
    source = open_split(where, split=split, options=chosen)
    refuse_other_data(source, info=trained.info, same_ids=False)
    for name, what in (("image_bits", "bits a pixel"), ("intensity_window", "as window of stored values")):
        mine, theirs = getattr(source.info, name), getattr(trained.info, name)
        if mine != theirs:
            raise ConfigError(f"{where}: {in_toml(mine)} {what}, the model was trained with {in_toml(theirs)}")
    return source
