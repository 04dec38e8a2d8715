"""Paints vehicles as boxes with a profile: every face that the camera sees, the farthest first."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpunet.data.synthetic.hard_streets.bodies import Body
from hpunet.data.synthetic.hard_streets.canvas import Canvas, disc, on_quad
from hpunet.data.synthetic.hard_streets.paints import glass

_TYRE, _DARK, _RED, _WHITE = (
    np.asarray(c, dtype=np.float64) for c in ((22, 22, 24), (34, 36, 40), (165, 28, 26), (225, 224, 212))
)
_AMBER = np.asarray((214, 130, 40.0))
_DETAILS_FROM, _SIDES_FROM = 9.0, 4.0  # height of a vehicle in pixels of the canvas


@dataclass(frozen=True)
class Place:
    """Takes points of a vehicle (across, up, along) to the world; `eye` is the camera in its frame."""

    to_world: Callable[[np.ndarray], np.ndarray]
    eye: np.ndarray
    depth: float
    turn: Callable[[np.ndarray], np.ndarray]  # directions to the world


def standing(canvas: Canvas, *, x: float, z: float, yaw: float, length: float) -> Place:
    """On the ground, its middle at (x, z); yaw 0 points away from the camera, π towards it."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    slope = canvas.view.yaw + 2 * canvas.view.bend * z  # the street turns, and the vehicle with it

    def to_world(points: np.ndarray) -> np.ndarray:
        across, along = points[..., 0], points[..., 2] - length / 2
        return np.stack([x + across * cos + along * sin, points[..., 1], z + along * cos - across * sin], axis=-1)

    def turn(normal: np.ndarray) -> np.ndarray:
        return np.asarray((normal[0] * cos + normal[2] * sin, normal[1], normal[2] * cos - normal[0] * sin))

    eye = canvas.view.seen_from(z)
    right, away = eye[0] - x, -z + 0.0 * slope
    frame = np.asarray((right * cos - away * sin, eye[1], right * sin + away * cos + length / 2))
    return Place(to_world, frame, z, turn)


def pictured(wall: np.ndarray, *, left: float, low: float, scale: float, angle: float, length: float) -> Place:
    """As a picture on a wall, a plane given by (origin, along, up) with unit directions: an oblique projection."""
    origin, along_wall, up_wall = wall
    cos, sin = np.cos(angle), np.sin(angle)

    def to_world(points: np.ndarray) -> np.ndarray:
        across, up, along = points[..., 0], points[..., 1], points[..., 2] - length / 2
        u = left + scale * (along * sin + across * cos)
        v = low + scale * (up + 0.18 * (along * cos - across * sin) + 0.18 * length / 2 * abs(cos))
        return np.asarray(origin + u[..., None] * along_wall + v[..., None] * up_wall)

    distance = 30.0
    eye = np.asarray((distance * sin, 6.0, -distance * cos + length / 2))
    depth = float(origin[2] + left * along_wall[2])
    return Place(to_world, eye, depth, lambda normal: np.asarray((normal[0] * cos, normal[1], -abs(normal[2]))))


class VehiclePainter:
    """Paints one vehicle; `value` None paints only its colours, `veil` mixes them with another colour."""

    def __init__(
        self,
        rng: np.random.Generator,
        canvas: Canvas,
        *,
        body: Body,
        place: Place,
        paint: np.ndarray,
        value: int | None,
        veil: tuple[np.ndarray, float] | None = None,
        scale: float = 1.0,
    ) -> None:
        self.rng, self.canvas, self.body, self.place = rng, canvas, body, place
        self.value, self.paint, self.veil = value, paint, veil
        self.height = body.height * scale * canvas.pixels_per_metre(place.depth)
        self.pane = glass(rng)

    def paint_all(self) -> None:
        """The faces between the points of the profile, then the flank."""
        body = self.body
        faces = []
        for i, part in enumerate(body.parts):
            (a, low), (b, high) = body.profile[i : i + 2]
            normal = np.asarray((0.0, b - a, low - high))  # outward: the profile runs over the top from rear to front
            normal /= max(float(np.linalg.norm(normal)), 1e-9)
            middle = np.asarray((0.0, (low + high) / 2, (a + b) / 2))
            toward = self.place.eye - middle
            if normal @ toward > 0:
                faces.append((float(toward @ toward), i, part, normal))
        for _, i, part, normal in sorted(faces, reverse=True, key=lambda face: face[0]):
            self._strip(i, part, normal)
        side = 1.0 if self.place.eye[0] > 0 else -1.0
        if abs(self.place.eye[0]) > body.width / 2:
            self._flank(side)
        elif self.height > _SIDES_FROM:
            self._wheels_from_behind()

    def _fill(self, points: np.ndarray, colour: np.ndarray, *, marks: bool = True) -> None:
        if self.veil is not None:
            colour = colour * (1 - self.veil[1]) + self.veil[0] * self.veil[1]
        self.canvas.fill(self.place.to_world(points), colour, self.value if marks else None)

    def _light(self, normal: np.ndarray) -> float:
        return self.canvas.light.facing(self.place.turn(normal))

    def _half(self, height: float) -> float:
        body = self.body
        above = max(0.0, (height - body.belt) / max(body.height - body.belt, 1e-6))
        return body.width / 2 * (1 - body.lean * above)

    def _strip(self, i: int, part: str, normal: np.ndarray) -> None:
        (a, low), (b, high) = self.body.profile[i : i + 2]
        one, other = self._half(low), self._half(high)
        quad = np.asarray(((-one, low, a), (one, low, a), (other, high, b), (-other, high, b)))
        light = self._light(normal)
        self._fill(quad, self.paint * light)
        if part in ("rear glass", "screen") and self.height > _SIDES_FROM:
            self._fill(on_quad(quad, [0.06, 0.94, 0.06, 0.9]), self.pane * (0.6 + 0.4 * light), marks=False)
        if self.height < _DETAILS_FROM or part not in ("rear", "front"):
            return
        if part == "rear":
            shape = self.rng.uniform((0.1, 0.5, 0.14), (0.26, 0.72, 0.34))
            lamps, colour = [(0.02, shape[0], shape[1], shape[1] + shape[2])], _RED
            plate = (0.36, 0.64, 0.3, 0.46)
            dark = (0.0, 1.0, 0.0, 0.2)
        else:  # its quad runs from the bonnet down
            shape = self.rng.uniform((0.14, 0.1, 0.16), (0.3, 0.28, 0.3))
            lamps, colour = [(0.02, shape[0], shape[1], shape[1] + shape[2])], _WHITE
            self._fill(on_quad(quad, [0.28, 0.72, 0.22, 0.62]), _DARK * light, marks=False)
            plate, dark = (0.38, 0.62, 0.66, 0.8), (0.0, 1.0, 0.84, 1.0)
        lamps += [(1 - right, 1 - left, low_, high_) for left, right, low_, high_ in lamps]
        self._fill(on_quad(quad, [dark]), _DARK * light, marks=False)
        self._fill(on_quad(quad, lamps), colour * self.rng.uniform(0.5, 1.1), marks=False)
        self._fill(on_quad(quad, [plate]), _WHITE * 0.85 * light, marks=False)

    def _flank(self, side: float) -> None:
        body, half = self.body, side * self.body.width / 2
        light = self._light(np.asarray((side, 0.0, 0.0)))
        profile = body.profile
        lower = [(half, min(y, body.belt + 0.05), along) for along, y in profile]  # no gap below the cabin
        self._fill(np.asarray(lower), self.paint * light * 0.92)
        sill = [(half, body.low, 0.02), (half, body.low + 0.16, 0.0), (half, body.low + 0.16, body.length)]
        self._fill(np.asarray([*sill, (half, body.low, body.length)]), _DARK * 0.8 * light, marks=False)
        cabin = np.asarray([(side * self._half(y), y, along) for along, y in profile if y >= body.belt - 1e-9])
        if len(cabin) == 4:
            self._fill(cabin, self.paint * light)
            if body.windows and self.height > _SIDES_FROM:
                quad = cabin[[0, 3, 2, 1]]  # low rear, low front, high front, high rear
                start, boxes = 0.03, []
                for pillar in body.pillars:
                    boxes.append((start, pillar - 0.025, 0.06, 0.86))
                    start = pillar + 0.025
                boxes = boxes[1:] if len(body.pillars) == 2 and body.pillars[0] == 0.68 else boxes
                self._fill(on_quad(quad, boxes), self.pane * (0.6 + 0.4 * light), marks=False)
        if self.height > _DETAILS_FROM:
            self._details(half, light)
        if self.height > _SIDES_FROM:
            self._wheels(half, light)

    def _details(self, half: float, light: float) -> None:
        """Doors, a line of light and lamps at both ends."""
        body, edge = self.body, 0.04
        for share in body.pillars[:-1]:
            at = body.length * (0.15 + 0.6 * share)
            line = [(half, body.low + 0.1, at), (half, body.belt, at), (half, body.belt, at + 0.03)]
            self._fill(np.asarray([*line, (half, body.low + 0.1, at + 0.03)]), self.paint * light * 0.6, marks=False)
        high, low = body.belt * 0.93, body.belt * 0.8
        shine = [
            (half, low, edge),
            (half, high, edge),
            (half, high, body.length - 0.3),
            (half, low, body.length - 0.3),
        ]
        self._fill(np.asarray(shine), np.clip(self.paint * light * 1.12 + 8, 0, 245), marks=False)
        for start, colour in ((0.0, _RED), (body.length - 0.35, _AMBER if self.rng.random() < 0.3 else _WHITE)):
            lamp = [
                (half, low * 0.95, start),
                (half, high, start),
                (half, high, start + 0.3),
                (half, low * 0.95, start + 0.3),
            ]
            self._fill(np.asarray(lamp), colour * self.rng.uniform(0.5, 1.0), marks=False)

    def _wheels(self, half: float, light: float) -> None:
        hub_colour = self.rng.uniform(60, 190) * np.ones(3)
        for along in self.body.wheels:
            for share, colour in ((1.0, _TYRE), (0.62, hub_colour * light)):
                radius = self.body.tyre * share
                hub = np.asarray((half, self.body.tyre, along))
                right, up = np.asarray((0, 0, radius)), np.asarray((0, radius, 0))
                self._fill(disc(hub, right=right, up=up), colour, marks=share == 1.0)

    def _wheels_from_behind(self) -> None:
        body = self.body
        for left in (-body.width / 2 + 0.08, body.width / 2 - 0.32):
            for end in (0.15, body.length - 0.15):
                corners = [(left, 0, end), (left + 0.24, 0, end), (left + 0.24, body.low + 0.05, end)]
                self._fill(np.asarray([*corners, (left, body.low + 0.05, end)]), _TYRE)


def paint_shadow(canvas: Canvas, *, place: Place, body: Body) -> None:
    """The dark ground below a vehicle, painted before it."""
    half, out = body.width / 2 + 0.15, 0.2
    corners = np.asarray(
        ((-half, 0, -out), (half, 0, -out), (half, 0, body.length + out), (-half, 0, body.length + out))
    )
    canvas.fill(place.to_world(corners), np.asarray((38, 38, 42)))
