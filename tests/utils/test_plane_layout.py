"""Three planes of a volume: through which position, and where they lie in one picture."""

import numpy as np
import pytest

from hpunet.utils.plane_layout import (
    AXIAL,
    CORONAL,
    MAX_SHOWN,
    PLANES,
    SAGITTAL,
    Layout,
    plane_array,
    plane_indices,
    plane_of,
    shown_box,
    shown_position,
)


def test_shown_position_lies_in_a_mark_and_not_between_two() -> None:
    marked = np.zeros((2, 6, 20, 20), dtype=np.uint8)
    marked[0, 1, 2:5, 2:5] = 1  # 9 voxels
    marked[1, 4, 14:18, 14:18] = 2  # 16, the most; row 15 and column 16 have more by the next line
    marked[0, 4, 15, 12:18] = marked[0, 4, 13:19, 16] = 1
    assert shown_position(marked) == (4, 15, 16)
    assert shown_position(np.zeros((1, 6, 20, 21))) == (3, 10, 10)
    apart = np.zeros((1, 1, 9, 9))
    apart[0, 0, 1, :3] = 1  # the row with most marks; column 7 has more than any, but not there
    apart[0, 0, 4:7, 7] = apart[0, 0, 3, 0] = 1
    assert shown_position(apart) == (0, 1, 0)


@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_layout_puts_planes_below_and_beside_each_other_with_slices_as_thick_as_they_are(ratio: float) -> None:
    volume = np.arange(4 * 6 * 5).reshape(4, 6, 5) + 1
    position = (2, 1, 4)
    box = shown_box(position, volume.shape)
    planes = {plane: volume[part] for plane, part in plane_indices(position, box).items()}
    assert [planes[plane].shape for plane in PLANES] == [(6, 5), (4, 5), (4, 6)]
    layout = Layout.of(volume.shape, spacing=(ratio * 0.7, 0.7, 0.7))
    picture, thick = layout.picture(planes), int(4 * ratio)
    assert picture.shape == layout.shape == (6 + 2 + thick, 5 + 2 + thick)
    assert (picture[:6, :5] == volume[2]).all()
    for k in range(thick):
        assert (picture[8 + k, :5] == volume[int(k / ratio), 1]).all()
        assert (picture[:6, 7 + k] == volume[int(k / ratio), :, 4]).all()
    assert ((picture == 0) == layout.blank()).all()
    (y, below), (x, beside) = layout.cuts(position)
    assert (y, x) == (1, 4)
    values = {picture[y, x], picture[below, x], picture[y, beside]}
    assert values == {volume[position]}
    assert layout.picture({plane: maps[None, None] for plane, maps in planes.items()}).shape[:2] == (1, 1)


def test_large_volumes_are_shown_around_the_position() -> None:
    rows, columns, slices = 700, 40, 3
    box = shown_box((1, 690, 5), (slices, rows, columns))
    assert box == (slice(0, 3), slice(700 - MAX_SHOWN, 700), slice(0, 40))
    assert shown_box((0, 0, 0), (1, 9, 9)) == (slice(0, 1), slice(0, 9), slice(0, 9))


def test_names_of_arrays_say_their_plane() -> None:
    assert [plane_array(plane, "samples_full") for plane in PLANES] == [
        "samples_full",
        "coronal_samples_full",
        "sagittal_samples_full",
    ]
    assert [plane_of(plane_array(plane, "std")) for plane in PLANES] == [AXIAL, CORONAL, SAGITTAL]
