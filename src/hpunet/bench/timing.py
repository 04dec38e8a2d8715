"""Timing for `hpunet bench`: candidates are prepared, take turns, and are compared by their medians.

On a GPU all runs on one side stream: gradients first computed on the default stream would break a graph capture.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch

from hpunet.errors import HPUNetError

WARM_UPS = 3  # calls on a GPU before capture, for compilers, library heuristics and Adam's moments


class Replay:
    """A call as a CUDA graph on the current stream; every replay draws new random numbers."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call  # keeps the weights alive that the graph reads
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream()):
            call()

    def __call__(self) -> None:
        """Replay the whole call."""
        self._graph.replay()


@dataclass
class Candidate:
    """A function to time and its mean seconds per call in each repeat, or why it failed."""

    name: str
    call: Callable[[], object] | None = None
    peak_mib: float | None = None  # including weights
    failure: str | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        """Median seconds per call."""
        return median(self.seconds) if self.seconds else None


class Timer:
    """Times candidates on a device and reports progress through `say`."""

    def __init__(self, device: torch.device, *, repeats: int, say: Callable[[str], None]) -> None:
        self.device, self.repeats, self.say = device, repeats, say
        self.on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.on_gpu else None

    def stream(self) -> AbstractContextManager[object]:
        """The stream on which everything measured must be built and run."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def prepare(self, name: str, build: Callable[[], Callable[[], object]], *, graph: bool = False) -> Candidate:
        """Build and warm up a candidate, on a GPU optionally as a CUDA graph. A failure is recorded, not raised."""
        self.say(f"{name}: preparing")
        try:
            if not self.on_gpu:
                call = build()
                call()
                return Candidate(name, call)
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
            return Candidate(name, failure=str(error))
        except Exception as error:  # compilers, drivers and libraries raise anything
            return Candidate(name, failure=": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]]))
        peak = torch.cuda.max_memory_allocated(self.device) - before
        return Candidate(name, call, peak_mib=peak / 2**20)

    def measure(self, candidates: Sequence[Candidate], *, calls: int = 20) -> None:
        """Time candidates in turns, so that a busy moment hits all of them; `calls` per repeat (CPU: 1)."""
        for turn in range(self.repeats):
            for candidate in candidates:
                if candidate.call is not None:
                    self.say(f"{candidate.name}: {turn + 1} of {self.repeats}")
                    candidate.seconds.append(self._seconds(candidate.call, calls if self.on_gpu else 1))

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
