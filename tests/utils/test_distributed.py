"""What a process does with what others send; `tests/training/test_distributed.py` runs two of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hpunet.training.loop import pick_device
from hpunet.utils import distributed
from hpunet.utils.distributed import all_gather, all_reduce, average, cutting_at_exchanges, init_process_group

OTHER = 7.0  # every number of the other process, after division by the number of processes


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A group of this process and another one; the tensors that are summed."""
    summed: list[Tensor] = []

    def sum_(value: Tensor) -> None:
        summed.append(value)
        value.add_(OTHER)

    def gather(parts: list[Tensor], values: Tensor) -> None:
        parts[0].copy_(values)
        parts[1].fill_(OTHER)

    monkeypatch.setattr(distributed, "in_group", lambda: True)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.dist, "all_reduce", sum_)
    monkeypatch.setattr(distributed.dist, "all_gather", gather)
    return summed


def test_average_of_many_tensors_is_one_exchange(two: list[Tensor]) -> None:
    last = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    tensors = [torch.arange(3.0), torch.tensor(4.0), last]
    expected = [t / 2 + OTHER for t in tensors]
    average(tensors)
    assert [t.numel() for t in two] == [3 + 1 + 24]
    for tensor, mean in zip(tensors, expected, strict=True):
        assert torch.equal(tensor, mean)
        assert tensor.stride() == mean.stride()


def test_average_of_one_buffer_needs_no_copy(two: list[Tensor]) -> None:
    flat = torch.arange(6.0)
    average([flat])
    assert two[0].data_ptr() == flat.data_ptr()
    assert flat.tolist() == [7.0, 7.5, 8.0, 8.5, 9.0, 9.5]


@pytest.mark.usefixtures("two")
def test_exchanges_are_cut_out_and_run_later_into_the_same_tensors() -> None:
    cut: list[Any] = []
    own, buffer = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0])
    with cutting_at_exchanges(cut.append):
        total, every = all_reduce(own), all_gather(own)
        average([buffer])
    assert (total.tolist(), buffer.tolist()) == ([1.0, 2.0], [2.0, 3.0])
    own += 1  # the sum is of what was there, as in a graph that copied it
    for exchange in cut:
        exchange()
    assert (total.tolist(), buffer.tolist()) == ([8.0, 9.0], [9.0, 10.0])
    assert every.tolist() == [2.0, 3.0, 7.0, 7.0]
    assert own.tolist() == [2.0, 3.0]
    assert all_reduce(own).tolist() == [9.0, 10.0]  # outside nothing is cut


@pytest.mark.parametrize(("processes", "backend"), [(2, "cpu:gloo,cuda:nccl"), (3, "gloo")])
def test_processes_that_share_a_gpu_use_gloo(monkeypatch: pytest.MonkeyPatch, processes: int, backend: str) -> None:
    chosen: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(processes - 1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(distributed.dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda name, **_how: chosen.append(name))
    device = pick_device()
    assert device == torch.device("cuda", (processes - 1) % 2)
    init_process_group(device)
    assert chosen == [backend]
