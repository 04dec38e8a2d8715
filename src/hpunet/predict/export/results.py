"""What exports hold: regions of an image, such as hypotheses or instances, and where they lie in its files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Integer
from scipy import ndimage

from hpunet.data.types import SetInfo
from hpunet.predict.place import Place

if TYPE_CHECKING:
    from hpunet.sampling.hypotheses import Hypothesis

_Box = tuple[slice, slice, slice]


class Plane(NamedTuple):
    """The pixels of a region in one slice, in a box that holds them."""

    z: int
    offset: tuple[int, int]
    """The pixel (y, x) of the slice at which the mask begins."""
    mask: Bool[np.ndarray, "h w"]


@dataclass(frozen=True, eq=False)
class Region:
    """Everything that is marked as one thing: a class in one hypothesis, or one instance."""

    name: str
    """"A: lesion", "instance 3"."""
    description: str
    class_name: str
    labels: Integer[np.ndarray, "z h w"] = field(repr=False)
    value: int
    """The label of its pixels."""
    box: _Box | None
    """The part of `labels` that holds it; None if it has no pixel."""
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    """What is known of it, such as the share, by name."""


@dataclass(frozen=True, eq=False)
class Results:
    """Regions of one image or volume, the mean probability, and what made them. Maps lie at pixel `start`."""

    place: Place
    start: tuple[int, int, int]
    """The pixel (z, y, x) of the whole at which maps begin."""
    regions: Sequence[Region]
    model: str
    iteration: int
    title: str
    """What regions are: "hypotheses", "instances"."""
    mean: Float32[np.ndarray, "z h w"] | None = None
    mean_of: str = ""
    """The classes whose probability it is."""
    is_edited: bool = False
    """Whether a person had a part in it."""

    def planes(self, region: Region) -> Iterator[Plane]:
        """The slices in which a region has pixels, in order."""
        for z, y, x in [] if region.box is None else [tuple(part.start for part in region.box)]:
            for number, labels in enumerate(region.labels[region.box], start=self.start[0] + z):
                if (mask := labels == region.value).any():
                    yield Plane(number, (self.start[1] + y, self.start[2] + x), mask)


def hypothesis_regions(hypotheses: Sequence["Hypothesis"], *, info: SetInfo) -> list[Region]:
    """A region per class of each hypothesis, whose maps are (z, h, w); one without pixels if it marks nothing."""
    count = sum(len(hypothesis.members) for hypothesis in hypotheses)
    found = []
    for number, hypothesis in enumerate(hypotheses):
        letter, share = letters(number), hypothesis.share
        description = f"{share:.0%} of {count} samples: {hypothesis.description}"
        numbers: dict[str, float | int | str] = {"hypothesis": letter, "share": share, "num_samples": count}
        boxes = _boxes(hypothesis.labels)
        for c in [c for c in info.foreground if c in boxes] or info.foreground[:1]:
            name = info.fixed_classes[c]
            region = Region(f"{letter}: {name}", description, name, hypothesis.labels, c, boxes.get(c), numbers)
            found.append(region)
    return found


def label_regions(
    labels: Integer[np.ndarray, "z h w"], *, names: Mapping[int, str] | None = None, description: str
) -> list[Region]:
    """A region per value but 0: an instance, or the class of this name."""
    boxes = _boxes(labels)
    named = {value: f"instance {value}" for value in boxes} if names is None else names
    kind, class_of = ("instance", {}) if names is None else ("label", dict(named))
    return [
        Region(named[value], description, class_of.get(value, "instance"), labels, value, box, {kind: value})
        for value, box in boxes.items()
    ]


def _boxes(labels: np.ndarray) -> dict[int, _Box]:
    """The box of every value but 0 that is there."""
    found = enumerate(ndimage.find_objects(labels), start=1)
    return {value: (box[0], box[1], box[2]) for value, box in found if box is not None}


def letters(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    return ("" if number < 26 else letters(number // 26 - 1)) + chr(ord("A") + number % 26)


def physical(results: Results) -> dict[str, Any]:
    """Size of pixels in mm, and the affine from (row, column, slice, 1) to mm; empty if the file does not say."""
    geometry = results.place.geometry
    found: dict[str, Any] = {}
    if geometry.spacing is not None:
        y, x = geometry.spacing[-2:]
        found["pixel_mm"] = {"x": x, "y": y}
    if len(geometry.spacing or ()) == 3:
        found["slice_distance_mm"] = (geometry.spacing or ())[0]
    if geometry.affine is not None:
        found["affine_ras_mm"] = geometry.affine.tolist()
    return found
