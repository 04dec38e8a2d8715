"""How far a command is, for logs: where no bar can be renewed, a plain line now and then."""

import time
from collections.abc import Callable

from rich.console import Console

EVERY_S = 30.0


class LogLines:
    """Says "evaluate: 120 of 280 images, about 2 min left" every half minute, unless the console is a terminal.

    Work that takes less than that is not mentioned, nor its end.
    """

    def __init__(
        self, what: str, *, console: Console, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._console, self._clock = what, console, clock
        self._silent = quiet or console.is_terminal
        self._start = self._last = clock()

    def update(self, done: float | int, total: int, unit: str = "images") -> None:
        """So much is done by now, of what was begun when this was made; parts of one count for the time left."""
        now = self._clock()
        if self._silent or now - self._last < EVERY_S or done >= total:
            return
        self._last = now
        left = f", about {_in_words((now - self._start) * (total - done) / done)} left" if done > 0 else ""
        self._console.print(
            f"{self._what}: {int(done)} of {total} {unit}{left}", highlight=False, markup=False, soft_wrap=True
        )


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
