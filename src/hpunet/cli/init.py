"""`hpunet init`: settings for your own data, ready to train."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hpunet.cli.options import Data
from hpunet.cli.progress import console, tracked
from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError


def init_command(
    data: Data,
    model: Annotated[
        Literal["hpu", "punet"], typer.Option(help="hpu: the paper's model; punet: the Probabilistic U-Net.")
    ] = "hpu",
    out: Annotated[
        Path | None, typer.Option(help="TOML file to write; by default named after the data.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Data option, as for `hpunet data`: size=128.")
    ] = None,
    crop: Annotated[
        int | None, typer.Option(help="Maximum side of the crop; by default 512×1024.", show_default=False, min=8)
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A small network with short training, to try on a CPU.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Inspect data and write matching settings for `hpunet train`, each with its reason."""
    out = out or Path(_name(data) + ".toml")
    if out.suffix != ".toml":
        raise ConfigError(f"{out}: settings are TOML; use a name that ends in .toml")
    if out.exists() and not force:
        raise ConfigError(f"{out}: exists already; choose another --out, or replace it with --force")
    chosen = parse_assignments(options or [])
    from hpunet.training.suggest import profile_dataset, settings_text, suggest
    from hpunet.utils.files import atomic_write

    look = profile_dataset(data, options=chosen, progress=tracked)
    sections = suggest(look, model=model, options=chosen, crop=crop, small=small)
    text = settings_text(sections, look=look, where=data, out=out)
    atomic_write(out, text.encode())
    console.print(
        f"Wrote {out} for {look.num_train:,} training and {look.num_val:,} validation images. Read it, then train:\n"
        f"hpunet train {out} --data {data} --out runs/{out.stem}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _name(data: str) -> str:
    """A short name for the data: the last part of its path, without suffixes."""
    return Path(data).resolve().name.split(".")[0].replace(":", "-") or "settings"
