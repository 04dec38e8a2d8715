"""The one place that prints. Text comes from files, so it is shown as it is: no markup, no control characters."""

import io
import os
import sys
from contextlib import suppress
from typing import IO, Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from hpunet.utils.text import NEAREST, printable

BROKEN_PIPE = 128 + 13  # the exit code of SIGPIPE


class Terminal(Console):
    """Prints strings as lines, each on one line, and never ends a command in a traceback."""

    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **how)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; lines of text are not wrapped, so that paths can be copied. Several lines: `sep="\\n"`."""
        lines = all(isinstance(each, str | Text) for each in objects)
        super().print(*objects, **{"soft_wrap": lines, **how})

    def render_str(self, text: str, **how: Any) -> Text:
        """Every string, in tables too, comes this way."""
        return super().render_str(printable(text), **how)

    def status(self, status: Any, **how: Any) -> Status:
        """A line that is shown while something is done."""
        ascii_only = {"spinner": "line"} if self.options.ascii_only else {}
        return super().status(line(status), **{**ascii_only, **how})

    def on_broken_pipe(self) -> None:
        """The reader, such as `head`, has enough."""
        self.quiet = True
        discard(self.file)
        raise SystemExit(BROKEN_PIPE)


console = Terminal()
notes = Terminal(stderr=True)


def line(text: object) -> Text:
    """For places that would take a string for markup: progress bars and states."""
    return text if isinstance(text, Text) else Text(printable(str(text)))


def print_error(error: object) -> None:
    """One line, without a traceback."""
    notes.print(Text("error:", "bold red"), line(error))


def print_warning(words: str | None) -> None:
    """One line, if there is something to warn of."""
    if words:
        notes.print(Text("warning:", "bold yellow"), line(words))


def prepare_streams() -> None:
    """Characters that the terminal lacks become the nearest ASCII; closed streams are replaced by nothing.

    Otherwise the next file to be opened would take the place of a closed stream, and messages would go into it.
    """
    for number in range(3) if os.name == "posix" else ():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=NEAREST)


def flush_streams() -> None:
    """Write what is left, and raise the error if that fails: at the end of Python it would be a traceback."""
    failed: OSError | None = None
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            discard(stream)
            failed = error
    if isinstance(failed, BrokenPipeError):
        raise SystemExit(BROKEN_PIPE)
    if failed is not None:
        raise failed


def discard(stream: IO[str]) -> None:
    """Whatever goes to this stream from now on, or waits in it, goes nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
