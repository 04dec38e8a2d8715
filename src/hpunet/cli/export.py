"""`hpunet export`: publish the weights of a run."""

from pathlib import Path
from typing import Annotated

import typer

from hpunet.cli.options import Checkpoint, NewFolder, Orientations, Temperature, Weights, parse_temperature
from hpunet.cli.terminal import console
from hpunet.errors import ConfigError

_MAX_CREDIT_BYTES = 2**20
_WITHOUT = "Only the weights that sampling needs: half the size."


def export_command(
    run: Annotated[Path, typer.Argument(help="Run folder that `hpunet train` wrote.")],
    out: NewFolder,
    name: Annotated[str, typer.Option(help="Name of the published weights: lidc-hpu-2026.")],
    credit: Annotated[str, typer.Option(help="Attribution and licence: text, or a text file.")] = "",
    checkpoint: Checkpoint = "latest",
    weights: Weights = "ema",
    temperature: Temperature = "1",
    orientations: Orientations = None,
    without_posterior: Annotated[bool, typer.Option("--without-posterior", help=_WITHOUT)] = False,
) -> None:
    """Publish the weights of a run: float16, with checksums.

    --temperature scales the prior's standard deviations in the weights, and the credit says so; --orientations
    becomes the default of the weights.
    """
    text, factors = _credit(credit), parse_temperature(temperature)
    from hpunet.weights.load import load_trained, publish, set_orientations, set_temperature
    from hpunet.weights.published import cache_folder

    trained = set_orientations(load_trained(run, checkpoint=checkpoint, weights=weights, device="cpu"), orientations)
    set_temperature(trained, factors)
    changed = f"The prior's standard deviations are {temperature} times (coarsest scale first) what training gave."
    credits = [text] if text else []
    credits += [changed] if any(factor != 1 for factor in factors) else []
    files = publish(trained, out=out, name=name, credit="\n".join(credits), posterior=not without_posterior)
    lines = [f"{out}: {name}, of {trained.name} at iteration {trained.step}"]
    lines += [f"{file}  {entry['size'] / 1e6:.1f} MB  sha256 {entry['sha256']}" for file, entry in files.items()]
    if not text:
        lines.append("No attribution and no licence; add them with --credit.")
    lines.append(f"Use it by its folder, or by name after copying it to {cache_folder() / name}")
    console.print(*lines, sep="\n")


def _credit(text_or_file: str) -> str:
    """The text, or the content of the file of that name."""
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
