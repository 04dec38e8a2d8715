"""Sizes of what a map marks: area, volume, RECIST's two diameters and the number of parts.

In pixels, or in mm where `spacing` is: the distance of neighbouring slices, rows and columns, in the map's order. The
outline runs through the middles of pixel edges: a row of n pixels has diameter n, and a round shape one up to a pixel
longer than its own. Parts are connected; pixels (voxels) that touch by a corner are of one part.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage
from scipy.spatial import ConvexHull
from scipy.spatial.distance import pdist, squareform

MM3_PER_ML = 1000
_TIE = 1e-9  # diameters, and places along one, that differ by less of the diameter are equal but for rounding


class Diameters(NamedTuple):
    """Of one part of a map, in the plane; 0 of an empty map."""

    longest: float
    """The largest distance between two points of its outline (RECIST 1.1; the maximum Feret diameter)."""
    perpendicular: float
    """The longest chord of its convex hull at a right angle to that; the largest, if several are longest."""


def area(marked: Bool[np.ndarray, "h w"], *, spacing: Sequence[float] = (1.0, 1.0)) -> float:
    """Number of marked pixels times the area of one."""
    return float(np.count_nonzero(marked)) * math.prod(spacing)


def volume(marked: Bool[np.ndarray, "z h w"], *, spacing: Sequence[float] = (1.0, 1.0, 1.0)) -> float:
    """Number of marked voxels times the volume of one."""
    return float(np.count_nonzero(marked)) * math.prod(spacing)


def voxel_size(spacing: Sequence[float] | None) -> float:
    """The volume of one voxel in ml; 1 where the spacing is not known, for volumes in voxels."""
    return 1.0 if spacing is None else math.prod(spacing) / MM3_PER_ML


def num_parts(marked: Bool[np.ndarray, "*z h w"]) -> int:
    """Connected parts: 8 neighbours in an image, 26 in a volume."""
    marked = _cropped(marked)
    return int(ndimage.label(marked, structure=np.ones((3,) * marked.ndim))[1])


def diameters(marked: Bool[np.ndarray, "*z h w"], *, spacing: Sequence[float] = (1.0, 1.0)) -> Diameters:
    """Of the part with the longest diameter, which RECIST selects; of a volume, in the slice where it is longest."""
    best = Diameters(0.0, 0.0)
    for plane in marked.reshape(-1, *marked.shape[-2:]):
        for part, bound in _parts(plane, spacing=spacing[-2:]):
            if bound < best.longest:  # so are all that follow
                break
            best = max(best, _diameters(_hull(part) * spacing[-2:]))
    return best


def longest_diameter(marked: Bool[np.ndarray, "*z h w"], *, spacing: Sequence[float] = (1.0, 1.0)) -> float:
    """The longer of `diameters`."""
    return diameters(marked, spacing=spacing).longest


def _cropped(marked: np.ndarray) -> np.ndarray:
    """The box around what is marked: most maps are empty for the larger part."""
    box = []
    for axis in range(marked.ndim):
        shown = np.flatnonzero(marked.any(axis=tuple(other for other in range(marked.ndim) if other != axis)))
        box.append(slice(shown[0], shown[-1] + 1) if shown.size else slice(0))
    return marked[tuple(box)]


def _parts(plane: Bool[np.ndarray, "h w"], *, spacing: Sequence[float]) -> Iterator[tuple[np.ndarray, float]]:
    """The connected parts, each with a bound of its diameter, the diagonal of its box, largest first."""
    labels, _ = ndimage.label(_cropped(plane), structure=np.ones((3, 3)))
    boxes = ndimage.find_objects(labels) if labels.size else []
    bounds = [math.hypot(*((s.stop - s.start) * d for s, d in zip(box, spacing, strict=True))) for box in boxes]
    for i in sorted(range(len(boxes)), key=lambda i: -bounds[i]):
        yield labels[boxes[i]] == i + 1, bounds[i]


def _hull(part: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "n 2"]:
    """Corners of the convex hull of the middles of all pixel edges, in pixels; of whole numbers, so it is exact."""
    rows = np.flatnonzero(part.any(axis=1))
    first = part[rows].argmax(axis=1)
    last = part.shape[1] - 1 - part[rows, ::-1].argmax(axis=1)
    ends = 2 * np.concatenate([np.stack([rows, first], axis=1), np.stack([rows, last], axis=1)])
    points = (ends[:, None] + np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])).reshape(-1, 2)
    return np.asarray(points[ConvexHull(points).vertices] / 2)


def _diameters(corners: Float[np.ndarray, "n 2"]) -> Diameters:
    """Of a convex polygon, corners in order."""
    distances = squareform(pdist(corners))
    longest = float(distances.max())
    ties = np.argwhere(np.triu(distances) >= longest * (1 - _TIE))
    return Diameters(longest, max(_longest_chord(corners, along=corners[j] - corners[i]) for i, j in ties))


def _longest_chord(corners: Float[np.ndarray, "n 2"], *, along: Float[np.ndarray, " 2"]) -> float:
    """The longest chord at a right angle to `along`: the width is concave between corners, so it ends at one."""
    length = math.hypot(*along)
    place, height = corners @ along / length, corners @ (-along[1], along[0]) / length
    start, step = place[:, None], (np.roll(place, -1) - place)[:, None]  # of edges; columns are chords
    is_crossed = np.abs(place - start - step / 2) <= np.abs(step) / 2 + _TIE * length
    share = ((place - start) / np.where(step == 0, 1, step)).clip(0, 1)
    crossings = height[:, None] + share * (np.roll(height, -1) - height)[:, None]
    tops, bottoms = np.where(is_crossed, crossings, -np.inf), np.where(is_crossed, crossings, np.inf)
    return float((tops.max(axis=0) - bottoms.min(axis=0)).max())
