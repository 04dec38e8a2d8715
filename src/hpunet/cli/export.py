"""`hpunet export`: publish the weights of a run, or write a model for other software."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hpunet.cli.options import Checkpoint, Orientations, Temperature, Weights, parse_temperature
from hpunet.cli.terminal import console
from hpunet.errors import ConfigError

_MAX_CREDIT_BYTES = 2**20
_OUT = "Output folder of published weights; must not exist yet. Or name a folder by --onnx or --hub."
_NAME = "Name of the published weights: lidc-hpu-2026. With --hub or --onnx by default that of the model."
_ONNX = "Write a folder for ONNX runtimes instead: two graphs, a description, and an example without torch."
_HUB = "Write a folder for a model hub such as Hugging Face instead: config.json, model.safetensors, README.md."
_LICENSE = "With --hub: the licence in the hub's words, such as apache-2.0; by default other."
_WITHOUT = "Only the weights that sampling needs: half the size. ONNX files hold no others."


def export_command(
    run: Annotated[Path, typer.Argument(help="Run folder that `hpunet train` wrote, or published weights.")],
    out: Annotated[Path | None, typer.Argument(help=_OUT)] = None,
    name: Annotated[str | None, typer.Option(help=_NAME)] = None,
    onnx: Annotated[Path | None, typer.Option(help=_ONNX, metavar="FOLDER")] = None,
    hub: Annotated[Path | None, typer.Option(help=_HUB, metavar="FOLDER")] = None,
    hub_license: Annotated[str | None, typer.Option("--license", help=_LICENSE)] = None,
    credit: Annotated[str, typer.Option(help="Attribution and licence: text, or a text file.")] = "",
    checkpoint: Checkpoint = "latest",
    weights: Weights = "ema",
    temperature: Temperature = "1",
    orientations: Orientations = None,
    without_posterior: Annotated[bool, typer.Option("--without-posterior", help=_WITHOUT)] = False,
) -> None:
    """Publish the weights of a run: float16, with checksums. Or write a model for other software.

    --temperature scales the prior's standard deviations in the weights, and the credit says so; --orientations
    becomes the default of the weights.
    """
    places = [folder for folder in (out, onnx, hub) if folder is not None]
    if len(places) != 1:
        raise ConfigError("export: expected one output folder: OUT, --onnx FOLDER or --hub FOLDER")
    place = places[0]
    if name is None and out is not None:
        raise ConfigError("name: published weights need one; add --name, such as --name my-lesions-1")
    if hub_license is not None and hub is None:
        raise ConfigError("license: is for --hub; say the licence of other folders in --credit")
    if without_posterior and onnx is not None:
        raise ConfigError("without-posterior: ONNX files never hold the posterior; leave --without-posterior out")
    text, factors = _credit(credit), parse_temperature(temperature)
    from hpunet.weights.load import load_trained, publish, set_orientations, set_temperature
    from hpunet.weights.published import cache_folder

    trained = set_orientations(load_trained(run, checkpoint=checkpoint, weights=weights, device="cpu"), orientations)
    set_temperature(trained, factors)
    text = text or trained.credit
    changed = f"The prior's standard deviations are {temperature} times (coarsest scale first) what training gave."
    credits = [text] if text else []
    credits += [changed] if any(factor != 1 for factor in factors) else []
    said, name = "\n".join(credits), name or trained.name
    lines = [f"{place}: {name}, of {trained.name} at iteration {trained.step}"]
    if onnx is not None:
        from hpunet.deploy.export import EXAMPLE, export_onnx

        files, difference = export_onnx(trained, out=place, name=name, credit=said)
        lines.append(f"Logits differ from torch's by at most {difference:.1g} of the largest.")
        use = f"Try it: python {place / EXAMPLE} IMAGE.npy"
    else:
        how: dict[str, Any] = {"hub_license": hub_license or "other"} if hub is not None else {}
        files = publish(trained, out=place, name=name, credit=said, posterior=not without_posterior, **how)
        use = "Use it by its folder"
        use += "" if hub is not None else f", or by name after copying it to {cache_folder() / name}"
    lines += [f"{file}  {entry['size'] / 1e6:.1f} MB  sha256 {entry['sha256']}" for file, entry in files.items()]
    if not text:
        lines.append("No attribution and no licence; add them with --credit.")
    console.print(*lines, use, sep="\n")


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
