"""Examples of volumes as pictures: the three saved planes of every map in one picture, for all figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from hpunet.utils.plane_layout import AXIAL, CORONAL, PLANES, SAGITTAL, Layout, plane_array, window

_LEAST_SHOWN = (8, 24, 24)  # slices, rows and columns of an enlarged part: less would not show where it lies
_AXES = {AXIAL: (1, 2), CORONAL: (0, 2), SAGITTAL: (0, 1)}
"""The axes of the volume along each plane."""
_PREDICTED = ("labels", "reconstructions", "samples_full", "samples_global", "samples_local")


def as_pictures(arrays: Mapping[str, np.ndarray], *, enlarged: bool) -> dict[str, Any]:
    """The arrays of a file of volumes as those of images, and `blank` (h w) and `cuts` (b 2 2): see `Examples`.

    If `enlarged`, only the part around what any map of a volume marks, if that is at most half as wide as the volume.
    """
    names = [name for name in arrays if plane_array(CORONAL, name) in arrays]
    maps = {name: {plane: arrays[plane_array(plane, name)] for plane in PLANES} for name in names}
    position = arrays["position"]
    if enlarged and (boxes := _marked_boxes([maps[name] for name in _PREDICTED if name in maps])) is not None:
        maps = {name: _cropped(planes, boxes) for name, planes in maps.items()}
        position = position - boxes[..., 0]
    d, (h, w) = maps["image"][CORONAL].shape[-2], maps["image"][AXIAL].shape[-2:]
    layout = Layout.of((d, h, w), spacing=arrays["spacing"].tolist())
    found: dict[str, Any] = {name: arrays[name] for name in arrays if name not in maps}
    for name, planes in maps.items():
        # Grey, lest the space between planes changes the contrast of an image; it is painted white at the end.
        fill = {"image": planes[AXIAL].mean(), "valid": True, "visible": True}.get(name, 0)
        found[name] = layout.picture(planes, fill=fill)
    return found | {"blank": layout.blank(), "cuts": np.array([layout.cuts(each) for each in position.tolist()])}


def _marked_boxes(found: Sequence[Mapping[str, np.ndarray]]) -> Integer[np.ndarray, "b 3 2"] | None:
    """First and last place along every axis to show of each example, of equal size; None if that is everything."""
    sides = [*found[0][CORONAL].shape[-2:-1], *found[0][AXIAL].shape[-2:]]
    num_examples = len(found[0][AXIAL])
    extents = np.tile(np.array([[[side // 2, side // 2] for side in sides]]), (num_examples, 1, 1))
    for i in range(num_examples):
        for axis in range(3):
            marked = _marked_along(found, i, axis=axis)
            if marked.any():
                extents[i, axis] = np.flatnonzero(marked)[[0, -1]]
    wanted = np.maximum(2 * (np.ptp(extents, axis=2).max(axis=0) + 1), _LEAST_SHOWN)
    wanted[1:] = wanted[1:].max()
    if wanted[1] > min(sides[1:]) / 2:
        return None
    centres, most = (extents.sum(axis=2) // 2).tolist(), wanted.tolist()
    windows = [[window(at, side, n) for at, side, n in zip(c, sides, most, strict=True)] for c in centres]
    return np.array([[(part.start, part.stop) for part in parts] for parts in windows])


def _marked_along(found: Sequence[Mapping[str, np.ndarray]], i: int, *, axis: int) -> Bool[np.ndarray, " n"]:
    """Which places along an axis of the i-th volume any map of the planes along it marks."""
    marks = []
    for planes in found:
        for plane, axes in _AXES.items():
            if axis in axes:
                marked = planes[plane][i].any(axis=0)
                marks.append(marked.any(axis=1 - axes.index(axis)))
    return np.asarray(np.any(marks, axis=0))


def _cropped(planes: Mapping[str, Shaped[np.ndarray, "b ..."]], boxes: np.ndarray) -> dict[str, np.ndarray]:
    found = {}
    for plane, (down, across) in _AXES.items():
        each = [(maps, box[down], box[across]) for maps, box in zip(planes[plane], boxes.tolist(), strict=True)]
        found[plane] = np.stack([maps[..., slice(*rows), slice(*columns)] for maps, rows, columns in each])
    return found
