"""Launching kernels, or only compiling them: a first pass in which many are compiled at the same time."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton

_only_compile = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on a grid of programs; within `compiling_ahead`, have it compiled."""
    if _only_compile:
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Until the end of this, kernels are compiled (all of them together, by as many threads as there are cores).

    What they would have written is not.
    """
    global _only_compile
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor):
        _only_compile = True
        try:
            yield
        finally:
            _only_compile = False
