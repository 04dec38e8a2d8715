"""`hpunet data …`: inspect data, pack them for training, import LIDC-IDRI, write synthetic data sets."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpunet.cli.options import CommandWithGraders, DataArgument, Graders, NewFolder, Patient, data_options
from hpunet.cli.progress import tracked
from hpunet.cli.terminal import console, print_warning
from hpunet.errors import ConfigError
from hpunet.utils.files import explain_os_errors, real_path

if TYPE_CHECKING:
    from hpunet.data.summary import Summary
    from hpunet.data.types import SetInfo

MAX_PAIRS = 10  # of graders that are listed one by one
app = typer.Typer(help="Inspect data, pack them for training, import and generate them.", no_args_is_help=True)

_SET = "Data option, NAME=VALUE: size=128, slices.train=[0,16], volumes=true, …"
Options = Annotated[list[str] | None, typer.Option("--set", help=_SET)]
_HARD = "Street scenes in which much looks like cars (cityscapes)."
_PROCESSES = "Number of processes (cityscapes); by default one per core."


@app.command(cls=CommandWithGraders)
def info(
    where: DataArgument,
    graders: Graders = None,
    patient: Patient = None,
    options: Options = None,
    out: Annotated[Path, typer.Option(help="Folder for the contact sheets.")] = Path("runs/data"),
) -> None:
    """Print counts, sizes, agreement of graders and class shares of each split, and draw contact sheets."""
    from hpunet.data.folder.patients import patient_warning
    from hpunet.data.open import open_splits, with_pack_options
    from hpunet.data.summary import contact_sheet, summarise
    from hpunet.utils.pictures import save_picture

    chosen = data_options(options, graders=graders, patient=patient)
    sources = open_splits(where, options=chosen)
    description = next(iter(sources.values())).info
    names = f" ({', '.join(description.grader_names)})" if description.grader_names else ""
    words = f"{where}: {description.kind}, {description.in_channels} channel(s) of {description.image_bits} bits, "
    words += f"{description.num_graders} grader(s){names}, {description.num_classes} classes"
    if description.has_instances:
        words += f" ({description.num_random_ids} of them random instance ids)"
    console.print(words)
    table = Table("", *sources)
    rows: dict[str, list[str]] = {}
    rare: list[str] = []
    for split, source in sources.items():
        samples = (source[index] for index in range(len(source)))
        found = summarise(source, tracked(samples, len(source), f"reading {split}"))
        for name, value in _facts(found, description):
            rows.setdefault(name, []).append(value)
        if split == "train":
            rare = [f"{name} (in {count} of {found.num_images:,})" for name, count in found.rare_classes.items()]
    for name, values in rows.items():
        table.add_row(name, *values)
    console.print(table)
    if rare:
        print_warning(
            f"training images nearly never show {', '.join(rare)}; a model cannot learn what it does not see"
        )
    print_warning(patient_warning(list(sources.values()), options=with_pack_options(where, chosen)))
    name = real_path(where).name.replace(":", "-")  # with its suffix: nuclei and nuclei.tar.gz differ
    with explain_os_errors(out, action="written"):
        out.mkdir(parents=True, exist_ok=True)
        sheets = [save_picture(contact_sheet(each), out / f"{name}-{split}.png") for split, each in sources.items()]
    console.print(f"Contact sheets: {', '.join(map(str, sheets))}")


def _facts(found: "Summary", info: "SetInfo") -> Iterator[tuple[str, str]]:
    """The rows of a split: a name and a value each."""
    yield "images", f"{found.num_images:,}"
    yield "patients", f"{found.num_patients:,}"
    several = len(found.sizes) > 1
    sizes = ["×".join(map(str, size)) + (f" ({n:,})" if several else "") for size, n in found.sizes.items()]
    yield "sizes", ", ".join(sizes[:3]) + (f" and {len(sizes) - 3} more" if len(sizes) > 3 else "")
    yield "images per grader", " / ".join(f"{share:.1%}" for share in found.grader_present)
    yield "of these, not empty", " / ".join(f"{share:.1%}" for share in found.grader_marked)
    if info.num_graders > 1:
        yield "marked by all graders", f"{found.num_marked_by_all:,}"
    for name, value in _agreement(found, info):
        yield f"{name}: Dice, IoU", value
    if info.has_instances:
        mean, most = found.instances_per_image
        yield "instances per image", f"{mean:.1f}, at most {most}"
    for name, count in found.images_with.items():
        yield f"images with: {name}", f"{count / found.num_images:.1%}"
    for name, share in found.class_shares.items():
        yield f"pixels: {name}", f"{share:.2%}"
    yield "pixels: invalid", f"{found.invalid_share:.2%}"


def _agreement(found: "Summary", info: "SetInfo") -> Iterator[tuple[str, str]]:
    """Every pair of a few graders, or the mean of many."""
    pairs = list(combinations(range(info.num_graders), 2))
    titles = info.grader_titles
    for a, b in pairs if len(pairs) <= MAX_PAIRS else []:
        scores = found.agreement.get((a, b))
        yield f"{titles[a]} and {titles[b]}", f"{scores.dice:.3f}, {scores.iou:.3f}" if scores else "-"
    if len(pairs) > 1:
        several = found.agreement.values()
        count = max(1, len(several))
        dice, iou = (sum(getattr(one, name) for one in several) / count for name in ("dice", "iou"))
        yield "mean of pairs", f"{dice:.3f}, {iou:.3f}" if several else "-"


@app.command(cls=CommandWithGraders)
def pack(
    where: DataArgument,
    out: NewFolder,
    graders: Graders = None,
    patient: Patient = None,
    options: Options = None,
    processes: Annotated[int, typer.Option(help="Number of reader processes.", min=1)] = 1,
) -> None:
    """Convert data to a pack, the format that training reads: memory-mapped arrays with checksums."""
    from hpunet.data.folder.patients import patient_warning
    from hpunet.data.open import pack_data, with_pack_options

    chosen = data_options(options, graders=graders, patient=patient)
    sources = pack_data(where, out, options=chosen, processes=processes, progress=tracked)
    print_warning(patient_warning(list(sources.values()), options=with_pack_options(where, chosen)))
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    counts = ", ".join(f"{len(source):,} {split}" for split, source in sources.items())
    console.print(f"Packed {counts} images into {out} ({size / 1e6:,.1f} MB).")


@app.command(name="import-lidc")
def import_lidc_command(
    source: Annotated[Path, typer.Argument(help="The LIDC-IDRI download, a folder with DICOM series and XML files.")],
    out: Annotated[Path, typer.Argument(help="Folder for the crops; re-run the command to resume an import.")],
    seed: Annotated[int, typer.Option(help="Random seed of the split by patient.")] = 0,
    processes: Annotated[int | None, typer.Option(help="Number of processes; by default one per core.")] = None,
    volumes: Annotated[bool, typer.Option("--volumes", help="Write each nodule as a NIfTI volume instead.")] = False,
) -> None:
    """Cut the original LIDC-IDRI download (DICOM and XML) into crops as in the paper."""
    from hpunet.data.lidc.importer import import_lidc

    console.print(import_lidc(source, out, seed=seed, processes=processes, volumes=volumes))


@app.command()
def make(
    layout: Annotated[str, typer.Argument(help="lidc, snemi3d or cityscapes; or nifti, volumes.")],
    out: Annotated[Path, typer.Argument(help="Output folder; must be empty.")],
    count: Annotated[
        int, typer.Option(help="Number of patients, slices, or scenes or volumes per split.", min=1)
    ] = 20,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    size: Annotated[int | None, typer.Option(help="Image height; by default 128, 256, 512 or 64.")] = None,
    hard: Annotated[bool, typer.Option("--hard", help=_HARD)] = False,
    processes: Annotated[int | None, typer.Option(help=_PROCESSES, min=1)] = None,
) -> None:
    """Write a synthetic data set in the file layout of a real one, to try commands without the real data."""
    from hpunet.data.synthetic import writers

    if hard and layout != "cityscapes":
        raise ConfigError(f"--hard is only for street scenes (cityscapes), not for {layout}; leave it out")
    with explain_os_errors(out, action="written"):
        if layout == "lidc":
            writers.write_lidc_crops(out, num_patients=count, size=size or 128, seed=seed)
        elif layout == "snemi3d":
            writers.write_snemi3d_stack(out, depth=count, size=size or 256, seed=seed)
        elif layout == "cityscapes":
            how: dict[str, Any] = {"seed": seed, "hard": hard, "processes": processes, "progress": tracked}
            writers.write_cityscapes_scenes(out, num_images=count, size=size or 512, **how)
        elif layout == "nifti":
            writers.write_volumes(out, num_volumes=count, size=size or 64, seed=seed)
        else:
            raise ConfigError(f"layout {layout!r} is unknown, expected lidc, snemi3d, cityscapes or nifti")
    options = _options_to_read(layout, size)
    console.print(f"Wrote {out}. Inspect it: hpunet data info {out}{options}")
    if options:
        words = f"data pack and init need the same options:{options} (train takes them from the settings)."
        console.print(words)


def _options_to_read(layout: str, size: int | None) -> str:
    """Options with which the reader of a layout keeps images of this height unchanged."""
    from hpunet.data.options import set_arguments

    if layout == "nifti":  # volumes are otherwise scaled by the range of their file
        options = {"volumes": True, "window": (0, 255), "classes": ("background", "nodule")}
        return "".join(f" {set_arguments(name, value)}" for name, value in options.items())
    if layout == "cityscapes" and size not in (None, 512):
        return " " + set_arguments("size", [size, 2 * size])
    if layout == "snemi3d" and size is not None and size % 256:
        return " " + set_arguments("patch", size)
    return ""
