"""The few things that several training processes say to each other; alone, each is the identity.

Processes are started by torchrun. Values that steer training (the top-k threshold, GECO's constraint) are taken over
the whole batch, so that n processes with a share each follow one process with all of it.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor

TIMEOUT = timedelta(hours=1)
"""How long processes wait for one that is alive but late, say because it packs the data. A dead one is noticed at
once over Gloo, and by torchrun."""
LEAVING_SECONDS = 0.2
"""How long the threads of a group have for their last work after it was left."""


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def init_process_group(device: torch.device) -> None:
    """Join the other processes if torchrun started this one: over NCCL between GPUs, over Gloo between CPUs."""
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)


def destroy_process_group() -> None:
    """Part from the other processes."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        # A network that was wrapped for several processes keeps the group's threads alive (torch 2.13). One that has
        # to let go of a tensor while Python ends would end the process by SIGABRT, so they are given a moment.
        time.sleep(LEAVING_SECONDS)


def barrier() -> None:
    """Return when every process has come here."""
    all_reduce(torch.zeros(()))


def all_reduce(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The sum of a value over all processes, without gradient."""
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_gather(values: Float[Tensor, " n"]) -> Float[Tensor, " all"]:
    """The values of all processes, which must be as many in each, in the order of their ranks."""
    if world_size() == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
