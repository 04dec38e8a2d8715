"""Communication between training processes that torchrun starts; without a group each function is the identity."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
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


def in_group() -> bool:
    """Whether there are processes to communicate with; there may be one, which is enough to try it."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Number of training processes."""
    return dist.get_world_size() if in_group() else 1


def rank() -> int:
    """Index of this process."""
    return dist.get_rank() if in_group() else 0


def init_process_group(device: torch.device) -> None:
    """Join the other processes if torchrun started this one: NCCL between GPUs, Gloo between CPUs.

    Gloo also where several processes share a GPU, which NCCL refuses; tensors then go through the host.
    """
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        shared = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
        by_nccl = on_gpu and not shared and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if by_nccl else "gloo", timeout=TIMEOUT)


def destroy_process_group() -> None:
    """Leave the group."""
    if in_group():
        dist.destroy_process_group()
        # Threads of Gloo end a little later (torch 2.13). Where Python shuts down first, the process dies by SIGABRT.
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
    if not in_group():
        return value.detach()
    total = value.detach().clone()
    _exchange(_sum, total)
    return total


def all_gather(values: Float[Tensor, " n"]) -> Float[Tensor, " all"]:
    """The values of all processes, ordered by rank; each process must have the same number."""
    if not in_group():
        return values
    parts = values.new_empty(world_size(), len(values))
    _exchange(_gather, parts, values.contiguous())
    return parts.flatten()


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their mean over all processes, in one exchange; each process must have the same shapes."""
    if not in_group():
        return
    in_place = len(tensors) == 1 and tensors[0].is_contiguous()
    flat = tensors[0] if in_place else torch.cat([t.flatten() for t in tensors])
    flat.div_(world_size())
    _exchange(_sum, flat)
    if not in_place:
        parts = flat.split([t.numel() for t in tensors])
        torch._foreach_copy_(list(tensors), [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)])


@torch.no_grad()
def copy_from_first(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by those of process 0."""
    if in_group():
        for tensor in tensors:
            tensor.copy_(all_reduce(tensor if rank() == 0 else torch.zeros_like(tensor)))


_cut: ContextVar[Callable[[Callable[[], None]], None] | None] = ContextVar("cut", default=None)


@contextmanager
def cutting_at_exchanges(cut: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Within this context `cut` receives exchanges that a CUDA graph cannot hold, to run them later."""
    token = _cut.set(cut)
    try:
        yield
    finally:
        _cut.reset(token)


def _exchange(run: Callable[..., None], target: Tensor, *others: Tensor) -> None:
    cut = _cut.get()
    if cut is None or _is_by_nccl(target):
        run(target, *others)
    else:
        cut(partial(run, target, *others))


def _is_by_nccl(tensor: Tensor) -> bool:
    return tensor.is_cuda and "cuda:nccl" in dist.get_backend_config()


def _sum(total: Tensor) -> None:
    host = total if _is_by_nccl(total) else total.cpu()
    dist.all_reduce(host)
    if host is not total:
        total.copy_(host)


def _gather(parts: Tensor, values: Tensor) -> None:
    host = parts if _is_by_nccl(parts) else parts.cpu()
    dist.all_gather(list(host), values.to(host.device))
    if host is not parts:
        parts.copy_(host)
