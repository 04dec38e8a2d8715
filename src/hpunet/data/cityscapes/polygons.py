"""Cityscapes annotations from polygons, drawn as the official maps are.

Later objects are drawn over earlier ones, with Pillow's rasteriser like in the official scripts. Deleted objects and
licence plates are not drawn; a deleted object takes no instance number.
"""

import json
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32
from PIL import Image, ImageDraw

from hpunet.data.cityscapes.classes import LABEL_IDS, LABEL_NAMES
from hpunet.data.io.limits import ImageSize
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_DRAWN

MAX_COORDINATE = 2**15  # vertices may lie outside the image
FIRST_WITH_INSTANCES = LABEL_IDS["person"]  # this and later classes
_NOT_DRAWN = "license plate"


class Polygon(NamedTuple):
    """One object, or a group of several."""

    label_id: int
    is_group: bool
    outline: list[tuple[float, float]]  # (x, y)


class Annotation(NamedTuple):
    """The polygons of one image in drawing order."""

    height: int
    width: int
    polygons: list[Polygon]


def read_polygons(content: bytes, *, size: ImageSize, name: str) -> Annotation:
    """The drawn polygons of a `*_gtFine_polygons.json`; `size` is that of its image."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not valid JSON ({error})") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("objects"), list):
        raise DataError(f"{name}: expected imgHeight, imgWidth and a list of objects")
    height, width = tree.get("imgHeight"), tree.get("imgWidth")
    if type(height) is not int or type(width) is not int or (height, width) != (size.height, size.width):
        raise DataError(f"{name}: size {height}x{width}, but its image {size.name} has {size.height}x{size.width}")
    polygons = [_polygon(item, name=f"{name}, object {i}") for i, item in enumerate(tree["objects"])]
    drawn = [polygon for polygon in polygons if polygon is not None]
    if sum(_cost(polygon.outline, height=height, width=width) for polygon in drawn) > MAX_DRAWN + 8 * height * width:
        raise DataError(f"{name}: its polygons are too many and too large to draw; damaged or malicious")
    return Annotation(height, width, drawn)


def _cost(outline: list[tuple[float, float]], *, height: int, width: int) -> float:
    """What drawing takes: the pixels of a box, a look at every edge for every row, and sorting the edges in a row."""
    x, y = (np.clip(values, 0, end) for values, end in zip(zip(*outline, strict=True), (width, height), strict=True))
    crossings = np.abs(np.diff(y, append=y[:1])).sum()
    return float((np.ptp(y) + 1) * (np.ptp(x) + 1 + 2 * len(y)) + 64 * crossings)


def _polygon(item: Any, *, name: str) -> Polygon | None:
    if not isinstance(item, dict) or not isinstance(item.get("label"), str):
        raise DataError(f"{name}: expected a label and a polygon")
    label: str = item["label"]
    if item.get("deleted") or label == _NOT_DRAWN:
        return None
    # "polegroup" is a class; any other "...group" is several objects of one class.
    is_group = label not in LABEL_IDS and label.endswith("group")
    label = label.removesuffix("group") if is_group else label
    if label not in LABEL_IDS:
        raise DataError(f"{name}: label {item['label']!r} is not a Cityscapes class")
    outline = item.get("polygon")
    if not isinstance(outline, list) or len(outline) < 2 or not all(_is_vertex(vertex) for vertex in outline):
        raise DataError(f"{name}: expected a polygon of two or more [x, y] within ±{MAX_COORDINATE}")
    return Polygon(LABEL_IDS[label], is_group, [(float(x), float(y)) for x, y in outline])


def _is_vertex(vertex: Any) -> bool:
    if not isinstance(vertex, list) or len(vertex) != 2:
        return False
    return all(type(value) in (int, float) and abs(value) <= MAX_COORDINATE for value in vertex)  # NaN is not


def render_instance_ids(annotation: Annotation) -> Int32[np.ndarray, "h w"]:
    """The official `instanceIds` map: 1000 · class + number for single objects, else the class alone."""
    canvas = Image.new("I", (annotation.width, annotation.height), 0)
    draw = ImageDraw.Draw(canvas)
    numbers = [0] * len(LABEL_NAMES)
    for label_id, is_group, outline in annotation.polygons:
        value = label_id
        if label_id >= FIRST_WITH_INSTANCES and not is_group:
            value = 1000 * label_id + numbers[label_id]
            numbers[label_id] += 1
        draw.polygon(outline, fill=value)
    return np.array(canvas, dtype=np.int32)
