"""Checks and renumbering of label maps from files."""

import numpy as np
from jaxtyping import Int32, Integer, Shaped

from hpunet.errors import ConfigError, DataError

_PART = 2**20
MAX_CLASSES = 256  # sampled label maps have 8 bits


def check_num_random_ids(num_random_ids: int, *, num_fixed_classes: int) -> None:
    """Refuse a single id, which tells no instances apart, and more classes than a label map holds."""
    most = MAX_CLASSES - num_fixed_classes
    if not 2 <= num_random_ids <= most:
        raise ConfigError(f"num_random_ids: expected 2 to {most}, got {num_random_ids}; one id tells nothing apart")


def as_integers(values: Shaped[np.ndarray, "*shape"], *, name: str) -> Integer[np.ndarray, "*shape"]:
    """Label values as integers from 0; floats, which NIfTI files hold, must all be whole."""
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    if values.dtype.kind == "f":
        for part in _parts(values):
            if not (np.isfinite(part) & (part == np.rint(part)) & (np.abs(part) < 2**31)).all():
                raise DataError(f"{name}: expected labels, got fractions or non-finite values")
        values = values.astype(np.int32)
    if values.dtype.kind not in "iu":
        raise DataError(f"{name}: expected integer labels, got {values.dtype}")
    if values.dtype.kind == "i" and values.size and values.min() < 0:
        raise DataError(f"{name}: expected labels from 0 on, found {int(values.min())}")
    return values


def class_map(values: Shaped[np.ndarray, "*shape"], *, num_classes: int, name: str) -> Int32[np.ndarray, "*shape"]:
    """Classes 0...k-1; two classes may also be stored as 0 and 255."""
    values = as_integers(values, name=name)
    if not values.size or values.max() < num_classes:
        return values.astype(np.int32, copy=False)
    found = _found(values)
    if num_classes == 2 and np.isin(found, (0, 255)).all():
        return (values > 0).astype(np.int32)
    or_255 = " or 0 and 255" if num_classes == 2 else ""
    wanted = f"expected 0...{num_classes - 1}{or_255}; name all classes by --set 'classes=[\"background\", …]'"
    raise DataError(f"{name}: value {int(found[found >= num_classes][0])} is not a class, {wanted}")


def _parts(values: Shaped[np.ndarray, "*shape"]) -> list[np.ndarray]:
    """All values in parts, because sorting and comparing takes several times their memory."""
    flat = values.ravel(order="K")
    return [flat[start : start + _PART] for start in range(0, flat.size, _PART)]


def _found(values: Integer[np.ndarray, "*shape"]) -> Integer[np.ndarray, " n"]:
    """The values that occur, in order."""
    return np.unique(np.concatenate([np.empty(0, values.dtype), *map(np.unique, _parts(values))]))


def number_instances(
    values: Shaped[np.ndarray, "*s"], *, num_fixed_classes: int, name: str
) -> Int32[np.ndarray, "*s"]:
    """Instances numbered `num_fixed_classes` + 0, 1, 2... in the order of their values; background 0 stays 0.

    Pixels of one value stay one instance, connected or not, in one slice of a volume or in several.
    """
    values = as_integers(values, name=name)
    found = _found(values)
    first = 1 if found.size and found[0] == 0 else 0
    numbers = np.arange(found.size, dtype=np.int32) - first + num_fixed_classes
    numbers[:first] = 0
    numbered = np.empty(values.shape, dtype=np.int32)
    for row, stored in zip(numbered, values, strict=True):
        row[:] = numbers[np.searchsorted(found, stored)]
    return numbered
