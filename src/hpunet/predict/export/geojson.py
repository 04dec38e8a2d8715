"""GeoJSON: every region of every slice as polygons with holes, in pixels, as QuPath and other programs read them."""

import json
from typing import Any

import numpy as np

from hpunet import __version__
from hpunet.predict.export.outlines import outlines, signed_area
from hpunet.predict.export.results import Results, physical


def encode_geojson(results: Results) -> dict[str, bytes]:
    """`outlines.geojson`: a feature per region and slice, one without geometry for a hypothesis that marks nothing.

    Coordinates are pixels of the whole image, from its upper left corner: the first pixel lies between 0 and 1.
    """
    about = physical(results)
    pixel = about.get("pixel_mm")
    depth = results.place.shape[0]
    features: list[dict[str, Any]] = []
    for region in results.regions:
        name = {"name": region.name, "classification": {"name": region.name}, "objectType": "annotation"}
        common = {**name, "class": region.class_name, "description": region.description, **region.numbers}
        if region.box is None:
            features.append({"type": "Feature", "geometry": None, "properties": common})
        for plane in results.planes(region):
            parts = outlines(plane.mask, offset=plane.offset)
            rings = [[_closed(ring) for ring in (part.exterior, *part.holes)] for part in parts]
            where = {"plane": {"c": -1, "z": plane.z, "t": 0}} if depth > 1 else {}
            geometry = {"type": "MultiPolygon", "coordinates": rings, **where}
            area = round(sum(signed_area(ring) for part in parts for ring in (part.exterior, *part.holes)))
            size = {"area_pixels": area} | ({"area_mm2": area * pixel["x"] * pixel["y"]} if pixel else {})
            measured = {**size, **{key: value for key, value in region.numbers.items() if key == "share"}}
            properties = {**common, **size, **({"slice": plane.z} if depth > 1 else {}), "measurements": measured}
            features.append({"type": "Feature", "geometry": geometry, "properties": properties})
    own = {"model": results.model, "iteration": results.iteration, "version": __version__, **about}
    content = {"type": "FeatureCollection", "hpunet": own, "features": features}
    return {"outlines.geojson": json.dumps(content, allow_nan=False).encode() + b"\n"}


def _closed(ring: np.ndarray) -> list[list[int]]:
    points: list[list[int]] = ring.tolist()
    return [*points, points[0]]
