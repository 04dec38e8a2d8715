"""Sizes as a distribution: what samples of one image mark, in numbers, and the chance that something has grown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Integer

from hpunet.errors import ConfigError, DataError
from hpunet.metrics.shapes import area, diameters, num_parts, voxel_size

UNITS = {
    "area": ("mm²", "pixels"),
    "volume": ("ml", "voxels"),
    "longest_diameter": ("mm", "pixels"),
    "perpendicular_diameter": ("mm", "pixels"),
    "num_parts": ("", ""),
}
"""What is measured (see `shapes.py`), its unit, and that where the spacing is not known. Images have areas, volumes
volumes."""
_ROUNDING = 1e-9  # relative: an area of exactly 1.25 times another is not larger than that


@dataclass(frozen=True, eq=False)
class Sizes:
    """One quantity in every sample of an image."""

    values: Float64[np.ndarray, " s"] = field(repr=False)
    unit: str
    """mm, mm², ml, or pixels and voxels where the spacing is not known; empty for counts."""

    @property
    def median(self) -> float:
        """Of the samples."""
        return float(np.median(self.values))

    def interval(self, share: float = 0.9) -> tuple[float, float]:
        """The central interval that holds this share of the samples: by default from 5 to 95 %."""
        if not 0 < share < 1:
            raise ConfigError(f"share: expected a number between 0 and 1, got {share}")
        low, high = np.quantile(self.values, [round(0.5 + side * share / 2, 12) for side in (-1, 1)]).tolist()
        return low, high

    def larger_than(self, size: float) -> float:
        """The share of the samples above this size."""
        return float(np.mean(self.values > size + abs(size) * _ROUNDING))

    def growth(self, after: "Sizes", *, more_than: float = 0.25) -> float:
        """The probability that `after` is larger than this by more than this share, from all pairs of samples.

        The samples of both must be independent. From nothing to something is growth; from nothing to nothing is not.
        """
        if not -1 <= more_than < math.inf:
            raise ConfigError(f"more_than: expected a share such as 0.25, got {more_than}")
        if self.unit != after.unit:
            raise DataError(f"measured in {self.unit} and in {after.unit}: the files must both say their spacing")
        limits = self.values * (1 + more_than) * (1 + _ROUNDING)
        not_larger = np.searchsorted(np.sort(after.values), limits, side="right")
        return float(1 - not_larger.mean() / len(after.values))


@dataclass(frozen=True, eq=False)
class Measurements:
    """All that was measured in the samples of an image."""

    spacing: tuple[float, ...] | None
    """Distance of pixels in mm, in the order of the maps' axes; None: sizes are in pixels."""
    classes: Mapping[str, Mapping[str, Sizes]]
    """By the name of the class, then by that of the quantity."""

    def of(self, quantity: str | None = None, *, class_name: str | None = None) -> Sizes:
        """One quantity, by default the area or volume; `class_name` is optional if there is only one class."""
        if class_name is None and len(self.classes) == 1:
            (class_name,) = self.classes
        if class_name is None or class_name not in self.classes:
            raise ConfigError(f"class: expected one of {', '.join(self.classes)}, got {class_name!r}")
        sizes = self.classes[class_name]
        quantity = next(iter(sizes)) if quantity is None else quantity
        if quantity not in sizes:
            why = "; volumes need samples of a whole volume, not of its slices" if quantity == "volume" else ""
            raise ConfigError(f"quantity: expected one of {', '.join(sizes)}, got {quantity!r}{why}")
        return sizes[quantity]

    def growth(
        self,
        after: "Measurements",
        *,
        more_than: float = 0.25,
        quantity: str | None = None,
        class_name: str | None = None,
    ) -> float:
        """See `Sizes.growth`."""
        mine, later = (each.of(quantity, class_name=class_name) for each in (self, after))
        return mine.growth(later, more_than=more_than)


def measure(
    samples: Integer[np.ndarray, "s *z h w"], *, classes: Mapping[str, int], spacing: Sequence[float] | None = None
) -> Measurements:
    """Measure every class, by its name, in every sample: of images (s, h, w) or of volumes (s, z, h, w).

    Volumes must be drawn as volumes: slices that were sampled one by one do not belong together. Their diameters are
    those in the plane of the slices, of the slice where the longest is.
    """
    num_axes = samples.ndim - 1
    if num_axes not in (2, 3) or not len(samples):
        raise DataError(f"samples: expected maps (s, h, w) or (s, z, h, w), got shape {samples.shape}")
    if spacing is not None and (len(spacing) != num_axes or not all(0 < side < math.inf for side in spacing)):
        raise DataError(f"spacing: expected {num_axes} positive numbers, got {tuple(spacing)}")
    sides = None if spacing is None else tuple(map(float, spacing))
    quantities = [quantity for quantity in UNITS if quantity != ("area", "volume")[3 - num_axes]]
    found: dict[str, dict[str, Sizes]] = {}
    for name, number in classes.items():
        table = np.array([_measured(labels == number, sides) for labels in samples])
        found[name] = {q: Sizes(table[:, i], UNITS[q][sides is None]) for i, q in enumerate(quantities)}
    return Measurements(sides, found)


def _measured(marked: np.ndarray, spacing: tuple[float, ...] | None) -> tuple[float, ...]:
    sides = (1.0,) * marked.ndim if spacing is None else spacing
    volume = float(np.count_nonzero(marked)) * voxel_size(spacing)
    size = area(marked, spacing=sides) if marked.ndim == 2 else volume
    return size, *diameters(marked, spacing=sides), float(num_parts(marked))
