"""What stands in hard streets follows the numbers of `Difficulty`; nothing is painted here."""

from collections import Counter
from dataclasses import replace

import numpy as np

from hpunet.data.synthetic.hard_streets.canvas import Canvas, Light, View
from hpunet.data.synthetic.hard_streets.difficulty import HARD
from hpunet.data.synthetic.hard_streets.ground import Layout
from hpunet.data.synthetic.hard_streets.roadside import roadside
from hpunet.data.synthetic.hard_streets.traffic import traffic

LAYOUT = Layout((6.0, 6.0), (4.0, 4.0), 150.0, (30.0, 42.0))
NUMBER = 60


def canvas() -> Canvas:
    light = Light(np.array((0.0, 1, 0)), 0.3, np.zeros(3), 1e9, np.empty(0), 1.0, 1e9)
    view = View(focal=100.0, centre=60.0, horizon=30.0, height=1.5)
    return Canvas(sky=np.zeros((8, 16, 3), np.uint8), view=view, light=light)


def vehicles(**change: float) -> list[list[tuple[str, float]]]:
    """Kind and depth of the vehicles of each street."""
    hard, painted, found = replace(HARD, **change), canvas(), []
    for i in range(NUMBER):
        things = [paint.keywords for _, paint in traffic(np.random.default_rng((6, i)), painted, LAYOUT, hard)]
        found.append([(thing["kind"], thing["z"]) for thing in things if "kind" in thing])
    return found


def test_numbers_of_cars_vary_and_some_streets_have_none():
    numbers = [sum(kind == "car" for kind, _ in street) for street in vehicles()]
    assert 8 < np.mean(numbers) < 35
    assert 0 < np.mean(np.array(numbers) == 0) < 0.2
    assert max(numbers) > 2 * np.mean(numbers)


def test_vehicles_stand_within_the_street():
    for street in vehicles():
        assert all(0 < z < LAYOUT.end for _, z in street)


def test_far_cars_and_crowding():
    def depths(**change: float) -> np.ndarray:
        return np.array([z for street in vehicles(**change) for kind, z in street if kind == "car"])

    assert np.mean(depths(far_cars=1.0) > 30) > np.mean(depths(far_cars=0.0) > 30) + 0.3
    assert len(depths(crowding=2.0)) > 1.5 * len(depths(crowding=0.5))


def test_other_vehicles_adds_their_classes():
    def counts(**change: float) -> Counter[str]:
        return Counter(kind for street in vehicles(**change) for kind, _ in street)

    none, many = counts(other_vehicles=0.0), counts(other_vehicles=2.0)
    assert set(none) == {"car"}
    assert set(many) == {"car", "truck", "bus", "train"}
    assert many["truck"] > many["bus"] > many["train"]


def test_occluders_and_decoys_add_people_poles_and_boxes():
    def names(**change: float) -> Counter[str]:
        hard, painted, found = replace(HARD, **change), canvas(), Counter[str]()
        for i in range(20):
            for make in (traffic, roadside):
                things = make(np.random.default_rng((6, i)), painted, LAYOUT, hard)
                found.update(getattr(paint, "func", paint).__name__ for _, paint in things)
        return found

    none, many = (names(occluders=each, decoys=each, other_vehicles=0.0) for each in (0.0, 2.0))
    assert none["paint_person"] == none["paint_pole"] == none["paint_box"] == 0
    assert many["paint_person"] > 60
    assert many["paint_pole"] > 100
    assert many["paint_box"] > 40
