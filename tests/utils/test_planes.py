"""Three planes of a volume."""

import numpy as np

from hpunet.utils.planes import Planes


def test_planes_go_through_the_middle_of_what_most_maps_mark() -> None:
    marked = np.zeros((3, 5, 6, 7), dtype=np.bool_)
    marked[0, 1:4, 2:5, 1:4] = marked[1, 2, 3, 1:4] = marked[2, 0, 0, 6] = True
    volume = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    planes = Planes.through(marked, spacing=(2.0, 1.0, 1.0))
    assert planes.centre == (2, 3, 2)
    picture = planes.of(volume, gap=-1.0)
    assert picture.shape == (6 + 2 + 10, 7 + 2 + 10)
    np.testing.assert_array_equal(picture[:6, :7], volume[2])
    np.testing.assert_array_equal(picture[8:, :7], volume[:, 3].repeat(2, axis=0))
    np.testing.assert_array_equal(picture[:6, 9:], volume[:, :, 2].T.repeat(2, axis=1))
    assert (picture[6:8] == -1)[:, :7].all()
    assert (picture[:6, 7:9] == -1).all()
    assert (picture[8:, 9:] == -1).all()
    np.testing.assert_array_equal(planes.of(np.stack([volume, -volume]))[1, :6, :7], -volume[2])


def test_slices_that_are_closer_than_pixels_are_thinned() -> None:
    planes = Planes.through(np.zeros((1, 8, 4, 4), dtype=np.bool_), spacing=(0.5, 1.0, 1.0))
    volume = np.arange(8)[:, None, None].repeat(4, axis=1).repeat(4, axis=2)
    assert planes.centre == (4, 2, 2)
    np.testing.assert_array_equal(planes.of(volume)[6:, 0], [0, 2, 4, 6])


def test_small_marks_are_enlarged() -> None:
    """Twice their extent in mm, at least 24 pixels, within the volume."""
    marked = np.zeros((1, 20, 100, 100), dtype=np.bool_)
    marked[0, 5:8, 70:86, 2:6] = True
    part = Planes.through(marked, spacing=(2.0, 1.0, 1.0)).part
    assert part == (slice(0, 16), slice(62, 94), slice(0, 32))
    assert Planes.through(marked, spacing=None).part == (slice(0, 20), slice(62, 94), slice(0, 32))
