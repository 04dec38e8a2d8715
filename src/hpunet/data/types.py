"""The contract of data sources: samples, the description of a set, and splits by patient.

Labels are classes (LIDC: 0 background, 1 lesion) or instances: values below `num_fixed_classes` are classes, each
other value is an instance, which training maps to one of `num_random_ids` stochastic classes (`instance_ids.py`).

A sample is an image with positions (h, w) or a volume with positions (d, h, w); `*s` in shapes stands for either.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int32, Shaped

from hpunet.config.settings import MAX_CHANNELS
from hpunet.data.io.intensity import unit_floats
from hpunet.data.io.label_maps import MAX_CLASSES
from hpunet.errors import ConfigError, DataError
from hpunet.utils.text import as_utf8

SPLITS = ("train", "val", "test")
_LARGEST = 1e30  # of sizes in pixels and mm, and of stored values


class NoSuchSplitError(DataError):
    """The data are in order, but lack this split."""


class Identity(NamedTuple):
    """Origin of a sample. A patient is in one split only."""

    patient: str
    """The patient, animal, volume or scene: the unit of splits and of bootstraps."""
    key: str
    """Unique in the set: 'LIDC-IDRI-0001/z-57_c0'."""


@dataclass(frozen=True)
class Sample:
    """One image or volume with the label maps of its graders.

    `graders` says which label maps exist: a missing grader is not an empty map. Its labels, and those of invalid
    pixels, are 0 and ignored.
    """

    pixels: Shaped[np.ndarray, " c *s"]
    """As stored: uint8, uint16, or float32 in [0, 1]."""
    labels: Int32[np.ndarray, " r *s"]
    valid: Bool[np.ndarray, "*s"]
    graders: Bool[np.ndarray, " r"]
    identity: Identity
    times: Float32[np.ndarray, " d"] | None = None
    """Of a series, the years from its first image to each."""

    @cached_property
    def image(self) -> Float32[np.ndarray, " c *s"]:
        """The pixels in [0, 1]."""
        return unit_floats(self.pixels)


_BOUNDS = {
    "in_channels": (1, MAX_CHANNELS),
    "num_graders": (1, 10**6),
    "num_random_ids": (0, MAX_CLASSES),
    "ndim": (2, 3),
}


@dataclass(frozen=True)
class SetInfo:
    """Description of a data set."""

    kind: str
    in_channels: int
    num_graders: int
    fixed_classes: tuple[str, ...]
    """Names of the fixed classes; the first is the background."""
    num_random_ids: int = 0
    """Number of stochastic classes that instances are mapped to; 0 when labels are classes."""
    stochastic_classes: tuple[int, ...] = ()
    """The classes that metrics score: the lesion, the random ids."""
    grader_names: tuple[str, ...] = ()
    """Names of the graders, if the data name them."""
    image_bits: int = 8
    """Precision of the images: 8, 16, or 32 for float; packs keep it."""
    intensity_window: tuple[float, float] | None = None
    """The stored pixel values mapped to 0 and 1, if one window was chosen for the whole set."""
    image_size: tuple[int, ...] | None = None
    """Median height and width (of volumes: depth, height, width) of the training images (`field_of_view.py`)."""
    value_range: tuple[float, float] | None = None
    """Values in [0, 1] from and to which nearly every training image goes."""
    spacing: tuple[float, ...] | None = None
    """Distance of neighbouring pixels in mm along each axis of a sample, where known."""
    ndim: int = 2
    """Axes of a sample's positions: 2 for images, 3 for volumes."""
    axis0: str = "depth"
    """What the first of three axes is: "depth", or "time" of registered images of one place, in their order."""

    @property
    def num_fixed_classes(self) -> int:
        """Labels from this value on are instances."""
        return len(self.fixed_classes)

    @property
    def num_classes(self) -> int:
        """Classes that a model predicts."""
        return self.num_fixed_classes + self.num_random_ids

    @property
    def foreground(self) -> tuple[int, ...]:
        """The classes in which hypotheses differ; all but the background if the data do not say."""
        return self.stochastic_classes or tuple(range(1, self.num_classes))

    @property
    def has_instances(self) -> bool:
        """Whether labels hold instances."""
        return self.num_random_ids > 0

    @property
    def grader_titles(self) -> tuple[str, ...]:
        """Names of the graders, or their numbers from 1 on."""
        return self.grader_names or tuple(f"grader {i + 1}" for i in range(self.num_graders))

    def as_json(self) -> dict[str, Any]:
        """Plain data for packs and checkpoints; without `axis0` where it is depth, as before there were series."""
        found = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in found.items() if (k, v) != ("axis0", "depth")}

    @classmethod
    def from_json(cls, stored: Any, *, where: str) -> "SetInfo":
        """The inverse of `as_json`; `where` names the file in errors."""
        try:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
            info = cls(**values)
        except (AttributeError, TypeError) as error:
            raise DataError(f"{where}: its description of the data is of another version ({error})") from None
        for name, (least, most) in _BOUNDS.items():
            if type(number := getattr(info, name)) is not int or not least <= number <= most:
                words = f"{name} {number!r}, expected {least} to {most}"
                raise DataError(f"{where}: its description of the data is damaged or of another version ({words})")
        if wrong := info._wrong_fields():
            raise DataError(f"{where}: its description of the data is damaged or of another version ({wrong[0]})")
        return info

    def _wrong_fields(self) -> list[str]:
        """Names of the fields that are no counts whose values are of another type or impossible."""
        words = (self.fixed_classes, self.grader_names)
        pairs, by_axis = (self.intensity_window, self.value_range), (self.image_size, self.spacing)
        numbers = [each for each in (*pairs, *by_axis) if each is not None]
        fine = {
            "kind": type(self.kind) is str,
            "names": all(isinstance(each, tuple) and all(type(word) is str for word in each) for each in words),
            "fixed_classes": bool(self.fixed_classes),
            "image_bits": self.image_bits in (8, 16, 32),
            "ranges and sizes": all(
                isinstance(each, tuple) and all(type(n) in (int, float) and abs(n) < _LARGEST for n in each)
                for each in numbers
            ),
            "pairs": all(each is None or (isinstance(each, tuple) and len(each) == 2) for each in pairs),
            "axis0": self.axis0 == "depth" or (self.axis0 == "time" and self.ndim == 3),
            "ndim": all(each is None or (isinstance(each, tuple) and len(each) == self.ndim) for each in by_axis),
        }
        if not all(fine.values()):
            return [name for name, is_fine in fine.items() if not is_fine]
        classes = self.stochastic_classes
        known = isinstance(classes, tuple) and all(type(n) is int and 0 <= n < self.num_classes for n in classes)
        return [] if known else ["stochastic_classes"]


@runtime_checkable
class Source(Protocol):
    """A split of a data set. Reading a sample may raise a `DataError` that names the file."""

    info: SetInfo
    split: str
    identities: list[Identity]

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int) -> Sample:
        """Read one sample."""

    def files(self, index: int) -> Mapping[str, Path | bytes]:
        """The files that a sample is read from, by their names in the data; the content of those in an archive."""


def make_sample(
    *,
    image: np.ndarray,
    labels: np.ndarray,
    identity: Identity,
    info: SetInfo,
    where: str,
    valid: np.ndarray | None = None,
    graders: np.ndarray | None = None,
    times: np.ndarray | None = None,
) -> Sample:
    """A checked `Sample` of uint8, uint16 or float pixels in [0, 1]; `where` names the file in errors."""
    if image.ndim != 1 + info.ndim or image.shape[0] != info.in_channels or 0 in image.shape:
        what = "a volume" if info.ndim == 3 else "an image"
        raise DataError(f"{where}: expected {what} of {info.in_channels} channels, got shape {image.shape}")
    is_integer = image.dtype in (np.uint8, np.uint16)
    if not is_integer and not np.issubdtype(image.dtype, np.floating):
        raise DataError(f"{where}: expected 8 or 16 bit or float pixels, got {image.dtype}")
    if not is_integer and not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1):
        raise DataError(f"{where}: pixels must be finite and within [0, 1]")
    size = image.shape[1:]
    if labels.shape != (info.num_graders, *size):
        raise DataError(f"{where}: labels have shape {labels.shape}, the image needs {(info.num_graders, *size)}")
    if not np.issubdtype(labels.dtype, np.integer) and labels.dtype != np.bool_:
        raise DataError(f"{where}: expected integer labels, got {labels.dtype}")
    valid = np.ones(size, dtype=np.bool_) if valid is None else valid.astype(np.bool_)
    graders = np.ones(info.num_graders, dtype=np.bool_) if graders is None else graders.astype(np.bool_)
    if valid.shape != size or graders.shape != (info.num_graders,):
        raise DataError(f"{where}: validity {valid.shape} or graders {graders.shape} do not fit image {size}")
    if not graders.any():
        raise DataError(f"{where}: no grader at all")
    labels = np.where(valid & graders.reshape(-1, *[1] * info.ndim), labels, 0).astype(np.int32, copy=False)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (high >= info.num_classes and not info.has_instances):
        raise DataError(f"{where}: label values must lie in 0...{info.num_classes - 1}, found {low}...{high}")
    pixels = np.ascontiguousarray(image, dtype=image.dtype if is_integer else np.float32)
    if times is not None:
        times = checked_times(times, count=size[0], where=where) if info.axis0 == "time" else None
    return Sample(pixels=pixels, labels=labels, valid=valid, graders=graders, identity=identity, times=times)


def checked_times(times: Any, *, count: int, where: str) -> Float32[np.ndarray, " d"]:
    """Years from the first image of a series to each of its `count` images, which must rise."""
    years = np.asarray(times, dtype=np.float32)
    if years.shape != (count,) or not np.isfinite(years).all() or years[0] != 0 or (np.diff(years) <= 0).any():
        raise DataError(
            f"{where}: times must be {count} rising numbers, years since the first image, beginning with 0"
        )
    return years


def split_by_patient(patients: Iterable[str], *, fractions: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    """Assign patients to splits by a seeded shuffle that does not depend on the order of `patients`."""
    if any(f < 0 for f in fractions.values()) or abs(sum(fractions.values()) - 1) > 1e-6:
        raise ConfigError(f"split fractions must be positive and add up to 1, got {dict(fractions)}")
    order = sorted(set(patients), key=lambda p: hashlib.sha256(as_utf8(f"{seed}\0{p}")).digest())
    ends = [round(share * len(order)) for share in accumulate(fractions.values(), initial=0.0)]
    return {name: sorted(order[start:end]) for name, (start, end) in zip(fractions, pairwise(ends), strict=True)}


def check_split(split: str) -> None:
    """Refuse a split of another name than train, val or test."""
    if split not in SPLITS:
        raise ConfigError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")


def check_disjoint(images: Mapping[str, Iterable[Identity]], *, where: str) -> None:
    """Raise a `DataError` if a patient has images in two splits. It names the images, not the patient."""
    first: dict[str, tuple[str, str]] = {}
    for split, members in images.items():
        for patient, key in sorted(set(members)):
            other, other_key = first.setdefault(patient, (split, key))
            if other != split:
                both = f"{other_key} in {other} and {key} in {split}"
                raise DataError(f"{where}: {both} are of one patient; split by patient")


def refuse_shared_patients(sources: Sequence[Source]) -> None:
    """Raise a `DataError` if a patient has samples in two of the sources."""
    images = {source.split: source.identities for source in sources}
    check_disjoint(images, where=sources[0].info.kind if sources else "")


def refuse_other_data(source: Source, *, info: SetInfo, same_ids: bool = True) -> None:
    """Raise a `DataError` unless data fit a model trained on `info`.

    Without `same_ids` the number of ids may differ: for comparisons of instances as such.
    """
    names = {
        "ndim": "axes",
        "axis0": "as first axis",
        "in_channels": "image channels",
        "num_fixed_classes": "classes",
    }
    if same_ids or not (source.info.has_instances and info.has_instances):
        names["num_random_ids"] = "random ids of instances"
    values = {name: (getattr(source.info, field), getattr(info, field)) for field, name in names.items()}
    different = [f"{its} {name} where the model has {ours}" for name, (its, ours) in values.items() if its != ours]
    if different:
        raise DataError(f"{source.info.kind} data do not fit the model: {'; '.join(different)}")
    if not len(source):
        raise DataError(f"{source.info.kind} data: the split {source.split} holds no image")
