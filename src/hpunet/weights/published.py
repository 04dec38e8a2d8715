"""Published weights: a folder that can be loaded by name, `hpunet.load("lidc-hpu-2026")`.

    model.json               name, settings, data, iteration, credit; SHA-256 and size of the files, its own SHA-256
    sampling.safetensors     the weights for sampling, float16
    posterior.safetensors    the other weights, for reconstruction and IoU_rec; optional

Names are looked up in the installed package (`pretrained/NAME`), then in the cache; nothing is downloaded. Float16
keeps 11 bits, bfloat16 only 8; weights beyond its range are an error (see docs/guides/weights.md).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor

from hpunet.errors import CheckpointError, ConfigError
from hpunet.utils.files import (
    atomic_folder,
    dump_hashed_json,
    explain_os_errors,
    is_hash_entry,
    read_hashed,
    read_hashed_json,
    write_hashed,
    write_synced,
)
from hpunet.weights.safetensors_io import decode, encode

FORMAT, VERSION = "hpunet-published", 1
DESCRIPTION = "model.json"
SAMPLING, POSTERIOR = "sampling.safetensors", "posterior.safetensors"
_MAX_JSON_BYTES = 2**22
_MAX_WEIGHT_BYTES = 2**33
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}[a-z0-9]")
_KEYS: dict[str, type] = {"format": str, "version": int, "name": str, "step": int, "credit": str}
_KEYS |= {"settings": dict, "info": dict, "files": dict}


@dataclass(frozen=True)
class Published:
    """Verified published weights; tensors are float32, on the CPU."""

    name: str
    step: int
    settings: dict[str, Any]
    info: dict[str, Any]
    credit: str
    sampling: dict[str, Tensor]
    posterior: dict[str, Tensor] | None


def cache_folder() -> Path:
    """Where downloaded weights go: `$HPUNET_HOME/pretrained`, else `hpunet/pretrained` in the user's cache folder."""
    home = os.environ.get("HPUNET_HOME")
    return Path(home or platformdirs.user_cache_path("hpunet", appauthor=False, opinion=False)) / "pretrained"


def search_folders() -> list[Path]:
    """Folders that may hold published weights, in search order."""
    return [Path(__file__).parent / "pretrained", cache_folder()]


def published_names() -> list[str]:
    """The names of all published weights found."""
    found = set()
    for place in filter(Path.is_dir, search_folders()):
        with explain_os_errors(place, action="listed"):
            found |= {entry.name for entry in place.iterdir() if is_valid_name(entry.name) and is_published(entry)}
    return sorted(found)


def is_published(folder: Path) -> bool:
    """Whether this is a folder of published weights, intact or not."""
    return (folder / DESCRIPTION).is_file()


def is_valid_name(word: str) -> bool:
    """Whether published weights could have this name."""
    return _NAME.fullmatch(word) is not None


def find_published(name: str) -> Path | None:
    """The folder of the weights of this name, if found."""
    folders = [place / name for place in search_folders()] if is_valid_name(name) else []
    return next((folder for folder in folders if is_published(folder)), None)


def unknown_name_message(name: str) -> str:
    """The error message for a name that is neither a folder nor known."""
    names = ", ".join(published_names()) or "none"
    words = f"{name}: no such folder (expected one that `hpunet train` wrote), and no published weights of that name"
    return f"{words}; known: {names}; looked in {' and '.join(map(str, search_folders()))}"


def read_published(folder: Path, *, name: str | None = None) -> Published:
    """Read and verify published weights. The name in them must be `name`, if given."""
    path = folder / DESCRIPTION
    what = "the description of published weights"
    found = read_hashed_json(path, kind=FORMAT, version=VERSION, what=what, max_bytes=_MAX_JSON_BYTES)
    if found.keys() != _KEYS.keys() or any(type(found[key]) is not kind for key, kind in _KEYS.items()):
        raise CheckpointError(f"{path}: expected {', '.join(f'{k} ({v.__name__})' for k, v in _KEYS.items())}")
    if name is not None and found["name"] != name:
        raise CheckpointError(f"{path}: says that its name is {found['name']!r}, not {name!r}")
    files = found["files"]
    if SAMPLING not in files or files.keys() - {SAMPLING, POSTERIOR} or not all(map(is_hash_entry, files.values())):
        raise CheckpointError(f"{path}: expected SHA-256 and size of {SAMPLING} and optionally {POSTERIOR}")
    has_posterior = POSTERIOR in files and os.path.lexists(folder / POSTERIOR)
    return Published(
        **{key: found[key] for key in ("name", "step", "settings", "info", "credit")},
        sampling=_read_tensors(folder / SAMPLING, files[SAMPLING]),
        posterior=_read_tensors(folder / POSTERIOR, files[POSTERIOR]) if has_posterior else None,
    )


def _read_tensors(path: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    content = read_hashed(path, entry, max_bytes=_MAX_WEIGHT_BYTES, listed_in=DESCRIPTION)
    return {key: tensor.float() for key, tensor in decode(content, name=str(path)).items()}


def write_published(
    out: Path, *, about: Mapping[str, Any], sampling: Mapping[str, Tensor], posterior: Mapping[str, Tensor] | None
) -> dict[str, dict[str, Any]]:
    """Write the folder `out` atomically; returns SHA-256 and size of each file.

    `about`: name, step, settings, info and credit.
    """
    if not is_valid_name(about["name"]):
        raise ConfigError(f"name: expected 2 to 64 of a-z, 0-9, '.', '_' and '-', got {about['name']!r}")
    groups = {SAMPLING: sampling, **({} if posterior is None else {POSTERIOR: posterior})}
    halves = {file: _halved(tensors) for file, tensors in groups.items()}
    with atomic_folder(out) as folder:
        files = {file: write_hashed(folder / file, encode(half, name=file)) for file, half in halves.items()}
        described = {"format": FORMAT, "version": VERSION, **about, "files": files}
        write_synced(folder / DESCRIPTION, dump_hashed_json(described, name=DESCRIPTION))
    return files


def _halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    halves = {key: tensor.to(torch.float16) for key, tensor in tensors.items()}
    if odd := [key for key, half in halves.items() if not half.isfinite().all()]:
        raise CheckpointError(f"{odd[0]}: has values beyond ±65504 or not finite, which float16 cannot hold")
    return halves
