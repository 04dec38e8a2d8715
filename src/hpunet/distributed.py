"""The few things that several training processes say to each other; alone, each is the identity.

Processes are started by torchrun. Values that steer training (the top-k threshold, GECO's constraint) are taken over
the whole batch, so that n processes with a share each follow one process with all of it.
"""

import os

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def join_processes(device: torch.device) -> None:
    """Meet the other processes if torchrun started this one: over NCCL on GPUs, over Gloo on CPUs."""
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def leave_processes() -> None:
    """Part from the other processes."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def summed(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The sum of a value over all processes, without gradient."""
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def everyones(values: Float[Tensor, " n"]) -> Float[Tensor, " all"]:
    """The values of all processes, which must be as many in each, in the order of their ranks."""
    if world_size() == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
