"""`hpunet train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hpunet.cli.options import Data, Graders, Patient, as_data_options
from hpunet.cli.progress import TrainingProgress, tracked
from hpunet.cli.terminal import notes
from hpunet.config.settings import load_settings, preset_names

_PRESET = f"Preset, or a TOML file (`hpunet init` writes one). Presets: {', '.join(preset_names())}."
_SET = "Change a setting: optimiser.batch_size=8. All settings are in docs/reference/settings.md."
_KERNELS = (
    "auto: fused kernels (GPU, bf16) if the model and device support them; fused: these or an error; torch: never. "
    "Same as --set optimiser.kernels=..."
)
_FROM = "Start a new run from the weights of a run, or from published weights by name; only weights are taken."
_RESUME = "Continue the run in --out from its newest intact checkpoint: repeat the same command with --resume."


def train_command(
    preset: Annotated[str, typer.Argument(help=_PRESET)],
    data: Data,
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    graders: Graders = None,
    patient: Patient = None,
    change: Annotated[list[str] | None, typer.Option("--set", help=_SET)] = None,
    kernels: Annotated[str | None, typer.Option(help=_KERNELS)] = None,
    start: Annotated[str | None, typer.Option("--from", help=_FROM)] = None,
    resume: Annotated[bool, typer.Option("--resume", help=_RESUME)] = False,
) -> None:
    """Train a model. Ctrl-C and SIGTERM save a checkpoint and stop; continue with --resume.

    With several GPUs: torchrun --nproc-per-node 8 -m hpunet train PRESET --data DIR --out RUN
    """
    from hpunet.data.options import to_toml

    changes = [*(change or []), *([f"optimiser.kernels={kernels}"] if kernels else [])]
    given = as_data_options(graders=graders, patient=patient)
    changes += [f"data.options.{name}={to_toml(value)}" for name, value in given.items()]
    settings = load_settings(preset, changes)
    from hpunet.training.loop import pick_device, train
    from hpunet.training.verdict import VERDICT_FILE
    from hpunet.utils.distributed import destroy_process_group, init_process_group, rank
    from hpunet.utils.signals import Interrupted

    device = pick_device()
    init_process_group(device)
    try:
        with TrainingProgress(settings, quiet=rank() != 0) as line:
            shown: dict[str, Any] = {"say": line.say, "watch": line.update, "progress": tracked}
            final = train(settings, data=data, run=out, resume=resume, start=start, device=device, **shown)
        if rank() == 0 and final:
            numbers = ", ".join(f"{name} {value:.4f}" for name, value in final.items())
            notes.print(f"Done: {numbers}. The run is in {out}; view it: hpunet report {out}")
            notes.print(*(out / VERDICT_FILE).read_text(encoding="utf-8").splitlines(), sep="\n")
    except Interrupted as stop:
        if rank() == 0:
            words = f"Saved at iteration {stop.step} in {out}. Continue with the same command and --resume."
            notes.print(words)
        raise typer.Exit(128 + stop.signal_number) from None
    finally:
        destroy_process_group()
