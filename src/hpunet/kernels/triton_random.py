"""Keyed random numbers (`utils/keyed_random.py`) as one kernel instead of some fifty: same key, same number."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float32, Int
from torch import Tensor

from hpunet.kernels.launch import launch

BLOCK = 1024  # numbers per program


@triton.jit
def _absorb(state, part):
    x = state + (part + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(state, counter):
    """A multiple of 2^-24 in [0, 1) from the hash so far and the last part of the key."""
    return (_absorb(state, counter.to(tl.uint64)) >> 40).to(tl.int32).to(tl.float32) * (1 / 16777216)


@triton.jit(do_not_specialize=["start"])
def _draw(start, step, index, out, COUNT, NUMBERS, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < NUMBERS
    row, counter = i // COUNT, i % COUNT
    state = _absorb(start.to(tl.uint64), tl.load(step).to(tl.uint64))
    state = _absorb(state, tl.load(index + row, mask=there, other=0).to(tl.uint64))
    if NORMAL:
        first = counter // 2 * 2
        radius = tl.sqrt(-2 * tl.log(1 - _uniform(state, first).to(tl.float64)))
        angle = 6.283185307179586 * _uniform(state, first + 1).to(tl.float64)
        number = (radius * tl.where(counter % 2 == 0, tl.cos(angle), tl.sin(angle))).to(tl.float32)
    else:
        number = _uniform(state, counter)
    tl.store(out + i, number, mask=there)


def draw(
    *, start: int, step: Int[Tensor, ""], index: Int[Tensor, " b"], count: int, normal: bool
) -> Float32[Tensor, "b count"]:
    """The numbers of `keyed_uniform` or `keyed_normal`; `start` is the hash of seed and stream as a signed word."""
    out = torch.empty(len(index), count, device=index.device)
    grid = (triton.cdiv(out.numel(), BLOCK),)
    launch(_draw, grid, start, step, index.contiguous(), out, count, out.numel(), NORMAL=normal, BLOCK=BLOCK)
    return out
