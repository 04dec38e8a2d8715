"""One LIDC scan: its ordered slices, the readers' outlines grouped into lesions, its crops.

Geometry in the plane of a slice. Native pixel n of an axis with spacing s lies at n·s mm. Point i of the resampled
grid lies at i·0.5 mm, native position p = i·0.5/s. Images are interpolated there bilinearly (in HU, before the
window); masks are rasterised at native resolution and take the pixel floor(p + ½). A grid point whose nearest native
pixel does not exist is outside the scan: −1000 HU and no lesion.

Outlines are in pixels of a slice, so tilted series are used too, ordered by the z of the first pixel, if they are
closer to axial than to another plane.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, UInt8

from hpunet.data.lidc.annotations import Annotations, Contour, rasterise_nodule
from hpunet.data.lidc.dicom import SliceHeader, read_hounsfield
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_DRAWN

CROP = 180  # side of a crop in pixels (App. C)
SPACING = 0.5  # of the resampled grid, mm (as in the authors' published crops)
HU_WINDOW = (-1000.0, 400.0)  # mapped to 0...255; not given in the paper
Z_TOLERANCE = 0.01  # positions closer than this are the same slice, mm
LOCATION_TOLERANCE = 0.001  # |SliceLocation| and |ImagePositionPatient[2]| may differ by rounding, mm


class Part(NamedTuple):
    """A mask in one slice: the pixels from its first row and column on."""

    row: int
    column: int
    mask: Bool[np.ndarray, "h w"]


@dataclass(frozen=True)
class Outline:
    """One grader's nodule, rasterised."""

    grader: int
    parts: dict[int, Part]  # by slice number; none is empty

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last (slice, row, column)."""
        ends = []
        for number, (row, column, mask) in self.parts.items():
            rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
            ends += [(number, row + rows[end], column + columns[end]) for end in (0, -1)]
        return np.min(ends, axis=0), np.max(ends, axis=0)


@dataclass(frozen=True)
class Crop:
    """One image with the gradings of one lesion."""

    slice_number: int
    lesion: int
    image: UInt8[np.ndarray, "h w"]
    labels: Bool[np.ndarray, "r h w"]


@dataclass(frozen=True)
class ScanCrops:
    """The crops of a scan; `failures` name slices with unreadable pixels."""

    crops: list[Crop]
    num_lesions: int
    failures: list[str]


def order_slices(
    headers: Iterable[SliceHeader], *, wanted: set[str], dropped: Counter[str], noted: Counter[str]
) -> list[SliceHeader]:
    """The slices of a series by rising z, without copies and those whose |SliceLocation| is not |z| (App. C).

    Of several at the same z one is kept, preferably one that an outline names (`wanted` holds the SOP UIDs).
    """
    unique: dict[str, SliceHeader] = {}
    for header in sorted(headers, key=lambda h: h.path):
        first = unique.setdefault(header.sop_uid, header)
        if first is not header:
            if replace(header, path=first.path) != first:
                raise DataError(f"{header.path}: another slice than {first.path}, but with the same SOP UID")
            dropped["slice: a copy with the same SOP UID"] += 1
    kept: list[SliceHeader] = []
    for header in sorted(unique.values(), key=lambda h: (h.z, h.sop_uid not in wanted, h.sop_uid)):
        if header.location is not None and abs(abs(header.location) - abs(header.z)) > LOCATION_TOLERANCE:
            dropped["slice: |SliceLocation| is not |ImagePositionPatient[2]|"] += 1
        elif kept and header.z - kept[-1].z < Z_TOLERANCE:
            dropped["slice: a second one at the same position"] += 1
        else:
            kept.append(header)
    if kept:
        _check_geometry(kept, noted=noted)
    return kept


def _check_geometry(slices: Sequence[SliceHeader], *, noted: Counter[str]) -> None:
    first = slices[0]
    for other in slices:
        is_same = np.allclose(other.orientation, first.orientation, atol=1e-3)
        if not is_same or other.shape != first.shape or not np.allclose(other.spacing, first.spacing, rtol=1e-4):
            raise DataError(f"{other.path}: orientation, size or spacing differ from {first.path} of the same series")
    row, column = np.array(first.orientation[:3]), np.array(first.orientation[3:])
    if not np.allclose([row @ row, column @ column, row @ column], [1, 1, 0], atol=0.01):
        raise DataError(f"{first.path}: directions of ImageOrientationPatient {first.orientation} are not orthogonal")
    towards_z = abs(np.cross(row, column)[2])
    if towards_z < np.cos(np.pi / 4):
        raise DataError(f"{first.path}: not an axial series (ImageOrientationPatient {first.orientation})")
    noted["series: tilted"] += int(towards_z < 0.999)
    steps = np.diff([header.z for header in slices])
    if len(steps):
        noted["gaps where slices are missing"] += int((steps > 1.5 * np.quantile(steps, 0.5, method="lower")).sum())


def find_outlines(annotations: Annotations, *, slices: Sequence[SliceHeader], dropped: Counter[str]) -> list[Outline]:
    """The masks of every nodule of every grader. Contours find their slice by SOP UID, else by z."""
    by_uid = {header.sop_uid: number for number, header in enumerate(slices)}
    z = np.array([header.z for header in slices])

    def slice_of(contour: Contour) -> int | None:
        if contour.sop_uid in by_uid or not slices:
            return by_uid.get(contour.sop_uid)
        nearest = int(np.abs(z - contour.z).argmin())
        return nearest if abs(z[nearest] - contour.z) < Z_TOLERANCE else None

    outlines, drawn = [], 0
    for grader, reading in enumerate(annotations.readings):
        dropped["nodule: marked by a point"] += reading.num_point_nodules
        dropped["contour: a single point"] += reading.num_point_contours
        dropped["marker of a non-nodule"] += reading.num_non_nodules
        for nodule in reading.nodules:
            by_slice: dict[int, list[Contour]] = {}
            for contour in nodule.contours:
                number = slice_of(contour)
                if number is None:
                    dropped["contour: its slice is missing or was dropped"] += 1
                else:
                    by_slice.setdefault(number, []).append(contour)
            drawn += sum(map(_cost, itertools.chain.from_iterable(by_slice.values())))
            if drawn > MAX_DRAWN:
                raise DataError(f"its contours enclose more than {MAX_DRAWN} pixels; damaged or malicious")
            parts = {n: _part(found, shape=slices[n].shape) for n, found in sorted(by_slice.items())}
            dropped["nodule slice: nothing inside its contours"] += sum(not p.mask.any() for p in parts.values())
            parts = {number: part for number, part in parts.items() if part.mask.any()}
            if parts:
                outlines.append(Outline(grader=grader, parts=parts))
            else:
                dropped["nodule: nothing of it is left"] += 1
    return outlines


def _cost(contour: Contour) -> int:
    """Pixels of its box, and rows that its edges cross."""
    rows = np.abs(np.diff(contour.vertices[:, 1], append=contour.vertices[:1, 1])).sum()
    return int(np.prod(np.ptp(contour.vertices, axis=0) + 1) + rows)


def _part(contours: list[Contour], *, shape: tuple[int, int]) -> Part:
    """The mask of a nodule in a slice, no larger than its contours."""
    corners = np.concatenate([contour.vertices for contour in contours])
    low, (width, height) = corners.min(axis=0), np.ptp(corners, axis=0) + 1
    if (corners >= shape[::-1]).any():
        raise DataError(f"contour: {corners.max(axis=0).tolist()} is outside an image of {shape[1]}x{shape[0]}")
    moved = [replace(contour, vertices=contour.vertices - low) for contour in contours]
    return Part(int(low[1]), int(low[0]), rasterise_nodule(moved, shape=(int(height), int(width))))


def join_lesions(outlines: Sequence[Outline]) -> list[list[Outline]]:
    """Group outlines of different graders whose tight 3D boxes overlap (App. C), transitively.

    Boxes overlap if they share a pixel. Lesions are ordered by slice, row, column.
    """
    boxes = [outline.box() for outline in outlines]
    order = sorted(range(len(outlines)), key=lambda i: (*boxes[i][0].tolist(), *boxes[i][1].tolist(), i))
    low, high = (np.array([boxes[i][end] for i in order]).reshape(-1, 3) for end in (0, 1))
    graders = np.array([outlines[i].grader for i in order])
    is_left = np.ones(len(order), dtype=np.bool_)
    lesions = []
    for first in range(len(order)):
        members = [first] if is_left[first] else []
        for member in members:  # grows during the loop
            is_left[member] = False
            overlap = (low <= high[member]).all(axis=1) & (low[member] <= high).all(axis=1)
            joined = np.flatnonzero(is_left & overlap & (graders != graders[member]))
            is_left[joined] = False
            members += joined.tolist()
        if members:
            lesions.append([outlines[order[i]] for i in members])
    return lesions


def crop_scan(
    slices: Sequence[SliceHeader], annotations: Annotations, *, dropped: Counter[str], noted: Counter[str]
) -> ScanCrops:
    """One crop per lesion and slice that any grader marked; one label map per reading, empty where it marks none."""
    lesions = join_lesions(find_outlines(annotations, slices=slices, dropped=dropped))
    crops, failures = [], []
    images: dict[int, np.ndarray | None] = {}
    for lesion, outlines in enumerate(lesions):
        for number in sorted({number for outline in outlines for number in outline.parts}):
            header = slices[number]
            if number not in images:
                try:
                    images[number] = read_hounsfield(header)
                except DataError as error:
                    images[number] = None
                    failures.append(str(error))
            hounsfield = images[number]
            if hounsfield is None:
                dropped["crop: the pixels of its slice cannot be read"] += 1
                continue
            masks = draw_masks(outlines, number, num_graders=len(annotations.readings), shape=header.shape)
            image, labels, padded = crop_slice(hounsfield, masks=masks, spacing=header.spacing)
            if not labels.any():
                dropped["crop: nothing of the lesion is left after resampling"] += 1
                continue
            noted["crops: padded where they leave the scan"] += padded
            ends = [(int(marked.min()), int(marked.max())) for marked in np.nonzero(masks.any(axis=0))]
            noted["crops: smaller than their lesion"] += exceeds_crop(ends, spacing=header.spacing)
            crops.append(Crop(slice_number=number, lesion=lesion, image=image, labels=labels))
    return ScanCrops(crops, len(lesions), failures)


def draw_masks(
    outlines: Iterable[Outline], number: int, *, num_graders: int, shape: tuple[int, int]
) -> Bool[np.ndarray, "r h w"]:
    """The masks of a lesion in one slice, one per grader."""
    masks = np.zeros((num_graders, *shape), dtype=np.bool_)
    for outline in outlines:
        if number in outline.parts:
            row, column, mask = outline.parts[number]
            place = slice(row, row + mask.shape[0]), slice(column, column + mask.shape[1])
            masks[outline.grader][place] |= mask
    return masks


def exceeds_crop(ends: Sequence[tuple[int, int]], *, spacing: tuple[float, float]) -> bool:
    """Whether a box, given by its first and last row and column, is larger than a crop."""
    sides = [(last - first) * side for (first, last), side in zip(ends, spacing, strict=True)]
    return max(sides) > (CROP - 1) * SPACING


class CropGrid(NamedTuple):
    """The points of a crop in the plane of a slice: per axis their native neighbours, and what is nearest to them."""

    start: tuple[float, float]
    """Of the first row and column from the first native pixel, mm."""
    lower: list[np.ndarray]
    weight: list[np.ndarray]
    """Of the pixel after `lower`."""
    nearest: list[np.ndarray]
    within: Bool[np.ndarray, "side side"]
    """Whether the nearest native pixel exists."""


def crop_grid(ends: Sequence[tuple[int, int]], *, shape: tuple[int, int], spacing: tuple[float, float]) -> CropGrid:
    """The 180×180 points around the middle of a box, given by its first and last row and column.

    The grid point nearest to the middle becomes pixel (90, 90).
    """
    start, lower, weight, nearest, exists = [], [], [], [], []
    for axis, (first, last) in enumerate(ends):
        length = shape[axis]
        middle = (first + last) / 2 * spacing[axis] / SPACING
        start.append(float(np.floor(middle + 0.5) - CROP // 2) * SPACING)
        position = (np.floor(middle + 0.5) - CROP // 2 + np.arange(CROP)) * SPACING / spacing[axis]
        pixel = np.floor(position + 0.5).astype(np.int64)
        exists.append((pixel >= 0) & (pixel < length))
        nearest.append(pixel.clip(0, length - 1))
        position = position.clip(0, length - 1)
        lower.append(np.floor(position).astype(np.int64).clip(0, length - 2))
        weight.append(position - lower[-1])
    return CropGrid((start[0], start[1]), lower, weight, nearest, exists[0][:, None] & exists[1][None, :])


def resample(hounsfield: Float32[np.ndarray, "h w"], grid: CropGrid) -> Float64[np.ndarray, "side side"]:
    """Hounsfield units at the points of a grid; −1000 outside the scan."""
    columns = grid.weight[1][None, :]
    above, below = (
        hounsfield[np.ix_(rows, grid.lower[1])] * (1 - columns)
        + hounsfield[np.ix_(rows, grid.lower[1] + 1)] * columns
        for rows in (grid.lower[0], grid.lower[0] + 1)
    )
    values = above * (1 - grid.weight[0][:, None]) + below * grid.weight[0][:, None]
    return np.where(grid.within, values, HU_WINDOW[0])


def resample_masks(masks: Bool[np.ndarray, "r h w"], grid: CropGrid) -> Bool[np.ndarray, "r side side"]:
    """The masks at the points of a grid; nothing outside the scan."""
    labels: np.ndarray = masks[:, grid.nearest[0]][:, :, grid.nearest[1]] & grid.within
    return labels


def crop_slice(
    hounsfield: Float32[np.ndarray, "h w"], *, masks: Bool[np.ndarray, "r h w"], spacing: tuple[float, float]
) -> tuple[UInt8[np.ndarray, "side side"], Bool[np.ndarray, "r side side"], bool]:
    """The crop around the middle of the box of all masks: image, labels, and whether it was padded."""
    ends = [(int(marked.min()), int(marked.max())) for marked in np.nonzero(masks.any(axis=0))]
    grid = crop_grid(ends, shape=(hounsfield.shape[0], hounsfield.shape[1]), spacing=spacing)
    low, high = HU_WINDOW
    image = np.rint((resample(hounsfield, grid).clip(low, high) - low) / (high - low) * 255).astype(np.uint8)
    return image, resample_masks(masks, grid), not bool(grid.within.all())
