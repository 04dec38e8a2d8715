"""Shapes of vehicles: a profile seen from the side, with windows and wheels."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Body:
    """A vehicle as its profile: `profile` (n, 2) goes from low at the rear over the roof to low at the front, as
    (metres from the rear, height); `parts` (n − 1) name the faces between its points.
    """

    length: float
    width: float
    height: float
    belt: float  # height of the lower edge of the windows
    lean: float  # share of the half width that the roof is narrower
    low: float  # ground clearance
    profile: np.ndarray
    parts: tuple[str, ...]
    pillars: tuple[float, ...]  # where side windows end, as shares of the cabin
    wheels: tuple[float, ...]  # metres from the rear
    tyre: float  # radius
    windows: bool = True  # at the sides


def car(rng: np.random.Generator) -> Body:
    """A hatchback, saloon, estate, coupé, off-roader, van or pick-up; no two alike."""
    kind = rng.choice(6, p=(0.3, 0.2, 0.16, 0.08, 0.14, 0.12))
    low, high = (
        ((3.5, 1.38), (4.3, 1.58)),  # hatchback
        ((4.4, 1.38), (5.0, 1.5)),  # saloon
        ((4.4, 1.42), (4.9, 1.56)),  # estate
        ((4.1, 1.25), (4.6, 1.36)),  # coupé
        ((4.2, 1.6), (4.9, 1.88)),  # off-roader
        ((4.4, 1.8), (5.6, 2.5)),  # van
    )[kind]
    length, height = rng.uniform(low, high)
    boot = (0.0, rng.uniform(0.14, 0.2), 0.0, rng.uniform(0.06, 0.14), 0.0, 0.0)[kind]
    slope = (rng.uniform(0.03, 0.12), 0.14, rng.uniform(0.03, 0.1), 0.22, rng.uniform(0.02, 0.07), 0.012)[kind]
    bonnet = (0.23, 0.26, 0.25, 0.29, 0.24, rng.uniform(0.06, 0.15))[kind] * rng.uniform(0.9, 1.1)
    screen = (0.14, 0.14, 0.14, 0.17, 0.1, 0.1)[kind] * rng.uniform(0.85, 1.2)
    belt = height * (rng.uniform(0.57, 0.67) if kind < 5 else rng.uniform(0.5, 0.62))
    body = _body(rng, length=length, height=height, belt=belt, boot=boot, slope=slope, bonnet=bonnet, screen=screen)
    closed = kind == 5 and rng.random() < 0.4  # a delivery van has windows at its front only
    width = rng.uniform(1.62, 1.9) if kind < 5 else rng.uniform(1.8, 2.05)
    return replace(body, width=width, pillars=(0.68, 1.0) if closed else body.pillars)


def lorry_cab(rng: np.random.Generator) -> Body:
    """The cab of a lorry; its load is a box behind."""
    length, height = rng.uniform((1.7, 2.2), (2.4, 3.2))
    body = _body(rng, length=length, height=height, belt=0.55 * height, slope=0.01, bonnet=0.02, screen=0.12)
    return replace(body, width=rng.uniform(1.95, 2.4), wheels=(length * 0.55,), tyre=0.45, pillars=(0.2, 1.0))


def load(rng: np.random.Generator, *, width: float) -> Body:
    """The box of a lorry."""
    length, height = rng.uniform((3.2, 2.2), (7.5, 3.7))
    body = _body(rng, length=length, height=height, belt=0.6 * height, slope=0.002, bonnet=0.001, screen=0.002)
    wheels = (0.2 * length, 0.34 * length) if length > 5 else (0.25 * length,)
    parts = tuple({"rear glass": "rear", "screen": "rear", "bonnet": "rear"}.get(each, each) for each in body.parts)
    return replace(body, width=width + 0.1, low=0.6, wheels=wheels, tyre=0.46, windows=False, parts=parts)


def bus(rng: np.random.Generator, *, tram: bool = False) -> Body:
    """A bus, a coach or a tram."""
    low, high = ((16, 3.2), (30, 3.6)) if tram else ((6.5, 2.5), (12.5, 3.5))
    length, height = rng.uniform(low, high)
    belt = height * rng.uniform(0.38, 0.55)
    body = _body(rng, length=length, height=height, belt=belt, slope=0.004, bonnet=0.002, screen=0.02)
    number = int(length / rng.uniform(1.4, 2.2))
    pillars = tuple(np.linspace(0, 1, number + 1)[1:].tolist())
    tyre = 0.25 if tram else 0.46
    wheels = (0.12, 0.18, 0.5, 0.56, 0.82, 0.88) if tram else (0.25, 0.8)
    wheels = tuple(length * share for share in wheels)
    return replace(body, width=rng.uniform(2.2, 2.55), lean=0.02, pillars=pillars, wheels=wheels, tyre=tyre)


def _body(
    rng: np.random.Generator,
    *,
    length: float,
    height: float,
    belt: float,
    slope: float,
    bonnet: float,
    screen: float,
    boot: float = 0.0,
) -> Body:
    """A body whose boot, rear window, wind-screen and bonnet take these shares of its length."""
    low, round_ = rng.uniform(0.18, 0.3), 0.03 * length
    nose = belt * (rng.uniform(0.72, 0.92) if bonnet > 0.04 else 0.98)
    points = [(0.0, low), (0.0, belt * 0.96), (round_ * 0.4 + boot * length, belt)]
    points += [((boot + slope) * length + round_ * 0.5, height * 0.985), ((1 - bonnet - screen) * length, height)]
    points += [((1 - bonnet) * length, belt), (length - min(round_, bonnet * length) * 0.5, nose), (length, low)]
    parts = ("rear", "boot", "rear glass", "roof", "screen", "bonnet", "front")
    split = rng.uniform(0.5, 0.62)
    wheels = (length * rng.uniform(0.17, 0.22), length * rng.uniform(0.79, 0.83))
    pillars = (rng.uniform(0.2, 0.3), split, 1.0) if rng.random() < 0.5 else (split, 1.0)
    lean, tyre = rng.uniform(0.08, 0.24), rng.uniform(0.28, 0.36) if height < 1.6 else rng.uniform(0.32, 0.4)
    return Body(length, 1.8, height, belt, lean, low, np.asarray(points), parts, tuple(pillars), tuple(wheels), tyre)
