"""`hpunet convert-tf`: weights from elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hpunet.config import load_settings

console = Console()
_NAMES_SHOWN = 3


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
    from hpunet.convert_files import convert_checkpoint

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
