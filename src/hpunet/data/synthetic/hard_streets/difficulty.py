"""How hard the scenes are, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difficulty:
    """Numbers of about 0 (easy) to 1 and more. What each makes worse when it rises is said beside it."""

    decoys: float = 1.5
    """Pictures and reflections of cars on house fronts and hoardings, which are background, and boxes like cars: ids
    of cars are painted over houses, so the IoU of the background and AP50 fall."""
    car_colours: float = 0.7
    """Share of doors, shutters, panels, boxes, clothes and other vehicles in the paints of cars: as `decoys`."""
    other_vehicles: float = 1.0
    """Number of lorries, buses, trams and two-wheelers: they become cars; the IoU of the background and AP50 fall."""
    camouflage: float = 0.45
    """How far paint is drawn towards the greys of the street: edges of cars vanish, neighbours merge; the Rand error
    rises and IoU_rec falls."""
    crowding: float = 1.0
    """Number of parked and moving cars and of rows of them: neighbours merge; the Rand error rises, AP50 falls."""
    far_cars: float = 0.55
    """Share of cars beyond 30 metres: IoU_rec and AP50 fall, also those of perfect samples."""
    occluders: float = 1.0
    """Number of people, poles, trunks and two-wheelers in front of cars: parts of a car get different ids; the Rand
    error rises and AP50 falls."""
    texture: float = 1.0
    """Strength of dirt, bricks, leaves and paving: every pixel decision gets worse."""
    weather: float = 1.0
    """Spread of light, haze, colour casts and shadows: what was learnt on 2,000 scenes holds for fewer others."""
    optics: float = 1.0
    """Blur, noise and JPEG artefacts: far cars vanish; AP50 and IoU_rec fall."""


HARD = Difficulty()
