"""Vehicles stand on the ground, are as large as they should be, and leave their ids where they are."""

import numpy as np
import pytest

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets import bodies
from hpunet.data.synthetic.hard_streets.canvas import Canvas, Light, View
from hpunet.data.synthetic.hard_streets.fronts import Wall
from hpunet.data.synthetic.hard_streets.vehicles import VehiclePainter, pictured, standing

SKY = LABEL_IDS["sky"]
LIGHT = Light(np.array((0.0, 1, 0)), 0.3, np.zeros(3), 1e9, np.empty(0), 1.0, 1e9)
PAINT = np.array((200.0, 60, 60))


def canvas() -> Canvas:
    view = View(focal=400.0, centre=200.0, horizon=100.0, height=1.5)
    return Canvas(sky=np.full((200, 400, 3), 9, np.uint8), view=view, light=LIGHT)


def box(ids: np.ndarray, value: int) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(ids == value)
    return columns.min(), columns.max() + 1, rows.min(), rows.max() + 1


@pytest.mark.parametrize("make", [bodies.car, bodies.bus, bodies.lorry_cab, lambda rng: bodies.bus(rng, tram=True)])
def test_bodies_are_whole(make):
    for seed in range(40):
        body = make(np.random.default_rng(seed))
        along, up = body.profile.T
        assert len(body.parts) == len(body.profile) - 1
        assert (np.diff(along) >= 0).all()
        assert (along[0], along[-1]) == (0, body.length)
        assert up.max() == body.height
        assert body.low < body.belt < body.height
        assert all(0 < wheel < body.length for wheel in body.wheels)


@pytest.mark.parametrize("yaw", [0.0, np.pi])
def test_car_ahead_has_its_width_and_height_in_pixels(yaw):
    painted, rng = canvas(), np.random.default_rng(1)
    body = bodies.car(rng)
    z = 20 + body.length / 2  # its near end is 20 metres away: 20 pixels per metre
    place = standing(painted, x=0.0, z=z, yaw=yaw, length=body.length)
    VehiclePainter(rng, painted, body=body, place=place, paint=PAINT, value=26001).paint_all()
    left, right, top, bottom = box(np.array(painted.ids), 26001)
    assert right - left == pytest.approx(20 * body.width, abs=3)
    assert bottom == pytest.approx(100 + 20 * 1.5, abs=3)
    assert top == pytest.approx(100 + 20 * (1.5 - body.height), abs=6)  # the roof is a little farther away


def test_car_across_shows_its_length():
    painted, rng = canvas(), np.random.default_rng(2)
    body = bodies.car(rng)
    place = standing(painted, x=0.0, z=20 + body.width / 2, yaw=np.pi / 2, length=body.length)
    VehiclePainter(rng, painted, body=body, place=place, paint=PAINT, value=26001).paint_all()
    left, right, *_ = box(np.array(painted.ids), 26001)
    assert right - left == pytest.approx(20 * body.length, abs=4)


def test_picture_of_a_car_keeps_the_ids_of_the_wall():
    painted, rng = canvas(), np.random.default_rng(3)
    wall = Wall(np.array((-4.0, 0, 12)), np.array((1.0, 0, 0)), 8.0, 4.0)
    painted.fill(wall.boxes([0, 8, 0, 4]), np.full(3, 90.0), LABEL_IDS["building"])
    before, ids = np.array(painted.colour), np.array(painted.ids)
    body = bodies.car(rng)
    place = pictured(wall.plane, left=4.0, low=0.5, scale=1.0, angle=1.2, length=body.length)
    VehiclePainter(rng, painted, body=body, place=place, paint=PAINT, value=None).paint_all()
    changed = (np.array(painted.colour) != before).any(axis=2)
    assert changed.sum() > 0.03 * changed.size
    assert (ids[changed] == LABEL_IDS["building"]).all()
    np.testing.assert_array_equal(np.array(painted.ids), ids)
