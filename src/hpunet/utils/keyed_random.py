"""Random numbers that depend on their key and on nothing else.

A generator with a state gives every number to whoever asks first, so the number of workers, the split of a batch
over processes or a resumed run would change the data. Here each number is a hash of (seed, stream, step, index,
counter): the same key gives the same number, in any order, on any device.

The hash absorbs one part of the key after the other, each time through the finaliser of SplitMix64 (Steele, Lea
and Flood 2014; the constants are Stafford's variant 13), which is a bijection of 64-bit words with full avalanche.
All is done in wrapping int64 arithmetic on tensors; nothing waits for the device, so draws can be captured in a
CUDA graph when `step` is a tensor on it. That takes some fifty kernels a draw; within `drawing_by` it is one.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor

from hpunet.errors import ConfigError


class Stream(IntEnum):
    """Who draws. Every use of keyed numbers has its own stream, or two of them would share their randomness."""

    WARP = 0
    ELASTIC = 1
    GRADER = 2
    IDS = 3
    HIDE = 4
    POSTERIOR = 5
    GUMBEL = 6
    PRIOR = 7


def _signed(word: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own shift would drag the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _absorb(state: Tensor, part: Tensor) -> Tensor:
    """The state after one more part of the key: SplitMix64's output number `part` when started at `state`."""
    x = state + (part + 1) * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift_right(x, 31)


def _host_word(name: str, value: int) -> Int64[Tensor, ""]:
    """A key part as a scalar on the host, which joins tensors of any device without a copy or a wait."""
    if not 0 <= value < 1 << 63:
        raise ConfigError(f"{name}: expected a whole number from 0 to 2^63 - 1, got {value}")
    return torch.tensor(value, dtype=torch.int64, device="cpu")


def _start(*, seed: int, stream: int) -> Int64[Tensor, ""]:
    """The hash of what a stream's draws have in common."""
    return _absorb(_host_word("seed", seed), _host_word("stream", stream))


def _keyed_words(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Int64[Tensor, "b count"]:
    """64 random bits for every (index, counter)."""
    state = _absorb(
        _start(seed=seed, stream=stream), _host_word("step", step) if isinstance(step, int) else step.long()
    )
    state = _absorb(state, index.long())
    return _absorb(state.unsqueeze(1), torch.arange(count, device=index.device))


Draw = Callable[..., Float32[Tensor, "b count"]]
"""A kernel that draws, `draw` of `kernels/keyed.py`: it is given the key, with `start`, the hash of seed and stream
as a signed word, in the place of those two, and whether the numbers are to be normal."""

_kernel: Draw | None = None


@contextmanager
def drawing_by(kernel: Draw | None) -> Iterator[None]:
    """Within this, numbers whose step is a tensor on their device, as in a CUDA graph, are drawn by a kernel."""
    global _kernel
    before, _kernel = _kernel, kernel
    try:
        yield
    finally:
        _kernel = before


def _drawn_by_kernel(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int, normal: bool
) -> Float32[Tensor, "b count"] | None:
    """None where tensor operations must do it."""
    if _kernel is None or isinstance(step, int):
        return None
    return _kernel(start=int(_start(seed=seed, stream=stream)), step=step, index=index, count=count, normal=normal)


def keyed_uniform(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Float32[Tensor, "b count"]:
    """Uniform numbers in [0, 1), multiples of 2^-24, on `index`'s device and with the same bits on every device.

    Row i belongs to `index[i]`, whatever else is in the batch; a larger `count` only adds columns.
    """
    key: dict[str, Any] = {"seed": seed, "step": step, "index": index, "stream": stream, "count": count}
    if (drawn := _drawn_by_kernel(**key, normal=False)) is not None:
        return drawn
    words = _keyed_words(**key)
    return _shift_right(words, 40).float() * 2.0**-24


def keyed_normal(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Float32[Tensor, "b count"]:
    """Standard normal numbers (Box–Muller), keyed as in `keyed_uniform`; none lies beyond ±5.8.

    Logarithm and sine are taken in float64 and rounded at the end: devices differ in the last bit of those, which
    the rounding hides in all but about one of 10^8 numbers.
    """
    key: dict[str, Any] = {"seed": seed, "step": step, "index": index, "stream": stream}
    if (drawn := _drawn_by_kernel(**key, count=count, normal=True)) is not None:
        return drawn
    pairs = -(-count // 2)
    uniform = keyed_uniform(**key, count=2 * pairs).double()
    radius = (-2 * torch.log1p(-uniform[:, 0::2])).sqrt()
    angle = (2 * math.pi) * uniform[:, 1::2]
    normal = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2)
    return normal.flatten(1)[:, :count].float()
