"""How `hpunet bench` takes time: contestants are made ready, take turns, and are compared by their medians.

On a GPU all of it runs on one side stream, from the first gradient to the last replay: a gradient that was first
taken on the default stream would break a later capture. Times there are those between CUDA events.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch

from hpunet.errors import HPUNetError

WARM_UPS = 3
"""Calls on a GPU before a capture: compilers compile, libraries choose, Adam makes its moments."""


class Replay:
    """A call as one CUDA graph, captured on the current stream; every replay draws new random numbers."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call  # the graph reads its weights, which must live as long
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream()):
            call()

    def __call__(self) -> None:
        """The call again, all of it."""
        self._graph.replay()


@dataclass
class Contestant:
    """Something to call, and how long each repeat's calls took on average; or why there is nothing to call."""

    name: str
    call: Callable[[], object] | None = None
    peak_mib: float | None = None
    """Most GPU memory that a call has allocated, weights included."""
    why_not: str | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        """Seconds of a call."""
        return median(self.seconds) if self.seconds else None


class Stopwatch:
    """Takes the time of contestants on a device, and says what it is doing."""

    def __init__(self, device: torch.device, *, repeats: int, say: Callable[[str], None]) -> None:
        self.device, self.repeats, self.say = device, repeats, say
        self.on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.on_gpu else None

    def on_its_stream(self) -> AbstractContextManager[object]:
        """Where everything that is measured has to be made and run."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def ready(self, name: str, build: Callable[[], Callable[[], object]], *, graph: bool = False) -> Contestant:
        """A contestant that was built and warmed up, on a GPU as one CUDA graph if asked for.

        One that fails says why, and the others are still measured.
        """
        self.say(f"{name}: getting ready")
        try:
            if not self.on_gpu:
                call = build()
                call()
                return Contestant(name, call)
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated(self.device)
            call = build()
            for _ in range(WARM_UPS):
                call()
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            if graph:
                call = Replay(call)
            call()
            torch.cuda.synchronize(self.device)
        except HPUNetError as error:
            return Contestant(name, why_not=str(error))
        except Exception as error:  # whatever a compiler, driver or library raises
            words = str(error).strip().splitlines()[:1]
            return Contestant(name, why_not=": ".join([type(error).__name__, *words]))
        peak = torch.cuda.max_memory_allocated(self.device) - before
        return Contestant(name, call, peak_mib=peak / 2**20)

    def race(self, contestants: Sequence[Contestant], *, calls: int = 20) -> None:
        """Repeats in turn, so that a busy moment hits everyone; each of so many calls, or on a CPU of one."""
        for turn in range(self.repeats):
            for contestant in contestants:
                if contestant.call is not None:
                    self.say(f"{contestant.name}: {turn + 1} of {self.repeats}")
                    contestant.seconds.append(self._seconds(contestant.call, calls if self.on_gpu else 1))

    def _seconds(self, call: Callable[[], object], calls: int) -> float:
        if not self.on_gpu:
            start = perf_counter()
            for _ in range(calls):
                call()
            return (perf_counter() - start) / calls
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / calls
