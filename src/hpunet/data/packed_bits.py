"""Maps of two values as bits, in the order of `numpy.packbits`."""

from math import prod

import torch
from torch import Tensor


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first `count` bits of each row as bools."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> shifts).bitwise_and_(1).flatten(-2)[..., :count].bool()


def cut_bits(packed: Tensor, *, size: tuple[int, ...], cut: tuple[slice, ...]) -> Tensor:
    """A part of each map; reads the part's rows along the first axis."""
    length = prod(size[1:])
    first, end = (length * row for row in (cut[0].start, cut[0].stop))
    bits = unpack_bits(packed[:, first // 8 : -(-end // 8)], end - first + first % 8)[:, first % 8 :]
    return bits.view(len(packed), -1, *size[1:])[:, :, *cut[1:]]
