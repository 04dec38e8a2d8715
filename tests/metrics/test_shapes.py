"""Area, volume, diameters and parts: by hand, by trying all pairs of points, on shapes with known sizes, and against
scikit-image."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull
from skimage.measure import label, regionprops

from hpunet.metrics import area, diameters, longest_diameter, num_parts, volume

SPACINGS = [(1.0, 1.0), (0.7, 0.7), (0.5, 2.0), (3.0, 0.8)]


def ellipse(
    a: float, b: float, *, angle: float = 0.0, spacing: Sequence[float] = (1, 1), seed: int = 0
) -> np.ndarray:
    """Pixels whose middles lie in an ellipse of these half axes, in mm, around a random point between pixels."""
    reach = 1.2 * max(a, b)
    offset = np.random.default_rng(seed).random(2)
    rows, columns = (np.arange(-math.ceil(reach / d), math.ceil(reach / d) + 1) for d in spacing)
    y, x = np.meshgrid((rows + offset[0]) * spacing[0], (columns + offset[1]) * spacing[1], indexing="ij")
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    return np.asarray((u / a) ** 2 + (v / b) ** 2 <= 1)


@pytest.mark.parametrize(
    ("rows", "spacing", "expected"),
    [
        (["000", "000"], (1, 1), (0, 0, 0, 0)),
        (["000", "010"], (1, 1), (1, 1, 1, 1)),
        (["111", "000"], (1, 1), (3, 3, 1, 1)),
        (["111", "000"], (2, 0.5), (3, np.hypot(2, 1), 0, 1)),  # from the first upper to the last lower edge
        (["1000", "0000", "0011"], (1, 1), (3, 2, 1, 2)),  # the larger of two parts
        (["1000", "0100", "0001"], (1, 1), (3, np.hypot(1, 2), 0, 2)),  # corners touch: one part
        (["1", "1", "1"], (0.7, 5), (10.5, np.hypot(1.4, 5), 0, 1)),
        (["010", "111", "010"], (1, 1), (5, 3, 3, 1)),
    ],
)
def test_sizes_by_hand(rows: list[str], spacing: tuple[float, float], expected: tuple[float, ...]) -> None:
    marked = np.array([[letter == "1" for letter in row] for row in rows])
    spacing = float(spacing[0]), float(spacing[1])
    found = diameters(marked, spacing=spacing)
    assert area(marked, spacing=spacing) == pytest.approx(expected[0])
    assert found.longest == longest_diameter(marked, spacing=spacing) == pytest.approx(expected[1])
    assert found.perpendicular == pytest.approx(expected[2]) if expected[2] else found.perpendicular >= 0
    assert num_parts(marked) == expected[3]


def by_trying_all(marked: np.ndarray, spacing: Sequence[float]) -> tuple[float, float]:
    """Every pair of points of every part; chords by clipping a line at the half planes of the hull."""
    labels = label(marked, connectivity=2)
    best = (0.0, 0.0)
    for number in range(1, labels.max() + 1):
        points = [
            np.array([(y + dy) * spacing[0], (x + dx) * spacing[1]])
            for y, x in np.argwhere(labels == number)
            for dy, dx in [(0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)]
        ]
        longest = max(math.dist(p, q) for p, q in combinations(points, 2))
        sides = ConvexHull(np.array(points)).equations  # n·x + c <= 0 inside
        for p, q in combinations(points, 2):
            if math.dist(p, q) < longest - 1e-9:
                continue
            across = np.array([p[1] - q[1], q[0] - p[0]]) / longest
            for start in points:
                ahead, room = sides[:, :2] @ across, -(sides[:, :2] @ start + sides[:, 2])
                room = np.maximum(room, 0)
                last = min((r / a for r, a in zip(room, ahead, strict=True) if a > 1e-9), default=0.0)
                first = max((r / a for r, a in zip(room, ahead, strict=True) if a < -1e-9), default=0.0)
                best = max(best, (round(longest, 9), round(last - first, 9)))
    return best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.9), st.sampled_from(SPACINGS))
def test_diameters_are_those_of_all_pairs_of_points(seed: int, share: float, spacing: tuple[float, float]) -> None:
    marked = np.random.default_rng(seed).random((6, 7)) < share
    assert tuple(diameters(marked, spacing=spacing)) == pytest.approx(by_trying_all(marked, spacing), abs=1e-6)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize(("a", "b", "angle"), [(20, 20, 0), (30, 12, 0), (30, 12, 0.6), (40, 25, 2.2), (45, 15, 1.1)])
def test_sizes_of_discs_and_ellipses(a: float, b: float, angle: float, spacing: tuple[float, float]) -> None:
    for seed in range(5):
        marked = ellipse(a, b, angle=angle, spacing=spacing, seed=seed)
        pixel = max(spacing)
        # Pixels at the border are in or out as by chance: an error of the square root of their number.
        border = 2 * np.pi * math.sqrt((a**2 + b**2) / 2) / min(spacing)
        assert area(marked, spacing=spacing) == pytest.approx(np.pi * a * b, abs=math.prod(spacing) * border**0.5)
        found = diameters(marked, spacing=spacing)
        assert 2 * a - pixel <= found.longest <= 2 * a + pixel
        # The longest diameter of pixels is turned a little from the ellipse's, most where that is nearly round.
        assert 2 * b - pixel <= found.perpendicular <= min(2 * b + 1.5 * pixel, found.longest + 1e-9)
        assert num_parts(marked) == 1


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.5, 0.7, 0.7), (1.5, 0.6, 0.9)])
def test_sizes_of_ellipsoids(spacing: tuple[float, float, float]) -> None:
    half = (12.0, 9.0, 15.0)
    sides = [np.arange(-math.ceil(h / d) - 1, math.ceil(h / d) + 2) * d for h, d in zip(half, spacing, strict=True)]
    z, y, x = np.meshgrid(*sides, indexing="ij")
    marked = (z / half[0]) ** 2 + (y / half[1]) ** 2 + (x / half[2]) ** 2 <= 1
    assert volume(marked, spacing=spacing) == pytest.approx(4 / 3 * np.pi * math.prod(half), rel=0.01)
    found = diameters(marked, spacing=spacing)  # in the plane of the slice through the middle
    assert found.longest == pytest.approx(2 * half[2], abs=max(spacing[1:]))
    assert found.perpendicular == pytest.approx(2 * half[1], abs=max(spacing[1:]))
    assert found == diameters(marked[len(marked) // 2], spacing=spacing[1:])
    assert num_parts(marked) == 1
    marked[len(marked) // 2] = False
    assert num_parts(marked) == 2


def test_parts_of_a_volume_touch_at_corners() -> None:
    marked = np.zeros((2, 2, 4), dtype=np.bool_)
    marked[0, 0, 0] = marked[1, 1, 1] = True
    assert (num_parts(marked), num_parts(marked[:, 0])) == (1, 1)
    marked[0, 0, 3] = True
    assert num_parts(marked) == 2
    assert num_parts(np.zeros((2, 0, 3), dtype=np.bool_)) == 0


@pytest.mark.parametrize("radius", [1, 3.5, 10, 25])
def test_sizes_agree_with_scikit_image(radius: float) -> None:
    marked = ellipse(radius, radius)
    (region,) = regionprops(label(marked))
    assert area(marked) == region.area
    # It fills the convex hull with whole pixels first, which adds up to a pixel at each end.
    assert region.feret_diameter_max - 1 <= longest_diameter(marked) <= region.feret_diameter_max + 1e-9
