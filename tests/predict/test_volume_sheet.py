"""Three planes of a volume."""

import numpy as np

from hpunet.predict.volume_sheet import Planes


def test_planes_go_through_a_marked_voxel() -> None:
    marked = np.zeros((3, 5, 6, 7), dtype=np.bool_)
    marked[0, 1:4, 2:5, 1:4] = marked[1, 2, 3, 1:4] = marked[2, 0, 0, 6] = True
    volume = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    planes = Planes.through(marked, spacing=(2.0, 1.0, 1.0))
    z, y, x = planes.position
    assert (z, y) == (2, 3)
    assert marked[:, z, y, x].sum() == 2
    picture, gap = planes.of(volume, fill=-1.0), planes.layout.gap
    assert picture.shape == (6 + gap + 10, 7 + gap + 10)
    np.testing.assert_array_equal(picture[:6, :7], volume[2])
    np.testing.assert_array_equal(picture[6 + gap :, :7], volume[:, 3].repeat(2, axis=0))
    np.testing.assert_array_equal(picture[:6, 7 + gap :], volume[:, :, x].T.repeat(2, axis=1))
    assert (picture[6:, 7:] == -1).all()
    np.testing.assert_array_equal(planes.of(np.stack([volume, -volume]))[1, :6, :7], -volume[2])


def test_small_marks_are_enlarged() -> None:
    """Twice their extent in mm, at least 24 pixels, within the volume."""
    marked = np.zeros((1, 20, 100, 100), dtype=np.bool_)
    marked[0, 5:8, 70:86, 2:6] = True
    part = Planes.through(marked, spacing=(2.0, 1.0, 1.0)).part
    assert part == (slice(0, 16), slice(62, 94), slice(0, 32))
    assert Planes.through(marked, spacing=None).part == (slice(0, 20), slice(62, 94), slice(0, 32))
    marked[0, :, :, 5] = True
    assert Planes.through(marked, spacing=None).part == (slice(0, 20), slice(0, 100), slice(0, 100))
