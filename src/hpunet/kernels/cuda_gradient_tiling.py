"""Tile sizes of the weight gradient in CUDA C++, chosen by an estimate of its time (docs/lab/speed.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from hpunet.kernels.cuda_tiling import (
    CYCLES_PER_MICROSECOND,
    L2_BYTES_PER_MICROSECOND,
    MULTIPROCESSORS,
    SHARED_BYTES,
)

MAX_TOTALS = 128  # registers of a thread for sums


@dataclass(frozen=True)
class GradientTiling:
    """Tile sizes of a weight gradient; named as in the kernel, whose A is `rows`, or if swapped `columns`."""

    a: int  # channels of a program
    b: int
    rows: int
    tile_y: int
    tile_x: int
    swapped: bool = False
    warpgroups: int = 3
    stages: int = 4
    images: int = 1  # side by side; 8 for small maps

    def constants(self, a_channels: int, b_channels: int) -> dict[str, int]:
        """The kernel's, but for the ReLUs."""
        return {
            "A_CHANNELS": a_channels, "B_CHANNELS": b_channels, "A_BLOCK": self.a, "B_BLOCK": self.b,
            "ROWS": self.rows, "TILE_Y": self.tile_y, "TILE_X": self.tile_x, "IMAGES": self.images,
            "A_PITCH": self.a_pitch, "B_PITCH": self.b_pitch, "STAGES": self.stages,
            "WARPGROUPS": self.warpgroups, "AT_ONCE": self.at_once, "MIRRORED": int(not self.swapped),
        }  # fmt: skip

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return (self.rows + 2) * self.b

    @property
    def a_pitch(self) -> int:
        """The distance of planes of A."""
        return _pitch(self.tile_x * self.images, self.a // 8)

    @property
    def b_pitch(self) -> int:
        """The distance of planes of B."""
        return _pitch((self.tile_x + 2) * self.images, self.b // 8)

    @property
    def step_rows(self) -> int:
        """Rows of pixels in a product: 16 pixels in a row, or 8 in each of two."""
        return self.rows if self.tile_x * self.images % 16 == 0 else 2 * self.rows

    @property
    def products(self) -> int:
        """Products of a tile and a column of taps."""
        return self.tile_y * self.tile_x * self.images // (16 * self.rows)

    def blocks(self, a_channels: int, b_channels: int) -> int:
        """Programs for the channels."""
        return -(-a_channels // self.a) * -(-b_channels // self.b)

    def tiles(self, images: int, height: int, width: int) -> int:
        """Tiles of all images."""
        return -(-images // self.images) * -(-height // self.tile_y) * -(-width // self.tile_x)

    def stage_bytes(self) -> tuple[int, int]:
        """Shared memory of a tile of A and of B."""
        return (
            self.tile_y * self.a // 8 * self.a_pitch * 16,
            (self.tile_y + 2) * self.b // 8 * self.b_pitch * 16,
        )

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program."""
        sums = 3 * 64 * (self.columns + 1) * 4 if self.rows > 1 else 0
        return max(self.stages * sum(self.stage_bytes()), sums)

    @property
    def at_once(self) -> int:
        """Programs that a multiprocessor has memory and registers for."""
        registers = min(255, 3 // self.warpgroups * self.columns // 2 + 48)
        most = (SHARED_BYTES + 1024) // (self.shared_bytes + 1024), 65536 // (128 * self.warpgroups * registers)
        return max(1, min(*most, 4))

    def fits(self) -> bool:
        """Whether a program has the memory and registers, and its products read only what is its own."""
        _, b = self.stage_bytes()
        beyond = (8 - self.rows * self.a // 8) * self.a_pitch * 16  # rows of products that are not used
        return (
            self.shared_bytes <= SHARED_BYTES
            and beyond <= b
            and self.tile_y % self.step_rows == 0
            and self.tile_x * self.images % 8 == 0
            and self.rows * self.a <= 64
            and self.columns <= 256
            and 3 // self.warpgroups * self.columns // 2 <= (MAX_TOTALS if self.warpgroups == 3 else 144)
        )


def _pitch(pixels: int, planes: int) -> int:
    """The distance of planes so that copies of eight threads fall on different banks."""
    rest = {2: 4, 3: 3, 4: 2, 5: 5, 6: 7, 7: 7}.get(planes, 1)
    return pixels + (rest - pixels) % 8


def is_faster_than_triton(height: int, width: int, rows: int, columns: int) -> bool:
    """As measured (docs/lab/speed.md): where Triton's blocks, which are powers of two, do work for nothing."""
    return height * width >= 64 * 64 and all(channels & (channels - 1) for channels in (rows, columns))


@cache
def gradient_candidates(
    height: int, width: int, rows: int, columns: int, *, groups: int, images: int
) -> tuple[GradientTiling, ...]:
    """Tilings of a 3×3 convolution's weight gradient that fit, the fastest first; `images` per group."""
    best: dict[tuple[object, ...], tuple[float, GradientTiling]] = {}
    for tiling in _fitting(height, width, rows, columns):
        time = estimate(tiling, height, width, rows, columns, groups=groups, images=images)
        like = tiling.swapped, tiling.rows, tiling.b, tiling.warpgroups, tiling.images
        if like not in best or time < best[like][0]:
            best[like] = time, tiling
    return tuple(tiling for _, tiling in sorted(best.values(), key=lambda pair: pair[0]))


def _fitting(height: int, width: int, rows: int, columns: int) -> Iterator[GradientTiling]:
    for swapped, together in product((False, True), (1, 2, 4, 8)):
        a_channels, b_channels = (columns, rows) if swapped else (rows, columns)
        a = _block(a_channels, 64 // together)
        if a * together <= 32 and together < 8:
            continue
        widest = 256 // (together + 2) // 8 * 8
        fewest = -(-b_channels // widest)
        for b in {_block(b_channels, -(-b_channels // n)) for n in range(fewest, fewest + 4)}:
            for warpgroups, stages, images, y, x in product(
                (3, 1), (3, 4, 5), (1, 8), (2, 4, 8, 16, 32), (2, 4, 6, 8, 16, 32, 64, 128)
            ):
                if (x > 8 or min(height, width) > 8) if images == 8 else (x < 8 or min(height, width) < 8):
                    continue
                if x >= 2 * width + 2 or y >= height + max(together * 2, 4):
                    continue
                tiling = GradientTiling(a, b, together, y, x, swapped, warpgroups, stages, images)
                if tiling.fits():
                    yield tiling


def _block(channels: int, most: int) -> int:
    """Channels of a block, equal ones, of at most so many."""
    planes, fitting = channels // 8, max(1, most // 8)
    return -(-planes // -(-planes // fitting)) * 8


def estimate(
    t: GradientTiling, height: int, width: int, rows: int, columns: int, *, groups: int, images: int
) -> float:
    """Microseconds on an H200, roughly."""
    a_channels, b_channels = (columns, rows) if t.swapped else (rows, columns)
    tiles, blocks = t.tiles(images, height, width), t.blocks(a_channels, b_channels) * groups
    slots = MULTIPROCESSORS * t.at_once
    rounds = -(-tiles // max(1, slots // blocks))
    programs = -(-tiles // rounds) * blocks
    together = min(t.at_once, -(-programs // MULTIPROCESSORS))  # on one multiprocessor
    multiply = t.products * 3 * max(32.0, t.columns / 2, (2048 + 32 * t.columns) / 128)
    around = (t.tile_y + 2) * (t.tile_x + 2) * t.images
    copied = (t.tile_y * t.tile_x * t.images * t.a + around * t.b) * 2
    copy = copied * CYCLES_PER_MICROSECOND * MULTIPROCESSORS / L2_BYTES_PER_MICROSECOND
    copy = max(copy, copied / 16 / 32 * 24)  # instructions of a thread per copy
    own = max(multiply, copy) * together
    alone = min(multiply, copy) * 0.3 + 250 + (1200 if t.stages == 3 else 0) / 2
    cycles = -(-programs // slots) * rounds * max(own, own * 0.9 + alone)
    sums = 64 * t.columns * 3 / (1 if t.rows == 1 else t.rows * 1.5)
    cycles += copied / 40 + 1500 + t.columns * 3 * 3 // t.warpgroups
    return cycles / CYCLES_PER_MICROSECOND + programs * sums * 4 / 2.5e6
