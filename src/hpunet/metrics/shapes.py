"""Sizes of what a map marks: area and longest diameter, in pixels, or in mm where the spacing is known."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from scipy.spatial import ConvexHull
from scipy.spatial.distance import pdist


def area(marked: Bool[np.ndarray, "h w"], *, spacing: Sequence[float] = (1.0, 1.0)) -> float:
    """Number of marked pixels times the area of one; `spacing` is the distance of rows and of columns."""
    return float(np.count_nonzero(marked)) * spacing[0] * spacing[1]


def longest_diameter(marked: Bool[np.ndarray, "h w"], *, spacing: Sequence[float] = (1.0, 1.0)) -> float:
    """The largest distance between two points of the outline, which may be of different parts; 0 of an empty map.

    The outline runs through the middles of pixel edges, so a row of n pixels has diameter n.
    """
    rows = np.flatnonzero(marked.any(axis=1))
    if not rows.size:
        return 0.0
    first = marked[rows].argmax(axis=1)
    last = marked.shape[1] - 1 - marked[rows, ::-1].argmax(axis=1)
    ends = np.concatenate([np.stack([rows, first], axis=1), np.stack([rows, last], axis=1)]).astype(np.float64)
    to_edges = np.array([(0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)])
    points = (ends[:, None] + to_edges).reshape(-1, 2) * np.asarray(spacing, dtype=np.float64)
    return float(pdist(points[ConvexHull(points).vertices]).max())
