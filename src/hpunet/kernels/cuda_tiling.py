"""Tile sizes of the CUDA convolution, chosen by an estimate of its time (docs/lab/speed.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

SHARED_BYTES = 232448  # that a program can have on compute capability 9.0
MULTIPROCESSORS = 132  # of an H200
MAX_TOTALS = 96  # registers of a thread for sums
CYCLES_PER_MICROSECOND = 1755
L2_BYTES_PER_MICROSECOND = 5.3e6


FUSED = ("BIAS", "RELU_IN", "RELU_OUT", "GATE", "RESIDUAL", "SUMS")
"""What a convolution can be fused with."""

Half = tuple[int, int, int] | None
"""Row and column of a pixel around a piece, and the plane of 8 channels; None has weights of zero."""


@dataclass(frozen=True)
class HaloTiling:
    """Tile sizes of a convolution; the names are those of the kernel."""

    tile_y: int
    tile_x: int
    columns: int
    slice: int
    warpgroups: int = 1
    stages: int = 2
    resident: bool = True
    px: int = 1
    images: int = 1  # 8 for maps of less than 8×8 pixels, which are one tile

    def constants(self, channels: int, out: int, *, taps: int, fused: Sequence[str]) -> dict[str, int]:
        """The kernel's, but for the products."""
        return {
            "IN": channels, "OUT": out, "TAPS": taps, "TILE_Y": self.tile_y, "TILE_X": self.tile_x, "PX": self.px,
            "IMAGES": self.images, "COLUMNS": self.columns, "SLICE": self.slice, "STAGES": self.stages,
            "WARPGROUPS": self.warpgroups, "RESIDENT": int(self.resident), "PLANE": self.plane(taps),
            "AT_ONCE": self.at_once(channels, taps=taps, fused=fused), **{name: int(name in fused) for name in FUSED},
        }  # fmt: skip

    def pieces(self, taps: int) -> int:
        """Pieces of a row of the halo."""
        return self.tile_x + 1 if self.images > 1 else -(-(self.tile_x + taps - 1) // self.px)

    def tiles(self, images: int, height: int, width: int) -> int:
        """Tiles of all images; of small maps, 8 neighbours in 8 images are one."""
        if self.images > 1:
            return -(-images // self.images) * -(-((height - 1) * (width + 1) + width) // 8)
        return images * -(-height // self.tile_y) * -(-width // self.tile_x)

    def plane(self, taps: int) -> int:
        """The distance of planes: copies of eight threads fall on different banks."""
        pieces, planes = (self.tile_y + taps - 1) * self.pieces(taps), self.slice // 8
        if self.images > 1:
            pieces = (8 + (taps - 1) * (self.pieces(taps) + 1)) * self.images
        rest = {2: 4, 3: 3}.get(planes, 1) if self.px == 1 else 1
        return pieces + (rest - pieces) % 8

    def products(self, taps: int) -> list[tuple[Half, Half]]:
        """The halves of the products of a slice: two planes of a pixel, or two pixels of the last one."""
        planes, around = self.slice // 8, list(product(range(taps), range(self.px + taps - 1)))
        pairs: list[tuple[Half, Half]] = [
            ((y, x, plane), (y, x, plane + 1)) for y, x in around for plane in range(0, planes - 1, 2)
        ]
        if planes % 2:
            last: list[Half] = sorted(
                ((y, x, planes - 1) for y, x in around), key=lambda half: self.place(half, taps)
            )
            pairs += zip(last[: len(last) // 2 * 2 : 2], last[1::2], strict=True)
            if len(last) % 2:
                pairs.append((None, last[-1]))
        return pairs

    def place(self, half: Half, taps: int) -> int:
        """Where the half of a product starts in shared memory, in units of 16 bytes."""
        assert half is not None
        y, x, plane = half
        start = (plane * self.px + x % self.px) * self.plane(taps)
        return start + (y * self.pieces(taps) + x // self.px) * self.images

    def places(self, taps: int) -> list[tuple[int, int]]:
        """Where each product starts, and the distance of its halves; where weights are zero, anything is there."""
        found, planes = [], self.slice // 8
        for one, other in self.products(taps):
            start, end = self.place(one or (0, 0, 0 if taps > 1 else planes - 2), taps), self.place(other, taps)
            found.append((start, end - start))
        return found

    def at_once(self, channels: int, *, taps: int, fused: Sequence[str] = ()) -> int:
        """Programs that a multiprocessor has memory and registers for."""
        threads, shared = 128 * self.warpgroups, self.shared_bytes(channels, taps=taps)
        pixels = 64 if self.images > 1 else self.tile_y * self.tile_x
        totals = pixels * self.columns // threads  # registers of a thread
        fetched = totals // 2 * sum(name in fused for name in ("GATE", "RESIDUAL")) if totals <= 64 else 0
        registers = min(255, totals + fetched + self.columns * self.px // 4 + 64)
        return max(1, min((SHARED_BYTES + 1024) // (shared + 1024), 65536 // (threads * registers)))

    def shared_bytes(self, channels: int, *, taps: int) -> int:
        """Shared memory of a program."""
        weights = len(self.products(taps)) * self.columns * self.px * 32
        stage = self.slice // 8 * self.px * self.plane(taps) * 16 + (0 if self.resident else weights)
        return self.stages * stage + (channels // self.slice * weights if self.resident else 0)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def candidates(
    height: int, width: int, channels: int, out: int, *, groups: int, images: int, fused: Sequence[str]
) -> list[HaloTiling]:
    """Tilings of a 3×3 convolution that fit, the fastest first; `images` per group."""
    best: dict[tuple[int, ...], tuple[float, HaloTiling]] = {}
    for tiling in _fitting(height, width, channels, out):
        time = _cost(tiling, height, width, channels, out, groups=groups, images=images, fused=fused)
        like = tiling.tile_y, tiling.tile_x, tiling.columns, tiling.warpgroups, tiling.resident, tiling.px
        if like not in best or time < best[like][0]:
            best[like] = time, tiling
    return [tiling for _, tiling in sorted(best.values(), key=lambda pair: pair[0])]


def _fitting(height: int, width: int, channels: int, out: int) -> Iterator[HaloTiling]:
    if min(height, width) < 8:
        yield from _fitting_small(height, width, channels, out)
        return
    columns = [out // n for n in _divisors(out // 8) if out // n <= 192 and (n == 1 or out // n >= 24)]
    slices = [
        channels // n for n in _divisors(channels // 8) if channels // n <= 128 and (n == 1 or channels // n > 8)
    ]
    for y, x, px, wide, size, groups, stages, resident in product(
        (8, 16, 32), (8, 16, 32, 64), (1, 2, 4), columns, slices, (1, 2, 4), (2, 3, 4), (True, False)
    ):
        patches, rest = divmod(y * x // (64 * px), groups)
        if rest or patches == 0 or patches > 4 or patches * wide * px // 2 > MAX_TOTALS or x % (8 * px):
            continue
        if y >= height + 8 or x >= width + 8 * px or (px > 1 and (width % px or wide < out or wide * px > 128)):
            continue
        tiling = HaloTiling(y, x, wide, size, groups, stages, resident, px)
        if tiling.shared_bytes(channels, taps=3) <= SHARED_BYTES:
            yield tiling


def _fitting_small(height: int, width: int, channels: int, out: int) -> Iterator[HaloTiling]:
    for wide, size, stages, resident in product(
        [out // n for n in _divisors(out // 8) if out // n <= 96],
        [channels // n for n in _divisors(channels // 8) if channels // n <= 192],
        (2, 3, 4), (True, False),
    ):  # fmt: skip
        tiling = HaloTiling(height, width, wide, size, 1, stages, resident, images=8)
        if tiling.shared_bytes(channels, taps=3) <= SHARED_BYTES:
            yield tiling


def _cost(
    t: HaloTiling, height: int, width: int, channels: int, out: int, *, groups: int, images: int, fused: Sequence[str]
) -> float:
    """Microseconds on an H200, roughly; what is the same for all tilings is left out.

    The weights of the terms are fitted to measured times (`benchmarks/cuda_tiles.py`).
    """
    tiles, blocks = t.tiles(images, height, width), out // t.columns * groups
    rounds = -(-tiles // max(1, MULTIPROCESSORS * t.at_once(channels, taps=3, fused=fused) // blocks))
    programs = -(-tiles // rounds)
    own_tiles = rounds * -(-programs * blocks // MULTIPROCESSORS)  # of a multiprocessor
    products, columns = len(t.products(3)) * (channels // t.slice), t.columns * t.px
    patches = 1 if t.images > 1 else t.tile_y * t.tile_x // (64 * t.px)
    multiply = own_tiles * patches * products * max(32.0, columns / 2) / CYCLES_PER_MICROSECOND
    halo = own_tiles * MULTIPROCESSORS * (t.tile_y + 2) * (t.tile_x + 2) * channels * 2 / L2_BYTES_PER_MICROSECOND
    weights = (programs if t.resident else tiles) * blocks * products * columns * 32 / L2_BYTES_PER_MICROSECOND
    own_patches = patches // t.warpgroups
    wait = rounds * (channels // t.slice * 600 + own_patches * (products * max(32.0, columns / 2) + 4 * columns))
    cost = multiply + 0.4 * halo + 0.15 * weights + 0.04 * wait / CYCLES_PER_MICROSECOND
    if own_patches * columns > 128 and {"GATE", "RESIDUAL"} & set(fused):  # they are not fetched ahead
        cost *= 1.65
    if t.px == 4 and t.columns > 8:  # pieces of a line of the output are far apart
        cost *= 1.6
    cost *= (1.0 if t.resident else 1.1) * (1 + 0.03 * (channels // t.slice - 1))
    cost *= 1.2 if own_patches >= 3 else 1.0
    cost *= 1.17 if t.warpgroups == 4 else 1.0
    return cost * {2: 2.0, 3: 1.1, 4: 1.0}[t.stages]
