"""`hpunet train`."""

from pathlib import Path
from typing import Annotated

import typer

from hpunet.cli.options import Data
from hpunet.cli.progress import TrainingProgress, notes, tracked
from hpunet.config.settings import load_settings


def train_command(
    preset: Annotated[str, typer.Argument(help="Name of a preset, or a TOML file (see `hpunet init`).")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: optimiser.batch_size=8.")
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="auto, fused or torch; same as --set optimiser.kernels=...")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Start from the weights of a run, or from published weights by name."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest intact checkpoint.")] = False,
) -> None:
    """Train a model. Ctrl-C and SIGTERM save a checkpoint and stop; continue with --resume.

    With several GPUs: torchrun --nproc-per-node 8 -m hpunet train PRESET --data DIR --out RUN
    """
    settings = load_settings(preset, [*(change or []), *([f"optimiser.kernels={kernels}"] if kernels else [])])
    from hpunet.training.loop import pick_device, train
    from hpunet.utils.distributed import destroy_process_group, init_process_group, rank
    from hpunet.utils.signals import Interrupted

    device = pick_device()
    init_process_group(device)
    try:
        with TrainingProgress(settings, quiet=rank() != 0) as line:
            final = train(
                settings,
                data=data,
                run=out,
                resume=resume,
                start=start,
                device=device,
                say=line.say,
                watch=line.update,
                progress=tracked,
            )
        if rank() == 0 and final:
            numbers = ", ".join(f"{name} {value:.4f}" for name, value in final.items())
            notes.print(f"Done: {numbers}. The run is in {out}; view it: hpunet report {out}", highlight=False)
    except Interrupted as stop:
        if rank() == 0:
            words = f"Saved at iteration {stop.step} in {out}. Continue with the same command and --resume."
            notes.print(words, highlight=False, soft_wrap=True)
        raise typer.Exit(128 + stop.signal_number) from None
    finally:
        destroy_process_group()
