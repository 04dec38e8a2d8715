"""A DICOM image or series: its slices in order along the normal, in physical values, with their geometry."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Shaped

from hpunet.data.io.dicom import Frame, ImageFile, Plane, is_dicom, read_frames, read_image_file
from hpunet.data.io.geometry import Geometry
from hpunet.data.io.limits import check_memory
from hpunet.errors import DataError
from hpunet.utils.limits import MAX_SLICES, MAX_VOLUME_BYTES

_SAME_PLACE = 0.01  # mm
_SCALED = 4  # bytes of a value in [0, 1]
UNEVEN, MISSING = 0.05, 1.5  # times the distance of slices: what it may differ by, and a gap


class Scan(NamedTuple):
    """The content of one series."""

    values: Shaped[np.ndarray, "z h w *c"]
    """Stored · RescaleSlope + RescaleIntercept; as stored if there is neither."""
    geometry: Geometry
    window: tuple[float, float] | None
    """The window of the first file, if any."""
    unit: str
    """The RescaleType; see `Plane`."""
    notes: tuple[str, ...]
    frames: tuple[Frame, ...]
    """Of each slice."""


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files of a folder, by name."""
    return [path for path in sorted(folder.iterdir()) if path.is_file() and is_dicom(path)]


class _Headers(NamedTuple):
    """The headers of a series: its frames, in order if they have a place."""

    frames: list[tuple[ImageFile, int]]
    is_ordered: bool
    geometry: Geometry
    notes: list[str]


def _read_headers(paths: Sequence[Path], *, name: str) -> _Headers:
    if not paths:
        raise DataError(f"{name}: holds no DICOM file")
    found = [read_image_file(path) for path in paths]
    files = [file for file in found if file is not None]
    if not files:
        raise DataError(f"{name}: holds no image, only other DICOM data")
    sizes = Counter(file.series for file in files)
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes.values(), reverse=True)))
        raise DataError(f"{name}: holds {len(sizes)} series, of {counts} files; give each a folder of its own")
    frames = [(file, number) for file in files for number in range(len(file.planes))]
    first = files[0]
    if len(frames) > MAX_SLICES:
        raise DataError(f"{name}: {len(frames)} slices, expected at most {MAX_SLICES}")
    for file in files:
        if (file.shape, file.is_inverted) != (first.shape, first.is_inverted):
            raise DataError(f"{file.path}: its size or colours differ from {first.path} of the same series")
    notes = [f"{len(found) - len(files)} DICOM files without an image were left out."] * (len(files) < len(found))
    order, geometry = _in_order([file.planes[number] for file, number in frames], name=name)
    if len(files) > 1 and order is None:
        raise DataError(f"{name}: its files have no position in the patient; give them one by one")
    frames = [frames[place] for place in order] if order is not None else frames
    return _Headers(frames, order is not None, geometry, notes)


def scan_geometry(paths: Sequence[Path], *, name: str) -> Geometry:
    """The geometry of a series, from its headers only; arguments as in `read_scan`."""
    return _read_headers(paths, name=name).geometry


def read_scan(paths: Sequence[Path], *, name: str) -> Scan:
    """One DICOM file, or the files of one series in any order; `name` names it in errors."""
    frames, is_ordered, geometry, notes = _read_headers(paths, name=name)
    planes = [file.planes[number] for file, number in frames]
    values = _values(frames, name=name)
    slopes = {(plane.slope, plane.intercept) for plane in planes}
    units = sorted({plane.unit for plane in planes})
    if len(units) > 1:
        raise DataError(f"{name}: its slices have different units (RescaleType {' and '.join(map(repr, units))})")
    if slopes != {(1.0, 0.0)}:
        slope, intercept = min(slopes)
        of_each = (
            f"{slope:g} · stored {'−' if intercept < 0 else '+'} {abs(intercept):g}"
            if len(slopes) == 1
            else "the slope and intercept of each slice"
        )
        unit = f" (RescaleType {units[0]})" if units[0] else ""
        notes.append(f"Values are rescaled as the DICOM file says: {of_each}{unit}.")
    if is_ordered and len(frames) > 1:
        notes.append(
            f"{len(frames)} slices are in the order of their positions, {(geometry.spacing or (0.0,))[0]:g} mm apart."
        )
    if frames[0][0].is_inverted:
        notes.append("Dark and bright are exchanged: in the file small values are bright (MONOCHROME1).")
    plane = frames[0][0].planes[frames[0][1]]
    stored = tuple(Frame(file.path, number) for file, number in frames)
    return Scan(values, geometry, plane.window, units[0], tuple(notes), stored)


def _values(frames: Sequence[tuple[ImageFile, int]], *, name: str) -> Shaped[np.ndarray, "z h w *c"]:
    """All frames, in order; every file is read once."""
    places: dict[Path, tuple[ImageFile, list[tuple[int, int]]]] = {}
    for z, (file, number) in enumerate(frames):
        places.setdefault(file.path, (file, []))[1].append((z, number))
    planes = [file.planes[number] for file, number in frames]
    is_scaled = any((plane.slope, plane.intercept) != (1.0, 0.0) for plane in planes)
    values: np.ndarray | None = None
    for file, wanted in places.values():
        stored = read_frames(file)
        dtype = np.dtype(np.float32) if is_scaled else stored.dtype
        if values is None:
            if len(frames) * math.prod(file.shape) * dtype.itemsize > MAX_VOLUME_BYTES:
                raise DataError(
                    f"{name}: {len(frames)} slices of {file.shape} are more than {MAX_VOLUME_BYTES} bytes"
                )
            packed = sum(path.stat().st_size for path in places)
            check_memory(len(frames) * math.prod(file.shape) * (dtype.itemsize + _SCALED), packed=packed, name=name)
            values = np.empty((len(frames), *file.shape), dtype=dtype)
        if dtype != values.dtype:
            raise DataError(f"{file.path}: {dtype} pixels, others of the same series are {values.dtype}")
        for z, number in wanted:
            plane = planes[z]
            values[z] = stored[number] * plane.slope + plane.intercept if is_scaled else stored[number]
    assert values is not None
    return values


def _in_order(planes: Sequence[Plane], *, name: str) -> tuple[list[int] | None, Geometry]:
    """The numbers of the planes along their normal, and their geometry; None where planes have no place."""
    first = planes[0]
    axes: Any = "yx" if len(planes) == 1 else "zyx"
    for plane in planes:
        same = [(plane.orientation, first.orientation, 1e-3), (plane.spacing, first.spacing, 1e-4)]
        for its, ours, tolerance in same:
            if (its is None) != (ours is None) or (its and ours and not np.allclose(its, ours, atol=tolerance)):
                raise DataError(
                    f"{name}: orientation or spacing differ between slices; give each stack its own folder"
                )
    if first.orientation is None or first.spacing is None or any(plane.position is None for plane in planes):
        return None, Geometry(axes, first.spacing if axes == "yx" else None)
    across, down = np.array(first.orientation[:3]), np.array(first.orientation[3:])
    if not np.allclose([across @ across, down @ down, across @ down], [1, 1, 0], atol=0.01):
        raise DataError(f"{name}: the directions of ImageOrientationPatient are not orthogonal")
    normal = np.cross(across, down)
    positions = np.array([plane.position for plane in planes], dtype=np.float64)
    order = np.argsort(positions @ normal, kind="stable")
    step = normal * (first.thickness or 1.0)
    if len(planes) > 1:
        step = even_step(positions[order], normal, name=name)
    lps = np.eye(4)
    lps[:3, 0], lps[:3, 1] = down * first.spacing[0], across * first.spacing[1]
    lps[:3, 2], lps[:3, 3] = step, positions[order[0]]
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps  # DICOM has x to the left and y to the back
    spacing = (float(step @ normal), *first.spacing)
    return order.tolist(), Geometry(axes, spacing[-len(axes) :], affine)


def even_step(positions: Float64[np.ndarray, "z 3"], normal: Float64[np.ndarray, "3"], *, name: str) -> np.ndarray:
    """From one slice to the next along the normal; slices of a tilted gantry are shifted in their plane, too.

    Refuses slices at one place, missing ones, and uneven distances.
    """
    distances = np.diff(positions @ normal)
    usual = float(np.median(distances))
    if distances.min() < _SAME_PLACE:
        count = int((distances < _SAME_PLACE).sum())
        raise DataError(f"{name}: {count} of {len(positions)} slices lie at the place of another; give one scan only")
    if distances.max() > MISSING * usual:
        where, gap = int(distances.argmax()), float(distances.max())
        words = f"slices are missing after slice {where + 1} of {len(positions)}"
        raise DataError(f"{name}: {words}: a gap of {gap:g} mm where {usual:g} mm are usual")
    step: np.ndarray = (positions[-1] - positions[0]) / (len(positions) - 1)
    expected = positions[0] + np.arange(len(positions))[:, None] * step
    if np.abs(positions - expected).max() > UNEVEN * usual + _SAME_PLACE:
        raise DataError(
            f"{name}: its slices are not evenly spaced, they lie {distances.min():g} to {distances.max():g} mm apart"
        )
    return step
