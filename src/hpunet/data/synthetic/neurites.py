"""EM-like tissue: slices of cells with dark membranes and organelles.

Cells are Voronoi regions of one site per grid square under a smooth warp; some neighbours are joined, which makes
cells long and crooked. Sites drift from slice to slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, UInt8
from scipy import ndimage

from hpunet.data.synthetic.texture import smooth_noise, to_bytes

_MARGIN = 2  # grid squares around the image: one for the warp, which moves less than a square, one for neighbours
_JITTER = 0.3  # of a site from the middle of its square; small, so that the nearest site is in the 3×3 around a pixel
_MEMBRANE = 1.3  # half the width of a membrane in the labels, pixels
_SMALLEST_CELL = 12  # pixels; smaller pieces are background


def make_neurites(
    rng: np.random.Generator, *, size: tuple[int, int]
) -> tuple[UInt8[np.ndarray, "h w"], Int32[np.ndarray, "h w"]]:
    """An image and its cells: 0 is membrane, every other value one 4-connected cell, numbered from 1."""
    image, cells = next(make_neurite_slices(rng, size=size))
    components, _ = ndimage.label(cells > 0)
    keep = np.bincount(components.ravel()) >= _SMALLEST_CELL
    keep[0] = False
    return image, np.where(keep, keep.cumsum(), 0)[components].astype(np.int32)


def make_neurite_slices(
    rng: np.random.Generator, *, size: tuple[int, int]
) -> Iterator[tuple[UInt8[np.ndarray, "h w"], Int32[np.ndarray, "h w"]]]:
    """Endless consecutive slices: images and cells. Several pieces of a slice may be one cell, as in real stacks."""
    spacing = float(np.clip(min(size) / 6, 12, 36))
    grid = (int(size[0] / spacing) + 1 + 2 * _MARGIN, int(size[1] / spacing) + 1 + 2 * _MARGIN)
    y = np.arange(size[0], dtype=np.float32)[:, None] + _warp(rng, size=size, spacing=spacing)
    x = np.arange(size[1], dtype=np.float32)[None, :] + _warp(rng, size=size, spacing=spacing)
    cell_of_site = _join_neighbours(rng, grid=grid)
    appearance = _draw_appearance(rng, num_sites=grid[0] * grid[1], spacing=spacing)
    phase, drift = rng.uniform(0, 2 * np.pi, (2, *grid)), rng.uniform(-0.25, 0.25, (2, *grid))
    square = np.indices(grid)
    while True:
        sites = (square - _MARGIN + 0.5 + _JITTER * np.sin(phase)) * spacing
        near = _neighbourhood(y, x, sites=sites.astype(np.float32), cell_of_site=cell_of_site, spacing=spacing)
        image = _render(rng, near=near, appearance=appearance)
        yield image, np.where(near.is_membrane(), 0, near.cell + 1).astype(np.int32)
        phase = phase + drift


def _warp(rng: np.random.Generator, *, size: tuple[int, int], spacing: float) -> np.ndarray:
    """A smooth displacement (h, w) in pixels, always less than `spacing`."""
    wide, narrow = (smooth_noise(rng, size=size, scale=scale) for scale in (spacing, spacing / 3))
    return np.asarray(spacing * (0.24 * np.clip(wide, -3, 3) + 0.06 * np.clip(narrow, -3, 3)))


def _join_neighbours(rng: np.random.Generator, *, grid: tuple[int, int]) -> np.ndarray:
    """The cell (sites,) of each site: a site may join the one on its right or the one below."""
    site = np.arange(grid[0] * grid[1]).reshape(grid)
    choice, joined = rng.random(grid), site.copy()
    np.copyto(joined[:, :-1], site[:, 1:], where=choice[:, :-1] < 0.22)
    np.copyto(joined[:-1], site[1:], where=choice[:-1] > 0.78)
    parent = joined.ravel()
    while (parent[parent] != parent).any():
        parent = parent[parent]
    return np.unique(parent, return_inverse=True)[1].astype(np.int32)


@dataclass(frozen=True)
class _Appearance:
    """Tone and vesicles of each cell; the mitochondrion of each site: centre, half axes (0: none), direction."""

    tone: np.ndarray
    vesicles: np.ndarray
    centre: np.ndarray
    axes: np.ndarray
    turn: np.ndarray


def _draw_appearance(rng: np.random.Generator, *, num_sites: int, spacing: float) -> _Appearance:
    has_mitochondrion = rng.random(num_sites) < 0.45
    long = rng.uniform(0.13, 0.28, num_sites) * spacing * has_mitochondrion
    angle = rng.uniform(0, np.pi, num_sites)
    tone = (0.05 * rng.standard_normal(num_sites)).astype(np.float32)
    vesicles = rng.random(num_sites) < 0.3
    centre = (rng.uniform(-0.22, 0.22, (2, num_sites)) * spacing).astype(np.float32)
    axes = np.stack([long, long * rng.uniform(0.45, 0.8, num_sites)]).astype(np.float32)
    return _Appearance(tone, vesicles, centre, axes, np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32))


@dataclass(frozen=True)
class _Neighbourhood:
    """Per pixel: site and cell, offset from the site, distance to the border of the cell."""

    site: np.ndarray
    cell: np.ndarray
    offset: tuple[np.ndarray, np.ndarray]
    border: Float32[np.ndarray, "h w"]

    def is_membrane(self) -> np.ndarray:
        """Near a border, or next to a pixel of another cell, so that no cells touch."""
        membrane = self.border < _MEMBRANE
        membrane[1:] |= self.cell[1:] != self.cell[:-1]
        membrane[:, 1:] |= self.cell[:, 1:] != self.cell[:, :-1]
        return membrane


def _neighbourhood(
    y: np.ndarray, x: np.ndarray, *, sites: np.ndarray, cell_of_site: np.ndarray, spacing: float
) -> _Neighbourhood:
    """Search the 3×3 `sites` (2, rows, columns) around each pixel, at coordinates (y, x)."""
    columns = sites.shape[2]
    site_y, site_x = sites.reshape(2, -1)
    steps = np.asarray([row * columns + column for row in (-1, 0, 1) for column in (-1, 0, 1)])
    square = (np.floor(y / spacing).astype(np.intp) + _MARGIN) * columns
    square += np.floor(x / spacing).astype(np.intp) + _MARGIN
    squared = np.empty((len(steps), *y.shape), dtype=np.float32)
    choice, nearest = np.zeros(y.shape, dtype=np.intp), np.full(y.shape, np.inf, dtype=np.float32)
    for k, step in enumerate(steps):
        other = square + step
        np.add((y - site_y.take(other)) ** 2, (x - site_x.take(other)) ** 2, out=squared[k])
        np.copyto(choice, k, where=squared[k] < nearest)
        np.minimum(nearest, squared[k], out=nearest)

    # A pixel is (d² - d₀²) / (2 · distance of the sites) away from the line halfway between its site and another.
    # The divisor is tabulated by grid square, nearest and other site; NaN where both belong to one cell.
    around = np.clip(np.arange(len(site_y))[:, None] + steps, 0, len(site_y) - 1)
    apart = np.hypot(*(s[around][:, :, None] - s[around][:, None, :] for s in (site_y, site_x)))
    same_cell = cell_of_site[around][:, :, None] == cell_of_site[around][:, None, :]
    factor = np.where(same_cell, np.nan, 0.5 / np.where(same_cell, 1, apart)).astype(np.float32).ravel()
    row = (square * len(steps) + choice) * len(steps)
    border = np.full(y.shape, spacing, dtype=np.float32)
    for k in range(len(steps)):
        np.fmin(border, (squared[k] - nearest) * factor.take(row + k), out=border)
    site = square + steps[choice]
    return _Neighbourhood(site, cell_of_site[site], (y - site_y[site], x - site_x[site]), border)


def _render(rng: np.random.Generator, *, near: _Neighbourhood, appearance: _Appearance) -> np.ndarray:
    """The micrograph (h, w) of one slice."""
    size, site, border = near.border.shape, near.site, near.border
    fine = smooth_noise(rng, size=size, scale=2.2)
    image = 0.66 + appearance.tone[near.cell] + 0.045 * fine + 0.03 * smooth_noise(rng, size=size, scale=9.0)
    inside = np.clip((border - 2.5) / 2, 0, 1)
    image -= 0.3 * inside * np.clip(fine - 0.8, 0, 1) * appearance.vesicles[near.cell]

    y, x = (near.offset[i] - appearance.centre[i][site] for i in range(2))
    cos, sin = (appearance.turn[i][site] for i in range(2))
    along, across = cos * x + sin * y, cos * y - sin * x
    long, short = (np.maximum(appearance.axes[i][site], 1e-3) for i in range(2))
    depth = short * (1 - np.hypot(along / long, across / short))  # about the distance in pixels from the rim inwards
    cristae = 0.07 * np.sin(along * 1.7 + 0.8 * fine)
    organelle = inside * np.clip(depth + 1, 0, 1) * (appearance.axes[0][site] > 0)
    image -= organelle * (0.2 + cristae + 0.14 * (depth < 1))

    strength = np.clip(0.48 + 0.12 * smooth_noise(rng, size=size, scale=14.0), 0.15, 0.6)
    image -= strength * np.clip(1.7 - border / 1.4, 0, 1)
    image = ndimage.gaussian_filter(image, 0.6)
    return to_bytes(image + 0.035 * rng.standard_normal(size, dtype=np.float32))
