"""`hpunet train`: settings from a preset, a progress line while it runs, clear words when it stops."""

import math
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Column

from hpunet.config.settings import Settings, load_settings

console = Console(stderr=True)
LINE_EVERY_SECONDS = 60
"""Where there is no terminal and steps are slow."""


def train_command(
    preset: Annotated[str, typer.Argument(help="A preset's name, or a TOML file (see `hpunet init`).")],
    data: Annotated[str, typer.Option(help="Folder, archive or pack; or synthetic:lesions and the like.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: optimiser.batch_size=8.")
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="auto, fused or torch; short for --set optimiser.kernels=...")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Begin with the weights of a run, or of published weights by their name."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest whole checkpoint.")] = False,
) -> None:
    """Train a model. Ctrl-C and SIGTERM save and stop; go on with --resume.

    With several GPUs: torchrun --nproc-per-node 8 -m hpunet train PRESET --data DIR --out RUN
    """
    settings = load_settings(preset, [*(change or []), *([f"optimiser.kernels={kernels}"] if kernels else [])])
    from hpunet.training.loop import pick_device, train
    from hpunet.utils.distributed import destroy_process_group, init_process_group, rank
    from hpunet.utils.signals import Interrupted

    device = pick_device()
    init_process_group(device)
    try:
        with ProgressLine(settings, quiet=rank() != 0) as line:
            final = train(
                settings,
                data=data,
                run=out,
                resume=resume,
                start=start,
                device=device,
                say=line.say,
                watch=line.update,
                progress=_packing,
            )
        if rank() == 0 and final:
            numbers = ", ".join(f"{name} {value:.4f}" for name, value in final.items())
            console.print(f"Done: {numbers}. The run is in {out}; look at it: hpunet report {out}", highlight=False)
    except Interrupted as stop:
        if rank() == 0:
            words = f"Saved at iteration {stop.step} in {out}. Go on with the same command and --resume."
            console.print(words, highlight=False, soft_wrap=True)
        raise typer.Exit(128 + stop.signal_number) from None
    finally:
        destroy_process_group()


def _packing(samples: Iterable[Any], count: int, title: str) -> Iterable[Any]:
    quiet = not console.is_terminal
    return track(samples, description=title, total=count, console=console, transient=True, disable=quiet)


class ProgressLine:
    """Iteration, speed, time left, rec against κ, λ, KL of each scale, learning rate; and the last validation.

    In a terminal a line that is renewed. A log file gets one every `log_every` iterations, or every minute.
    """

    def __init__(self, settings: Settings, *, quiet: bool) -> None:
        self.settings = settings
        self._numbers: dict[str, float] = {}
        self._printed = time.monotonic()
        whole = Column(no_wrap=True)  # a narrow terminal breaks the numbers behind, not these
        self._progress = Progress(
            MofNCompleteColumn(table_column=whole),
            BarColumn(bar_width=16, table_column=whole),
            TimeRemainingColumn(table_column=whole),
            TextColumn("{task.fields[words]}", markup=False, table_column=Column()),
            console=Console(stderr=True, quiet=quiet),
        )
        self._task = self._progress.add_task("training", total=settings.optimiser.iterations, words="starting")

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._progress.live.is_started:  # else it would print an empty line
            self._progress.stop()

    def say(self, message: str) -> None:
        """A line of its own above the progress line."""
        self._progress.console.print(message, highlight=False, soft_wrap=True)

    def update(self, step: int, numbers: dict[str, float]) -> None:
        """Show the newest numbers; a validation also gets a line of its own."""
        if self._progress.console.is_terminal:
            self._progress.start()  # not before training begins: an error should stand alone
        self._numbers |= numbers
        self._progress.update(self._task, completed=step, words=self._words() if self._numbers else "starting")
        if "ged2" in numbers:
            self.say(f"iteration {step}: " + ", ".join(f"{n} {v:.4f}" for n, v in numbers.items()))
        elif numbers and not self._progress.console.is_terminal:
            last = self.settings.optimiser.iterations
            due = step % self.settings.logging.log_every == 0 or step == last
            if due or time.monotonic() - self._printed > LINE_EVERY_SECONDS:
                self._printed = time.monotonic()
                left = timedelta(seconds=round((last - step) / numbers["its"]))
                self.say(f"iteration {step} of {last}, {left} left: {self._words()}")

    def _words(self) -> str:
        now = self._numbers
        words = [f"{now.get('its', math.nan):.1f} it/s", f"rec {now.get('rec', math.nan):.3f}"]
        if self.settings.objective.kind == "geco":
            words[-1] += f"/κ {self.settings.objective.kappa:g}"
            words.append(f"λ {now.get('lambda', math.nan):.3g}")
        scales = [now[f"kl_{i}"] for i in range(len(self.settings.model.latent_dims)) if f"kl_{i}" in now]
        words.append("KL " + " ".join(f"{value:.2g}" for value in scales))
        words.append(f"lr {now.get('lr', math.nan):.1e}")
        if now.get("skipped"):
            words.append(f"{now['skipped']:.0f} skipped")
        return "  ".join(words)
