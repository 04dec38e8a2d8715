"""Where maps lie in the image or volume that they were made from."""

from dataclasses import dataclass, field
from typing import Any

from hpunet.data.io.dicom import Frame
from hpunet.data.io.geometry import Geometry


@dataclass(frozen=True)
class Place:
    """Where maps lie in the image or volume that they were made from."""

    shape: tuple[int, int, int]
    """Of the whole, (z, y, x); z is 1 for an image."""
    offset: tuple[int, int, int] = (0, 0, 0)
    """Its pixel (z, y, x) at which the maps begin."""
    geometry: Geometry = field(default_factory=Geometry)
    """Of the whole."""
    header: Any | None = None
    """The NIfTI header of the whole; None if its file is no volume."""
    frames: tuple[Frame, ...] = field(default=(), repr=False)
    """The DICOM file and frame of each slice; empty for other files, and where pixels were resampled."""


def slice_name(name: str, *, z: int, depth: int) -> str:
    """The name of a slice's results; an image has only one."""
    return "/".join(filter(None, [name, f"z-{z:03d}"])) if depth > 1 else name
