"""CUDA graphs on a CPU: operations are recorded as they run, and a replay runs them again into the same tensors."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph:
    def __init__(self) -> None:
        self.operations: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, before in self.operations:
                for old, new in zip(tree_leaves(before), tree_leaves(function(*args, **kwargs)), strict=True):
                    if (
                        isinstance(old, Tensor)
                        and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr()
                    ):
                        old.copy_(new)


class Recorder(TorchDispatchMode):
    """Replaces `torch.cuda.graph`."""

    def __init__(self, graph: RecordedGraph, **_how: object) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.graph.operations.append((function, args, kwargs or {}, result))
        return result


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """Within this context what is captured is recorded."""
    stream = SimpleNamespace(wait_stream=lambda _other: None)
    with patch.multiple(
        torch.cuda,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _stream: nullcontext(),
        graph_pool_handle=lambda: None,
        CUDAGraph=RecordedGraph,
        graph=Recorder,
    ):
        yield
