"""How the benchmarks here take time: warm up, interleave the contestants, compare medians."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter


def medians(contestants: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each contestant; they take turns, so that a busy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + repeats):
        for name, run in contestants.items():
            start = perf_counter()
            run()
            if turn >= warmup:
                times[name].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}
