"""The contract of every data source: what a sample is, what a set knows of itself, and splits by patient.

A source is a plain sequence of `Sample`s for one split. Its labels are one of two kinds, told by `SetInfo`:

* classes: every value is a class index (LIDC: 0 background, 1 lesion);
* instances: values below `num_fixed_classes` are classes, every other value is one instance. Which of the
  `num_random_ids` stochastic classes an instance shows up as is drawn anew at every training step
  (`instance_ids.py`), never stored.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int32, Shaped

from hpunet.data.io.intensity import unit_floats
from hpunet.errors import ConfigError, DataError

SPLITS = ("train", "val", "test")


class NoSuchSplitError(DataError):
    """The data are there and in order, but have no such split."""


class Identity(NamedTuple):
    """Where a sample comes from. Samples of one patient never lie in two splits."""

    patient: str
    """The patient, animal, volume or scene: the unit of splits and of bootstraps."""
    key: str
    """Unique in the set, and readable: 'LIDC-IDRI-0001/z-57_c0'."""


@dataclass(frozen=True)
class Sample:
    """One image with everything its graders said.

    `graders` says which of the label maps exist: a grader who is missing is not an empty map. The labels of a
    missing grader, and all labels where `valid` is false, are 0 and never count.
    """

    pixels: Shaped[np.ndarray, "c h w"]
    """As stored: uint8, uint16, or float32 in [0, 1]."""
    labels: Int32[np.ndarray, "r h w"]
    valid: Bool[np.ndarray, "h w"]
    graders: Bool[np.ndarray, " r"]
    identity: Identity

    @cached_property
    def image(self) -> Float32[np.ndarray, "c h w"]:
        """The pixels in [0, 1]."""
        return unit_floats(self.pixels)


@dataclass(frozen=True)
class SetInfo:
    """What a set knows of itself."""

    kind: str
    in_channels: int
    num_graders: int
    fixed_classes: tuple[str, ...]
    """Names of the classes that are what they are; the first is the background."""
    num_random_ids: int = 0
    """0 when labels are classes; else how many stochastic classes the instances are mapped to."""
    stochastic_classes: tuple[int, ...] = ()
    """The classes that metrics look at: the lesion, the random ids."""
    image_bits: int = 8
    """Precision of the source's images, 8 or 16 bits or 32 for float; packs keep it."""
    intensity_window: tuple[float, float] | None = None
    """The stored pixel values that became 0 and 1, where one window was chosen for the whole set."""

    @property
    def num_fixed_classes(self) -> int:
        """Label values from here on are instances."""
        return len(self.fixed_classes)

    @property
    def num_classes(self) -> int:
        """Classes that a model has to predict."""
        return self.num_fixed_classes + self.num_random_ids

    @property
    def has_instances(self) -> bool:
        """Whether labels hold instances, to be mapped to random ids."""
        return self.num_random_ids > 0

    def as_json(self) -> dict[str, Any]:
        """As packs and checkpoints keep it."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: Any, *, where: str) -> "SetInfo":
        """Back from `as_json`; `where` it was read is for the error."""
        try:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
            return cls(**values)
        except (AttributeError, TypeError) as error:
            raise DataError(f"{where}: its description of the data does not fit this version ({error})") from None


@runtime_checkable
class Source(Protocol):
    """A split of a data set. Reading a sample may fail with a `DataError` that names the file."""

    info: SetInfo
    split: str
    identities: list[Identity]

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int) -> Sample:
        """One sample, read when asked for."""


def make_sample(
    *,
    image: np.ndarray,
    labels: np.ndarray,
    identity: Identity,
    info: SetInfo,
    where: str,
    valid: np.ndarray | None = None,
    graders: np.ndarray | None = None,
) -> Sample:
    """A checked `Sample` from what a reader found; `where` names the file in errors.

    Integer images are scaled by their type's maximum, floating ones must lie in [0, 1] already. Labels and validity
    are brought in line with the contract (0 where nothing counts), never their shapes.
    """
    if image.ndim != 3 or image.shape[0] != info.in_channels or 0 in image.shape:
        raise DataError(f"{where}: expected an image of {info.in_channels} channels, got shape {image.shape}")
    is_integer = image.dtype in (np.uint8, np.uint16)
    if not is_integer and not np.issubdtype(image.dtype, np.floating):
        raise DataError(f"{where}: expected 8 or 16 bit or float pixels, got {image.dtype}")
    if not is_integer and not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1):
        raise DataError(f"{where}: pixels must be finite and within [0, 1]")
    h, w = image.shape[1:]
    if labels.shape != (info.num_graders, h, w):
        raise DataError(f"{where}: labels have shape {labels.shape}, the image needs {(info.num_graders, h, w)}")
    if not np.issubdtype(labels.dtype, np.integer) and labels.dtype != np.bool_:
        raise DataError(f"{where}: expected integer labels, got {labels.dtype}")
    valid = np.ones((h, w), dtype=np.bool_) if valid is None else valid.astype(np.bool_)
    graders = np.ones(info.num_graders, dtype=np.bool_) if graders is None else graders.astype(np.bool_)
    if valid.shape != (h, w) or graders.shape != (info.num_graders,):
        raise DataError(f"{where}: validity {valid.shape} or graders {graders.shape} do not go with image {(h, w)}")
    if not graders.any():
        raise DataError(f"{where}: no grader at all")
    labels = np.where(valid & graders[:, None, None], labels, 0).astype(np.int32)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (high >= info.num_classes and not info.has_instances):
        raise DataError(f"{where}: label values must lie in 0...{info.num_classes - 1}, found {low}...{high}")
    return Sample(
        pixels=np.ascontiguousarray(image, dtype=image.dtype if is_integer else np.float32),
        labels=labels,
        valid=valid,
        graders=graders,
        identity=identity,
    )


def split_by_patient(patients: Iterable[str], *, fractions: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    """Assign whole patients to splits, by a seeded shuffle that does not depend on the order of `patients`."""
    if any(f < 0 for f in fractions.values()) or abs(sum(fractions.values()) - 1) > 1e-6:
        raise ConfigError(f"split fractions must be positive and add up to 1, got {dict(fractions)}")
    unique = sorted(set(patients))
    order = sorted(unique, key=lambda p: hashlib.sha256(f"{seed}\0{p}".encode()).digest())
    splits: dict[str, list[str]] = {}
    start, share = 0, 0.0
    for name, fraction in fractions.items():
        share += fraction
        end = round(share * len(order))
        splits[name] = sorted(order[start:end])
        start = end
    return splits


def refuse_shared_patients(sources: Sequence[Source]) -> None:
    """Raise a `DataError` if a patient has samples in two of the sources: scores would be too good."""
    seen: dict[str, str] = {}
    for source in sources:
        for patient in sorted({identity.patient for identity in source.identities}):
            if patient in seen:
                raise DataError(
                    f"{source.info.kind}: patient {patient} is in both {seen[patient]} and {source.split}; "
                    "split by patient"
                )
            seen[patient] = source.split


def refuse_other_data(source: Source, *, info: SetInfo, same_ids: bool = True) -> None:
    """Raise a `DataError` unless data are such as a model was trained on (`info`): channels, classes, random ids.

    Without `same_ids` their number may differ: where instances are compared as such, no matter which ids they have.
    """
    ours, theirs = (
        {
            "image channels": one.in_channels,
            "classes": one.num_fixed_classes,
            "random ids of instances": one.num_random_ids,
        }
        for one in (info, source.info)
    )
    if not same_ids and source.info.has_instances and info.has_instances:
        ours["random ids of instances"] = theirs["random ids of instances"]
    different = [f"{theirs[k]} {k} where the model has {ours[k]}" for k in ours if ours[k] != theirs[k]]
    if different:
        raise DataError(f"{source.info.kind} data do not fit the model: {'; '.join(different)}")
    if not len(source):
        raise DataError(f"{source.info.kind} data: the split {source.split} holds no image")
