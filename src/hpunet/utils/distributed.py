"""Communication between training processes that torchrun starts; with one process each function is the identity."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.utils.locks import lock_folder

TIMEOUT = timedelta(hours=1)
"""How long to wait for a process that is late, for example because it packs data; a dead one is noticed at once."""
SHUTDOWN_SECONDS = 0.2  # how long to wait for a destroyed group's threads


def world_size() -> int:
    """Number of training processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Index of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def init_process_group(device: torch.device) -> None:
    """Join the other processes if torchrun started this one: NCCL between GPUs, Gloo between CPUs."""
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)


def destroy_process_group() -> None:
    """Leave the group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        # A network wrapped in DDP keeps the group's threads alive (torch 2.13). If one of them frees a tensor while
        # Python shuts down, the process dies by SIGABRT. So give them time to finish.
        time.sleep(SHUTDOWN_SECONDS)


def barrier() -> None:
    """Wait for all processes."""
    all_reduce(torch.zeros(()))


@contextmanager
def shared_lock(folder: Path) -> Iterator[None]:
    """`lock_folder` for all processes of the group: the first one takes it, and all fail if it cannot."""
    with ExitStack() as stack:
        why = ""
        if rank() == 0:
            try:
                stack.enter_context(lock_folder(folder))
            except ConfigError as error:
                why = str(error)
        if all_reduce(torch.tensor(float(bool(why)))):
            raise ConfigError(why or f"{folder}: process 0 cannot use it")
        yield


def all_reduce(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The sum over all processes, without gradient."""
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_gather(values: Float[Tensor, " n"]) -> Float[Tensor, " all"]:
    """The values of all processes, ordered by rank; each process must have the same number."""
    if world_size() == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
