"""A zip of ImageJ ROIs, for ImageJ and Fiji (ROI Manager: Open)."""

import io
import zipfile
from typing import Any

import numpy as np

from hpunet.data.io.limits import need
from hpunet.predict.export.outlines import Polygon, outlines
from hpunet.predict.export.results import Results

_MOVE, _LINE, _CLOSE = 0.0, 1.0, 4.0  # of a path in a composite ROI
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes every time


def encode_imagej(results: Results) -> dict[str, bytes]:
    """`RoiSet.zip`: a ROI per region and slice, by its name and its place in the stack."""
    content, depth = io.BytesIO(), results.place.shape[0]
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, region in enumerate(results.regions, start=1):
            for plane in results.planes(region):
                roi = _roi(outlines(plane.mask, offset=plane.offset))
                place = f" z-{plane.z:03d}" if depth > 1 else ""
                roi.name, roi.position = f"{region.name}{place}", plane.z + 1 if depth > 1 else 0
                roi.properties = {key: value for key, value in region.numbers.items() if key != "num_samples"}
                entry = zipfile.ZipInfo(f"{number:04d}{place.replace(' ', '-')}.roi", date_time=_EPOCH)
                archive.writestr(entry, roi.tobytes(), zipfile.ZIP_DEFLATED)
    return {"RoiSet.zip": content.getvalue()}


def _roi(polygons: list[Polygon]) -> Any:
    """A traced polygon, or a composite of several and of holes."""
    roifile = need("roifile")
    if len(polygons) == 1 and not polygons[0].holes:
        roi = roifile.ImagejRoi.frompoints(polygons[0].exterior)
        roi.roitype = roifile.ROI_TYPE.TRACED
    else:
        rings = [ring for polygon in polygons for ring in (polygon.exterior, *polygon.holes)]
        path = [np.concatenate([_steps(ring).ravel(), [_CLOSE]]) for ring in rings]
        roi = roifile.ImagejRoi(roitype=roifile.ROI_TYPE.RECT)
        roi.multi_coordinates = np.concatenate(path).astype(np.float32)
        roi.shape_roi_size = len(roi.multi_coordinates)
    corners = np.concatenate([polygon.exterior for polygon in polygons])
    (roi.left, roi.top), (roi.right, roi.bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    return roi


def _steps(ring: np.ndarray) -> np.ndarray:
    kinds = np.full(len(ring), _LINE)
    kinds[0] = _MOVE
    return np.column_stack([kinds, ring])
