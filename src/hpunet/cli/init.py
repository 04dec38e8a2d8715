"""`hpunet init`: settings for your own data, ready to train."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import track

from hpunet.config.settings import parse_assignments
from hpunet.errors import ConfigError

console = Console()


def init_command(
    data: Annotated[str, typer.Option(help="Folder, archive or pack; or synthetic:lesions and the like.")],
    model: Annotated[
        Literal["hpu", "punet"], typer.Option(help="The paper's model, or the Probabilistic U-Net.")
    ] = "hpu",
    out: Annotated[
        Path | None, typer.Option(help="File to write, .toml; by default named after the data.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the data's kind, as for `hpunet data`: size=128.")
    ] = None,
    crop: Annotated[
        int | None, typer.Option(help="Sides of the crop, at most; by default 512×1024.", show_default=False, min=8)
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A small network, trained for a short while: a first try on a CPU.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
) -> None:
    """Look at data and write settings that fit them, each with its reason, for `hpunet train`."""
    out = out or Path(_name(data) + ".toml")
    if out.suffix != ".toml":
        raise ConfigError(f"{out}: settings are TOML; choose a name that ends in .toml")
    if out.exists() and not force:
        raise ConfigError(f"{out}: exists already; choose another --out, or replace it with --force")
    chosen = parse_assignments(options or [])
    from hpunet.training.suggest import profile_dataset, settings_text, suggest
    from hpunet.utils.files import atomic_write

    look = profile_dataset(data, options=chosen, progress=_looking)
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
    """A short name for the data: the last part of its place, without endings."""
    return Path(data).resolve().name.split(".")[0].replace(":", "-") or "settings"


def _looking(samples: Iterable[Any], count: int, title: str) -> Iterable[Any]:
    line = Console(stderr=True)
    return track(samples, description=title, total=count, console=line, transient=True, disable=not line.is_terminal)
