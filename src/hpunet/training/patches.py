"""The part of an image or volume that a network sees, and how its scales halve it: from size and spacing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod, sqrt

from hpunet.errors import DataError

MAX_SCALES = 9  # of the paper's largest networks
MAX_BOTTOM = 4  # positions along an axis of the coarsest scale
MAX_SHORT, MAX_LONG = 512, 1024  # largest crop of images: the paper's on Cityscapes
MAX_VOXELS = 2**20  # of a crop of volumes
SMALL_VOXELS = 2**15  # for a first try on a CPU
MAX_HALVINGS = 5
MIN_SIDE = 8  # of a slice


@dataclass(frozen=True)
class Patch:
    """What the network sees of an image or volume, and by how much each halving shrinks it, finest first."""

    size: tuple[int, ...]
    strides: list[tuple[int, ...]]

    @property
    def scales(self) -> int:
        """Their number."""
        return len(self.strides) + 1

    @property
    def positions(self) -> int:
        """Pixels or voxels."""
        return prod(self.size)

    def grids(self) -> list[tuple[int, ...]]:
        """The sizes of the maps, coarsest first."""
        found = [self.size]
        for stride in self.strides:
            found.append(tuple(side // factor for side, factor in zip(found[-1], stride, strict=True)))
        return found[::-1]


def choose_crop(smallest: tuple[int, ...], *, limit: int = MAX_LONG) -> tuple[tuple[int, int], int]:
    """The crop (height, width) and the number of scales for images of at least this size.

    The largest crop that fits and can be halved to 1...`MAX_BOTTOM` pixels per side, with the most scales. Its sides
    are at most `MAX_SHORT` and, in proportion, `MAX_LONG`, and at most `limit`.
    """
    short, long = min(smallest), max(smallest)
    if min(short, limit) < 8:
        what = "the smallest image side is" if short < 8 else "a crop has"
        raise DataError(f"{what} {min(short, limit)} pixels; at least 8 are needed")
    long_limit = min(MAX_LONG, MAX_SHORT * long // short)
    limits = [min(side, limit, MAX_SHORT if side == short else long_limit) for side in smallest]
    bottoms = range(1, MAX_BOTTOM + 1)
    halvings = product(bottoms, bottoms, range(1, MAX_SCALES))
    crops = [(y << halved, x << halved, halved + 1) for y, x, halved in halvings]
    fitting = [crop for crop in crops if crop[0] <= limits[0] and crop[1] <= limits[1]]
    height, width, scales = max(fitting, key=lambda crop: (crop[0] * crop[1], crop[2]))
    return (height, width), scales


def choose_patch(
    smallest: Sequence[int], *, spacing: Sequence[float] | None, max_voxels: int = MAX_VOXELS, limit: int = 2**20
) -> Patch:
    """A patch (d, h, w) for volumes of at least this size, and the strides of its scales.

    As large as `max_voxels` allow, its sides at most `limit` and in mm as equal as the volumes allow, without spacing
    in voxels. A halving leaves axes alone whose positions lie more than √2 times as far apart as the closest ones:
    slices, until pixels are about as far apart. Slices are halved at least once: kernels cross them from there on.
    """
    apart = [1.0] * len(smallest) if spacing is None else list(spacing)
    sides = [min(side, limit) for side in smallest]
    if min(sides[1:]) < MIN_SIDE:
        what = "the smallest slice has a side of" if min(smallest[1:]) < MIN_SIDE else "a crop has"
        raise DataError(f"{what} {min(sides[1:])} pixels; at least {MIN_SIDE} are needed")
    while prod(sides) > max_voxels:
        longest = max(range(len(sides)), key=lambda axis: sides[axis] * apart[axis])
        sides[longest] -= max(1, sides[longest] // 16)
    halved = [0] * len(sides)
    strides: list[tuple[int, ...]] = []
    while len(strides) < MAX_HALVINGS:
        left = [i for i, side in enumerate(sides) if side >> halved[i] > (MAX_BOTTOM if halved[i] else 1)]
        if all(sides[i] >> halved[i] <= MAX_BOTTOM for i in range(len(sides)) if i in left and i > 0):
            break
        closest = min(apart[i] for i in left)
        stride = tuple(2 if i in left and apart[i] <= sqrt(2) * closest else 1 for i in range(len(sides)))
        strides.append(stride)
        apart = [distance * factor for distance, factor in zip(apart, stride, strict=True)]
        halved = [times + factor - 1 for times, factor in zip(halved, stride, strict=True)]
    if strides and not halved[0] and sides[0] > 1:  # slices too far apart for the rule: at the coarsest scale
        strides[-1], halved[0] = (2, *strides[-1][1:]), 1
    return Patch(tuple(side >> times << times for side, times in zip(sides, halved, strict=True)), strides)
