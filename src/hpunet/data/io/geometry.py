"""Where pixels lie: the axes of an image or volume, the distance of its pixels, and its place in the patient."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from hpunet.data.io.limits import need
from hpunet.errors import ConfigError

MAX_SPACING = 1e4  # mm
RIGHT_ANGLE = math.sin(math.radians(0.5))  # of the axes of a grid: positions are rounded
_MM = {1: 1000.0, 2: 1.0, 3: 0.001}  # by NIfTI's codes of metres, millimetres and micrometres


@dataclass(frozen=True, eq=False)
class Geometry:
    """Axes, spacing and orientation of an image (yx) or a volume (zyx); None for what its file does not say."""

    axes: Literal["yx", "zyx"] = "yx"
    spacing: tuple[float, ...] | None = None
    """Distance of neighbouring pixels in mm, in the order of `axes`."""
    affine: Float64[np.ndarray, "4 4"] | None = None
    """From (row, column, slice, 1) to millimetres in the patient: right, front, up (RAS, as in NIfTI)."""

    @classmethod
    def from_affine(cls, affine: Float64[np.ndarray, "4 4"], *, axes: Literal["yx", "zyx"]) -> "Geometry":
        """The geometry with this affine, and its spacing."""
        y, x, z = (float(step) for step in np.linalg.norm(affine[:3, :3], axis=0))
        return cls(axes, (z, y, x) if axes == "zyx" else (y, x), affine)

    @classmethod
    def from_nifti(cls, header: Any) -> "Geometry":
        """Of a NIfTI header; without its codes the affine means nothing, and only the spacing counts."""
        axes: Literal["yx", "zyx"] = "zyx" if len(header.get_data_shape()) > 2 else "yx"
        factor = _MM.get(int(header["xyzt_units"]) & 7, 1.0)  # millimetres are what most files mean
        sides = [float(side) * factor for side in header.get_zooms()[:3]]
        sides += [1.0] * (3 - len(sides))
        affine = np.array(header.get_best_affine(), dtype=np.float64)
        affine[:3] *= factor
        if not np.isfinite(affine).all() or not np.isfinite(sides).all():
            return cls(axes)
        if not int(header["sform_code"]) and not int(header["qform_code"]):
            return cls(axes, (sides[2], sides[0], sides[1])[-len(axes) :])
        return cls.from_affine(affine, axes=axes)

    def crop(self, *, y: int, x: int, z: int = 0) -> "Geometry":
        """The geometry of a part that begins at this pixel; it may lie outside."""
        if self.affine is None:
            return self
        affine = self.affine.copy()
        affine[:3, 3] = (self.affine @ [y, x, z, 1])[:3]
        return replace(self, affine=affine)

    def nifti_header(self, shape: tuple[int, int, int]) -> Any:
        """A nibabel header for slices of this shape (z h w), for `volumes.encode_nifti`."""
        header = need("nibabel").Nifti1Header()
        header.set_data_shape((*shape[1:], shape[0]))
        header.set_xyzt_units("mm")
        if self.affine is None:
            z, y, x = (1.0, *(self.spacing or (1.0, 1.0)))[-3:]
            header.set_zooms((y, x, z))
            return header
        axes = self.affine[:3, :3] / np.linalg.norm(self.affine[:3, :3], axis=0)
        header.set_sform(self.affine, code=1)
        # A quaternion cannot hold the slant of a tilted gantry.
        header.set_qform(self.affine, code=int(np.allclose(axes.T @ axes, np.eye(3), atol=1e-4)))
        return header


def check_spacing(spacing: tuple[float, ...] | None, *, volumes: bool) -> None:
    """Refuse a `spacing` given as an option if it is none of voxels."""
    if spacing is None:
        return
    if not volumes:
        raise ConfigError("spacing: an option of volumes; set volumes=true, too")
    if not all(math.isfinite(side) and 0 < side < MAX_SPACING for side in spacing):
        raise ConfigError(f"spacing: expected three distances in mm, depth first, got {list(spacing)}")
