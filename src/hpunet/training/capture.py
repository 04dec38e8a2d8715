"""A training step as CUDA graphs: one, or pieces around what processes exchange through the host."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hpunet.utils.distributed import cutting_at_exchanges, in_group

ResultT = TypeVar("ResultT")
WARM_UPS = 3


class Captured(Generic[ResultT]):
    """A function captured for `replay`; `result` is what it returns, whose tensors each replay writes.

    Before the capture it runs a few times; the tensors in `state` are restored after that. NCCL's exchanges are part
    of the graph. Those of Gloo cannot be: there the graph is cut, and a replay runs graphs and exchanges in turn.
    """

    def __init__(self, run: Callable[[], ResultT], *, state: Sequence[Tensor]) -> None:
        kept = [t.clone() for t in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        self._parts: list[Callable[[], object]] = []
        # One stream and one pool of memory: pieces use tensors of earlier ones. NCCL has threads that ask for events.
        mode = "thread_local" if in_group() else "global"
        pool = torch.cuda.graph_pool_handle()
        self._how: dict[str, Any] = {"pool": pool, "stream": torch.cuda.Stream(), "capture_error_mode": mode}
        self._begin()
        with cutting_at_exchanges(self._cut):
            self.result = run()
        self._end()
        for t, saved in zip(state, kept, strict=True):
            t.copy_(saved)

    @property
    def num_graphs(self) -> int:
        """Number of pieces."""
        return (len(self._parts) + 1) // 2

    def replay(self) -> None:
        """Run the function again."""
        for part in self._parts:
            part()

    def _begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        self._open = torch.cuda.graph(graph, **self._how)
        self._open.__enter__()
        self._parts.append(graph.replay)

    def _end(self) -> None:
        self._open.__exit__(None, None, None)

    def _cut(self, exchange: Callable[[], None]) -> None:
        self._end()
        self._parts.append(exchange)
        self._begin()
