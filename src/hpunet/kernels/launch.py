"""Launches kernels, or compiles those of a whole pass in parallel without running them."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import triton

from hpunet.utils.cores import usable_cores

# What compiles within `compiling_ahead`. It is of one thread: others go on launching.
_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)


def compiling_executor() -> Executor | None:
    """What compiles in parallel within `compiling_ahead`, where kernels are not run."""
    return _executor.get()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on a grid of programs; within `compiling_ahead`, only compile it."""
    if compiling_executor() is not None:
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Within this context kernels are compiled, one thread per core, and not run: outputs stay undefined.

    A kernel that does not compile raises its error when it is launched: an error here would leave Triton (3.6) in
    its asynchronous mode.
    """
    with ThreadPoolExecutor(usable_cores()) as executor, triton.AsyncCompileMode(executor, ignore_errors=True):
        token = _executor.set(executor)
        try:
            yield
        finally:
            _executor.reset(token)
