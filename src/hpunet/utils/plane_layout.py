"""Volumes as pictures: three planes through one position, side by side. Needs only numpy.

Axial planes are the slices (h, w) that the data have; coronal ones are (d, w), sagittal ones (d, h).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

AXIAL, CORONAL, SAGITTAL = PLANES = ("axial", "coronal", "sagittal")
MAX_SHOWN = 512  # voxels along an axis
MAX_STRETCH = 16  # a slice is drawn at most this many times as thick as a pixel


def shown_position(marked: Shaped[np.ndarray, "r d h w"]) -> tuple[int, int, int]:
    """A position (z, y, x) that a map marks, so that all its planes show marks; the centre if none does.

    The slice with most marks, and of its rows and columns those with most: the middle of marked regions may be empty.
    """
    counts = np.count_nonzero(marked, axis=0)
    if not counts.any():
        d, h, w = (side // 2 for side in counts.shape)
        return d, h, w
    z = int(counts.sum(axis=(1, 2)).argmax())
    y = int(counts[z].sum(axis=1).argmax())
    x = int(np.where(counts[z, y] > 0, counts[z].sum(axis=0), 0).argmax())
    return z, y, x


def shown_box(position: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    """The part of a volume around a position that pictures show: at most `MAX_SHOWN` voxels along each axis."""
    return tuple(window(at, side, MAX_SHOWN) for at, side in zip(position, size, strict=True))


def plane_indices(position: Sequence[int], box: Sequence[slice]) -> dict[str, tuple[Any, ...]]:
    """What to index the last three axes of volumes with, by plane: those through a position, within a box."""
    (z, y, x), (depth, rows, columns) = position, box
    return {AXIAL: (..., z, rows, columns), CORONAL: (..., depth, y, columns), SAGITTAL: (..., depth, rows, x)}


def plane_array(plane: str, name: str) -> str:
    """The name of a plane's array in files of example images; axial ones are called as those of images."""
    return name if plane == AXIAL else f"{plane}_{name}"


def plane_of(name: str) -> str:
    """The plane of an array with this name."""
    return next((plane for plane in (CORONAL, SAGITTAL) if name.startswith(f"{plane}_")), AXIAL)


def window(at: int, side: int, most: int) -> slice:
    """The `most` places around one of them, or all of a shorter side."""
    start = min(max(0, at - most // 2), max(0, side - most))
    return slice(start, min(side, start + most))


class Layout(NamedTuple):
    """Where the planes of volumes of a size (d, h, w) lie in one picture, with slices as thick as their spacing.

    Axial at the top left; coronal below it, with the same columns; sagittal right of it, turned, with the same rows.
    """

    size: tuple[int, int, int]
    places: tuple[np.ndarray, np.ndarray, np.ndarray]  # of which voxel each pixel is, along every axis
    gap: int

    @classmethod
    def of(cls, size: Sequence[int], *, spacing: Sequence[float]) -> "Layout":
        """The layout for voxels of this size in mm."""
        d, h, w = size
        stretch = [min(MAX_STRETCH, each / min(spacing)) for each in spacing]
        places = [
            np.minimum((np.arange(max(1, round(side * by))) / by).astype(np.int64), side - 1)
            for side, by in zip(size, stretch, strict=True)
        ]
        return cls((d, h, w), (places[0], places[1], places[2]), max(2, min(map(len, places[1:])) // 24))

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the picture."""
        z, y, x = map(len, self.places)
        return y + self.gap + z, x + self.gap + z

    def picture(self, planes: Mapping[str, Shaped[np.ndarray, "..."]], *, fill: Any = 0) -> Shaped[np.ndarray, "..."]:
        """The planes of maps (…, h, w), (…, d, w) and (…, d, h) as pictures, with `fill` between and beside them."""
        (z, y, x), gap = self.places, self.gap
        axial = planes[AXIAL]
        whole = np.full((*axial.shape[:-2], *self.shape), fill, dtype=axial.dtype)
        whole[..., : len(y), : len(x)] = axial[..., y[:, None], x]
        whole[..., len(y) + gap :, : len(x)] = planes[CORONAL][..., z[:, None], x]
        whole[..., : len(y), len(x) + gap :] = np.swapaxes(planes[SAGITTAL][..., z[:, None], y], -1, -2)
        return whole

    def blank(self) -> Bool[np.ndarray, "_ _"]:
        """Where the picture shows no plane."""
        d, h, w = self.size
        sides = {AXIAL: (h, w), CORONAL: (d, w), SAGITTAL: (d, h)}
        return self.picture({name: np.zeros(shape, dtype=np.bool_) for name, shape in sides.items()}, fill=True)

    def cuts(self, position: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of the picture where the three planes cut each other: y and z, then x and z."""
        z, y, x = (
            int(np.searchsorted(p, at) + np.searchsorted(p, at, "right")) // 2
            for p, at in zip(self.places, position, strict=True)
        )
        return (y, len(self.places[1]) + self.gap + z), (x, len(self.places[2]) + self.gap + z)
