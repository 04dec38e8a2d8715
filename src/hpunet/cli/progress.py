"""What commands print while they work: progress bars in a terminal, a line now and then in a log."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Column

from hpunet.cli.terminal import Terminal, notes, print_error, print_warning
from hpunet.config.settings import Settings
from hpunet.errors import HPUNetError
from hpunet.utils.text import printable

_SPEED_OVER_S = 3600.0  # one sample of a large image takes minutes
LOG_INTERVAL_S, TRAINING_LOG_INTERVAL_S = 30.0, 60.0
T = TypeVar("T")
Task = Callable[[T, Callable[[int], None], Callable[[int], None]], None]
"""Processes one item; calls its arguments with the number of samples to draw, and with those just drawn."""


class Notes:
    """Prints each sentence once, however many images it is said of."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._said = quiet, set[str]()

    def __call__(self, *sentences: str) -> None:
        """Print the new ones of these."""
        for sentence in () if self._quiet else dict.fromkeys(sentences):
            if sentence in self._said:
                continue
            self._said.add(sentence)
            if sentence.startswith("Warning: "):
                print_warning(sentence.removeprefix("Warning: "))
            else:
                notes.print(sentence)


def loading(*, quiet: bool) -> Status:
    """Shown while torch and the model are loaded."""
    return Terminal(stderr=True, quiet=quiet).status("loading the model")


def tracked(items: Iterable[T], count: int, title: str) -> Iterator[T]:
    """The items, with a progress bar in a terminal."""
    with progress_bar(hidden=False) as bar:
        yield from bar.track(items, total=count, description=printable(title))


def progress_bar(*, hidden: bool) -> Progress:
    """A bar with counts and the time left, which disappears at the end."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    how: dict[str, Any] = {"console": notes, "transient": True, "disable": hidden or not notes.is_terminal}
    return Progress(*columns, **how, speed_estimate_period=_SPEED_OVER_S)


class PeriodicLog:
    """Prints "evaluate: 120 of 280 images, about 2 min left" every half minute, unless in a terminal."""

    def __init__(
        self, command: str, *, console: Terminal, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._console, self._clock = command, console, clock
        self._silent = quiet or console.is_terminal
        self._start = self._last = clock()

    def update(self, done: float | int, total: int, unit: str = "images") -> None:
        """Report progress; fractions count for the time left."""
        now = self._clock()
        if self._silent or now - self._last < LOG_INTERVAL_S or done >= total:
            return
        self._last = now
        left = f", about {_duration((now - self._start) * (total - done) / done)} left" if done > 0 else ""
        words = f"{self._command}: {int(done)} of {total} {unit}{left}"
        self._console.print(words)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def logged(items: Iterable[T], count: int, title: str, *, command: str, unit: str) -> Iterator[T]:
    """`tracked` items, with a `PeriodicLog` outside a terminal."""
    log = PeriodicLog(command, console=notes)
    for done, item in enumerate(tracked(items, count, title)):
        log.update(done, count, unit)
        yield item


def skip_existing(items: Sequence[T], names: Sequence[str], *, out: Path, replace: bool) -> tuple[list[T], int]:
    """The items without results in `out`, and the number of the others; prints one error for all of those."""
    existing = [] if replace else [name for name in dict.fromkeys(names) if (out / name).exists()]
    if existing:
        others = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        print_error(f"{out / existing[0]}: exists already{others}; replace with --replace, or choose another --out")
    return [item for item, name in zip(items, names, strict=True) if name not in existing], len(existing)


def process_each(items: Sequence[T], task: Task[T], *, command: str, quiet: bool, num_skipped: int = 0) -> None:
    """Run the task on each item. Failures are printed and the rest continues; failed or skipped ones exit with 1."""
    failed = num_skipped
    log = PeriodicLog(command, console=notes, quiet=quiet)
    with progress_bar(hidden=quiet) as progress:
        bar = progress.add_task("", total=None)
        for number, item in enumerate(items, start=1):
            progress.reset(bar, total=None, description=f"image {number} of {len(items)}")
            counts = {"drawn": 0, "total": 1}

            def begin(total: int, counts: dict[str, int] = counts) -> None:
                counts["total"] = total
                progress.update(bar, total=total)

            def advance(count: int, before: int = number - 1, counts: dict[str, int] = counts) -> None:
                counts["drawn"] += count
                progress.advance(bar, count)
                if len(items) == 1:
                    log.update(counts["drawn"], counts["total"], "samples")
                else:
                    log.update(before + counts["drawn"] / max(counts["total"], 1), len(items))

            try:
                task(item, begin, advance)
            except (HPUNetError, OSError) as error:
                failed += 1
                print_error(error)
    if failed:
        notes.print(f"{failed} of {len(items) + num_skipped} failed.")
        raise typer.Exit(1)


def metric_title(name: str) -> str:
    """A metric with an arrow that points to better values."""
    from hpunet.evaluation.summary import DIRECTIONS

    return f"{name} {DIRECTIONS.get(name, '')}".strip()


def mean_and_std(entry: Mapping[str, Any] | None) -> str:
    """A score of a summary, with its bootstrap error."""
    return "–" if entry is None else f"{entry['mean']:.4f} ± {entry['std']:.4f}"


class TrainingProgress:
    """A live line in a terminal; elsewhere a line every `log_every` iterations, or every minute."""

    def __init__(self, settings: Settings, *, quiet: bool) -> None:
        self.settings = settings
        self._numbers: dict[str, float] = {}
        self._printed = time.monotonic()
        whole = Column(no_wrap=True)  # narrow terminals wrap the text behind it instead
        self._progress = Progress(
            MofNCompleteColumn(table_column=whole),
            BarColumn(bar_width=16, table_column=whole),
            TimeRemainingColumn(table_column=whole),
            TextColumn("{task.fields[words]}", markup=False, table_column=Column()),
            console=Terminal(stderr=True, quiet=quiet),
        )
        self._task = self._progress.add_task("training", total=settings.optimiser.iterations, words="starting")

    def __enter__(self) -> "TrainingProgress":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._progress.live.is_started:  # stopping an unstarted one prints an empty line
            self._progress.stop()

    def say(self, message: str) -> None:
        """Print a line above the progress line."""
        self._progress.console.print(message)

    def update(self, step: int, numbers: dict[str, float]) -> None:
        """Show the newest numbers; a validation also gets its own line."""
        if self._progress.console.is_terminal:
            self._progress.start()  # only once training runs: errors before that stand alone
        self._numbers |= numbers
        self._progress.update(self._task, completed=step, words=self._words() if self._numbers else "starting")
        if "ged2" in numbers:
            self.say(f"iteration {step}: " + ", ".join(f"{n} {v:.4f}" for n, v in numbers.items()))
        elif numbers and not self._progress.console.is_terminal:
            last = self.settings.optimiser.iterations
            due = step % self.settings.logging.log_every == 0 or step == last
            if due or time.monotonic() - self._printed > TRAINING_LOG_INTERVAL_S:
                self._printed = time.monotonic()
                left = timedelta(seconds=round((last - step) / numbers["its"]))
                self.say(f"iteration {step} of {last}, {left} left: {self._words()}")

    def _words(self) -> str:
        now = self._numbers
        words = [f"{now.get('its', math.nan):.1f} it/s", f"rec {now.get('rec', math.nan):.3f}"]
        if self.settings.objective.kind == "geco":
            words[-1] += f"/κ {self.settings.objective.kappa:g}  λ {now.get('lambda', math.nan):.3g}"
        scales = [now[f"kl_{i}"] for i in range(len(self.settings.model.latent_dims)) if f"kl_{i}" in now]
        words.append("KL " + " ".join(f"{float(f'{value:.2g}'):g}" for value in scales))
        words.append(f"lr {now.get('lr', math.nan):.1e}")
        if now.get("skipped"):
            words.append(f"{now['skipped']:.0f} skipped")
        return "  ".join(words)
