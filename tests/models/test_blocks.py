"""What the CPU computes in another order against the plain way to write it, in float64."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hpunet import HPUNet
from hpunet.models import blocks
from hpunet.models.blocks import conv_of_doubled, double_nearest, residual_stage, run_doubled


def seeded(*shape: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return x.to(memory_format=torch.channels_last).requires_grad_()


def assert_same(found: Tensor, expected: Tensor, *, inputs: list[Tensor]) -> None:
    """Equal to rounding, and so are the gradients."""
    torch.testing.assert_close(found, expected)
    towards = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    gradients = [torch.autograd.grad(y, inputs, towards) for y in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 2), (8, 8)])
def test_convolution_of_a_doubled_map_needs_no_doubled_map(size: tuple[int, int]) -> None:
    x, weight = seeded(2, 3, *size), seeded(5, 3, 3, 3)
    for layout in (torch.channels_last, torch.contiguous_format):
        found = conv_of_doubled(x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout))
        assert_same(found, F.conv2d(double_nearest(x), weight, padding=1), inputs=[x, weight])


def test_stage_of_a_doubled_map_equals_the_joined_one() -> None:
    x, features = seeded(2, 5, 32, 36), seeded(2, 4, 64, 72)
    stage = residual_stage(9, 4, 2).double()
    expected = stage(torch.cat([double_nearest(x), features], dim=1))
    assert_same(run_doubled(stage, x, features), expected, inputs=[x, features, *stage.parameters()])


def test_hpunet_doubles_large_channels_last_maps_only_in_the_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled: list[tuple[int, ...]] = []
    monkeypatch.setattr(blocks, "double_nearest", lambda x: doubled.append(x.shape[1:]) or double_nearest(x))
    image = seeded(1, 1, 64, 64).detach()
    outputs = []
    for channels_last in (True, False):
        torch.manual_seed(0)
        model = HPUNet(
            in_channels=1, num_classes=2, channels=(4, 6, 8), latent_dims=(1, 1), channels_last=channels_last
        ).double()
        outputs.append(model.decode(model.encode(image=image))[0])
    assert doubled == [(9, 16, 16), (4, 32, 32), (9, 16, 16), (7, 32, 32)]
    torch.testing.assert_close(*outputs)


COMPILED = """
import torch
from hpunet.models.blocks import residual_stage, run_doubled

stage, x = residual_stage(9, 4, 1), torch.rand(1, 5, 32, 32).to(memory_format=torch.channels_last)
features = torch.rand(1, 4, 64, 64).to(memory_format=torch.channels_last)
gradients = [
    torch.autograd.grad(run(stage, x, features).sum(), list(stage.parameters()))
    for run in (torch.compile(run_doubled, backend="aot_eager", fullgraph=True), run_doubled)
]
for found, expected in zip(*gradients):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
"""


def test_stage_of_a_doubled_map_can_be_compiled() -> None:
    """In a process of its own: the checks of annotations cannot be."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
