"""Notice when the threads of a run wait for cores that other processes use, and say how to cure it.

Threads that compute one operation together spin until the last one is done. Where one of them has no core, the others
burn theirs, and steps take many times as long.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

INTERVAL_S = 20.0
MAX_WAITING = 0.3
"""Share of their time that threads may wait for a core; alone on a machine it is a few percent."""
Times = Mapping[int, tuple[int, int]]
"""By thread: nanoseconds on a core, and ready to run but without one."""


def thread_times() -> Times:
    """Of all threads of this process, from Linux's scheduler; empty on other systems."""
    times = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has just ended
            ran, waited, _ = map(int, path.read_text().split())
            times[int(path.parent.name)] = (ran, waited)
    return times


class ThreadWatch:
    """Compares the threads' times every `INTERVAL_S`; warns once."""

    def __init__(
        self,
        num_threads: int,
        *,
        read: Callable[[], Times] = thread_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_threads, self._read, self._clock = num_threads, read, clock
        self._done = num_threads < 2  # a single one waits for no other
        self._since, self._before = clock(), read()

    def warning(self) -> str | None:
        """What to say if the threads waited too long since the last look."""
        now = self._clock()
        if self._done or now - self._since < INTERVAL_S:
            return None
        before, times = self._before, self._read()
        self._since, self._before = now, times
        both = before.keys() & times.keys()
        ran, waited = (sum(times[thread][i] - before[thread][i] for thread in both) for i in (0, 1))
        share = waited / max(ran + waited, 1)
        if share <= MAX_WAITING:
            return None
        self._done = True
        fewer = max(1, int(self._num_threads * (1 - share)))
        return (
            f"warning: steps are slow, since {self._num_threads} threads waited for a core during {share:.0%} of "
            f"their time: other processes use the cores. Set OMP_NUM_THREADS={fewer} and --resume, or end the others"
        )
