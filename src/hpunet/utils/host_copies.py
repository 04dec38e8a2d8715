"""Copies from a GPU that neither side waits for."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def copied_to_cpu(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], None]]:
    """The tensors on the CPU, and a function that returns once their values have arrived.

    Copies are made in the order of the device's work, while it and Python go on. Tensors on a CPU are not copied.
    """
    copies = {
        name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)
        if t.is_cuda
        else t.cpu()
        for name, t in tensors.items()
    }
    devices = {t.device for t in tensors.values() if t.is_cuda}
    arrived = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> None:
        for event in arrived:
            event.synchronize()

    return copies, wait
