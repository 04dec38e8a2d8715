"""The contact sheet of a volume: three planes through what is marked, laid out as that of an image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped
from PIL import Image

from hpunet.predict.contact_sheet import sample_sheet
from hpunet.utils.plane_layout import Layout, plane_indices, shown_position, window

_LEAST_SHOWN = 24  # smallest side of an enlarged part, in pixels


class Planes(NamedTuple):
    """The planes through a voxel, of a part of the volume."""

    position: tuple[int, int, int]
    part: tuple[slice, ...]
    layout: Layout

    @classmethod
    def through(cls, marked: Bool[np.ndarray, " n d h w"], *, spacing: Sequence[float] | None) -> "Planes":
        """Through what maps mark, of a part of twice its extent in mm, or of the whole if nothing is marked."""
        size, spacing = marked.shape[1:], spacing or (1.0, 1.0, 1.0)
        position, anywhere = shown_position(marked), np.asarray(marked.any(axis=0))
        part = tuple(slice(0, side) for side in size)
        if anywhere.any():
            ends = [np.flatnonzero(anywhere.any(axis=tuple({0, 1, 2} - {axis})))[[0, -1]] for axis in range(3)]
            steps = np.array(spacing) / min(spacing[1:])  # pixels per voxel
            shown = max(_LEAST_SHOWN, 2 * ((np.diff(ends)[:, 0] + 1) * steps).max())
            if shown <= min(size[1:]) / 2:
                middles = [int(first + last + 1) // 2 for first, last in ends]
                sides = zip(middles, size, steps, strict=True)
                part = tuple(window(middle, side, round(shown / step)) for middle, side, step in sides)
        return cls(position, part, Layout.of([each.stop - each.start for each in part], spacing=spacing))

    def of(self, volume: Shaped[np.ndarray, "*n d h w"], *, fill: float = 0) -> Shaped[np.ndarray, "*n y x"]:
        """The planes of maps as one picture, with `fill` between them."""
        indices = plane_indices(self.position, self.part)
        return self.layout.picture({plane: volume[index] for plane, index in indices.items()}, fill=fill)


def volume_sheet(
    *, image: Float[np.ndarray, "c d h w"], labels: Integer[np.ndarray, "s d h w"], mean: Float[np.ndarray, "d h w"],
    std: Float[np.ndarray, "d h w"], title: str, spacing: Sequence[float] | None, first_slice: int = 0, **page: Any,
) -> Image.Image:  # fmt: skip
    """One page, as `sample_sheet`; small marks are shown enlarged. `first_slice` is the number of the first."""
    planes = Planes.through(labels != 0, spacing=spacing)
    z, y, x = planes.position
    where = f"slice {first_slice + z}, below it row {y}, beside it column {x}"
    where += "" if mean[planes.part].shape == mean.shape else ", the marked part only"
    page |= {"labels": planes.of(labels), "mean": planes.of(mean), "std": planes.of(std)}
    return sample_sheet(image=planes.of(image, fill=float(image.min())), title=f"{title}; {where}", **page)
