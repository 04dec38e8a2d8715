"""Outlines of masks along the edges of pixels: filling one gives back the mask, pixel for pixel."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy import ndimage

_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up: each the next one clockwise on the screen
_CHANNEL = 0.25  # of a pixel below its upper edge: no centre of a pixel lies on a channel


class Polygon(NamedTuple):
    """A part of a mask whose pixels are connected by edges.

    Rings are corners (x, y) without the first one repeated; pixel (0, 0) lies between the corners 0 and 1. No ring
    touches itself. The exterior goes clockwise on the screen (y down), holes the other way.
    """

    exterior: Int64[np.ndarray, "n 2"]
    holes: list[Int64[np.ndarray, "m 2"]]


def outlines(mask: Bool[np.ndarray, "h w"], *, offset: tuple[int, int] = (0, 0)) -> list[Polygon]:
    """The polygons of a mask that begins at pixel `offset` (y, x)."""
    parts, _ = ndimage.label(mask)  # neighbours by edges
    found: dict[int, Polygon] = {}
    holes: list[tuple[int, np.ndarray]] = []
    origin = np.array([offset[1], offset[0]])
    for part, ring in _rings(parts):
        if signed_area(ring) > 0:
            found[part] = Polygon(ring + origin, [])
        else:
            holes.append((part, ring + origin))
    for part, ring in holes:
        found[part].holes.append(ring)
    return list(found.values())


def _rings(parts: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The rings of all parts, each with the number of its part, which lies to its right (on the screen)."""
    width = parts.shape[1] + 1
    padded = np.pad(parts, 1)
    inside = padded[1:-1, 1:-1]
    # By direction: the pixel whose edge it is, and the corner of the pixel where the edge begins.
    sides = ((padded[:-2, 1:-1], 0, 0), (padded[1:-1, 2:], 0, 1), (padded[2:, 1:-1], 1, 1), (padded[1:-1, :-2], 1, 0))
    part_of: dict[tuple[int, int], int] = {}
    for direction, (beside, down, right) in enumerate(sides):
        y, x = np.nonzero((inside != 0) & (beside == 0))
        corners = ((y + down) * width + x + right).tolist()
        part_of |= {(corner, direction): part for corner, part in zip(corners, inside[y, x].tolist(), strict=True)}
    steps = [right + down * width for right, down in _STEPS]
    found = []
    for first in sorted(part_of):
        if first not in part_of:
            continue
        part, path, edge = part_of[first], list[tuple[int, int]](), first
        while edge in part_of:
            del part_of[edge]
            path.append(edge)
            corner, direction = edge[0] + steps[edge[1]], edge[1]
            # Around the same pixel first: pixels that touch at a corner only are not connected.
            turns = ((direction + turn) % 4 for turn in (1, 0, 3))
            edge = next((after for turn in turns if (after := (corner, turn)) in part_of), first)
        found += [(part, ring) for ring in _simple(path, width=width)]
    return found


def _simple(path: list[tuple[int, int]], *, width: int) -> list[np.ndarray]:
    """A closed path of edges as the corners of rings that visit no corner twice."""
    rings: list[list[tuple[int, int]]] = []
    kept: list[tuple[int, int]] = []
    at: dict[int, int] = {}
    for edge in path:
        if (start := at.get(edge[0])) is not None:
            rings.append(kept[start:])
            for corner, _ in kept[start:]:
                del at[corner]
            del kept[start:]
        at[edge[0]] = len(kept)
        kept.append(edge)
    rings.append(kept)
    found = []
    for ring in rings:
        turns = [corner for (corner, now), (_, before) in zip(ring, [ring[-1], *ring], strict=False) if now != before]
        y, x = np.divmod(np.array(turns, dtype=np.int64), width)
        found.append(np.stack([x, y], axis=1))
    return found


def signed_area(ring: np.ndarray) -> float:
    """Of a ring (n, 2); positive if it goes clockwise on the screen."""
    x, y = ring.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def keyhole(polygon: Polygon) -> Float64[np.ndarray, "n 2"]:
    """One ring around the polygon that reaches each hole by a channel without width, there and back."""
    ring = polygon.exterior.astype(np.float64)
    for hole in sorted(polygon.holes, key=lambda hole: int(hole[:, 0].min())):
        # From the hole to the left: all holes on the way are part of the ring already.
        around = np.concatenate([hole, hole[:1]]).astype(np.float64)
        x, low, _ = _vertical_edges(around)
        start = np.lexsort((low, x))[0]
        here, y = x[start], low[start] + _CHANNEL
        x, low, high = _vertical_edges(np.concatenate([ring, ring[:1]]))
        end = np.where((x < here) & (low < y) & (y < high), x, -np.inf).argmax()
        channel = np.array([[x[end], y], [here, y]])
        loop = np.concatenate([around[start + 1 : -1], around[: start + 1]])
        ring = np.concatenate([ring[: end + 1], channel, loop, channel[::-1], ring[end + 1 :]])
    return ring


def _vertical_edges(closed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, lower and upper y of the edges of a closed ring; x is infinite of those that are not along y."""
    x, y = closed.T
    return np.where(np.diff(x) == 0, x[:-1], np.inf), np.minimum(y[:-1], y[1:]), np.maximum(y[:-1], y[1:])
