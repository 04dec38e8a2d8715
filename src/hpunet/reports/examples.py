"""Example images with what a model makes of them: one .npz file, read back and checked. Needs neither torch nor data.

Validation saves such a file as `pictures/step-*.npz`, evaluation as `evaluation/*/examples.npz`; the report draws
both the same way. Arrays, with b images, r graders, s samples (dimension legend in `batch.py`):

    always         image (b c h w) as the data have it, in [0, 1]; labels, reconstructions (b r h w); graders (b r);
                   valid (b h w); keys (b); samples_full (b s h w)
    scales         prior_mean (b h w); samples_global, samples_local (b s h w); std_full, std_global, std_local
                   (b h w): samples and standard deviation by what was sampled
    instances      true_instances, instances (b h w): those of the data, and those found by clustering the samples; 0
                   where there is none
    hardness       hardness (b), NaN where it is undefined, and hardness_metric (), "rand_error" or "ged2"
    hardest        is_hardest (b): which are the hardest of a whole set, not just of these images
    spread         is_spread (b): which were taken evenly over the whole set, in its order
    extrapolation  visible (b h w), false where the prior did not see the image
    classes        stochastic_classes (n), class_names (k): "id 1", "id 2", … are random ids of instances

A group is there as a whole or not at all; only the first must be. Files may hold other arrays beside these.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Integer

from hpunet.errors import DataError
from hpunet.utils.files import read_file

MAX_UNPACKED_BYTES = 2**31
"""Bound on what a file of examples may unpack to."""
WAYS = ("full", "global", "local")
"""What was sampled: all latent scales, or one with the others at their mean."""
_ALWAYS = ("image", "labels", "graders", "valid", "keys", "reconstructions", "samples_full")
_SCALES = ("prior_mean", "samples_global", "samples_local", *(f"std_{way}" for way in WAYS))
_INSTANCES = ("true_instances", "instances")
_HARDNESS = ("hardness", "hardness_metric")
_CLASSES = ("stochastic_classes", "class_names")
_SHAPES = {
    "image": "b c h w",  # first: the others are held against it
    **dict.fromkeys(("labels", "reconstructions"), "b r h w"),
    **{f"samples_{way}": "b s h w" for way in WAYS},
    **{f"std_{way}": "b h w" for way in WAYS},
    **dict.fromkeys(("valid", "prior_mean", "instances", "true_instances", "visible"), "b h w"),
    "graders": "b r",
    "keys": "b",
    "hardness": "b",
    "is_hardest": "b",
    "is_spread": "b",
    "hardness_metric": "",
    "stochastic_classes": "n",
    "class_names": "k",
}
_KINDS = {
    **dict.fromkeys(("image", "hardness", *(f"std_{way}" for way in WAYS)), "f"),
    **dict.fromkeys(("graders", "valid", "visible", "is_hardest", "is_spread"), "b"),
    **dict.fromkeys(("keys", "class_names", "hardness_metric"), "U"),
}
"""Kinds of numpy types; what is not named holds whole numbers, 0 or more."""
_KIND_WORDS = {"f": "floats", "b": "booleans", "U": "words", "iu": "whole numbers"}


@dataclass(frozen=True)
class Examples:
    """Images, what graders said and what a model says; see the module for the groups that may be missing."""

    image: Float[np.ndarray, "b c h w"]
    labels: Integer[np.ndarray, "b r h w"]
    graders: Bool[np.ndarray, "b r"]
    valid: Bool[np.ndarray, "b h w"]
    keys: Sequence[str]
    reconstructions: Integer[np.ndarray, "b r h w"]
    samples: Mapping[str, Integer[np.ndarray, "b _ h w"]]
    """By way of sampling; "full" is always there."""
    std: Mapping[str, Float[np.ndarray, "b h w"]]
    """By way of sampling; empty where scales were not taken apart."""
    prior_mean: Integer[np.ndarray, "b h w"] | None
    true_instances: Integer[np.ndarray, "b h w"] | None
    instances: Integer[np.ndarray, "b h w"] | None
    hardness: Float[np.ndarray, " b"] | None
    hardness_metric: str
    is_hardest: Bool[np.ndarray, " b"] | None
    is_spread: Bool[np.ndarray, " b"] | None
    visible: Bool[np.ndarray, "b h w"] | None
    stochastic_classes: Sequence[int]
    class_names: Sequence[str]

    @property
    def are_ids(self) -> bool:
        """Whether the stochastic classes are random ids of instances."""
        names = [self.class_names[c] for c in self.stochastic_classes]
        return self.instances is not None or names == [f"id {i + 1}" for i in range(len(names))]


def read_examples(path: Path, *, same_classes: Examples | None = None) -> Examples:
    """Read a file of examples, or raise an error that names the file and what is wrong with it.

    What it does not say of classes is as in `same_classes`; else all but class 0 are stochastic and have no names.
    """
    arrays = _read_arrays(path)
    has_scales = _check(arrays, path)
    if "class_names" in arrays:
        stochastic, names = arrays["stochastic_classes"].tolist(), arrays["class_names"].tolist()
    elif same_classes is not None:
        stochastic, names = same_classes.stochastic_classes, same_classes.class_names
    else:
        num_classes = 1 + max(1, *(int(arrays[n].max()) for n in ("labels", "reconstructions", "samples_full")))
        stochastic, names = range(1, num_classes), [f"class {i}" for i in range(num_classes)]
    return Examples(
        image=arrays["image"],
        labels=arrays["labels"],
        graders=arrays["graders"],
        valid=arrays["valid"],
        keys=arrays["keys"].tolist(),
        reconstructions=arrays["reconstructions"],
        samples={way: arrays[f"samples_{way}"] for way in (WAYS if has_scales else WAYS[:1])},
        std={way: arrays[f"std_{way}"] for way in (WAYS if has_scales else ())},
        stochastic_classes=stochastic,
        class_names=names,
        prior_mean=arrays.get("prior_mean"),
        true_instances=arrays.get("true_instances"),
        instances=arrays.get("instances"),
        hardness=arrays.get("hardness"),
        hardness_metric=str(arrays.get("hardness_metric", "")),
        is_hardest=arrays.get("is_hardest"),
        is_spread=arrays.get("is_spread"),
        visible=arrays.get("visible"),
    )


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    content = read_file(path, error=DataError)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_UNPACKED_BYTES:
            raise DataError(f"{path}: unpacks to {size} bytes, more than the {MAX_UNPACKED_BYTES} this reader takes")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files if name in _SHAPES}
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds
        raise DataError(f"{path}: not a readable .npz file ({error})") from None


def _check(arrays: Mapping[str, np.ndarray], path: Path) -> bool:
    """Refuse arrays that are missing, of another kind, or do not fit each other; says whether scales are there."""
    groups = [group for group in (_SCALES, _INSTANCES, _HARDNESS, _CLASSES) if any(name in arrays for name in group)]
    missing = [name for group in (_ALWAYS, *groups) for name in group if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}")
    sizes: dict[str, int] = {}
    for name, shape in _SHAPES.items():
        if name in arrays:
            _check_array(arrays[name], name=name, dims=shape.split(), sizes=sizes, path=path)
    if "stochastic_classes" in arrays and arrays["stochastic_classes"].max() >= len(arrays["class_names"]):
        raise DataError(f"{path}: stochastic_classes: class_names has {len(arrays['class_names'])} classes only")
    return _SCALES in groups


def _check_array(array: np.ndarray, *, name: str, dims: Sequence[str], sizes: dict[str, int], path: Path) -> None:
    kind = _KINDS.get(name, "iu")
    fits = array.ndim == len(dims) and array.size > 0 and array.dtype.kind in kind
    if fits:
        for dim, size in zip(dims, array.shape, strict=True):
            # Ways of sampling may be shown by different numbers of samples.
            fits &= dim == "s" or sizes.setdefault(dim, size) == size
    if not fits:
        wanted = " ".join(f"{dim}={sizes[dim]}" if dim in sizes else dim for dim in dims)
        got = f"{array.dtype} of shape {array.shape}"
        raise DataError(f"{path}: {name}: expected {_KIND_WORDS[kind]} ({wanted}), got {got}")
    if kind == "iu" and array.min() < 0:
        raise DataError(f"{path}: {name}: expected numbers from 0 on, found {array.min()}")
    if kind == "f" and name != "hardness" and not np.isfinite(array).all():
        raise DataError(f"{path}: {name}: holds values that are not finite")
