"""Convolutions that do what follows them in the same pass over memory, on CPUs and without gradients.

oneDNN can. torch offers it under names made for compiled models; where they are missing, plain torch runs.
"""

from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class FusedConv:
    """A convolution with stride 1 that keeps the size.

    From the second call on, its weights are kept as oneDNN wants them, which it else arranges in every call.
    """

    def __init__(self, weight: Float[Tensor, "o f k k"], bias: Float[Tensor, " o"] | None) -> None:
        self.weight, self.bias, self.padding = weight, bias, [weight.shape[-1] // 2] * 2
        self._arranged: Tensor | None = None
        self._was_called = False

    def __call__(self, x: Float[Tensor, "b f h w"], *, relu: bool = False) -> Float[Tensor, "b o h w"]:
        """The convolution, and perhaps a ReLU."""
        if _is_fused():
            return self._fused(x, relu=relu)
        y = F.conv2d(x, self.weight, self.bias, padding=self.padding)
        return F.relu(y, inplace=True) if relu else y

    def add_to(self, total: Float[Tensor, "b o h w"], x: Float[Tensor, "b f h w"]) -> Tensor:
        """`total` plus the convolution of x; overwrites `total`."""
        if _is_fused():
            return self._fused_add_to(total, x)
        return total.add_(F.conv2d(x, self.weight, self.bias, padding=self.padding))

    def _fused(self, x: Tensor, *, relu: bool) -> Tensor:
        run, after = torch.ops.mkldnn._convolution_pointwise, "relu" if relu else "none"
        return run(x, *self._weights(x), self.padding, [1, 1], [1, 1], 1, after, [], "")  # type: ignore[no-any-return]

    def _fused_add_to(self, total: Tensor, x: Tensor) -> Tensor:
        run, weights = torch.ops.mkldnn._convolution_pointwise_.binary, self._weights(x)
        return run(total, x, *weights, self.padding, [1, 1], [1, 1], 1, "add", 1.0, None, [], "")  # type: ignore[no-any-return]

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self._was_called and self._arranged is None:
            arrange = torch.ops.mkldnn._reorder_convolution_weight
            self._arranged = arrange(self.weight, self.padding, [1, 1], [1, 1], 1, list(x.shape))
        self._was_called = True
        return self.weight if self._arranged is None else self._arranged, self.bias


def _is_fused() -> bool:
    return bool(torch.backends.mkldnn.enabled) and _works()


@cache
@torch.no_grad()
def _works() -> bool:
    """Whether this torch has the operations, and they do what is expected of them."""
    x, weight = torch.linspace(-1, 1, 64).view(1, 4, 4, 4), torch.linspace(-0.2, 0.3, 144).view(4, 4, 3, 3)
    conv, bias = FusedConv(weight, x[0, 0, 0]), x[0, 0, 0]
    try:
        found = conv._fused_add_to(x.clone(), conv._fused(x, relu=True))
    except (AttributeError, RuntimeError, TypeError):
        return False
    inner = F.relu(F.conv2d(x, weight, bias, padding=1))
    return torch.allclose(found, x + F.conv2d(inner, weight, bias, padding=1), atol=1e-5)
