"""Stopping a run from outside: SIGTERM and Ctrl-C are noted, and acted on between two steps."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from hpunet.utils.distributed import all_gather, world_size

GRACE_SECONDS = 20
"""How long a process that was asked to stop waits for the others; torchrun kills it after 30 seconds."""


class Interrupted(BaseException):
    """The run was asked to stop (SIGTERM or Ctrl-C), saved, and did."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by signal {signal_number} after saving at iteration {step}")
        self.signal_number, self.step = signal_number, step


class Stop:
    """Whether a signal asked to stop; with several processes, any one of them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal_number = 0
        self._say = say

    def note(self, signal_number: int, _frame: FrameType | None) -> None:
        """The handler."""
        if not self.signal_number:
            self._say("stopping after this iteration")
        if world_size() == 1:
            if signal_number == signal.SIGINT:  # a second Ctrl-C is the usual one
                signal.signal(signal.SIGINT, signal.default_int_handler)
        elif not self.signal_number and os.name == "posix":
            # Another process may be dead, and this one waiting for it where no handler runs: then the alarm ends it.
            signal.alarm(GRACE_SECONDS)
        self.signal_number = signal_number

    def asked(self) -> int | None:
        """The signal, if one came; all processes must ask at the same step, and hear the same."""
        number = self.signal_number
        if world_size() > 1:
            number = int(all_gather(torch.tensor([float(number)])).max())
            if number and os.name == "posix":
                signal.alarm(0)
        return number or None


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[Stop]:
    """Note SIGTERM and SIGINT, and say so, instead of dying of them, in the main thread: only there can they be."""
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
