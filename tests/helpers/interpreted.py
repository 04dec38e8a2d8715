"""For tests of the kernels in Triton's interpreter, which takes milliseconds for each line, or on a GPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from hpunet.kernels import flat_parameters, layers
from hpunet.kernels.triton_convolution import ConvTiling, CorrelationTiling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def large_tiles(height: int, width: int, _channels: int, out: int, *, taps: int, **how: Any) -> ConvTiling:
    """Few programs and loops: the interpreter takes milliseconds for each line."""
    assert how == {"dtype": torch.float32, "device": DEVICE}
    if taps == 3 and height % 2 == width % 2 == 0:
        return ConvTiling(2, 2, patches=32, columns=64 if 4 * out <= 64 else 128, chunk=128)
    return ConvTiling(1, 1, patches=32, columns=16 if out <= 16 else 64, chunk=32)


def large_correlation_tiles(
    _height: int, width: int, *_channels: int, taps: int, relu: bool, **how: Any
) -> CorrelationTiling:
    assert how == {"dtype": torch.float32, "device": DEVICE}
    px = 2 if taps == 3 and width % 2 == 0 else 1
    return CorrelationTiling(1, px, rows=256, columns=64, patches=32, programs=1)


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if DEVICE.type == "cpu":
        monkeypatch.setattr(flat_parameters, "convolution_tiling", large_tiles)
        monkeypatch.setattr(layers, "correlation_tiling", large_correlation_tiles)


def distance(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    return float((one - other).norm() / other.norm())


def on_fresh_stack(function: Callable[..., None]) -> Callable[..., None]:
    """In a thread: deep in pytest's stack, CPython maps memory for frames again and again, half of the time."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(function, *args, **options).result()

    return run
