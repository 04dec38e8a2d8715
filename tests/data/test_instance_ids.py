"""Random ids of instances, and the fixed ones of evaluation."""

import pytest
import torch
from torch import Tensor

from hpunet.data.instance_ids import assign_ids, draw_id_table, evaluation_table


def test_assign_ids_by_hand() -> None:
    labels = torch.tensor([[[[0, 1, 2, 3]]], [[[4, 3, 2, 1]]]])
    table = torch.tensor([[4, 0], [1, 3]])
    painted = assign_ids(labels, num_fixed_classes=2, num_random_ids=5, table=table)
    # image 0: instances 0, 1 get ids 4, 0; image 1: instances 2, 1, 0, where 2 goes round the table to 0
    assert painted.tolist() == [[[[0, 1, 6, 2]]], [[[3, 5, 3, 1]]]]


@pytest.mark.parametrize("size", [(8, 8), (3, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_assign_ids_keeps_type_classes_and_cells(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    labels = torch.randint(0, 60, (3, 2, *size), generator=torch.Generator().manual_seed(0)).to(dtype)
    table = draw_id_table(torch.rand(3, 64, generator=torch.Generator().manual_seed(1)), 15)
    painted = assign_ids(labels, num_fixed_classes=4, num_random_ids=15, table=table)
    assert painted.dtype == dtype
    assert torch.equal(painted[labels < 4], labels[labels < 4])
    assert painted.max() < 4 + 15
    for b in range(3):
        for value in labels[b].unique():
            assert painted[b][labels[b] == value].unique().numel() == 1


def test_assign_ids_never_leaves_the_classes() -> None:
    painted = assign_ids(
        torch.full((1, 1, 1, 1), 1), num_fixed_classes=1, num_random_ids=3, table=torch.tensor([[5]])
    )
    assert painted.item() == 1 + 5 % 3


def test_draw_id_table_is_uniform_with_replacement_and_closed() -> None:
    uniform = torch.rand(1, 30_000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(draw_id_table(uniform, 15)[0], minlength=15)
    assert counts.numel() == 15
    assert (counts - 2000).abs().max() < 5 * (2000**0.5)
    edge = torch.tensor([[0.0, 1 - 2**-24]])
    assert draw_id_table(edge, 15).tolist() == [[0, 14]]
    assert draw_id_table(edge, 2**20 + 1).tolist() == [[0, 2**20]]


def test_evaluation_table_depends_on_seed_and_key_alone() -> None:
    def table(*keys: str, seed: int = 0, count: int = 40) -> Tensor:
        return evaluation_table(keys, seed=seed, num_random_ids=15, num_instances=count)

    both = table("a", "b")
    assert torch.equal(both[1:], table("b"))
    assert torch.equal(both[:, :7], table("a", "b", count=7))
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both, table("a", "b", seed=1))
    assert both[0, :6].tolist() == [10, 4, 7, 14, 10, 5]  # evaluations of today and of later must agree
