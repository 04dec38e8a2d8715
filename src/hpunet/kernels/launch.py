"""Launches kernels, or compiles those of a whole pass in parallel without running them."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton

_executor: Executor | None = None  # that compiles, within `compiling_ahead`


def compiling_executor() -> Executor | None:
    """What compiles in parallel within `compiling_ahead`, where kernels are not run."""
    return _executor


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on a grid of programs; within `compiling_ahead`, only compile it."""
    if _executor is not None:
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Within this context kernels are compiled, one thread per core, and not run: outputs stay undefined."""
    global _executor
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor):
        _executor = executor
        try:
            yield
        finally:
            _executor = None
