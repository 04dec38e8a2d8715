"""`hpunet convert-tf`: a TensorFlow checkpoint of the paper's authors becomes a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from hpunet.cli.options import NewFolder
from hpunet.cli.terminal import console
from hpunet.config.settings import load_settings

_NAMES_SHOWN = 3
_CHECKPOINT = "Prefix such as model.ckpt-12345, its folder, or an .npz file of its variables."
_SET = "Model setting that differs from the LIDC model: model.channels=[32,64,128]."


def convert_tf_command(
    checkpoint: Annotated[Path, typer.Argument(help=_CHECKPOINT)],
    out: NewFolder,
    change: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
    classes: Annotated[str | None, typer.Option(help="Class names, background first: background,lesion.")] = None,
) -> None:
    """Convert a TensorFlow checkpoint of the paper's authors to a run folder. TensorFlow is not needed.

    The model is their LIDC model (preset lidc-hpu) unless --set changes it.
    """
    settings = load_settings("lidc-hpu", change or [])
    names = [name.strip() for name in classes.split(",")] if classes is not None else None
    from hpunet.weights.tensorflow.convert import convert_checkpoint

    done = convert_checkpoint(checkpoint, out=out, settings=settings, class_names=names)
    found = f"{done.num_variables} variables, {done.num_parameters:,} parameters, of iteration {done.step}"
    lines = [f"Converted {found}; classes: {', '.join(done.info.fixed_classes)}."]
    if done.unused:
        more = ", …" if len(done.unused) > _NAMES_SHOWN else ""
        lines.append(f"Not used: {len(done.unused)} ({', '.join(done.unused[:_NAMES_SHOWN])}{more}).")
    lines.append(f"Use it like any run folder: hpunet sample {out} IMAGE --out DIR")
    console.print(*lines, sep="\n")
