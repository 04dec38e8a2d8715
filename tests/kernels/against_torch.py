"""The kernels against plain torch in float64, on tiny shapes.

Triton chooses its interpreter when it is imported, so `test_kernels.py` runs this file in a process of its own. By
hand: TRITON_INTERPRET=1 pytest tests/kernels/against_torch.py, or on a GPU without that variable.

The interpreter takes milliseconds for each line. HPUNET_ALL_KERNELS=1 (`make test-kernels`) adds cases that differ
from others in one more number.
"""

import os
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, distance, on_fresh_stack, small_programs
from torch import Tensor

from hpunet.kernels import triton_random
from hpunet.kernels.network import FusedNetwork
from hpunet.kernels.triton_convolution import (
    ConvTiling,
    CorrelationTiling,
    GradientView,
    WeightView,
    convolve,
    correlate,
)
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.utils import keyed_random

__all__ = ["small_programs"]  # a fixture of every test
THOROUGH = DEVICE.type == "cuda" or "HPUNET_ALL_KERNELS" in os.environ
SHAPES = [  # groups, batch, height, width, in, out, taps, tiling
    (1, 2, 16 if THOROUGH else 8, 16, 16, 24, 3, ConvTiling(py=2, px=4, patches=16, columns=64, chunk=16)),
    (2, 3, 4, 4, 24, 16, 3, ConvTiling(py=1, px=2, patches=32, columns=32, chunk=32)),  # several images per tile
    (2, 5, 1, 1, 40, 16, 3, ConvTiling(py=1, px=1, patches=16, columns=16, chunk=64)),
    (1, 1, 9, 6, 8, 16, 3, ConvTiling(py=1, px=2, patches=16, columns=16, chunk=16)),  # odd sizes, one image
    (2, 2, 8, 8, 24, 8, 1, ConvTiling(py=1, px=1, patches=32, columns=16, chunk=32)),
]
HPU_NETS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {  # settings, size of the images
    "unpadded": ({"channels": (16, 32, 32), "latent_dims": (1,)}, (4, 4)),
    "padded": ({"channels": (12, 16), "latent_dims": (2,), "cond_channels": 2, "channels_last": False}, (2, 4)),
    "no-latent-at-scale-0": ({"channels": (8, 8, 16), "latent_dims": (0, 1)}, (4, 4)),
    "no-latent-at-scale-1": ({"channels": (8, 8, 16), "latent_dims": (1, 0)}, (4, 4)),
}


def here(x: Tensor) -> Tensor:
    return x.float().to(DEVICE)


def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(g, b, h, w, i) and (g, o, i, t, t)."""
    biases, padding = [None] * len(x) if bias is None else bias, weight.shape[4] // 2
    groups = [
        F.conv2d(g.permute(0, 3, 1, 2), w, b, padding=padding) for g, w, b in zip(x, weight, biases, strict=True)
    ]
    return torch.stack(groups).permute(0, 1, 3, 4, 2)


def patch_weights(weight: Tensor, t: ConvTiling) -> WeightView:
    """The weights that `convolve` wants, by loops instead of an index."""
    groups, out, channels, taps, _ = weight.shape
    patch = torch.zeros(groups, t.py + taps - 1, t.run(channels, taps=taps), t.py, t.px, out)
    for y, x, dy, dx in product(range(t.py), range(t.px), range(taps), range(taps)):
        run = slice((x + dx) * channels, (x + dx + 1) * channels)
        patch[:, y + dy, run, y, x] = weight[:, :, :, dy, dx].transpose(1, 2).float()
    data = here(patch.flatten(3).contiguous())
    _, rows, run, columns = data.shape
    return WeightView(data, rows * run * columns, run * columns, channels * columns, columns, 1, columns)


@pytest.mark.parametrize(("groups", "b", "h", "w", "channels", "width", "taps", "tiling"), SHAPES)
def test_convolve_equals_conv2d(
    groups: int, b: int, h: int, w: int, channels: int, width: int, taps: int, tiling: ConvTiling
) -> None:
    x, weight, bias = (
        torch.randn(s, dtype=torch.float64)
        for s in ((groups, b, h, w, channels), (groups, width, channels, taps, taps), (groups, width))
    )
    gate, residual = torch.randn(2, groups, b, h, w, width, dtype=torch.float64)
    how: dict[str, Any] = {"weight": patch_weights(weight, tiling), "tiling": tiling, "taps": taps}
    got = convolve(here(x), **how, bias=here(bias), relu_input=True, relu_output=True)
    assert distance(got, plain(x.relu(), weight, bias).relu()) < 1e-6
    got = convolve(here(x), **how, bias=here(bias), residual=here(residual))
    assert distance(got, plain(x, weight, bias) + residual) < 1e-6
    total = torch.zeros(groups, width, device=DEVICE)
    got = convolve(here(x), **how, gate=here(gate), residual=here(residual), sums=total)
    expected = plain(x, weight) * (gate > 0) + residual
    assert distance(got, expected) < 1e-6
    assert distance(total, expected.sum(dim=(1, 2, 3))) < 1e-5


PATCHES = [(1, 1, True), (1, 2, True), (2, 2, True), (1, 1, False)]
CORRELATIONS = [
    (*shape, taps, py, px, together)
    for (*shape, taps, _), (py, px, together) in product(SHAPES, PATCHES)
    if shape[2] % py == shape[3] % px == 0 and (taps == 3 or py == 1)
]


@pytest.mark.parametrize(("groups", "b", "h", "w", "channels", "width", "taps", "py", "px", "together"), CORRELATIONS)
def test_correlate_equals_the_weight_gradient(
    groups: int, b: int, h: int, w: int, channels: int, width: int, taps: int, py: int, px: int, together: bool
) -> None:
    x, g = (torch.randn(groups, b, h, w, c, dtype=torch.float64) for c in (channels, width))
    weight = torch.zeros(groups, width, channels, taps, taps, dtype=torch.float64, requires_grad=True)
    plain(x.relu(), weight).backward(g)
    assert weight.grad is not None
    straight = weight.grad.permute(0, 3, 4, 2, 1).flatten(1, 2)
    mirrored = weight.grad.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 2)
    tiling = CorrelationTiling(py, px, rows=64, columns=32, patches=16, programs=8, together=together)
    size = channels * width
    out = torch.ones(straight.shape, device=DEVICE)
    view = GradientView(out, taps * taps * size, size, width, 1)
    correlate(here(x), here(g), out=view, taps=taps, tiling=tiling, relu_rows=True)
    assert distance(out - 1, straight) < 1e-5
    out = torch.zeros(mirrored.shape, device=DEVICE)
    view = GradientView(out, taps * taps * size, size, channels, 1)
    correlate(here(g), here(x), out=view, taps=taps, tiling=tiling, relu_columns=True)
    assert distance(out, mirrored) < 1e-5


@on_fresh_stack
def check_model(
    model: HPUNet | ProbUNet, size: tuple[int, int], *, sigma_weight: float = 0.0, passes: int = 1
) -> None:
    """Compare outputs and all gradients, which add up; the loss has the sum of all log σ with `sigma_weight`."""
    model = model.double().to(DEVICE)
    inputs = {"image": torch.rand(2, 1, *size), "cond": None}
    if model.cond_channels:
        inputs["cond"] = torch.rand(2, model.cond_channels, *size)
    labels = torch.randint(3, (2, *size), device=DEVICE)
    noise = [torch.randn(2, *shape) for shape in model.latent_shapes(*size)]
    own: list[Tensor] = []
    if isinstance(model, HPUNet):  # also hypotheses from the prior
        generator = torch.Generator().manual_seed(1)
        own = [torch.randn(2, 2, *shape, generator=generator) for shape in model.latent_shapes(*size)]

    def backward(network: Any) -> tuple[Any, dict[str, Tensor]]:
        where: dict[str, Any] = {"dtype": next(model.parameters()).dtype, "device": DEVICE}
        seen = {name: None if value is None else value.to(**where) for name, value in inputs.items()}
        drawn = {"prior_noise": [n.to(**where) for n in own]} if own else {}
        output = network(**seen, labels=labels, noise=[n.to(**where) for n in noise], **drawn)
        loss = output.logits.square().mean() * 10 + output.kl @ torch.arange(1, 1 + len(noise)).to(**where)
        if own:
            loss = loss + output.sample_logits.tanh().mean(dim=(0, 2, 3, 4)) @ torch.arange(1, 3).to(**where)
        (loss + sigma_weight * sum(g.log_sigma.sum() for g in (*output.prior, *output.posterior))).backward()
        return output, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected, expected_gradients = backward(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model.float()
    fused = FusedNetwork(model, dtype=torch.float32)
    for number in range(1, passes + 1):  # nothing of the first pass is left in the second
        found, found_gradients = backward(fused)
        assert distance(found.logits, expected.logits) < 1e-6
        assert distance(found.kl, expected.kl) < 1e-5
        if own:
            assert distance(found.sample_logits, expected.sample_logits) < 1e-6
        for one, other in zip(found.latents, expected.latents, strict=True):
            assert one.shape == other.shape
            assert other.numel() == 0 or distance(one, other) < 1e-6
        for name, gradient in expected_gradients.items():
            if gradient.norm() > 0:
                assert distance(found_gradients[name], number * gradient) < 1e-5, name
            else:
                assert float(found_gradients[name].abs().max()) == 0, name
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name].float()), name
    after, _ = backward(model)
    assert distance(after.logits, expected.logits) < 1e-6  # the model is unchanged


@pytest.mark.parametrize("name", HPU_NETS)
def test_fused_hpunet_equals_the_model(name: str) -> None:
    settings, size = HPU_NETS[name]
    model = HPUNet(in_channels=1, num_classes=3, **{"blocks_per_scale": 1, **settings})
    check_model(model, size, passes=2 if THOROUGH or name == "padded" else 1)


@pytest.mark.parametrize(("channels", "size"), [((8, 12), (2, 4)), ((16, 8, 8), (4, 4))])
def test_fused_punet_equals_the_model(channels: tuple[int, ...], size: tuple[int, int]) -> None:
    model = ProbUNet(in_channels=1, num_classes=3, channels=channels, latent_dim=3)
    for net, gain in ((model.prior, 40), (model.posterior, -40)):  # Gaussians that differ
        torch.nn.init.orthogonal_(net.head.conv.weight, gain=gain)
    check_model(model, size, passes=2 if THOROUGH else 1)


FEW: dict[str, Any] = {"in_channels": 1, "num_classes": 3, "channels": (8, 8)}


@pytest.mark.parametrize("kind", ["hpunet", "punet"])
def test_log_sigma_out_of_range_gets_the_inward_gradient(kind: str) -> None:
    """The loss pulls one Gaussian further out and the other one back."""
    hpunet = {"latent_dims": (1,), "blocks_per_scale": 1}
    model: Any = HPUNet(**FEW, **hpunet) if kind == "hpunet" else ProbUNet(**FEW, latent_dim=2)
    with torch.no_grad():
        for net, log_sigma in ((model.prior, 11.0), (model.posterior, -11.0)):
            for name, p in net.named_parameters():
                if "head" in name and name.endswith("bias"):
                    p[len(p) // 2 :] = log_sigma
    check_model(model, (2, 4), sigma_weight=3.0 if kind == "hpunet" else -3.0)


@pytest.mark.parametrize(
    ("seed", "step", "stream", "count"), [(0, 0, 5, 9), (2**63 - 1, 2**40, 3, 50), (7, 12345, 6, 1500), (3, 1, 0, 1)]
)
def test_keyed_draws_equal_the_tensor_operations(seed: int, step: int, stream: int, count: int) -> None:
    """To the bit; normal numbers but for the last bit of a GPU's logarithm or sine."""
    index = torch.tensor([0, 1, 7, 2**33, 2**62])
    key: dict[str, Any] = {"seed": seed, "stream": stream, "count": count}
    there: dict[str, Any] = {"step": torch.tensor(step, device=DEVICE), "index": index.to(DEVICE)}
    used: list[bool] = []

    def kernel(*, normal: bool, **others: Any) -> Tensor:
        used.append(normal)
        return triton_random.draw(**others, normal=normal)

    with keyed_random.drawing_by(kernel):
        uniform, normal = (
            draw(**key, **there).cpu() for draw in (keyed_random.keyed_uniform, keyed_random.keyed_normal)
        )
    assert used == [False, True]
    assert torch.equal(uniform, keyed_random.keyed_uniform(**key, step=step, index=index))
    expected = keyed_random.keyed_normal(**key, step=step, index=index)
    torch.testing.assert_close(normal, expected, rtol=2e-7, atol=1e-12)
