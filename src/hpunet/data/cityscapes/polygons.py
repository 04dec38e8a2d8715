"""Cityscapes annotations from their polygons, drawn the way the official maps are.

Objects are drawn in the order they are listed, later ones over earlier ones, by the rasteriser that the official
scripts use (Pillow's). Deleted objects and licence plates are not drawn, and a deleted object takes no number.
"""

import json
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32
from PIL import Image, ImageDraw

from hpunet.data.io.limits import ImageSize
from hpunet.errors import DataError

MAX_COORDINATE = 2**15
"""Vertices may lie outside of the image, but not without bounds."""
LABEL_NAMES = (
    "unlabeled",
    "ego vehicle",
    "rectification border",
    "out of roi",
    "static",
    "dynamic",
    "ground",
    "road",
    "sidewalk",
    "parking",
    "rail track",
    "building",
    "wall",
    "fence",
    "guard rail",
    "bridge",
    "tunnel",
    "pole",
    "polegroup",
    "traffic light",
    "traffic sign",
    "vegetation",
    "terrain",
    "sky",
    "person",
    "rider",
    "car",
    "truck",
    "bus",
    "caravan",
    "trailer",
    "train",
    "motorcycle",
    "bicycle",
)
"""The official classes; the place in the list is the label id."""
FIRST_WITH_INSTANCES = LABEL_NAMES.index("person")
"""From here on, single objects are told apart."""
_NOT_DRAWN = "license plate"


class Polygon(NamedTuple):
    """One object: its label id, whether it is a group of several, and its outline as (x, y)."""

    label_id: int
    is_group: bool
    outline: list[tuple[float, float]]


class Annotation(NamedTuple):
    """Everything drawn on one image, in drawing order."""

    height: int
    width: int
    polygons: list[Polygon]


def read_polygons(content: bytes, *, size: ImageSize, name: str) -> Annotation:
    """A checked `*_gtFine_polygons.json` of an image of this `size`, without what is not drawn."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not readable as JSON ({error})") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("objects"), list):
        raise DataError(f"{name}: expected imgHeight, imgWidth and a list of objects")
    height, width = tree.get("imgHeight"), tree.get("imgWidth")
    if type(height) is not int or type(width) is not int or (height, width) != (size.height, size.width):
        raise DataError(f"{name}: size {height}x{width}, but its image {size.name} has {size.height}x{size.width}")
    polygons = [_polygon(item, name=f"{name}, object {i}") for i, item in enumerate(tree["objects"])]
    return Annotation(height, width, [polygon for polygon in polygons if polygon is not None])


def _polygon(item: Any, *, name: str) -> Polygon | None:
    if not isinstance(item, dict) or not isinstance(item.get("label"), str):
        raise DataError(f"{name}: expected a label and a polygon")
    label: str = item["label"]
    if item.get("deleted") or label == _NOT_DRAWN:
        return None
    # "polegroup" is a class of its own; every other "...group" is several objects of the class it names.
    is_group = label not in LABEL_NAMES and label.endswith("group")
    label = label.removesuffix("group") if is_group else label
    if label not in LABEL_NAMES:
        raise DataError(f"{name}: label {item['label']!r} is no Cityscapes class")
    outline = item.get("polygon")
    if not isinstance(outline, list) or len(outline) < 2 or not all(_is_vertex(vertex) for vertex in outline):
        raise DataError(f"{name}: expected a polygon of two or more [x, y] within ±{MAX_COORDINATE}")
    return Polygon(LABEL_NAMES.index(label), is_group, [(x, y) for x, y in outline])


def _is_vertex(vertex: Any) -> bool:
    return (
        isinstance(vertex, list)
        and len(vertex) == 2
        and all(type(value) in (int, float) and abs(value) <= MAX_COORDINATE for value in vertex)  # NaN is not
    )


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
