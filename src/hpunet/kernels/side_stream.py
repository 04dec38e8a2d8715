"""A second CUDA stream, for weight gradients that nothing in the backward pass waits for."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """Runs kernels beside the current stream, which waits when it is `MAX_PENDING` steps ahead. On a CPU: in line."""

    MAX_PENDING = 2

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: list[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = []

    def fork(self) -> Any:
        """A context whose kernels run on the side stream, after everything launched so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)

    def keep_alive(self, *tensors: Tensor) -> None:
        """Keep the tensors' memory until the side stream has done what it was given so far."""
        if self.stream is None:
            return
        self.pending.append((self.stream.record_event(), tensors))
        if len(self.pending) > self.MAX_PENDING:
            torch.cuda.current_stream().wait_event(self.pending.pop(0)[0])

    def join(self) -> None:
        """Make the current stream wait for the side stream."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.pending.clear()
