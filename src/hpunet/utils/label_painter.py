"""Label maps as pictures: seven colours that any colour vision can tell apart, then hatching, and outlines."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8
from PIL import ImageColor
from scipy import ndimage

from hpunet.errors import ConfigError
from hpunet.utils.pictures import grey_or_colour, stretched

_OKABE_ITO = "000000 e69f00 56b4e9 009e73 f0e442 0072b2 d55e00 cc79a7"
PALETTE = np.array([list(bytes.fromhex(colour)) for colour in _OKABE_ITO.split()], dtype=np.uint8)
"""The eight colours of Okabe and Ito; the first is background, which is never painted."""
NUM_COLOURS = len(PALETTE) - 1
_NUM_PATTERNS = 4
_SIMILAR_COLOURS = {1: (4, 6), 2: (5,), 4: (1,), 5: (2,), 6: (1,)}
"""Hard to tell apart on small areas: orange from yellow and vermilion, sky blue from blue."""
WHITE = np.uint8(255)  # pixels that are not valid
_SIDE = 256  # smallest shorter side of a picture: room for hatching and thin outlines
_PERIOD = 24  # pixels from one stripe of a hatching to the next at that size; a third of them is dark
_DARK, _LIGHT_LINE = 60, 235  # outlines on ground below the first tone have the second, others are black
_GREY = 8  # images of a lower median chroma (CIELAB) are grey: all colours show on them
_HIDDEN_PERCENTILE = 10  # of the distances of a colour to the image: what hides an outline, but for single pixels
_MAX_COMPARED = 20_000  # pixels


def contrast_palette(
    images: Iterable[Float[np.ndarray, "c h w"]],
    labels: Iterable[Integer[np.ndarray, "s h w"]],
    *,
    colour: str | None = None,
) -> UInt8[np.ndarray, "8 3"]:
    """The palette for a page, the colours first that differ most (CIELAB) from the images near outlines.

    Grey images keep the order of `PALETTE`. `colour`, a CSS name or #rrggbb, becomes the first in any case.
    """
    pixels = np.concatenate([_near_outlines(*each) for each in zip(images, labels, strict=True)])
    ground = _cielab(pixels[:: max(1, len(pixels) // _MAX_COMPARED)])
    palette = PALETTE[1:]
    if np.median(np.hypot(ground[:, 1], ground[:, 2])) > _GREY:
        from_ground = [
            np.percentile(np.linalg.norm(ground - c, axis=1), _HIDDEN_PERCENTILE) for c in _cielab(palette)
        ]
        among = np.linalg.norm(_cielab(palette)[:, None] - _cielab(palette), axis=2)
        order: list[int] = []
        while len(order) < NUM_COLOURS:  # also far from the colours before
            left = [n for n in range(NUM_COLOURS) if n not in order]
            order.append(max(left, key=lambda n: min(from_ground[n], *among[n, order], np.inf)))
        palette = palette[order]
    if colour is not None:
        first = np.array(parse_colour(colour), dtype=np.uint8)
        distance = np.linalg.norm(_cielab(palette) - _cielab(first[None]), axis=1)
        palette = np.concatenate([first[None], np.delete(palette, distance.argmin(), axis=0)])
    return np.concatenate([PALETTE[:1], palette])


def parse_colour(text: str) -> tuple[int, int, int]:
    """A CSS colour name or #rrggbb as red, green and blue."""
    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError:
        raise ConfigError(f"colour: expected a name such as cyan, or #rrggbb, got {text!r}") from None


def overlay(
    *,
    image: Float[np.ndarray, "c h w"],
    labels: Integer[np.ndarray, "h w"],
    regions: Integer[np.ndarray, "h w"] | None = None,
    opacity: float = 0.45,
    palette: UInt8[np.ndarray, "8 3"] = PALETTE,
    reduced: float = 1.0,
) -> UInt8[np.ndarray, "h w 3"]:
    """The image, `stretched`, under its labels; the borders of `regions` (default: labels) are opaque.

    The picture will be scaled down `reduced` times: borders are about as many pixels wide, to stay visible.
    """
    border = _borders(labels if regions is None else regions)
    if reach := int(reduced) // 2:
        border = ndimage.maximum_filter(border, size=2 * reach + 1)
        labels = np.where(labels > 0, labels, ndimage.maximum_filter(labels, size=2 * reach + 1))
    base = grey_or_colour(stretched(image))
    return _filled(labels, base=base, opacity=np.where(border, 1.0, opacity), hatched=~border, palette=palette)


def paint_image(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "_ _ 3"]:
    """The image, enlarged like label maps."""
    return _enlarged(grey_or_colour(image))


def paint_classes(
    *,
    image: Float[np.ndarray, "c h w"],
    labels: Integer[np.ndarray, "h w"],
    stochastic_classes: Sequence[int],
    valid: Bool[np.ndarray, "h w"] | None = None,
    palette: UInt8[np.ndarray, "8 3"] = PALETTE,
) -> UInt8[np.ndarray, "_ _ 3"]:
    """One stochastic class over the image; or several in flat colours, other classes grey, background black."""
    labels = labels.astype(np.int64)
    numbers = np.zeros(int(max(labels.max(), *stochastic_classes)) + 1, dtype=np.int64)
    numbers[list(stochastic_classes)] = np.arange(1, len(stochastic_classes) + 1)
    flat = len(stochastic_classes) > 1
    greys = np.where(labels == 0, 0, 170 + 60 * (labels * 0.618 % 1))  # neighbouring numbers are far apart
    base = np.repeat(greys.astype(np.uint8)[..., None], 3, axis=2) if flat else grey_or_colour(image)
    if valid is not None:
        base = np.where(valid[..., None], base, WHITE)
        labels = np.where(valid, labels, -1)
    numbers = np.where(labels < 0, 0, numbers[labels])
    return _outlined(numbers, regions=labels, base=base, opacity=1.0 if flat else 0.5, palette=palette)


def paint_instances(
    *, base: UInt8[np.ndarray, "h w 3"], instances: Integer[np.ndarray, "h w"], colours: Integer[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "_ _ 3"]:
    """Instances in flat colours, from `colour_instances`, on `base`."""
    return _outlined(colours, regions=instances, base=base, opacity=1.0)


def light_grey(image: Float[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """The image in light greys, lighter than most of the palette: a base for instances."""
    grey = grey_or_colour(image).mean(axis=2, keepdims=True).repeat(3, axis=2)
    return np.asarray(195 + grey * (60 / 255), dtype=np.uint8)


def cover_hidden(
    picture: UInt8[np.ndarray, "_ _ 3"], *, visible: Bool[np.ndarray, "_ _"]
) -> UInt8[np.ndarray, "_ _ 3"]:
    """The picture with light stripes where it is hidden; `visible` may be smaller by an integer factor."""
    factor = len(picture) // len(visible)
    shown = visible.repeat(factor, axis=0).repeat(factor, axis=1)
    stripes = np.where(_patterns(shown.shape)[0], 150, 225).astype(np.uint8)
    return np.where(shown[..., None], picture, stripes[..., None])


def legend_swatch(number: int, *, palette: UInt8[np.ndarray, "8 3"] = PALETTE) -> UInt8[np.ndarray, "_ _ 3"]:
    """A square for a legend in the colour and hatching of a number; 0 is black."""
    field, black = np.full((_SIDE, _SIDE), number), np.zeros((_SIDE, _SIDE, 3), dtype=np.uint8)
    return _filled(field, base=black, opacity=1.0, palette=palette)[: 2 * _PERIOD, : 2 * _PERIOD]


def colour_instances(
    instances: Integer[np.ndarray, "h w"], *, prefer: Integer[np.ndarray, "h w"] | None = None
) -> Integer[np.ndarray, "h w"]:
    """A colour number 1, 2, ... per instance; neighbours differ, even across a gap; 0 stays 0.

    An instance takes the number that `prefer` has on most of its pixels unless a neighbour has it, so that the true
    instances and a good clustering look the same. Otherwise colours similar to a neighbour's are avoided if possible.
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
    if prefer is not None and prefer.any():
        width = int(prefer.max()) + 1
        votes = np.bincount((number * width + prefer).ravel(), minlength=len(values) * width).reshape(-1, width)
        wanted = np.where(votes[:, 1:].any(axis=1), votes[:, 1:].argmax(axis=1) + 1, 0)
    chosen = np.zeros(len(values), dtype=np.int64)
    uses = [0] * (NUM_COLOURS * _NUM_PATTERNS + 1)
    for i in (np.bincount(number.ravel())[1:].argsort()[::-1] + 1).tolist():  # the large ones first
        taken = {int(chosen[j]) for j in neighbours[i]}
        free = [c for c in range(1, NUM_COLOURS + 1) if c not in taken]
        free = free or [c for c in range(NUM_COLOURS + 1, len(uses)) if c not in taken] or [1]
        similar = {c for j in taken for c in _SIMILAR_COLOURS.get(j, ())}
        chosen[i] = wanted[i] if wanted[i] in free else min(free, key=lambda c: (c in similar, uses[c]))
        uses[chosen[i]] += 1
    return chosen[number]


def _borders(regions: np.ndarray) -> np.ndarray:
    """Pixels with a neighbour of another region."""
    padded = np.pad(regions, 1, mode="edge")
    border = np.zeros(regions.shape, dtype=np.bool_)
    for shifted in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        border |= shifted != regions
    return border


def _near_outlines(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Colours (n, 3) of the shown image within two pixels of the borders of labels; all if there are none."""
    near = np.any([_borders(each) for each in labels], axis=0)
    shown = grey_or_colour(stretched(image))
    return shown[ndimage.binary_dilation(near, iterations=2)] if near.any() else shown.reshape(-1, 3)


def _cielab(colours: np.ndarray) -> np.ndarray:
    """sRGB colours (n, 3) of 0 to 255 as L*, a*, b* (D65)."""
    rgb = colours / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def _outlined(
    numbers: np.ndarray, *, regions: np.ndarray, base: np.ndarray, opacity: float, palette: np.ndarray = PALETTE
) -> np.ndarray:
    """Numbers painted over `base`, enlarged, with a line where `regions` change: black, or light on dark ground.

    With a palette for colour images, where black could be part of the image, it has the palette's first colour.
    """
    fields, ground, regions = (_enlarged(each) for each in (numbers, base, regions))
    thickness = max(1, min(fields.shape) // _SIDE)  # equal lines once pictures are scaled to one size
    was_enlarged = len(fields) > len(numbers)  # else thin structures may be a pixel wide
    widen = thickness - (0 if was_enlarged else 1)
    line = _lines(regions, widen=widen)
    tone = _filled(fields, base=ground, opacity=opacity, hatched=False, palette=palette) @ np.array(
        (0.299, 0.587, 0.114)
    )
    if opacity < 1:  # single dark pixels of the image do not count
        tone = ndimage.uniform_filter(tone, size=16 * thickness)
    darkest = ndimage.minimum_filter(tone, size=2 * thickness + 3)
    picture = _filled(fields, base=ground, opacity=opacity, palette=palette)
    picture[line] = np.where(darkest[line] < _DARK, _LIGHT_LINE, 0)[:, None]
    if opacity < 1 and (palette != PALETTE).any():
        picture[_lines(fields, widen=widen)] = palette[1]
    return picture


def _lines(regions: np.ndarray, *, widen: int) -> np.ndarray:
    """Where regions change."""
    line = np.zeros(regions.shape, dtype=np.bool_)
    line[:, 1:] |= regions[:, 1:] != regions[:, :-1]
    line[1:] |= regions[1:] != regions[:-1]
    for _ in range(widen):
        line[:, :-1] |= line[:, 1:]
        line[:-1] |= line[1:]
    return line


def _filled(
    numbers: np.ndarray,
    *,
    base: np.ndarray,
    opacity: float | np.ndarray,
    hatched: bool | np.ndarray = True,
    palette: np.ndarray = PALETTE,
) -> np.ndarray:
    """Colours of numbers above 0 on `base`: seven plain ones, then these with stripes up, stripes down, and dots."""
    which = np.maximum(numbers - 1, 0)
    pattern = which // NUM_COLOURS % _NUM_PATTERNS
    rising, falling, dots = _patterns(numbers.shape)
    dark = ((pattern == 1) & rising) | ((pattern == 2) & falling) | ((pattern == 3) & dots)
    colour = palette[1 + which % NUM_COLOURS] * np.where(dark & hatched, 0.3, 1.0)[..., None]
    weight = np.where(numbers > 0, opacity, 0.0)[..., None]
    return np.asarray(np.rint(base * (1 - weight) + colour * weight), dtype=np.uint8)


def _patterns(shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    period = max(6, round(_PERIOD * min(shape) / _SIDE))
    y, x = np.indices(shape)
    rising, falling, upright, level = (place % period < period // 3 for place in (x + y, x - y, x, y))
    return rising, falling, upright & level


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    factor = max(1, -(-_SIDE // min(pixels.shape[:2])))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
