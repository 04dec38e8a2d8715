"""Area and longest diameter, by hand and against scikit-image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from skimage.measure import label, regionprops

from hpunet.metrics import area, longest_diameter


def disc(radius: float, *, side: int = 64) -> np.ndarray:
    y, x = np.mgrid[:side, :side] - side / 2
    return y**2 + x**2 <= radius**2


@pytest.mark.parametrize(
    ("rows", "spacing", "expected"),
    [
        (["000", "000"], (1, 1), (0, 0)),
        (["000", "010"], (1, 1), (1, 1)),
        (["111", "000"], (1, 1), (3, 3)),
        (["111", "000"], (2, 0.5), (3, np.hypot(2, 1))),  # from the first upper to the last lower edge; 1.5 across
        (["1000", "0000", "0001"], (1, 1), (2, np.hypot(2, 4))),  # from left edge to right edge, two rows below
        (["1", "1", "1"], (0.7, 5), (10.5, np.hypot(1.4, 5))),
    ],
)
def test_sizes_by_hand(rows: list[str], spacing: tuple[float, float], expected: tuple[float, float]) -> None:
    marked = np.array([[letter == "1" for letter in row] for row in rows])
    spacing = float(spacing[0]), float(spacing[1])
    assert area(marked, spacing=spacing) == pytest.approx(expected[0])
    assert longest_diameter(marked, spacing=spacing) == pytest.approx(expected[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.9), st.sampled_from([(1.0, 1.0), (0.7, 2.5)]))
def test_diameter_is_the_largest_of_all_distances(seed: int, share: float, spacing: tuple[float, float]) -> None:
    marked = np.random.default_rng(seed).random((7, 9)) < share
    points = [
        ((y + dy) * spacing[0], (x + dx) * spacing[1])
        for y, x in np.argwhere(marked)
        for dy, dx in [(0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)]
    ]
    expected = pdist(np.array(points)).max() if points else 0
    assert longest_diameter(marked, spacing=spacing) == pytest.approx(expected)


@pytest.mark.parametrize("radius", [1, 3.5, 10, 25])
def test_sizes_agree_with_scikit_image(radius: float) -> None:
    marked = disc(radius)
    (region,) = regionprops(label(marked))
    assert area(marked) == region.area
    # It fills the convex hull with whole pixels first, which adds up to a pixel at each end.
    assert region.feret_diameter_max - 1 <= longest_diameter(marked) <= region.feret_diameter_max + 1e-9
