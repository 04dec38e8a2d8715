"""`hpunet init`: settings for your own data, ready to train."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hpunet.cli.options import Data, Graders, Patient, data_options
from hpunet.cli.progress import tracked
from hpunet.cli.terminal import console, print_warning
from hpunet.errors import ConfigError
from hpunet.utils.files import real_path
from hpunet.utils.text import as_utf8

_MODEL = "hpu: the paper's model; punet: the Probabilistic U-Net."
_CROP = "Maximum side of the crop; by default the largest that fits, up to 512×1024 (128×128 with --small)."
_SMALL = "A small network, small crops and short training, to try on a CPU."
_VOLUMES = "Train on whole volumes, not on their slices; as --set volumes=true."


def init_command(
    data: Data,
    model: Annotated[Literal["hpu", "punet"], typer.Option(help=_MODEL)] = "hpu",
    out: Annotated[Path | None, typer.Option(help="TOML file to write; by default named after the data.")] = None,
    graders: Graders = None,
    patient: Patient = None,
    options: Annotated[list[str] | None, typer.Option("--set", help="Data option: size=128.")] = None,
    crop: Annotated[int | None, typer.Option(help=_CROP, min=8)] = None,
    small: Annotated[bool, typer.Option("--small", help=_SMALL)] = False,
    volumes: Annotated[bool, typer.Option("--volumes", help=_VOLUMES)] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
) -> None:
    """Inspect data and write matching settings for `hpunet train`, with a comment that explains each."""
    out = out or Path((real_path(data).name.split(".")[0].replace(":", "-") or "settings") + ".toml")
    if out.suffix != ".toml":
        raise ConfigError(f"{out}: settings are TOML; use a name that ends in .toml")
    if out.exists() and not replace:
        raise ConfigError(f"{out}: exists already; choose another --out, or replace it with --replace")
    chosen = data_options(options, graders=graders, patient=patient)
    from hpunet.data.open import options_of_model
    from hpunet.training.suggest import profile_dataset, settings_text, suggest
    from hpunet.utils.files import atomic_write

    if volumes:
        chosen = options_of_model(data, chosen, ndim=3)
    look = profile_dataset(data, options=chosen, progress=tracked)
    print_warning(look.patient_warning)
    sections = suggest(look, model=model, options=chosen, crop=crop, small=small)
    content = as_utf8(settings_text(sections, look=look, where=data, out=out))
    try:
        content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{out}: settings are UTF-8, these data options are not; rename the files") from None
    atomic_write(out, content)
    images = f"{look.num_train:,} training and {look.num_val:,} validation {look.samples}"
    console.print(f"Wrote {out} for {images}. Read it, then train:")
    console.print(f"hpunet train {out} --data {data} --out runs/{out.stem}")
