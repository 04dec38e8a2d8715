"""Graceful stopping: SIGTERM and Ctrl-C are recorded, and handled between two training steps."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from hpunet.utils.distributed import all_gather, world_size

GRACE_SECONDS = 20
"""How long a process that received a signal waits for the others; torchrun kills it after 30 seconds."""


class Interrupted(BaseException):
    """The run stopped after a signal (SIGTERM or Ctrl-C) and saved a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by signal {signal_number} after saving at iteration {step}")
        self.signal_number, self.step = signal_number, step


class Stop:
    """Records whether a signal came to this process or to another one of the group."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal_number = 0
        self._say = say

    def note(self, signal_number: int, _frame: FrameType | None) -> None:
        """Signal handler."""
        if not self.signal_number:
            self._say("stopping after this iteration")
        if world_size() == 1:
            if signal_number == signal.SIGINT:  # a second Ctrl-C interrupts at once
                signal.signal(signal.SIGINT, signal.default_int_handler)
        elif not self.signal_number and os.name == "posix":
            # If another process has died, this one may hang in a collective; the alarm then ends it.
            signal.alarm(GRACE_SECONDS)
        self.signal_number = signal_number

    def asked(self) -> int | None:
        """The signal, if one came. A collective: all processes call it at the same step and get the same answer."""
        number = self.signal_number
        if world_size() > 1:
            number = int(all_gather(torch.tensor([float(number)])).max())
            if number and os.name == "posix":
                signal.alarm(0)
        return number or None


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[Stop]:
    """Record SIGTERM and SIGINT instead of ending the process. Does nothing outside the main thread."""
    stop = Stop(say)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
