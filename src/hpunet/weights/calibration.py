"""What `hpunet calibrate` writes about a model, in one folder:

    calibration.json      thresholds of guarantees and of the review flag, what they were measured on; its own SHA-256
    review.safetensors    the review statistic of the training images, and hashes of their patients

Both name the weights by their SHA-256 and are refused for others. They are looked for in the folder given, else in
`calibration/NAME` beside the cache of published weights, else in the model's own folder.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpunet.errors import CheckpointError
from hpunet.sampling.review import TENSORS, ReviewStatistic
from hpunet.utils.files import atomic_write, dump_hashed_json, read_file, read_hashed_json
from hpunet.utils.tensors import hash_tensors
from hpunet.utils.text import as_utf8
from hpunet.weights.load import TrainedModel
from hpunet.weights.published import cache_folder, is_published
from hpunet.weights.safetensors_io import decode, encode

CALIBRATION, REVIEW = "calibration.json", "review.safetensors"
FORMAT, VERSION = "hpunet-calibration", 1
_MAX_JSON_BYTES, _MAX_REVIEW_BYTES = 2**20, 2**26
_MAX_ENTRIES = 1000
_PATIENTS, _WEIGHTS = "patients", "weights_sha256"
_PATIENT_BITS = 40


@dataclass(frozen=True)
class Level:
    """The thresholds of one guarantee, for images of one group."""

    guarantee: float
    areas: tuple[float, float | None]
    """The group: median area of the samples that mark something, from the first up to below the second, in pixels."""
    outer: float | None
    """Of the order of pixels; None: no threshold is large enough, the mask is the whole image."""
    inner: float | None
    """None: the mask is empty."""
    area: float | None
    """By how much the range of areas is widened; None: every area."""
    num_patients: int
    num_images: int


@dataclass(frozen=True)
class Calibration:
    """Thresholds for a model, its sampler and one kind of data."""

    model: str
    weights_sha256: str
    num_samples: int
    orientations: int
    kernels: str
    miss_rate: float
    levels: tuple[Level, ...]
    review_threshold: float | None
    """Of the review score; None without a statistic."""
    false_alarms: float
    """Share of images of new patients that the review flag marks, at most."""
    data: str
    """Fingerprint of the calibration data."""
    split: str
    num_patients: int
    num_images: int
    notes: tuple[str, ...]
    """What limits the guarantees, in sentences."""


def weights_sum(trained: TrainedModel) -> str:
    """SHA-256 of the weights that samples depend on, temperature included."""
    needed = {id(module) for module in trained.model.sampling_modules()}
    parts = [(part, module) for part, module in sorted(trained.model.named_children()) if id(module) in needed]
    return hash_tensors(
        (f"{part}.{name}", tensor) for part, module in parts for name, tensor in sorted(module.state_dict().items())
    )


def own_folder(trained: TrainedModel) -> Path:
    """Where `hpunet calibrate` writes by default: the run's folder; for published weights, in the cache."""
    if trained.folder is None or is_published(trained.folder):
        return cache_folder().parent / "calibration" / trained.name
    return trained.folder


def find_files(trained: TrainedModel, *, file: str = CALIBRATION, folder: Path | None = None) -> list[Path]:
    """The files of this name in `folder` or in the places named above, which may be of other weights; own ones first.

    A `CheckpointError` says that `folder` has no `calibration.json`; statistics are optional.
    """
    own = [] if trained.folder is None else [own_folder(trained), trained.folder]
    places = own if folder is None else [folder]
    found = [place / file for place in dict.fromkeys(places) if (place / file).is_file()]
    if folder is not None and file == CALIBRATION and not found:
        raise CheckpointError(f"{folder}: has no {file}; `hpunet calibrate {trained.name} --data DATA` writes one")
    return found


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write or replace `calibration.json`."""
    content = {"format": FORMAT, "version": VERSION, **asdict(calibration)}
    content["levels"] = [{**level, "areas": list(level["areas"])} for level in content["levels"]]
    content["notes"] = list(content["notes"])
    atomic_write(folder / CALIBRATION, dump_hashed_json(content, name=CALIBRATION))


def read_calibration(path: Path) -> Calibration:
    """Read and check a `calibration.json`."""
    how: dict[str, Any] = {"kind": FORMAT, "version": VERSION, "max_bytes": _MAX_JSON_BYTES}
    found = read_hashed_json(path, what="a calibration", **how)
    values = {name: value for name, value in found.items() if name not in ("format", "version")}
    levels = values.pop("levels", None)
    if not isinstance(levels, list) or not 0 < len(levels) <= _MAX_ENTRIES:
        raise CheckpointError(f"{path}: levels: expected a list of 1 to {_MAX_ENTRIES}")
    read = tuple(_checked(Level, each, where=f"{path}: levels") for each in levels)
    calibration: Calibration = _checked(Calibration, {**values, "levels": read}, where=str(path))
    return calibration


_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("guarantee", "miss_rate", "false_alarms"), _NUMBER),
    **dict.fromkeys(("outer", "inner", "area", "review_threshold"), (*_NUMBER, type(None))),
    **dict.fromkeys(("num_patients", "num_images", "num_samples", "orientations"), (int,)),
    **dict.fromkeys(("model", "weights_sha256", "kernels", "data", "split"), (str,)),
    "areas": (list,),
    "notes": (list,),
    "levels": (tuple,),
}


def _checked(kind: type, values: Any, *, where: str) -> Any:
    """A `Level` or a `Calibration`, of values of the right types."""
    names = [field.name for field in fields(kind)]
    if not isinstance(values, dict) or sorted(values) != sorted(names):
        raise CheckpointError(f"{where}: expected {', '.join(names)}")
    for name, value in values.items():
        if type(value) not in _TYPES[name]:
            raise CheckpointError(f"{where}: {name}: expected {_TYPES[name][0].__name__}, got {value!r:.40}")
        if name in ("guarantee", "miss_rate", "false_alarms") and not 0 <= value < 1:
            raise CheckpointError(f"{where}: {name}: expected 0 to 1, got {value}")
    if kind is Level:
        values = {**values, "areas": _area_group(values["areas"], where=where)}
    else:
        if not all(type(note) is str for note in values["notes"]):
            raise CheckpointError(f"{where}: notes: expected texts")
        values = {**values, "notes": tuple(values["notes"])}
    return kind(**values)


def _area_group(stored: list[Any], *, where: str) -> tuple[float, float | None]:
    if len(stored) == 2 and type(stored[0]) in _NUMBER and type(stored[1]) in (*_NUMBER, type(None)):
        low, high = stored
        if low >= 0 and (high is None or high > low):
            return low, high
    raise CheckpointError(f"{where}: areas: expected two numbers, the second larger or null, got {stored!r:.40}")


def reason_against(calibration: Calibration, trained: TrainedModel, *, weights: str, kernels: str) -> str | None:
    """Why a calibration is not for this model with these `weights_sum` and kernels, and what to do; None if it is."""
    again = f"`hpunet calibrate {trained.name} --data DATA"
    if calibration.weights_sha256 != weights:
        words = f"it was made for other weights than those of {trained.name} ({calibration.model})"
        return f"{words}; calibrate these: {again}`"
    if calibration.orientations != trained.model.orientations:
        number = calibration.orientations
        words = f"it was made with orientations {number}, not {trained.model.orientations}"
        return f"{words}; use `--orientations {number}`, in Python `hpunet.load(…, orientations={number})`"
    if calibration.kernels != kernels:
        wanted = calibration.kernels
        words = f"it was made with kernels {wanted}, but samples are drawn with kernels {kernels}"
        use = f'use `--kernels {wanted}`, in Python `hpunet.load(…, kernels="{wanted}")`'
        return f"{words}; {use}, or calibrate these: {again} --kernels {kernels}`"
    return None


def hash_patients(patients: Iterable[str], *, weights: str) -> Tensor:
    """Hashes of patients' names, ascending, different for each model."""
    digests = {hashlib.sha256(as_utf8(f"{weights}\0{patient}")).digest() for patient in patients}
    return torch.tensor(sorted(int.from_bytes(digest[: _PATIENT_BITS // 8]) for digest in digests), dtype=torch.int64)


def write_review(folder: Path, statistic: ReviewStatistic, *, patients: Tensor, weights: str) -> None:
    """Write or replace `review.safetensors`; `patients` are the hashes of those of training."""
    tensors = {name: getattr(statistic, name) for name in TENSORS}
    stored = torch.frombuffer(bytearray.fromhex(weights), dtype=torch.uint8)
    atomic_write(folder / REVIEW, encode({**tensors, _PATIENTS: patients, _WEIGHTS: stored}, name=REVIEW))


def read_review(path: Path) -> tuple[ReviewStatistic, Tensor, str]:
    """The statistic, the hashes of the patients of training, and the SHA-256 of the weights they belong to."""
    found = decode(read_file(path, max_bytes=_MAX_REVIEW_BYTES), name=str(path))
    if sorted(found) != sorted([*TENSORS, _PATIENTS, _WEIGHTS]):
        raise CheckpointError(f"{path}: not a review statistic, or of another version")
    patients, weights = found.pop(_PATIENTS), found.pop(_WEIGHTS)
    f, d = found["directions"].shape if found["directions"].ndim == 2 else (0, 0)
    shapes: Mapping[str, tuple[int, ...]] = {
        "centre": (f,), "scale": (f,), "directions": (f, d), "mean": (d + 1,), "whitening": (d + 1, d + 1),
        "weights": (d + 1,), "units": (2, 2),
    }  # fmt: skip
    for name, shape in shapes.items():
        kind = torch.int8 if name == "directions" else torch.float32
        if tuple(found[name].shape) != shape or not math.prod(shape) or found[name].dtype != kind:
            raise CheckpointError(f"{path}: {name}: expected {kind} of shape {shape}; damaged")
        if name != "directions" and not found[name].isfinite().all():
            raise CheckpointError(f"{path}: {name}: has values that are NaN or infinite; damaged")
    if (found["scale"] <= 0).any() or patients.dtype != torch.int64 or weights.dtype != torch.uint8:
        raise CheckpointError(f"{path}: impossible values; damaged")
    return ReviewStatistic(**found), patients, bytes(weights.flatten().tolist()).hex()
