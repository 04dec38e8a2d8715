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
    devices = {t.device for t in tensors if t.is_cuda}
    arrived = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> None:
        for event in arrived:
            event.synchronize()

    return copies, wait
