"""Published weights: a folder that can be loaded by name, `hpunet.load("lidc-hpu-2026")`.

    model.json               name, settings, data, iteration, credit; SHA-256 and size of the files, its own SHA-256
    sampling.safetensors     the weights for sampling, float16
    posterior.safetensors    the other weights, for reconstruction and IoU_rec; optional

`hub.py` writes another layout of the same. Names are looked up in the installed package (`pretrained/NAME`), then in
the cache; nothing is downloaded. Float16 keeps 11 bits, bfloat16 only 8; weights beyond its range are an error (see
docs/guides/weights.md).
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
HUB_DESCRIPTION, HUB_WEIGHTS = "config.json", "model.safetensors"
_HUB_FILES = (HUB_DESCRIPTION, HUB_WEIGHTS)
_MAX_JSON_BYTES = 2**22
_MAX_WEIGHT_BYTES = 2**33
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}[a-z0-9]")
ABOUT: dict[str, type] = {"name": str, "step": int, "credit": str, "settings": dict, "info": dict}
_KEYS = {"format": str, "version": int, **ABOUT, "files": dict}


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
    """Whether this is a folder of published weights, intact or not, also in the layout of a model hub."""
    return (folder / DESCRIPTION).is_file() or is_hub(folder)


def is_hub(folder: Path) -> bool:
    """Whether this folder has the layout of a model hub (`hub.py`), for this or other software."""
    return not (folder / DESCRIPTION).is_file() and all((folder / file).is_file() for file in _HUB_FILES)


def is_valid_name(word: str) -> bool:
    """Whether published weights could have this name."""
    return _NAME.fullmatch(word) is not None


def check_name(word: str) -> None:
    """Refuse a name that published weights cannot have."""
    if not is_valid_name(word):
        raise ConfigError(f"name: expected 2 to 64 of a-z, 0-9, '.', '_' and '-', got {word!r}")


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
    found = read_description(path, kind=FORMAT, version=VERSION, keys=_KEYS, name=name)
    files = found["files"]
    if SAMPLING not in files or files.keys() - {SAMPLING, POSTERIOR} or not all(map(is_hash_entry, files.values())):
        raise CheckpointError(f"{path}: expected SHA-256 and size of {SAMPLING} and optionally {POSTERIOR}")
    has_posterior = POSTERIOR in files and os.path.lexists(folder / POSTERIOR)
    return Published(
        **{key: found[key] for key in ABOUT},
        sampling=read_tensors(folder / SAMPLING, files[SAMPLING], listed_in=DESCRIPTION),
        posterior=read_tensors(folder / POSTERIOR, files[POSTERIOR], listed_in=DESCRIPTION)
        if has_posterior
        else None,
    )


def read_description(
    path: Path, *, kind: str, version: int, keys: Mapping[str, type], name: str | None
) -> dict[str, Any]:
    """A JSON file about weights (of this `name`, if given), with exactly these keys and types of values."""
    what = "the description of published weights"
    found = read_hashed_json(path, kind=kind, version=version, what=what, max_bytes=_MAX_JSON_BYTES)
    if found.keys() != keys.keys() or any(type(found[key]) is not expected for key, expected in keys.items()):
        raise CheckpointError(f"{path}: expected {', '.join(f'{k} ({v.__name__})' for k, v in keys.items())}")
    if name is not None and found["name"] != name:
        raise CheckpointError(f"{path}: says that its name is {found['name']!r}, not {name!r}")
    return found


def read_tensors(path: Path, entry: Mapping[str, Any], *, listed_in: str) -> dict[str, Tensor]:
    """A file of weights, checked against its entry in the description, as float32."""
    content = read_hashed(path, entry, max_bytes=_MAX_WEIGHT_BYTES, listed_in=listed_in)
    return {key: tensor.float() for key, tensor in decode(content, name=str(path)).items()}


def write_published(
    out: Path, *, about: Mapping[str, Any], sampling: Mapping[str, Tensor], posterior: Mapping[str, Tensor] | None
) -> dict[str, dict[str, Any]]:
    """Write the folder `out` atomically; returns SHA-256 and size of each file.

    `about`: name, step, settings, info and credit.
    """
    check_name(about["name"])
    groups = {SAMPLING: sampling, **({} if posterior is None else {POSTERIOR: posterior})}
    halves = {file: halved(tensors) for file, tensors in groups.items()}
    with atomic_folder(out) as folder:
        files = {file: write_hashed(folder / file, encode(half, name=file)) for file, half in halves.items()}
        described = {"format": FORMAT, "version": VERSION, **about, "files": files}
        write_synced(folder / DESCRIPTION, dump_hashed_json(described, name=DESCRIPTION))
    return files


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in float16."""
    halves = {key: tensor.to(torch.float16) for key, tensor in tensors.items()}
    if odd := [key for key, half in halves.items() if not half.isfinite().all()]:
        raise CheckpointError(f"{odd[0]}: has values beyond ±65504 or not finite, which float16 cannot hold")
    return halves
