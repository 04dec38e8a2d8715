"""Work on many items at once in several processes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

from hpunet.errors import DataError

_shared: tuple[Any, ...] = ()


@contextmanager
def workers(processes: int | None, *shared: Any) -> Iterator[Callable[..., Iterator[Any]]]:
    """An ordered `map(function, items)` over `processes` (None: one per core) of `function(*shared, item)`.

    `shared` is sent to each process once. With one process the work is done in this one.
    """
    if processes == 1:
        yield lambda function, items: map(partial(function, *shared), items)
        return
    # Spawned, not forked: a fork of a process that runs threads may hang.
    executor = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_share, initargs=(shared,))

    def run(function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        return executor.map(partial(_call, function), items, chunksize=max(1, min(64, len(items) // 1000)))

    try:
        yield run
    except BrokenProcessPool:
        raise DataError("a worker was killed, possibly out of memory; try fewer processes") from None
    finally:
        executor.shutdown(cancel_futures=True)


def _share(shared: tuple[Any, ...]) -> None:
    global _shared
    _shared = shared


def _call(function: Callable[..., Any], item: Any) -> Any:
    return function(*_shared, item)
