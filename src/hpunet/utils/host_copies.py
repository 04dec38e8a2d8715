"""Copies from a GPU that neither side waits for."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def copied_to_cpu(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
    """The tensors on the CPU, and a function that returns once their values have arrived; any thread may call it.

    Copies are made in the order of the device's work, while it and Python go on. Tensors on a CPU are not copied.
    """
    copies = [
        torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) if t.is_cuda else t.cpu()
        for t in tensors
    ]
    if not any(t.is_cuda for t in tensors):
        return copies, lambda: None
    arrived = torch.cuda.Event()
    arrived.record()
    return copies, arrived.synchronize
