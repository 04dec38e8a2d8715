"""Three planes of a volume as one picture: a slice, below it a plane of one row, beside it one of one column.

Needs only numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Integer, Shaped

_LEAST_SHOWN = 24  # smallest side of an enlarged part, in pixels
_MOST_STRETCHED = 16.0
_GAP = 2  # pixels between planes


@dataclass(frozen=True)
class Planes:
    """The planes through a voxel, of a part of the volume, with pixels of the same size in mm in all planes."""

    centre: tuple[int, int, int]
    part: tuple[slice, slice, slice]
    ratio: float
    """Distance of slices, in pixels."""

    @classmethod
    def through(cls, marked: Bool[np.ndarray, " n d h w"], *, spacing: Sequence[float] | None) -> "Planes":
        """Through the middle of what most maps mark, of a part of twice its extent; of the volume's if none does."""
        votes = marked.sum(axis=0, dtype=np.int32)
        size = votes.shape
        ratio = 1.0 if spacing is None else spacing[0] / float(np.sqrt(spacing[1] * spacing[2]))
        ratio = min(max(ratio, 1 / _MOST_STRETCHED), _MOST_STRETCHED)
        whole = (slice(0, size[0]), slice(0, size[1]), slice(0, size[2]))
        if not votes.any():
            return cls((size[0] // 2, size[1] // 2, size[2] // 2), whole, ratio)
        z = _middle_of_largest(votes.sum(axis=(1, 2)))
        y = _middle_of_largest(votes[z].sum(axis=1))
        x = _middle_of_largest(votes[z, y])
        steps = (ratio, 1.0, 1.0)  # pixels per voxel
        ends = [np.flatnonzero(votes.any(axis=tuple({0, 1, 2} - {axis})))[[0, -1]] for axis in range(3)]
        extent = max((last - first + 1) * step for (first, last), step in zip(ends, steps, strict=True))
        shown = max(_LEAST_SHOWN, 2 * extent)
        if shown > min(size[1:]) / 2:
            return cls((z, y, x), whole, ratio)
        part = []
        for (first, last), step, side in zip(ends, steps, size, strict=True):
            wanted = min(side, round(shown / step))
            start = min(max(0, (first + last + 1) // 2 - wanted // 2), side - wanted)
            part.append(slice(int(start), int(start) + wanted))
        return cls((z, y, x), (part[0], part[1], part[2]), ratio)

    def of(self, volume: Shaped[np.ndarray, "*n d h w"], *, gap: float = 0.0) -> Shaped[np.ndarray, "*n y x"]:
        """The planes of maps side by side; `gap` is between them, the smallest value in the corner."""
        (z, y, x), (depth, rows, columns) = self.centre, self.part
        chosen = np.minimum(np.arange(0, depth.stop - depth.start, 1 / self.ratio).astype(int), depth.stop - 1)
        chosen = np.minimum(chosen + depth.start, depth.stop - 1)
        flat = volume[..., z, rows, columns]
        below = volume[..., y, columns].take(chosen, axis=-2)
        beside = volume[..., rows, x].take(chosen, axis=-2).swapaxes(-2, -1)
        h, w, more = *flat.shape[-2:], len(chosen)
        found = np.full((*volume.shape[:-3], h + _GAP + more, w + _GAP + more), gap, dtype=volume.dtype)
        found[..., :h, :w], found[..., h + _GAP :, :w], found[..., :h, w + _GAP :] = flat, below, beside
        found[..., h + _GAP :, w + _GAP :] = min(gap, flat.min(), below.min(), beside.min())
        return found


def _middle_of_largest(counts: Integer[np.ndarray, " n"]) -> int:
    largest = np.flatnonzero(counts == counts.max())
    return int(largest[len(largest) // 2])
