"""Counter-based random numbers: each depends only on its key.

Each number is a hash of (seed, stream, step, index, counter), so neither the number of workers nor processes nor a
resumed run changes the data. The hash absorbs the parts of the key one by one through the finaliser of SplitMix64
(Steele, Lea and Flood 2014, constants of Stafford's variant 13), in wrapping int64 arithmetic on tensors. It never
waits for the device: with a `step` on the device, CUDA graphs can capture draws.
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
    """The purpose of a draw. Each use has its own stream, so that no two share random numbers."""

    WARP = 0
    ELASTIC = 1
    GRADER = 2
    IDS = 3
    HIDE = 4
    POSTERIOR = 5
    GUMBEL = 6
    PRIOR = 7
    COLOUR = 8


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; `>>` on int64 would extend the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _absorb(state: Tensor, part: Tensor) -> Tensor:
    """The hash state after one more part of the key: output `part` of SplitMix64 seeded with `state`."""
    x = state + (part + 1) * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift_right(x, 31)


def _host_word(name: str, value: int) -> Int64[Tensor, ""]:
    """A part of the key as a scalar on the host, which combines with tensors of any device without a wait."""
    if not 0 <= value < 1 << 63:
        raise ConfigError(f"{name}: expected an integer of 0 to 2^63 - 1, got {value}")
    return torch.tensor(value, dtype=torch.int64, device="cpu")


def _start(*, seed: int, stream: int) -> Int64[Tensor, ""]:
    """The hash of the first two parts of the key."""
    return _absorb(_host_word("seed", seed), _host_word("stream", stream))


def _keyed_words(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Int64[Tensor, "b count"]:
    """64 random bits per (index, counter)."""
    word = _host_word("step", step) if isinstance(step, int) else step.long()
    state = _absorb(_absorb(_start(seed=seed, stream=stream), word), index.long())
    return _absorb(state.unsqueeze(1), torch.arange(count, device=index.device))


Draw = Callable[..., Float32[Tensor, "b count"]]
"""Signature as `draw` of `kernels/triton_random.py`."""

_kernel: Draw | None = None


@contextmanager
def drawing_by(kernel: Draw | None) -> Iterator[None]:
    """Within this context the kernel draws all numbers whose step is a tensor, as in a CUDA graph."""
    global _kernel
    outer, _kernel = _kernel, kernel
    try:
        yield
    finally:
        _kernel = outer


def _drawn_by_kernel(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int, normal: bool
) -> Float32[Tensor, "b count"] | None:
    """The numbers, or None if tensor operations must draw them."""
    if _kernel is None or isinstance(step, int):
        return None
    return _kernel(start=int(_start(seed=seed, stream=stream)), step=step, index=index, count=count, normal=normal)


def keyed_uniform(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Float32[Tensor, "b count"]:
    """Uniform numbers in [0, 1), multiples of 2^-24, with the same bits on every device.

    Row i depends only on `index[i]`, not on the rest of the batch. A larger `count` only adds columns.
    """
    key: dict[str, Any] = {"seed": seed, "step": step, "index": index, "stream": stream, "count": count}
    if (drawn := _drawn_by_kernel(**key, normal=False)) is not None:
        return drawn
    return _shift_right(_keyed_words(**key), 40).float() * 2.0**-24


def keyed_normal(
    *, seed: int, step: int | Int[Tensor, ""], index: Int[Tensor, " b"], stream: int, count: int
) -> Float32[Tensor, "b count"]:
    """Standard normal numbers (Box–Muller), keyed as in `keyed_uniform`, within ±5.8.

    Logarithm and sine are float64: rounding hides that devices differ in their last bit, but for one in 10^8 numbers.
    """
    key: dict[str, Any] = {"seed": seed, "step": step, "index": index, "stream": stream}
    if (drawn := _drawn_by_kernel(**key, count=count, normal=True)) is not None:
        return drawn
    pairs = -(-count // 2)
    uniform = keyed_uniform(**key, count=2 * pairs).double()
    radius = (-2 * torch.log1p(-uniform[:, 0::2])).sqrt()
    angle = (2 * math.pi) * uniform[:, 1::2]
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)[:, :count].float()
