"""Label maps as pictures for any colour vision and for grey print: seven colours, then hatching, and outlines."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8
from scipy import ndimage

from hpunet.utils.pictures import PALETTE, grey_or_colour

NUM_COLOURS = len(PALETTE) - 1
_PIXELS = 256
"""Shorter side of a picture, at least: room for hatching and thin outlines on small images."""
_PERIOD, _STRIPE = 24, 8
"""Pixels from one stripe of a hatching to the next, and those of the stripe."""
NOT_COUNTED = np.uint8(255)
"""The tone of pixels that are not valid: white."""
_NUM_PATTERNS = 4
_ALIKE = {1: (4, 6), 2: (5,), 4: (1,), 5: (2,), 6: (1,)}
"""Numbers of the palette that can be taken for each other where they are thinly painted: orange for yellow or
vermilion, sky blue for blue."""
_DARK, _LIGHT_LINE = 60, 235
"""Grounds below the first tone are outlined in the second, others in black."""


def show_image(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "_ _ 3"]:
    """The image alone, enlarged as label maps are."""
    return _enlarged(grey_or_colour(image))


def show_classes(
    *,
    image: Float[np.ndarray, "c h w"],
    labels: Integer[np.ndarray, "h w"],
    stochastic_classes: Sequence[int],
    valid: Bool[np.ndarray, "h w"] | None = None,
) -> UInt8[np.ndarray, "_ _ 3"]:
    """One stochastic class is painted over the image; several are flat colours, other classes grey, background black.

    Where `valid` is given, pixels that do not count are white.
    """
    labels = labels.astype(np.int64)
    numbers = np.zeros(int(max(labels.max(), *stochastic_classes)) + 1, dtype=np.int64)
    numbers[list(stochastic_classes)] = np.arange(1, len(stochastic_classes) + 1)
    flat = len(stochastic_classes) > 1
    base = np.repeat(_tones(labels)[..., None], 3, axis=2) if flat else grey_or_colour(image)
    if valid is not None:
        base = np.where(valid[..., None], base, NOT_COUNTED)
        labels = np.where(valid, labels, -1)
    numbers = np.where(labels < 0, 0, numbers[labels])
    return _painted(numbers, regions=labels, base=base, opacity=1.0 if flat else 0.5)


def pale(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """The image in light greys, lighter in print than most of the palette, for instances to be painted on."""
    grey = grey_or_colour(image).mean(axis=2, keepdims=True).repeat(3, axis=2)
    return np.asarray(195 + grey * (60 / 255), dtype=np.uint8)


def show_instances(
    *, base: UInt8[np.ndarray, "h w 3"], instances: Integer[np.ndarray, "h w"], colours: Integer[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "_ _ 3"]:
    """Instances on `base` in the colours that `colours_apart` chose."""
    return _painted(colours, regions=instances, base=base, opacity=1.0)


def cover(picture: UInt8[np.ndarray, "_ _ 3"], *, visible: Bool[np.ndarray, "_ _"]) -> UInt8[np.ndarray, "_ _ 3"]:
    """The picture with light stripes where it is hidden; `visible` may be as small as the map behind it."""
    factor = len(picture) // len(visible)
    y, x = np.indices(picture.shape[:2]) // _coarseness(picture)
    stripes = np.where((x + y) % _PERIOD < 6, 150, 225).astype(np.uint8)
    return np.where(visible.repeat(factor, axis=0).repeat(factor, axis=1)[..., None], picture, stripes[..., None])


def swatch(number: int) -> UInt8[np.ndarray, "_ _ 3"]:
    """A legend's little field in the colour and hatching of a number; 0 is black."""
    field = np.full((_PERIOD * 2, _PERIOD * 2), number)
    return _filled(field, base=np.zeros((*field.shape, 3), dtype=np.uint8), opacity=1.0)


def colours_apart(
    instances: Integer[np.ndarray, "h w"], *, prefer: Integer[np.ndarray, "h w"] | None = None
) -> Integer[np.ndarray, "h w"]:
    """A number 1, 2, ... for each instance, so that neighbours differ, also across a gap; 0 stays 0.

    An instance takes the number that `prefer` has on most of its pixels if no neighbour has it: so the true instances
    and a good clustering of them look alike. Else colours that could be taken for a neighbour's are avoided if there
    are others. Seven numbers do for nearly every map; more are hatched.
    """
    if not instances.any():
        return np.zeros(instances.shape, dtype=np.int64)
    values, inverse = np.unique(instances, return_inverse=True)
    number = inverse.reshape(instances.shape)
    if values[0] != 0:
        number, values = number + 1, np.append(0, values)
    near = ndimage.distance_transform_edt(number == 0, return_distances=False, return_indices=True)
    nearest = number[tuple(near)]
    neighbours: list[set[int]] = [set() for _ in values]
    for a, b in ((nearest[:, 1:], nearest[:, :-1]), (nearest[1:], nearest[:-1])):
        for i, j in np.unique(np.stack([a[a != b], b[a != b]], axis=1), axis=0).tolist():
            neighbours[i].add(j)
            neighbours[j].add(i)
    wanted = np.zeros(len(values), dtype=np.int64)
    if prefer is not None:
        width = int(prefer.max()) + 1
        votes = np.bincount((number * width + prefer).ravel(), minlength=len(values) * width).reshape(-1, width)
        wanted = np.where(votes[:, 1:].any(axis=1), votes[:, 1:].argmax(axis=1) + 1, 0) if width > 1 else wanted
    chosen = np.zeros(len(values), dtype=np.int64)
    uses = [0] * (NUM_COLOURS * _NUM_PATTERNS + 1)
    for i in (np.bincount(number.ravel())[1:].argsort()[::-1] + 1).tolist():  # the large ones first
        taken = {int(chosen[j]) for j in neighbours[i]}
        free = [c for c in range(1, NUM_COLOURS + 1) if c not in taken]
        free = free or [c for c in range(NUM_COLOURS + 1, len(uses)) if c not in taken] or [1]
        similar = {c for j in taken for c in _ALIKE.get(j, ())}
        chosen[i] = wanted[i] if wanted[i] in free else min(free, key=lambda c: (c in similar, uses[c]))
        uses[chosen[i]] += 1
    return chosen[number]


def _painted(numbers: np.ndarray, *, regions: np.ndarray, base: np.ndarray, opacity: float) -> np.ndarray:
    """Numbers painted over `base`, with a line wherever `regions` change; enlarged.

    The line is black, or light where the ground on one of its sides is dark.
    """
    fields, ground = _enlarged(numbers), _enlarged(base)
    picture = _filled(fields, base=ground, opacity=opacity)
    regions = _enlarged(regions)
    line = np.zeros(regions.shape, dtype=np.bool_)
    line[:, 1:] |= regions[:, 1:] != regions[:, :-1]
    line[1:] |= regions[1:] != regions[:-1]
    was_enlarged = len(regions) > len(numbers)  # else thin structures may be a pixel wide
    for _ in range(_coarseness(regions) - (0 if was_enlarged else 1)):
        line[:, :-1] |= line[:, 1:]
        line[:-1] |= line[1:]
    tone = _filled(fields, base=ground, opacity=opacity, hatched=False) @ np.array((0.299, 0.587, 0.114))
    if opacity < 1:  # single dark pixels of the image do not count
        tone = ndimage.uniform_filter(tone, size=16 * _coarseness(regions))
    darkest = ndimage.minimum_filter(tone, size=2 * _coarseness(regions) + 3)
    picture[line] = np.where(darkest[line] < _DARK, _LIGHT_LINE, 0)[:, None]
    return picture


def _coarseness(pixels: np.ndarray) -> int:
    """How much broader lines must be to look alike when all pictures are shown at one size."""
    h, w = pixels.shape[:2]
    return int(max(1, min(h, w) // _PIXELS))


def _filled(numbers: np.ndarray, *, base: np.ndarray, opacity: float, hatched: bool = True) -> np.ndarray:
    """Colours of numbers above 0 on `base`: seven plain ones, then the same with stripes up, down, and dots."""
    y, x = np.indices(numbers.shape) // _coarseness(numbers)
    which = np.maximum(numbers - 1, 0)
    pattern = which // NUM_COLOURS % _NUM_PATTERNS
    rising, falling = (x + y) % _PERIOD < _STRIPE, (x - y) % _PERIOD < _STRIPE
    dots = (x % _PERIOD < _STRIPE) & (y % _PERIOD < _STRIPE)
    dark = ((pattern == 1) & rising) | ((pattern == 2) & falling) | ((pattern == 3) & dots)
    colour = PALETTE[1 + which % NUM_COLOURS] * np.where(dark & hatched, 0.3, 1.0)[..., None]
    weight = np.where(numbers > 0, opacity, 0.0)[..., None]
    return np.asarray(np.rint(base * (1 - weight) + colour * weight), dtype=np.uint8)


def _tones(labels: np.ndarray) -> np.ndarray:
    """Light greys of the classes that are not in colour, neighbouring numbers far apart; background, 0, is black."""
    return np.asarray(np.where(labels == 0, 0, 170 + 60 * (labels * 0.618 % 1)), dtype=np.uint8)


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    factor = max(1, -(-_PIXELS // min(pixels.shape[:2])))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
