"""Convolutions that do what follows them in the same pass over memory, on CPUs and without gradients.

oneDNN can. torch offers it under names made for compiled models; where they are missing, plain torch runs.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def conv(x: Float[Tensor, "b f h w"], layer: Any, *, relu: bool = False) -> Float[Tensor, "b o h w"]:
    """The layer, and perhaps a ReLU."""
    if _is_fused():
        return _fused_conv(x, layer, relu=relu)
    return F.relu(layer(x), inplace=True) if relu else layer(x)


def add_conv(total: Float[Tensor, "b o h w"], x: Float[Tensor, "b f h w"], layer: Any) -> Tensor:
    """`total` plus the layer's output; overwrites `total`."""
    return _fused_add_conv(total, x, layer) if _is_fused() else total.add_(layer(x))


def _fused_conv(x: Tensor, layer: Any, *, relu: bool) -> Tensor:
    padding, after = list(layer.padding), "relu" if relu else "none"
    run = torch.ops.mkldnn._convolution_pointwise
    return run(x, layer.weight, layer.bias, padding, [1, 1], [1, 1], 1, after, [], "")  # type: ignore[no-any-return]


def _fused_add_conv(total: Tensor, x: Tensor, layer: Any) -> Tensor:
    run, padding = torch.ops.mkldnn._convolution_pointwise_.binary, list(layer.padding)
    return run(total, x, layer.weight, layer.bias, padding, [1, 1], [1, 1], 1, "add", 1.0, None, [], "")  # type: ignore[no-any-return]


def _is_fused() -> bool:
    return bool(torch.backends.mkldnn.enabled) and _works()


@cache
@torch.no_grad()
def _works() -> bool:
    """Whether this torch has the operations, and they do what is expected of them."""
    x, layer = torch.linspace(-1, 1, 64).view(1, 4, 4, 4), nn.Conv2d(4, 4, kernel_size=3, padding=1)
    try:
        found = _fused_add_conv(x.clone(), _fused_conv(x, layer, relu=True), layer)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, x + layer(F.relu(layer(x))), atol=1e-5)
