"""Launches kernels, or compiles those of a whole pass in parallel without running them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton

_only_compile = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on a grid of programs; within `compiling_ahead`, only compile it."""
    if _only_compile:
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Within this context kernels are compiled, one thread per core, and not run: outputs stay undefined."""
    global _only_compile
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor):
        _only_compile = True
        try:
            yield
        finally:
            _only_compile = False
