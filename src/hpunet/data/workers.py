"""Work on many items at once, over processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from hpunet.errors import DataError


@contextmanager
def workers(processes: int | None) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` that keeps order, over so many processes (None: one a core); with one, the work is done right here."""
    if processes == 1:
        yield map
        return
    # Spawned, not forked: a fork of a process that runs threads may hang.
    executor = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))

    def run(function: Callable[[Any], Any], items: list[Any]) -> Iterator[Any]:
        return executor.map(function, items, chunksize=max(1, min(64, len(items) // 1000)))

    try:
        yield run
    except BrokenProcessPool:
        raise DataError("a process was ended from outside, perhaps for want of memory; try fewer processes") from None
    finally:
        executor.shutdown(cancel_futures=True)
