"""Cars, and what resembles them: lorries, buses, trams, two-wheelers; and people."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets import bodies
from hpunet.data.synthetic.hard_streets.canvas import Canvas
from hpunet.data.synthetic.hard_streets.difficulty import Difficulty
from hpunet.data.synthetic.hard_streets.ground import Layout
from hpunet.data.synthetic.hard_streets.paints import car_paint
from hpunet.data.synthetic.hard_streets.people import paint_person, paint_two_wheeler
from hpunet.data.synthetic.hard_streets.vehicles import VehiclePainter, paint_shadow, standing

Thing = tuple[float, Callable[[], None]]
_Spot = tuple[float, float, float]  # x, z, yaw
_FAR, _NEAREST = 30.0, 5.0
_FREE = 2.2  # metres around the camera's own lane


def traffic(rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty) -> Iterator[Thing]:
    """Things by depth, each with what paints it; every instance has a number of its own."""
    numbers = count(1)
    spots = _car_spots(rng, layout, hard) if rng.random() > 0.05 else []
    others = _other_spots(rng, layout, hard)
    taken: list[_Spot] = []
    group_from = rng.uniform(35, 70) if rng.random() < 0.3 else np.inf
    for kind, (x, z, yaw) in [*((kind, spot) for kind, spot in others), *(("car", spot) for spot in spots)]:
        reach = {"car": 2.0, "truck": 4.5, "bus": 6.0, "train": 12.0}[kind]
        if any(abs(x - a) < 1.7 and abs(z - b) < reach + 1.9 for a, b, _ in taken) and abs(np.sin(yaw)) < 0.5:
            continue
        taken.append((x, z, yaw))
        value = LABEL_IDS[kind] * 1000 + next(numbers)
        if kind == "car" and z > group_from:
            value = LABEL_IDS["car"]
        yield z, partial(_paint_vehicle, rng, canvas, hard, kind=kind, x=x, z=z, yaw=yaw, value=value)
    yield from _people(rng, canvas, layout, hard, numbers=numbers)


def _depth(rng: np.random.Generator, layout: Layout, hard: Difficulty) -> float:
    """Near or far; cars thin out with distance."""
    if rng.random() < hard.far_cars:
        return float(min(_FAR + rng.exponential(24), layout.end - 3))
    return float(rng.uniform(_NEAREST + 1, _FAR))


def _car_spots(rng: np.random.Generator, layout: Layout, hard: Difficulty) -> list[_Spot]:
    """Rows of parked cars, along the road or at an angle to it, moving cars, and cars on a crossing street."""
    spots: list[_Spot] = []
    busy = hard.crowding * rng.gamma(3.0, 1 / 3)
    for side, sign in enumerate((-1, 1)):
        road = layout.half_road[side]
        for _ in range(rng.poisson(2.6 * busy)):
            z, number = _depth(rng, layout, hard), 1 + rng.geometric(0.2)
            angle = rng.choice((0.0, np.pi / 2, np.pi / 3), p=(0.75, 0.17, 0.08))
            facing = 0.0 if rng.random() < (0.85 if sign > 0 else 0.25) else np.pi
            inset = rng.uniform(-0.4, 1.2) if angle == 0 else rng.uniform(-2.0, 2.2)
            gap = rng.uniform(0.5, 2.0) if angle == 0 else rng.uniform(0.7, 1.6)
            for _ in range(number):
                yaw = facing + sign * angle * (1 if facing == 0 else -1) + rng.normal(0, 0.04)
                if rng.random() < 0.88 and abs(road - inset) > _FREE:
                    spots.append((sign * (road - inset) + rng.normal(0, 0.1), z, yaw))
                z += (4.4 if angle == 0 else 2.1) + gap * rng.uniform(0.5, 1.5)
        for _ in range(rng.poisson(1.7 * busy)):
            yaw = (
                (np.pi if sign < 0 else 0.0) + rng.normal(0, 0.06) + rng.choice((0, 0.6, -0.6), p=(0.86, 0.07, 0.07))
            )
            spots.append((sign * rng.uniform(0.15, 0.65) * road, max(9.0, _depth(rng, layout, hard)), yaw))
        if rng.random() < 0.15 * hard.crowding:  # a car park beside the street
            z, x = _depth(rng, layout, hard), layout.front(side) + rng.uniform(1, 4)
            yaw = rng.uniform(0, 2 * np.pi)
            for _ in range(rng.integers(2, 8)):
                spots.append((sign * x, z, yaw + rng.normal(0, 0.05)))
                x, z = x + rng.uniform(2.0, 3.0), z + rng.normal(0, 1.0)
    if layout.crossing is not None:
        near, far = layout.crossing
        for _ in range(rng.poisson(1.8 * busy)):
            yaw = rng.choice((-1, 1)) * np.pi / 2 + rng.normal(0, 0.15)
            spots.append((rng.uniform(-18, 18), rng.uniform(near + 1, far - 1), yaw))
    return [(x, z, yaw) for x, z, yaw in spots if _NEAREST < z < layout.end - 2]


def _other_spots(rng: np.random.Generator, layout: Layout, hard: Difficulty) -> list[tuple[str, _Spot]]:
    """Lorries, buses and trams."""
    found: list[tuple[str, _Spot]] = []
    for kind, mean in (("truck", 0.55), ("bus", 0.35), ("train", 0.14)):
        for _ in range(rng.poisson(mean * hard.other_vehicles)):
            sign = rng.choice((-1, 1))
            yaw = (np.pi if sign < 0 else 0.0) + rng.normal(0, 0.04)
            x = sign * layout.half_road[int(sign > 0)] * rng.uniform(0.35, 0.9)
            z = rng.uniform(14, 60) + (8 if kind == "train" else 0)
            if layout.crossing is not None and rng.random() < 0.3:
                near, far = layout.crossing
                x, z, yaw = rng.uniform(-15, 15), rng.uniform(near, far) + 1, np.pi / 2
            if z < layout.end - 4:
                found.append((kind, (x, z, yaw)))
    return found


def _paint_vehicle(
    rng: np.random.Generator,
    canvas: Canvas,
    hard: Difficulty,
    *,
    kind: str,
    x: float,
    z: float,
    yaw: float,
    value: int,
) -> None:
    camouflage = hard.camouflage if kind == "car" else 0.0
    paint = car_paint(rng, camouflage=camouflage)
    if kind != "car" and rng.random() > hard.car_colours:
        paint = np.asarray(((190, 40, 34), (224, 190, 60), (60, 110, 170), (230, 230, 226)), float)[rng.integers(4)]
    if kind == "truck":
        cab = bodies.lorry_cab(rng)
        box = bodies.load(rng, width=cab.width)
        white = rng.uniform(150, 235) * np.ones(3) if rng.random() < 0.4 else car_paint(rng, camouflage=0.0)
        half = (cab.length + box.length) / 2
        parts = [(cab, half - cab.length / 2, paint), (box, -half + box.length / 2, white)]
    else:
        body = bodies.car(rng) if kind == "car" else bodies.bus(rng, tram=kind == "train")
        parts = [(body, 0.0, paint)]
    placed = []
    for body, ahead, tone in parts:
        at = {"x": x + ahead * np.sin(yaw), "z": z + ahead * np.cos(yaw), "yaw": yaw, "length": body.length}
        placed.append((at["z"], standing(canvas, **at), body, tone))
    for _, place, body, _tone in placed:
        paint_shadow(canvas, place=place, body=body)
    for _, place, body, tone in sorted(placed, key=lambda each: -each[0]):
        VehiclePainter(rng, canvas, body=body, place=place, paint=tone, value=value).paint_all()


def _people(
    rng: np.random.Generator, canvas: Canvas, layout: Layout, hard: Difficulty, *, numbers: "count[int]"
) -> Iterator[Thing]:
    """People alone and in groups, on sidewalks and before cars; bicycles and motorcycles, parked and ridden."""
    busy = hard.occluders * rng.gamma(2.0, 0.5)
    for _ in range(rng.poisson(3.5 * busy)):
        sign = rng.choice((-1, 1))
        side = int(sign > 0)
        share = rng.uniform(-0.1, 1.0) if rng.random() < 0.8 else rng.uniform(-1.5, 0)
        x, z = sign * (layout.half_road[side] + share * layout.sidewalk[side]), 4.5 + rng.exponential(16)
        for _ in range(rng.choice((1, 2, 3, 5), p=(0.6, 0.24, 0.11, 0.05))):
            at = {"x": x + rng.normal(0, 0.7), "z": min(z + rng.normal(0, 0.5), layout.end - 1)}
            value = LABEL_IDS["person"] * 1000 + next(numbers)
            if at["z"] > 3:
                yield at["z"], partial(paint_person, rng, canvas, **at, value=value, hard=hard)
    for _ in range(rng.poisson(1.6 * busy + 0.8 * hard.other_vehicles)):
        sign = rng.choice((-1, 1))
        motor, ridden = bool(rng.random() < 0.35), bool(rng.random() < 0.4)
        road, walk = layout.half_road[int(sign > 0)], layout.sidewalk[int(sign > 0)]
        x = sign * (road * rng.uniform(0.3, 0.9) if ridden else road + walk * rng.uniform(-0.15, 0.6))
        z = min(5 + rng.exponential(14), layout.end - 1)
        for _ in range(1 if ridden else rng.integers(1, 5)):
            value = LABEL_IDS["motorcycle" if motor else "bicycle"] * 1000 + next(numbers)
            rider = LABEL_IDS["rider"] * 1000 + next(numbers)
            at = {"x": x, "z": z}
            yield z, partial(paint_two_wheeler, rng, canvas, **at, value=value, motor=motor, hard=hard)
            if ridden:
                yield z - 0.05, partial(paint_person, rng, canvas, **at, value=rider, hard=hard, seat=0.9)
            x, z = x + rng.uniform(0.2, 0.6), z + rng.uniform(0.1, 0.6)
