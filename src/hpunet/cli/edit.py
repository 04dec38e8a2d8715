"""`hpunet edit`: kept hypotheses, changed in latent space."""

from pathlib import Path
from typing import Annotated

import typer

from hpunet.cli import options as cli
from hpunet.cli.progress import Notes, loading
from hpunet.cli.terminal import console
from hpunet.errors import ConfigError

_PICK = "Only these samples, counted from 1: 3 or 1,4."
_REDRAW = "Scales to redraw: auto (those with cells not much larger than the region), full, or numbers such as 2,3."
_NUDGE = (
    "Move the latent of a scale (0: the coarsest) at a pixel by so many prior σ: 3,64,70,1.5; at a voxel: "
    "3,64,70,12,1.5."
)
_WITH = "Take the latents under the region from the hypotheses of this state."
_REGION = (
    "The part of the image to change: a box X0,Y0,X1,Y1 or a pixel X,Y; of the crop if the state is of one. In "
    "volumes that is all slices; a box X0,Y0,Z0,X1,Y1,Z1 or a voxel X,Y,Z is not."
)


def edit_command(
    run: cli.Run,
    image: Annotated[Path, typer.Argument(help="The image that the hypotheses are of.")],
    state: Annotated[Path, typer.Argument(help="state.json, as `hpunet sample` writes it.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    pick: Annotated[str | None, typer.Option(help=_PICK)] = None,
    redraw: Annotated[str | None, typer.Option(help=_REDRAW, metavar="SCALES")] = None,
    nudge: Annotated[str | None, typer.Option(help=_NUDGE, metavar="SCALE,X,Y,[Z,]BY")] = None,
    other: Annotated[Path | None, typer.Option("--with", help=_WITH, metavar="STATE")] = None,
    region: Annotated[str | None, typer.Option(help=_REGION, metavar="BOX|PIXEL")] = None,
    seed: Annotated[int | None, typer.Option(help="Of new noise; by default the next one.", min=0)] = None,
    temperature: Annotated[float | None, typer.Option(help="Factor on the prior's σ; 0 is the mean.")] = None,
    visible: cli.Visible = None,
    labels: cli.Labels = None,
    checkpoint: cli.Checkpoint = "latest",
    weights: cli.Weights = "ema",
    formats: cli.Formats = None,
    replace: cli.Replace = False,
    quiet: cli.Quiet = False,
) -> None:
    """Change hypotheses that `hpunet sample` has drawn: pick, redraw, combine or nudge them; the rest is kept."""
    if redraw is None and other is None and nudge is None and pick is None:
        raise ConfigError("say what to do: --pick, --redraw, --nudge or --with")
    if other is not None and region is None:
        raise ConfigError("--with: needs a --region")
    from hpunet.predict.export.registry import parse_formats

    chosen = parse_formats(formats)
    picked = None if pick is None else [round(each) - 1 for each in cli.parse_numbers("pick", pick, example="1,4")]
    moved = None if nudge is None else cli.parse_numbers("nudge", nudge, example="3,64,70,1.5")
    if moved is not None and len(moved) not in (4, 5):
        raise ConfigError(f"--nudge: expected numbers such as 3,64,70,1.5, in volumes 3,64,70,12,1.5, got {nudge!r}")
    where = None if region is None else cli.parse_numbers("region", region, example="30,40,60,70")
    with loading(quiet=quiet):
        from hpunet.predict.export.writer import export
        from hpunet.predict.predictor import load

        predictor = load(run, checkpoint=checkpoint, weights=weights)
        found = predictor.replay(image, state, visible=visible, labels=labels)
        if picked is not None:
            found = found.pick(*picked)
        if other is not None and where is not None:
            found = found.combine(
                predictor.replay(image, other, visible=visible, labels=labels), region=where, scales=None
            )
        if moved is not None:
            scale, x, y, *z, by = moved
            if predictor.info.ndim == 3 and not z:
                raise ConfigError(f"--nudge: expected numbers such as 3,64,70,12,1.5, with the slice, got {nudge!r}")
            found = found.nudge(scale=round(scale), at=(x, y), by=by, slice=round(z[0]) if z else 0)
        if redraw is not None:
            scales = None if redraw == "auto" else redraw
            found = found.redraw(scales=scales, region=where, seed=seed, temperature=temperature)
        export(found, out, formats=chosen, replace=replace)
    Notes(quiet=quiet)(*found.notes)
    if not quiet:
        console.print(str(out))
