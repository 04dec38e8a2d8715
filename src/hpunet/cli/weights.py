"""`hpunet convert-tf` and `hpunet export`: weights from elsewhere, and for elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hpunet.config.settings import load_settings
from hpunet.errors import ConfigError

console = Console()
_NAMES_SHOWN = 3
_MAX_CREDIT_BYTES = 2**20
Temperature = Annotated[
    str,
    typer.Option(help="Factor on the prior's standard deviation, or one a scale, coarsest first: 0.9,1,1,0.7."),
]
Orientations = Annotated[
    int | None,
    typer.Option(
        help="Draw each hypothesis from one of so many orientations of the image, at random: 2 mirrors it, 4 turns "
        "it upside down too, 8 by right angles too; by default what the model's settings say.",
    ),
]


def parse_temperature(text: str) -> list[float]:
    """One number, or several with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"temperature: expected numbers such as 0.8 or 0.9,1,1,0.7, got {text!r}") from None


def convert_tf_command(
    checkpoint: Annotated[
        Path, typer.Argument(help="Prefix such as model.ckpt-12345, its folder, or an .npz of its variables.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not be there yet.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another shape than the LIDC model's: model.channels=[32,64,128]."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes, the background first: background,lesion.")
    ] = None,
) -> None:
    """Turn a TensorFlow checkpoint of the paper's authors into a folder that is used like a run's.

    The shape is that of their LIDC model (the preset lidc-hpu) unless --set says otherwise. TensorFlow is not needed.
    """
    settings = load_settings("lidc-hpu", change or [])
    names = [name.strip() for name in classes.split(",")] if classes is not None else None
    from hpunet.weights.tensorflow.convert import convert_checkpoint

    done = convert_checkpoint(checkpoint, out=out, settings=settings, class_names=names)
    lines = [
        f"Converted {done.num_variables} variables, {done.num_parameters:,} parameters, of iteration {done.step}; "
        f"classes: {', '.join(done.info.fixed_classes)}."
    ]
    if done.unused:
        more = ", …" if len(done.unused) > _NAMES_SHOWN else ""
        lines.append(f"Not used: {len(done.unused)} ({', '.join(done.unused[:_NAMES_SHOWN])}{more}).")
    lines.append(f"Use it like a run's folder: hpunet sample {out} IMAGE --out DIR")
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run that `hpunet train` wrote.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not be there yet.")],
    name: Annotated[str, typer.Option(help="Name to publish it under: lidc-hpu-2026.")],
    credit: Annotated[
        str, typer.Option(help="Who is to be named, and the licence: a text, or a file that holds it.")
    ] = "",
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a name such as step-00001000.")] = "latest",
    temperature: Temperature = "1",
    orientations: Orientations = None,
    without_posterior: Annotated[
        bool, typer.Option("--without-posterior", help="Only what sampling needs: half the size.")
    ] = False,
) -> None:
    """Make published weights of a run: float16, averaged ones if there are any, with their sums and sizes.

    With --temperature the prior's standard deviations are changed for good, and the credit says so; --orientations
    becomes the weights' default.
    """
    text, factors = _credit(credit), parse_temperature(temperature)
    from hpunet.weights.load import load, publish, set_temperature, with_orientations
    from hpunet.weights.published import cache_folder

    trained = with_orientations(load(run, checkpoint=checkpoint, device="cpu"), orientations)
    set_temperature(trained, factors)
    changed = f"The prior's standard deviations are {temperature} times (coarsest scale first) what training gave."
    said = [text] if text else []
    said += [changed] if any(factor != 1 for factor in factors) else []
    files = publish(trained, out=out, name=name, credit="\n".join(said), posterior=not without_posterior)
    lines = [f"{out}: {name}, of {trained.name} at iteration {trained.step}"]
    for file, entry in files.items():
        lines.append(f"{file}  {entry['size'] / 1e6:.1f} MB  sha256 {entry['sha256']}")
    if not text:
        lines.append("It names nobody and no licence; --credit does.")
    lines.append(f"Use it by its folder, or by its name once it is in {cache_folder() / name}")
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def _credit(text_or_file: str) -> str:
    """The text, or what is in the file of that name."""
    try:
        is_file = Path(text_or_file).is_file()
    except OSError:  # too long for a file's name
        is_file = False
    if not is_file:
        return text_or_file
    from hpunet.utils.files import read_file

    try:
        return read_file(Path(text_or_file), max_bytes=_MAX_CREDIT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{text_or_file}: not text ({error})") from None
