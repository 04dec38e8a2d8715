"""The lesions of one LIDC scan as volumes: one crop through all slices, in Hounsfield units, with its place.

In the plane of the slices a volume is a crop as in `scan.py`, but around the middle of the whole lesion. Across them
nothing is resampled: the slices are the scan's, from `MARGIN` below the lowest outline to as far above the highest. A
lesion with a slice missing, with unevenly spaced slices or in a scan of a tilted gantry is left out and counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int16

from hpunet.data.io.geometry import RIGHT_ANGLE, Geometry
from hpunet.data.io.series import MISSING, UNEVEN, even_step
from hpunet.data.lidc.annotations import Annotations
from hpunet.data.lidc.dicom import SliceHeader, read_hounsfield
from hpunet.data.lidc.scan import (
    SPACING,
    CropGrid,
    Outline,
    crop_grid,
    draw_masks,
    exceeds_crop,
    find_outlines,
    join_lesions,
    resample,
    resample_masks,
)
from hpunet.errors import DataError

MARGIN = 5.0  # mm, beyond the outlines of all readers


@dataclass(frozen=True)
class NoduleVolume:
    """One lesion; slices go up, rows and columns as in the scan."""

    lesion: int
    image: Int16[np.ndarray, "z h w"]
    """In Hounsfield units."""
    labels: Bool[np.ndarray, "r z h w"]
    geometry: Geometry


@dataclass(frozen=True)
class ScanNodules:
    """The lesions of a scan; `failures` name slices with unreadable pixels."""

    nodules: list[NoduleVolume]
    num_lesions: int
    failures: list[str]


class _Place(NamedTuple):
    """The slices of a lesion, from the first to the last, and the step from one to the next."""

    first: int
    last: int
    step: Float64[np.ndarray, "3"]


def cut_nodules(
    slices: Sequence[SliceHeader], annotations: Annotations, *, dropped: Counter[str], noted: Counter[str]
) -> ScanNodules:
    """One volume per lesion, with one label map per reading, empty in slices where it marks nothing."""
    lesions = join_lesions(find_outlines(annotations, slices=slices, dropped=dropped))
    nodules, failures = [], []
    for lesion, outlines in enumerate(lesions):
        boxes = [outline.box() for outline in outlines]
        low, high = np.min([box[0] for box in boxes], axis=0), np.max([box[1] for box in boxes], axis=0)
        place = _place(slices, int(low[0]), int(high[0]))
        if isinstance(place, str):
            dropped[f"nodule: {place}"] += 1
            continue
        header = slices[place.first]
        ends = [(int(low[axis]), int(high[axis])) for axis in (1, 2)]
        grid = crop_grid(ends, shape=header.shape, spacing=header.spacing)
        try:
            image = [resample(read_hounsfield(slices[n]), grid) for n in range(place.first, place.last + 1)]
        except DataError as error:
            failures.append(str(error))
            dropped["nodule: the pixels of a slice cannot be read"] += 1
            continue
        labels = _labels(outlines, place, grid, shape=header.shape, num_graders=len(annotations.readings))
        if not labels.any():
            dropped["nodule: nothing of the lesion is left after resampling"] += 1
            continue
        noted["nodules: padded where they leave the scan"] += not grid.within.all()
        noted["nodules: larger than their crop"] += exceeds_crop(ends, spacing=header.spacing)
        stored = np.rint(image).clip(*_RANGE).astype(np.int16)
        nodules.append(NoduleVolume(lesion, stored, labels, _geometry(header, grid, place.step)))
    return ScanNodules(nodules, len(lesions), failures)


_RANGE = (np.iinfo(np.int16).min, np.iinfo(np.int16).max)


def _labels(
    outlines: Sequence[Outline], place: _Place, grid: CropGrid, *, shape: tuple[int, int], num_graders: int
) -> Bool[np.ndarray, "r z h w"]:
    found = []
    for number in range(place.first, place.last + 1):
        masks = draw_masks(outlines, number, num_graders=num_graders, shape=shape)
        found.append(resample_masks(masks, grid))
    return np.stack(found, axis=1)


def _place(slices: Sequence[SliceHeader], lowest: int, highest: int) -> _Place | str:
    """The slices around a lesion, as far as they follow each other; or why there is no volume of it."""
    if len(slices) < 2:
        return "its scan has a single slice"
    positions = np.array([header.position for header in slices])
    normal = _normal(slices[0])
    distances = np.diff(positions @ normal)
    usual = float(np.quantile(distances, 0.5, method="lower"))
    if (distances[lowest:highest] > MISSING * usual).any():
        return "slices are missing within it"
    is_usual = np.abs(distances - usual) <= UNEVEN * usual
    wanted = round(MARGIN / usual)
    first, last = lowest, highest
    while first > 0 and lowest - first < wanted and is_usual[first - 1]:
        first -= 1
    while last < len(slices) - 1 and last - highest < wanted and is_usual[last]:
        last += 1
    if first == last:
        return "in a single slice, with none beside it"
    try:
        step = even_step(positions[first : last + 1], normal, name="")
    except DataError:
        return "its slices are not evenly spaced"
    if np.linalg.norm(step - normal * (step @ normal)) > RIGHT_ANGLE * np.linalg.norm(step):
        return "the gantry of its scan is tilted"
    return _Place(first, last, step)


def _normal(header: SliceHeader) -> Float64[np.ndarray, "3"]:
    """Of the slices, upwards."""
    normal = np.cross(header.orientation[:3], header.orientation[3:])
    return np.asarray(normal * np.sign(normal[2]) / np.linalg.norm(normal), dtype=np.float64)


def _geometry(header: SliceHeader, grid: CropGrid, step: Float64[np.ndarray, "3"]) -> Geometry:
    """Of a crop whose lowest slice has this header."""
    across, down = np.array(header.orientation[:3]), np.array(header.orientation[3:])
    lps = np.eye(4)
    lps[:3, 0], lps[:3, 1], lps[:3, 2] = down * SPACING, across * SPACING, step
    lps[:3, 3] = np.array(header.position) + down * grid.start[0] + across * grid.start[1]
    return Geometry.from_affine(np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps, axes="zyx")
