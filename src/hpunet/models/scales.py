"""The scales of a network: by how much each axis shrinks from one to the next, and what follows from it.

Slices of a volume are often further apart than pixels. So along (d, h, w) a first halving of (1, 2, 2) leaves the
slices as they are, and convolutions do not cross them before they are as close to each other as pixels.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from hpunet.errors import ConfigError

Stride = tuple[int, ...]
"""Of each axis, (h, w) or (d, h, w): 1 or 2."""


def checked_strides(strides: Sequence[Sequence[int]] | None, *, ndim: int, num_scales: int) -> tuple[Stride, ...]:
    """The stride of each halving, finest first; by default, and always for images, 2 along all axes."""
    if ndim not in (2, 3):
        raise ConfigError(f"ndim: expected 2 for images or 3 for volumes, got {ndim}")
    if strides is None:
        return ((2,) * ndim,) * (num_scales - 1)
    if ndim == 2:
        raise ConfigError("strides: only with ndim=3; images are halved along both axes")
    found = tuple(tuple(stride) for stride in strides)
    if len(found) != num_scales - 1 or any(sorted(set(s)) not in ([2], [1, 2]) or len(s) != ndim for s in found):
        wanted = f"{num_scales - 1} times {ndim} numbers, each 1 or 2, not all of them 1"
        raise ConfigError(f"strides: expected {wanted}, one entry per halving of {num_scales} scales; got {found}")
    return found


def kernel_sizes(strides: Sequence[Stride]) -> list[tuple[int, ...]]:
    """Of each scale, finest first: 3 along an axis from the scale on that first halves it, at finer ones 1.

    The coarsest scale, which halves nothing, has the kernel of the scale before it.
    """
    seen = accumulate(strides, lambda a, b: tuple(map(max, a, b)))
    kernels = [tuple(3 if stride == 2 else 1 for stride in largest) for largest in seen]
    return [*kernels, kernels[-1]]


def shrink_factors(strides: Sequence[Stride]) -> list[tuple[int, ...]]:
    """How many times as small as the image the maps of each scale are along each axis, finest first."""
    return [tuple(map(prod, zip(*strides[:scale], strict=True))) for scale in range(1, len(strides) + 1)]
