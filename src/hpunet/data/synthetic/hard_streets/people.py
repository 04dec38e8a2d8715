"""People, two-wheelers with and without riders, poles, signs, boxes and containers."""

import numpy as np

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.canvas import Canvas, disc
from hpunet.data.synthetic.hard_streets.difficulty import Difficulty
from hpunet.data.synthetic.hard_streets.paints import car_paint, glass

_SKIN = np.asarray(((196, 156, 130), (150, 110, 84), (96, 68, 52), (220, 184, 160)), float)
_TYRE = np.asarray((26, 26, 28), float)


def _upright(
    canvas: Canvas, value: int | None, colour: np.ndarray, *, z: float, points: list[tuple[float, float]]
) -> None:
    canvas.fill(np.asarray([(x, y, z) for x, y in points]), colour, value)


def paint_person(
    rng: np.random.Generator, canvas: Canvas, *, x: float, z: float, value: int, hard: Difficulty, seat: float = 0.0
) -> None:
    """Someone who stands or walks, or sits `seat` metres high."""
    tall = rng.uniform(1.1, 1.95) if seat == 0 else rng.uniform(1.55, 1.85)
    share = rng.uniform(0.65, 1.1)  # width: from the side or from the front
    coat = car_paint(rng, camouflage=0.0) if rng.random() < hard.car_colours else rng.uniform(20, 200, 3)
    trousers = rng.uniform(20, 110) * np.asarray((0.9, 0.95, 1.1))
    hip, base = tall * 0.5, max(0.0, seat - tall * 0.42)
    stride = rng.uniform(0.02, 0.28)
    for foot in (-stride, stride):
        legs = [(x - 0.12 * share, base + hip), (x + 0.12 * share, base + hip)]
        low = base * 0.6
        _upright(canvas, value, trousers, z=z, points=[*legs, (x + foot + 0.08, low), (x + foot - 0.08, low)])
    half = 0.24 * share
    torso = [(x - half * 0.8, base + hip * 0.85), (x - half, base + tall * 0.8), (x - 0.07, base + tall * 0.87)]
    torso += [(x + 0.07, base + tall * 0.87), (x + half, base + tall * 0.8), (x + half * 0.8, base + hip * 0.85)]
    _upright(canvas, value, coat, z=z, points=torso)
    arm = rng.uniform(-0.25, 0.25)
    for side in (-half, half):
        shoulder, hand = (x + side, base + tall * 0.78), (x + side + arm, base + hip * 0.95)
        limb = [shoulder, (shoulder[0] + 0.06, shoulder[1]), (hand[0] + 0.06, hand[1]), hand]
        _upright(canvas, value, coat * 0.85, z=z, points=limb)
    if rng.random() < 0.4:  # a bag or a rucksack
        bag = x + rng.choice((-1, 1)) * half
        points = [(bag - 0.15, base + hip * 0.8), (bag + 0.15, base + hip * 0.8), (bag + 0.14, base + hip * 1.3)]
        _upright(canvas, value, rng.uniform(10, 190, 3), z=z, points=[*points, (bag - 0.14, base + hip * 1.3)])
    head = np.asarray((x, base + tall * 0.93, z))
    skin = _SKIN[rng.integers(len(_SKIN))]
    canvas.fill(disc(head, right=np.asarray((0.1, 0, 0)), up=np.asarray((0, 0.13, 0)), sides=9), skin, value)
    cap = rng.uniform(10, 140, 3) * 0.6
    top = disc(head + np.asarray((0, 0.05, 0)), right=np.asarray((0.11, 0, 0)), up=np.asarray((0, 0.09, 0)), sides=9)
    canvas.fill(top, cap, value)


def paint_two_wheeler(
    rng: np.random.Generator, canvas: Canvas, *, x: float, z: float, value: int, motor: bool, hard: Difficulty
) -> None:
    """A bicycle or motorcycle, from the side or nearly from behind."""
    turn = rng.choice((rng.uniform(0.1, 0.35), rng.uniform(0.5, 1.0)))  # 1: from the side
    paint = car_paint(rng, camouflage=0.0) if motor or rng.random() < hard.car_colours else rng.uniform(20, 200, 3)
    radius, half = (0.31, 0.66) if motor else (0.34, 0.52)
    for end in (-1, 1):
        hub = np.asarray((x + end * half * turn, radius, z - end * 0.1))
        right, up = np.asarray((radius * max(turn, 0.2 if motor else 0.1), 0, 0)), np.asarray((0, radius, 0))
        canvas.fill(disc(hub, right=right, up=up), _TYRE, value)
        canvas.fill(disc(hub, right=right * 0.7, up=up * 0.7), rng.uniform(60, 150) * np.ones(3))
    wide = half * turn + 0.1
    if motor:
        hull = [(x - wide, 0.5), (x - wide * 0.8, 0.85), (x, 0.82), (x + wide * 0.4, 1.0), (x + wide, 0.7)]
        _upright(canvas, value, paint, z=z, points=[*hull, (x + wide * 0.6, 0.35), (x - wide * 0.6, 0.3)])
        _upright(canvas, value, _TYRE * 1.5, z=z, points=[(x - wide, 0.82), (x, 0.8), (x, 0.9), (x - wide, 0.93)])
        lamp = np.asarray((x + wide * 0.9, 0.8, z))
        canvas.fill(disc(lamp, right=np.asarray((0.1, 0, 0)), up=np.asarray((0, 0.1, 0)), sides=8), np.full(3, 220.0))
    else:
        for a, b in (
            ((-0.5, 0.34), (0.1, 0.85)),
            ((0.1, 0.85), (0.5, 0.34)),
            ((-0.3, 0.9), (0.35, 0.85)),
            ((0.35, 1.05), (0.5, 0.34)),
        ):
            (x0, y0), (x1, y1) = (x + a[0] * turn, a[1]), (x + b[0] * turn, b[1])
            _upright(canvas, value, paint, z=z, points=[(x0, y0), (x0, y0 + 0.07), (x1, y1 + 0.07), (x1, y1)])


def paint_pole(rng: np.random.Generator, canvas: Canvas, *, x: float, z: float) -> None:
    """A lamp post, bollard, traffic sign or traffic light."""
    kind = rng.choice(4, p=(0.3, 0.3, 0.2, 0.2))
    tall, half = (rng.uniform(4, 8), rng.uniform(2.1, 3.2), rng.uniform(2.8, 3.6), rng.uniform(0.6, 1.1))[kind], 0.05
    half += rng.uniform(0, 0.07)
    grey = rng.uniform(40, 150) * np.asarray((1, 1.01, 1.0))
    _upright(
        canvas,
        LABEL_IDS["pole"],
        grey,
        z=z,
        points=[(x - half, 0.0), (x - half, tall), (x + half, tall), (x + half, 0.0)],
    )
    if kind == 1:
        colour = np.asarray(((190, 40, 36), (40, 76, 160), (222, 190, 60), (226, 226, 222)), float)[rng.integers(4)]
        for each in range(rng.integers(1, 3)):
            at = np.asarray((x, tall - 0.3 - 0.7 * each, z))
            for share, paint in ((1.0, colour), (0.66, np.asarray((220, 220, 216.0)))):
                right, up = np.asarray((0.33 * share, 0, 0)), np.asarray((0, 0.33 * share, 0))
                sides = (14, 3, 4)[rng.integers(3)] if share == 1.0 else 10
                canvas.fill(disc(at, right=right, up=up, sides=sides), paint, LABEL_IDS["traffic sign"])
    elif kind == 2:
        case = [(x - 0.18, tall - 0.95), (x - 0.18, tall), (x + 0.18, tall), (x + 0.18, tall - 0.95)]
        _upright(canvas, LABEL_IDS["traffic light"], np.asarray((30, 32, 32.0)), z=z, points=case)
        which = rng.integers(3)
        lit = np.asarray(((214, 50, 40), (220, 170, 60), (70, 190, 110)), float)[which]
        at = np.asarray((x, tall - 0.2 - 0.28 * which, z))
        canvas.fill(disc(at, right=np.asarray((0.1, 0, 0)), up=np.asarray((0, 0.1, 0)), sides=8), lit)


def paint_box(rng: np.random.Generator, canvas: Canvas, *, x: float, z: float, hard: Difficulty) -> None:
    """A kiosk, container or switch box with the colours, panes and wheels of a car: static, or a building."""
    wide, tall, deep = rng.uniform((0.6, 0.9, 0.5), (2.6, 2.3, 2.5))
    value = LABEL_IDS["building"] if wide > 1.4 else LABEL_IDS["static"]
    paint = car_paint(rng, camouflage=0.0) if rng.random() < hard.car_colours else rng.uniform(50, 180, 3)
    inner = x - np.sign(x) * wide / 2
    left, right = x - wide / 2, x + wide / 2
    front = [(left, 0, z), (right, 0, z), (right, tall, z), (left, tall, z)]
    flank = [(inner, 0, z), (inner, 0, z + deep), (inner, tall, z + deep), (inner, tall, z)]
    canvas.fill(np.asarray(flank), paint * 0.7, value)
    canvas.fill(np.asarray(front), paint, value)
    edge = 0.1 * wide
    low, high = tall * rng.uniform(0.4, 0.6), tall * 0.92
    pane = [(left + edge, low, z), (right - edge, low, z), (right - edge, high, z), (left + edge, high, z)]
    canvas.fill(np.asarray(pane), glass(rng) if rng.random() < 0.7 else rng.uniform(20, 220, 3))
    for at in (left + 0.15, right - 0.15):
        hub = np.asarray((at, 0.12, z))
        canvas.fill(disc(hub, right=np.asarray((0.12, 0, 0)), up=np.asarray((0, 0.12, 0)), sides=8), _TYRE)
