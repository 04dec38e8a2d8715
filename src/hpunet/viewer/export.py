"""What a person takes along from a case: one function per format, in one registry."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt

from hpunet.data.io.inputs import Stored
from hpunet.errors import ConfigError
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


FORMATS: dict[str, Callable[[Decided, int], File]] = {"png": _png, "nifti": _nifti, "json": _json, "state": _state}
"""From a case, and the slice that formats of one slice hold, to a file."""


def export(decided: Decided, *, kind: str, number: int = 0) -> File:
    """The case in one of `FORMATS`."""
    if kind not in FORMATS:
        raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {kind[:40]!r}")
    if not 0 <= number < len(decided.mask):
        raise ConfigError(f"slice: expected 0 to {len(decided.mask) - 1}, got {number}")
    return FORMATS[kind](decided, number)
