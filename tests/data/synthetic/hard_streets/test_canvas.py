"""The camera against numbers worked out by hand; on the canvas, what is painted last is seen, as are its ids."""

import numpy as np
import pytest

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.canvas import NEAR, Canvas, Light, View, on_quad

VIEW = View(focal=100.0, centre=60.0, horizon=30.0, height=1.5)
CLEAR = Light(
    sun=np.array((0.0, 1, 0)),
    direct=0.4,
    haze=np.zeros(3),
    haze_range=1e9,
    shadow_edges=np.array((20.0, 40.0)),
    shadow=0.5,
    split=1e9,
)


def canvas(view: View = VIEW, light: Light = CLEAR) -> Canvas:
    return Canvas(sky=np.full((80, 120, 3), 9, np.uint8), view=view, light=light)


def upright(left: float, right: float, low: float, high: float, z: float) -> np.ndarray:
    return np.array(((left, low, z), (right, low, z), (right, high, z), (left, high, z)), float)


@pytest.mark.parametrize(
    ("view", "point", "pixel"),
    [
        ({}, (0, 1.5, 7), (60, 30)),  # on the axis, at the height of the camera
        ({}, (1, 0, 10), (70, 45)),  # a metre to the right and 1.5 below, 10 pixels per metre
        ({}, (1, 0, 0.01), (60 + 100 / NEAR, 30 + 150 / NEAR)),
        ({"yaw": 0.1, "bend": 0.02}, (0, 1.5, 10), (60 + (1 + 2) * 10, 30)),
        ({"roll": np.pi / 2}, (1, 0, 10), (60 - 15, 30 + 10)),  # right becomes down, down becomes left
    ],
)
def test_project_worked_out_by_hand(view, point, pixel):
    found = View(**{**vars(VIEW), **view}).project(np.array(point, float))
    np.testing.assert_allclose(found, pixel, atol=1e-9)


def test_seen_from_puts_the_bend_into_the_camera():
    view = View(**{**vars(VIEW), "yaw": 0.1, "bend": 0.02})
    np.testing.assert_allclose(view.seen_from(10.0), (-3, 1.5, 0))


def test_fill_hides_what_was_painted_before_and_marks_the_same_pixels():
    painted = canvas()
    painted.fill(upright(-2, 2, 0, 2, 10), np.array((200.0, 0, 0)), 11)
    painted.fill(upright(0, 1, 0, 1, 5), np.array((0.0, 200, 0)), 26001)
    painted.fill(upright(0, 0.5, 0, 0.5, 5), np.array((0.0, 0, 200)))  # a mark: it keeps the ids
    colour, ids = np.array(painted.colour), np.array(painted.ids)
    assert set(np.unique(ids)) == {LABEL_IDS["sky"], 11, 26001}
    np.testing.assert_array_equal(colour[..., 0] == 200, ids == 11)
    np.testing.assert_array_equal((colour[..., 1] == 200) | (colour[..., 2] == 200), ids == 26001)
    assert (ids[45:60, 62:79] == 26001).all()  # 20 pixels per metre, from 60 on; rows 30 + 20 · 0.5 to 30 + 20 · 1.5
    assert (ids[:, 81:] != 26001).all()


def test_fill_leaves_out_what_is_behind_the_camera_or_beside_the_image():
    painted = canvas()
    for shape in (upright(-2, 2, 0, 2, -3), upright(40, 50, 0, 2, 10), upright(0, 0.001, 0, 0.001, 50)):
        painted.fill(shape, np.full(3, 200.0), 11)
    assert (np.array(painted.ids) == LABEL_IDS["sky"]).all()


@pytest.mark.parametrize(("z", "tone"), [(10, 100), (30, 50), (50, 100)])
def test_fill_darkens_what_is_in_a_shadow(z, tone):
    painted = canvas()
    painted.fill(upright(-20, 20, 0, 0.002 * z, z), np.full(3, 100.0), 11)
    ids = np.array(painted.ids)
    np.testing.assert_allclose(np.array(painted.colour)[ids == 11], tone, atol=1)


def test_fill_fades_into_haze_with_distance():
    light = Light(**{**vars(CLEAR), "haze": np.full(3, 200.0), "haze_range": 50.0})
    painted = canvas(light=light)
    painted.fill(upright(-90, 90, -90, 90, 50), np.zeros(3), 11)
    assert np.array(painted.colour)[5, 5].tolist() == [round(200 * (1 - np.exp(-1)))] * 3


def test_light_on_a_surface_depends_on_where_it_faces():
    assert CLEAR.facing(np.array((0.0, 1, 0))) == pytest.approx(1.2)
    assert CLEAR.facing(np.array((1.0, 0, 0))) == pytest.approx(0.6)


def test_on_quad_gives_corners_in_order():
    quad = upright(10, 20, 0, 4, 7)
    (found,) = on_quad(quad, [0.1, 0.5, 0.25, 0.75])
    np.testing.assert_allclose(found, upright(11, 15, 1, 3, 7))
