"""The CPU's faster order of operations against the plain one, in float64."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hpunet import HPUNet
from hpunet.models import upsampled_conv
from hpunet.models.blocks import residual_stage, upsample_nearest
from hpunet.models.upsampled_conv import conv_upsampled, run_upsampled


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
def test_conv_upsampled_equals_upsample_then_conv(size: tuple[int, int]) -> None:
    x, weight = seeded(2, 3, *size), seeded(5, 3, 3, 3)
    for layout in (torch.channels_last, torch.contiguous_format):
        found = conv_upsampled(x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout))
        assert_same(found, F.conv2d(upsample_nearest(x), weight, padding=1), inputs=[x, weight])


def test_run_upsampled_equals_the_stage_on_concatenated_maps() -> None:
    x, features = seeded(2, 5, 32, 36), seeded(2, 4, 64, 72)
    stage = residual_stage(9, 4, 2).double()
    expected = stage(torch.cat([upsample_nearest(x), features], dim=1))
    assert_same(run_upsampled(stage, x, features), expected, inputs=[x, features, *stage.parameters()])


def test_hpunet_upsamples_large_channels_last_maps_only_in_the_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    upsampled: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        upsampled_conv, "upsample_nearest", lambda x, *_: upsampled.append(x.shape[1:]) or upsample_nearest(x)
    )
    image = seeded(1, 1, 64, 64).detach().sigmoid()
    outputs = []
    for channels_last in (True, False):
        torch.manual_seed(0)
        model = HPUNet(
            in_channels=1, num_classes=2, channels=(4, 6, 8), latent_dims=(1, 1), channels_last=channels_last
        ).double()
        outputs.append(model.decode(model.encode(image=image))[0])
    assert upsampled == [(9, 16, 16), (4, 32, 32), (9, 16, 16), (7, 32, 32)]
    torch.testing.assert_close(*outputs)


def test_gradients_lie_in_memory_as_the_parameters_do() -> None:
    """As PyTorch expects: DistributedDataParallel, for instance, warns of other strides."""
    stage = residual_stage(9, 4, 1).to(memory_format=torch.channels_last)
    x, features = seeded(2, 5, 32, 32).float(), seeded(2, 4, 64, 64).float()
    run_upsampled(stage, x, features).sum().backward()
    for name, parameter in stage.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.stride() == parameter.stride(), name


COMPILED = """
import torch
from hpunet.models.blocks import residual_stage
from hpunet.models.upsampled_conv import run_upsampled

stage, x = residual_stage(9, 4, 1), torch.rand(1, 5, 32, 32).to(memory_format=torch.channels_last)
features = torch.rand(1, 4, 64, 64).to(memory_format=torch.channels_last)
gradients = [
    torch.autograd.grad(run(stage, x, features).sum(), list(stage.parameters()))
    for run in (torch.compile(run_upsampled, backend="aot_eager", fullgraph=True), run_upsampled)
]
for found, expected in zip(*gradients):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
"""


def test_run_upsampled_can_be_compiled() -> None:
    """In its own process, without the annotation checks, which cannot be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
