"""Single convolutions of a layer, forwards and backwards, and a place for work that nothing waits for."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hpunet.kernels.layers import Convolutions
from hpunet.kernels.tile_sizes import correlation_tiling
from hpunet.kernels.triton_convolution import convolve, correlate


def run(layer: Convolutions, name: str, x: Tensor, **around: Any) -> Tensor:
    """A convolution with its bias; `around` as in `convolve`."""
    taps = 1 if name == "skip" else layer.taps
    weight, tiling = layer.weights[name], layer.tilings[name]
    return convolve(x, weight=weight, tiling=tiling, taps=taps, bias=layer.biases[name], **around)


def run_back(layer: Convolutions, name: str, g: Tensor, **around: Any) -> Tensor:
    """The gradient of a convolution's input."""
    taps, name = 1 if name == "skip" else layer.taps, f"{name}_back"
    return convolve(g, weight=layer.weights[name], tiling=layer.tilings[name], taps=taps, **around)


def add_weight_gradient(layer: Convolutions, name: str, x: Tensor, g: Tensor, *, relu: bool = False) -> None:
    """Add the gradient of a convolution of x, or of relu(x), to what is there."""
    mirrored, taps = layer.mirrored[name], 1 if name == "skip" else layer.taps
    rows, columns = (g, x) if mirrored else (x, g)
    tiling = correlation_tiling(
        layer.height, layer.width, rows.shape[4], columns.shape[4], taps=taps, relu=relu, dtype=x.dtype
    )
    correlate(
        rows, columns, out=layer.weight_gradients[name], taps=taps, tiling=tiling,
        relu_rows=relu and not mirrored, relu_columns=relu and mirrored,
    )  # fmt: skip


class Beside:
    """Work on a second stream: it may start now, and is waited for at the end, or when it is far behind.

    What it reads is kept until it has run, so that nothing is written over it.
    """

    BEHIND = 2

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.running: list[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = []

    def start(self) -> Any:
        """A context in which kernels go to the second stream, after all that came before."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)

    def keep(self, *tensors: Tensor) -> None:
        """Until what was started is done."""
        if self.stream is None:
            return
        self.running.append((self.stream.record_event(), tensors))
        if len(self.running) > self.BEHIND:
            torch.cuda.current_stream().wait_event(self.running.pop(0)[0])

    def finish(self) -> None:
        """Wait for all of it."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.running.clear()
