"""Outlines: filled by others, they are the mask again, and no ring touches itself."""

import numpy as np
import pytest
from skimage.draw import polygon2mask

from hpunet.predict.export.outlines import keyhole, outlines, signed_area


def filled(ring: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Pixels whose centre lies inside, by scikit-image."""
    return np.asarray(polygon2mask(shape, ring[:, ::-1] - 0.5))


def test_pixel_at_an_offset_has_the_corners_that_it_should() -> None:
    (polygon,) = outlines(np.array([[True]]), offset=(5, 2))
    assert polygon.exterior.tolist() == [[2, 5], [3, 5], [3, 6], [2, 6]]
    assert polygon.holes == []
    assert outlines(np.zeros((3, 3), dtype=np.bool_)) == []


def test_ring_with_a_hole_is_one_polygon_and_its_keyhole_one_ring() -> None:
    mask = np.ones((4, 5), dtype=np.bool_)
    mask[1:3, 2] = False
    (polygon,) = outlines(mask)
    assert [signed_area(ring) for ring in (polygon.exterior, *polygon.holes)] == [20, -2]
    ring = keyhole(polygon)
    assert signed_area(ring) == 18
    np.testing.assert_array_equal(filled(ring, mask.shape), mask)


def test_parts_that_touch_at_a_corner_are_apart_and_holes_there_too() -> None:
    assert len(outlines(np.eye(3, dtype=np.bool_))) == 3
    mask = np.ones((4, 4), dtype=np.bool_)
    mask[1, 1] = mask[2, 2] = False
    (polygon,) = outlines(mask)
    assert len(polygon.holes) == 2
    around = np.ones((3, 3), dtype=np.bool_)
    around[2, 2] = around[1, 1] = False  # a hole that touches the outside at a corner
    (polygon,) = outlines(around)
    assert [signed_area(ring) for ring in (polygon.exterior, *polygon.holes)] == [8, -1]


@pytest.mark.parametrize("density", [0.3, 0.5, 0.8])
def test_random_masks_are_their_outlines_and_keyholes(density: float) -> None:
    rng = np.random.default_rng(int(10 * density))
    for _ in range(60):
        mask = rng.random(rng.integers(1, 14, size=2)) < density
        by_rings, by_keyholes = np.zeros_like(mask), np.zeros_like(mask)
        for polygon in outlines(mask):
            assert signed_area(polygon.exterior) > 0
            for ring in (polygon.exterior, *polygon.holes):
                assert len(np.unique(ring, axis=0)) == len(ring)
                by_rings ^= filled(ring, mask.shape)
            by_keyholes ^= filled(keyhole(polygon), mask.shape)
        np.testing.assert_array_equal(by_rings, mask)
        np.testing.assert_array_equal(by_keyholes, mask)
