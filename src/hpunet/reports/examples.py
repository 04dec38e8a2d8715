"""Example images with a model's predictions: one .npz file, read back and checked. Needs neither torch nor data.

Validation saves such a file as `pictures/step-*.npz`, evaluation as `evaluation/*/examples.npz`. Arrays, with b
images, r graders, s samples:

    always         image (b c h w) as the data have it, in [0, 1]; labels, reconstructions (b r h w); graders (b r);
                   valid (b h w); keys (b); samples_full (b s h w)
    scales         prior_mean (b h w); samples_global, samples_local (b s h w): only the most global or the most local
                   scale was sampled
    deviations     std (b d h w), d = 1 + latent scales: the standard deviation over samples of the probability of
                   the class where it is largest; all scales sampled, then each scale alone, coarsest first
    instances      true_instances, instances (b h w): those of the data, and those found by clustering the samples; 0
                   is background
    hardness       hardness (b), NaN where it is undefined, and hardness_metric (), "rand_error" or "ged2"
    evaluation     is_hardest (b), is_spread (b): whether an image is among the hardest of the evaluated set, and
                   whether it is one of those spread evenly over it
    extrapolation  visible (b h w), false where the prior did not see the image
    classes        stochastic_classes (n), class_names (k): "id 1", "id 2", … are random ids of instances
    volumes        the maps above are axial planes of volumes; coronal_NAME (… d w) and sagittal_NAME (… d h) are the
                   other two planes of every map; position (b 3): the slice, row and column where they cut each other;
                   spacing (3) of voxels, in mm or relative

A group is complete or absent; only the first is required. Other arrays are ignored.
"""

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8

from hpunet.errors import DataError
from hpunet.reports.planes import as_pictures
from hpunet.utils.files import read_file
from hpunet.utils.label_painter import PALETTE, contrast_palette
from hpunet.utils.limits import allowed
from hpunet.utils.plane_layout import CORONAL, SAGITTAL, Layout, plane_array, plane_of

MAX_UNPACKED_BYTES = 2**31
WAYS = ("full", "global", "local")
"""What was sampled: all latent scales, or one with the others at their mean."""
_ALWAYS = ("image", "labels", "graders", "valid", "keys", "reconstructions", "samples_full")
_GROUPS = (
    ("prior_mean", "samples_global", "samples_local"),
    ("true_instances", "instances"),
    ("hardness", "hardness_metric"),
    ("is_hardest", "is_spread"),
    ("stochastic_classes", "class_names"),
)
_ARRAYS = {
    "image": ("f", "b c h w"),  # first: it sets the sizes of the others
    **dict.fromkeys(("labels", "reconstructions"), ("iu", "b r h w")),
    **{f"samples_{way}": ("iu", "b s h w") for way in WAYS},
    "std": ("f", "b d h w"),
    **dict.fromkeys(("prior_mean", "instances", "true_instances"), ("iu", "b h w")),
    **dict.fromkeys(("valid", "visible"), ("b", "b h w")),
    "graders": ("b", "b r"),
    "keys": ("U", "b"),
    "hardness": ("f", "b"),
    **dict.fromkeys(("is_hardest", "is_spread"), ("b", "b")),
    "hardness_metric": ("U", ""),
    "stochastic_classes": ("iu", "n"),
    "class_names": ("U", "k"),
}
_MAPS = {name: (kind, dims) for name, (kind, dims) in _ARRAYS.items() if dims.endswith("h w")}
_ARRAYS |= {plane_array(CORONAL, name): (kind, dims.replace("h w", "z w")) for name, (kind, dims) in _MAPS.items()}
_ARRAYS |= {plane_array(SAGITTAL, name): (kind, dims.replace("h w", "z h")) for name, (kind, dims) in _MAPS.items()}
_ARRAYS |= {"position": ("iu", "b p"), "spacing": ("f", "p")}
"""Kind of numpy type and dimensions."""
_KIND_WORDS = {"f": "floats", "b": "booleans", "U": "strings", "iu": "whole numbers"}


@dataclass(frozen=True)
class Examples:
    """The arrays of a file; samples by way of sampling. None is an absent group.

    Maps of volumes are pictures of three planes: `blank` is where they show none. The planes cut each other in two
    rows and two columns of the picture, `cuts`.
    """

    image: Float[np.ndarray, "b c h w"]
    labels: Integer[np.ndarray, "b r h w"]
    graders: Bool[np.ndarray, "b r"]
    valid: Bool[np.ndarray, "b h w"]
    keys: Sequence[str]
    reconstructions: Integer[np.ndarray, "b r h w"]
    samples: Mapping[str, Integer[np.ndarray, "b _ h w"]]
    std: Float[np.ndarray, "b d h w"] | None
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
    blank: Bool[np.ndarray, "h w"] | None = None
    cuts: Integer[np.ndarray, "b 2 2"] | None = None

    @property
    def are_ids(self) -> bool:
        """Whether the stochastic classes are random ids of instances."""
        names = [self.class_names[c] for c in self.stochastic_classes]
        return self.instances is not None or names == [f"id {i + 1}" for i in range(len(names))]

    @property
    def has_other_classes(self) -> bool:
        """Whether there are classes besides the background and the stochastic ones."""
        return len(self.class_names) > len(self.stochastic_classes) + 1

    @cached_property
    def palette(self) -> UInt8[np.ndarray, "8 3"]:
        """The colours of classes: those that differ from the images, where maps are painted on them."""
        return contrast_palette(self.image, self.labels) if len(self.stochastic_classes) == 1 else PALETTE

    @property
    def hardness_name(self) -> str:
        """The metric of the hardness, as figures show it."""
        return {"rand_error": "Rand error", "ged2": "GED²"}.get(self.hardness_metric, self.hardness_metric)


def read_examples(path: Path, *, same_classes: Examples | None = None) -> Examples:
    """Read a file of examples, or raise an error that names the file and what is wrong with it.

    A file without classes has those of `same_classes`, else all but class 0 are stochastic.
    """
    return as_examples(_read_arrays(path), path=path, same_classes=same_classes)


def as_examples(arrays: Mapping[str, np.ndarray], *, path: Path, same_classes: Examples | None = None) -> Examples:
    """The arrays of such a file, checked; `path` names it in errors."""
    _check(arrays, path)
    if "class_names" in arrays:
        stochastic, names = arrays["stochastic_classes"].tolist(), arrays["class_names"].tolist()
    elif same_classes is not None:
        stochastic, names = same_classes.stochastic_classes, same_classes.class_names
    else:
        num_classes = 1 + max(1, *(int(arrays[n].max()) for n in ("labels", "reconstructions", "samples_full")))
        stochastic, names = range(1, num_classes), [f"class {i}" for i in range(num_classes)]
    if "position" in arrays:
        arrays = as_pictures(arrays, enlarged=len(names) == 2 and not {"instances", "visible"} & arrays.keys())
    values: dict[str, Any] = {field.name: arrays.get(field.name) for field in fields(Examples)}
    values["samples"] = {way: arrays[f"samples_{way}"] for way in WAYS if f"samples_{way}" in arrays}
    values |= {"keys": arrays["keys"].tolist(), "stochastic_classes": stochastic, "class_names": names}
    return Examples(**values | {"hardness_metric": str(arrays.get("hardness_metric", ""))})


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    content = read_file(path, error=DataError)
    limit = min(MAX_UNPACKED_BYTES, allowed(len(content)).unpacked)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size <= limit:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                return {name: np.asarray(archive[name]) for name in archive.files if name in _ARRAYS}
    except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds
        raise DataError(f"{path}: not a readable .npz file ({error})") from None
    raise DataError(f"{path}: unpacks to {size} bytes, more than the allowed {limit}")


def _check(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Refuse arrays that are missing, have the wrong kind, or do not fit each other."""
    groups: list[tuple[str, ...]] = [group for group in _GROUPS if any(name in arrays for name in group)]
    if {"position", "spacing"} & arrays.keys() or any(plane_of(name) == CORONAL for name in arrays):
        maps = [name for name in _MAPS if name in arrays]
        groups.append(("position", "spacing", *(plane_array(p, m) for p in (CORONAL, SAGITTAL) for m in maps)))
    if missing := [name for group in (_ALWAYS, *groups) for name in group if name not in arrays]:
        raise DataError(f"{path}: lacks {', '.join(missing)}")
    sizes: dict[str, int] = {}
    for name, (kind, shape) in _ARRAYS.items():
        if name not in arrays:
            continue
        array, dims = arrays[name], shape.split()
        fits = array.ndim == len(dims) and array.size > 0 and array.dtype.kind in kind
        # Ways of sampling may have different numbers of samples.
        if not fits or any(d != "s" and sizes.setdefault(d, n) != n for d, n in zip(dims, array.shape, strict=True)):
            wanted = " ".join(f"{dim}={sizes[dim]}" if dim in sizes else dim for dim in dims)
            got = f"{array.dtype} of shape {array.shape}"
            raise DataError(f"{path}: {name}: expected {_KIND_WORDS[kind]} ({wanted}), got {got}")
        if kind == "iu" and array.min() < 0:
            raise DataError(f"{path}: {name}: expected 0 or more, found {array.min()}")
        if kind == "f" and name != "hardness" and not np.isfinite(array).all():
            raise DataError(f"{path}: {name}: holds values that are not finite")
    if "position" in arrays:
        _check_planes(arrays, path, size=(sizes["z"], sizes["h"], sizes["w"]))
    if "class_names" in arrays and arrays["stochastic_classes"].max() >= len(arrays["class_names"]):
        raise DataError(f"{path}: stochastic_classes: class_names has only {len(arrays['class_names'])} classes")


def _check_planes(arrays: Mapping[str, np.ndarray], path: Path, *, size: tuple[int, int, int]) -> None:
    position, spacing = arrays["position"], arrays["spacing"]
    if position.shape[1] != 3 or (position >= size).any() or (spacing <= 0).any():
        raise DataError(f"{path}: position, spacing: do not belong to volumes of {'×'.join(map(str, size))}")
    height, width = Layout.of(size, spacing=spacing.tolist()).shape
    num_bytes = 0
    for name in (name for name in _MAPS if name in arrays):
        *numbers, _, _ = arrays[name].shape
        num_bytes += math.prod(numbers) * height * width * arrays[name].itemsize
        for plane in (CORONAL, SAGITTAL):
            if [*arrays[plane_array(plane, name)].shape[:-2]] != numbers:
                raise DataError(f"{path}: {plane_array(plane, name)}: not as many maps as {name}")
    if num_bytes > MAX_UNPACKED_BYTES:
        raise DataError(f"{path}: pictures of its planes take {num_bytes} bytes, more than {MAX_UNPACKED_BYTES}")
