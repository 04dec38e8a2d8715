"""`hpunet instances`: instance maps of image files, or of a data set with their Rand errors."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpunet.cli import options as cli
from hpunet.cli.progress import Notes, loading, process_each, skip_existing
from hpunet.cli.terminal import console
from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError
from hpunet.utils.files import atomic_write, below
from hpunet.utils.text import as_utf8, csv_text

if TYPE_CHECKING:
    from hpunet.data.types import Source
    from hpunet.predict.prediction import Prediction
    from hpunet.predict.predictor import Predictor


_DATA = "Data set with instances, instead of images; also gives Rand errors."
_SAMPLES = "Number of samples per image; by default 16, or 32 with fewer than 10 ids."


def instances_command(
    run: cli.Run,
    out: cli.Out,
    images: Annotated[list[Path] | None, typer.Argument(help="Images, as for `hpunet sample`.")] = None,
    data: Annotated[str | None, typer.Option(help=_DATA)] = None,
    split: cli.Split = "val",
    options: cli.DataOptions = None,
    samples: Annotated[int | None, typer.Option(help=_SAMPLES, min=1)] = None,
    alpha: cli.Alpha = None,
    connected: cli.Connected = False,
    erosion: cli.Erosion = None,
    seed: cli.Seed = 0,
    checkpoint: cli.Checkpoint = "latest",
    weights: cli.Weights = "ema",
    tile: cli.Tile = "auto",
    window: cli.Window = None,
    slices: cli.Slices = None,
    formats: cli.Formats = None,
    replace: cli.Replace = False,
    quiet: cli.Quiet = False,
) -> None:
    """Cluster samples into instances: 16-bit label maps and coloured overlays."""
    from hpunet.predict.export.registry import check_formats, parse_formats
    from hpunet.predict.inputs import check_image_files, name_images, parse_slices, select_slices

    images, chosen_formats = images or [], parse_formats(formats)
    if (data is None) == (not images):
        raise ConfigError("instances: expected either images or --data")
    check_image_files(images, data_option=True)
    with loading(quiet=quiet):
        from hpunet.data.io.geometry import Geometry
        from hpunet.evaluation.images import as_batch, true_instances
        from hpunet.evaluation.scores import default_num_samples
        from hpunet.predict.draw import SamplingOptions
        from hpunet.predict.instances import rand_error_of, require_instances, save_instances
        from hpunet.predict.open_image import OpenedImage
        from hpunet.predict.place import Place
        from hpunet.predict.predictor import load
        from hpunet.sampling.instances import clustering_threshold

        predictor = load(run, checkpoint=checkpoint, weights=weights)
    require_instances(predictor)
    named = name_images(images)
    chosen, num_samples = parse_slices(slices), samples or default_num_samples(predictor.info)
    threshold = clustering_threshold(alpha, num_samples=num_samples)
    sampling = SamplingOptions(num_samples=num_samples, seed=seed, tile=tile, window=window)
    predictor.check(sampling)
    settings: dict[str, Any] = {"formats": chosen_formats, "replace": replace, "alpha": threshold}
    settings |= {"connected": connected, "erosion": erosion}
    say = Notes(quiet=quiet)

    def predicted(
        source: OpenedImage, numbers: Sequence[int], advance: Callable[[int], None]
    ) -> Iterator["Prediction"]:
        for part in predictor.each_slice(source, options=sampling, numbers=numbers, advance=advance):
            say(*part.notes)
            yield part

    def segment_one(item: tuple[str, Path], begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        name, path = item
        source = predictor.read(path, name=name, options=sampling)
        numbers = select_slices(len(source.images), chosen, where=str(path))
        check_formats(chosen_formats or (), place=source.place, has_regions=True, where=str(path))
        begin((len(numbers) if predictor.info.ndim == 2 else 1) * sampling.num_samples)
        found = save_instances(predicted(source, numbers, advance), out / name, **settings)
        for where, instances in found.items():
            if not quiet:
                number = len(set(instances.ravel().tolist()) - {0})
                console.print(f"{where}: {number} instances")

    if data is None:
        left, num_skipped = skip_existing(named, [name for name, _ in named], out=out, replace=replace)
        process_each(left, segment_one, command="instances", quiet=quiet, num_skipped=num_skipped)
        return
    source = _open(data, split=split, options=options or [], predictor=predictor)
    errors: dict[str, float] = {}

    def segment_and_score(index: int, begin: Callable[[int], None], advance: Callable[[int], None]) -> None:
        sample = source[index]
        begin(sampling.num_samples)
        images = sample.image[None] if predictor.info.ndim == 2 else sample.image.swapaxes(0, 1)
        geometry = Geometry(spacing=source.info.spacing, axes="zyx" if predictor.info.ndim == 3 else "yx")
        depth, _, h, w = images.shape
        image = OpenedImage(sample.identity.key, images, Place((depth, h, w), geometry=geometry))
        (truth,) = true_instances(as_batch(sample), source.info)
        target = below(out, image.name)
        found = save_instances(predicted(image, range(depth), advance), target, truth=truth, **settings)
        errors[image.name] = rand_error_of(found[image.name], truth=truth, valid=sample.valid)
        if not quiet:
            error = errors[image.name]
            words = "Rand error undefined: no true instances" if math.isnan(error) else f"Rand error {error:.4f}"
            console.print(f"{image.name}: {words}")

    try:
        keys = [identity.key for identity in source.identities]
        numbers, num_skipped = skip_existing(range(len(source)), keys, out=out, replace=replace)
        process_each(numbers, segment_and_score, command="instances", quiet=quiet, num_skipped=num_skipped)
    finally:
        _summarise(errors, out=out, quiet=quiet)


def _summarise(errors: Mapping[str, float], *, out: Path, quiet: bool) -> None:
    """Write rand_error.csv and print the mean."""
    if not errors:
        return
    content = io.StringIO()
    rows = csv.writer(content)
    rows.writerow(["image", "rand_error"])
    rows.writerows([csv_text(name), "" if math.isnan(error) else repr(error)] for name, error in errors.items())
    atomic_write(out / "rand_error.csv", as_utf8(content.getvalue()))
    defined = [error for error in errors.values() if not math.isnan(error)]
    if not quiet:
        mean = f"{sum(defined) / len(defined):.4f}" if defined else "undefined"
        left_out = f" ({len(errors) - len(defined)} without instances excluded)" if len(defined) < len(errors) else ""
        images = f"{len(defined)} image{'' if len(defined) == 1 else 's'}{left_out}"
        console.print(f"Mean Rand error of {images}: {mean}")


def _open(where: str, *, split: str, options: list[str], predictor: "Predictor") -> "Source":
    """The data, with the options of training if they are of the same kind; refused if they do not fit the model."""
    from hpunet.data.open import adapt_options, open_split
    from hpunet.data.options import to_toml
    from hpunet.data.types import refuse_other_data

    info, changes = predictor.info, parse_assignments(options)
    how: dict[str, Any] = {"options": predictor.settings.data.options, "changes": changes, "ndim": info.ndim}
    chosen = adapt_options(where, kind=info.kind, **how)
    source = open_split(where, split=split, options=chosen)
    refuse_other_data(source, info=predictor.info, same_ids=False)
    for name, what in (("image_bits", "bits per pixel"), ("intensity_window", "as intensity window")):
        mine, theirs = getattr(source.info, name), getattr(predictor.info, name)
        if mine != theirs:
            raise ConfigError(f"{where}: {to_toml(mine)} {what}, the model was trained with {to_toml(theirs)}")
    return source
