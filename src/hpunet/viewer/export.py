"""What a person takes along from a case: one function per format, in one registry."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt

from hpunet.data.io.inputs import Stored
from hpunet.errors import ConfigError
from hpunet.predict.export import registry
from hpunet.predict.export.results import Results, label_regions
from hpunet.predict.place import Place
from hpunet.viewer.worklist import encode_mask


@dataclass(frozen=True)
class Decided:
    """A case as it is now."""

    name: str
    stored: Stored
    mask: UInt[np.ndarray, "z h w"]
    about: Mapping[str, Any]
    """State, measurements and the record of the model, as JSON."""


class File(NamedTuple):
    """A file to download."""

    name: str
    content: bytes
    media_type: str


def _png(decided: Decided, number: int) -> File:
    depth = len(decided.mask)
    name = f"{decided.name}-z{number:03d}" if depth > 1 else decided.name
    content = encode_mask(decided.mask[number : number + 1], decided.stored, suffix=".png")
    return File(f"{name}-mask.png", content, "image/png")


def _nifti(decided: Decided, _: int) -> File:
    content = encode_mask(decided.mask, decided.stored, suffix=".nii.gz")
    return File(f"{decided.name}-mask.nii.gz", content, "application/gzip")


def _json(decided: Decided, _: int) -> File:
    content = json.dumps(decided.about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return File(f"{decided.name}.json", content.encode(), "application/json")


def _state(decided: Decided, number: int) -> File:
    source = (decided.about["state"]["slices"].get(str(number)) or {}).get("source") or {}
    if not source.get("state"):
        why = "nothing was chosen on this slice, or its image is too large for the work list to keep a state"
        raise ConfigError(f"state: {why}")
    name = f"{decided.name}-z{number:03d}" if len(decided.mask) > 1 else decided.name
    return File(f"{name}-state.json", json.dumps(source["state"]).encode() + b"\n", "application/json")


def _encoded(name: str) -> Callable[[Decided, int], File]:
    """The regions of the mask in a format of `hpunet sample`."""

    def make(decided: Decided, _: int) -> File:
        stored, model = decided.stored, decided.about["model"]
        depth, h, w = decided.mask.shape
        place = Place((depth, h, w), (0, 0, 0), stored.geometry, stored.header, stored.frames)
        registry.check_formats([name], place=place, has_regions=True, where=decided.name)
        names = None if model["has_instances"] else {each["index"]: each["name"] for each in model["classes"]}
        regions = label_regions(decided.mask, names=names, description="chosen or drawn by a person")
        if not regions:
            raise ConfigError(f"format {name}: nothing is marked")
        how: dict[str, Any] = {"model": model["name"], "iteration": model["iteration"], "title": "mask"}
        encode = registry.FORMATS[name].encode
        assert encode is not None
        ((file, content),) = encode(Results(place, (0, 0, 0), regions, **how, is_edited=True)).items()
        return File(f"{decided.name}-{file}", content, _MEDIA_TYPES[file.rpartition(".")[2]])

    return make


_MEDIA_TYPES = {"dcm": "application/dicom", "geojson": "application/geo+json", "zip": "application/zip"}
_ENCODED = [name for name, kind in registry.FORMATS.items() if kind.encode is not None]
FORMATS: dict[str, Callable[[Decided, int], File]] = {
    "png": _png,
    "nifti": _nifti,
    "json": _json,
    "state": _state,
    **{name: _encoded(name) for name in _ENCODED},
}
"""From a case, and the slice that formats of one slice hold, to a file."""


def formats_of(stored: Stored) -> list[str]:
    """The formats that a case can have."""
    place = Place((1, 1, 1), frames=stored.frames)
    fitting = registry.fitting_formats(place)
    return [name for name in FORMATS if name not in _ENCODED or name in fitting]


def export(decided: Decided, *, kind: str, number: int = 0) -> File:
    """The case in one of `FORMATS`."""
    if kind not in FORMATS:
        raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {kind[:40]!r}")
    if not 0 <= number < len(decided.mask):
        raise ConfigError(f"slice: expected 0 to {len(decided.mask) - 1}, got {number}")
    return FORMATS[kind](decided, number)
