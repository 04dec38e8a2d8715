"""Checkpoints: saving them, and finding the newest intact one.

A checkpoint is a folder, `step-00001000` or a name such as `best`:

    <group>.safetensors   one file per group of tensors (model, optimiser, ...)
    state.json            everything else
    manifest.json         format, version, step, SHA-256 and size of every file, its own SHA-256; written last

It is written as `.tmp-hpunet-<name>` and renamed when complete. A replaced one is moved to `.old-hpunet-<name>` first
and deleted last, so that a kill at any moment leaves one of the two; readers look in both places. One process may
write while others read: these read again if the checkpoint has been replaced or deleted meanwhile.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hpunet.errors import CheckpointError, ConfigError
from hpunet.utils.files import (
    REPLACED,
    TEMPORARY,
    atomic_folder,
    beside,
    dump_hashed_json,
    dump_json,
    entries,
    explain_os_errors,
    is_hash_entry,
    parse_json,
    read_hashed,
    read_hashed_json,
    read_live,
    real_path,
    remove_folder,
    write_hashed,
    write_synced,
)
from hpunet.utils.locks import LOCK
from hpunet.weights.safetensors_io import MAX_BYTES, decode, encode

FORMAT, VERSION = "hpunet-checkpoint", 1
_MANIFEST, _STATE, _TENSORS = "manifest.json", "state.json", ".safetensors"
_MAX_JSON_BYTES = 2**26
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TENSOR_FILE = re.compile(_NAME.pattern + re.escape(_TENSORS))
_STEP = re.compile(r"step-([0-9]{8,18})")
_STEP_NAME = "step-{:08d}"
_MAX_STEP = 10**18 - 1


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; tensors are on the CPU. `skipped` says why newer ones could not be used."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    name: str | None = None,
) -> Path:
    """Write a checkpoint into `folder` atomically, and return its path.

    `tensors` maps group names (the files) to named tensors; `state` is JSON data. The checkpoint is called after its
    step unless it has a `name`; one of the same name is replaced.
    """
    target = folder / (_STEP_NAME.format(step) if name is None else name)
    if not 0 <= step <= _MAX_STEP:
        raise CheckpointError(f"step: expected 0...{_MAX_STEP}, got {step}")
    for word in [*tensors, *([] if name is None else [name])]:
        if not _NAME.fullmatch(word) or word.startswith("step-"):
            raise CheckpointError(f"{word!r}: names of checkpoints and groups are {_NAME.pattern}, not step-...")
    with explain_os_errors(target, action="written"):
        folder.mkdir(parents=True, exist_ok=True)
        _clean_up(folder)
    with atomic_folder(target, replace=True) as temporary:
        files = {}
        for group, named in tensors.items():  # one at a time: each is in memory twice while it is written
            files[group + _TENSORS] = write_hashed(temporary / (group + _TENSORS), encode(named, name=group))
        files[_STATE] = write_hashed(temporary / _STATE, dump_json(dict(state), name="state"))
        manifest = {"format": FORMAT, "version": VERSION, "step": step, "files": files}
        write_synced(temporary / _MANIFEST, dump_hashed_json(manifest, name=_MANIFEST))
    return target


def _clean_up(folder: Path) -> None:
    """After a killed save: undo or complete its replacement, delete its temporary folders."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(REPLACED):
            target = folder / entry.name.removeprefix(REPLACED)
            if _is_whole(target):
                remove_folder(entry)
            elif _is_whole(entry):
                if os.path.lexists(target):
                    remove_folder(target)
                os.rename(entry, target)
        elif entry.name.startswith(TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name.startswith(LOCK):
            entry.unlink(missing_ok=True)


def prune(folder: Path, *, keep: int, protect: Sequence[Path] = ()) -> list[Path]:
    """Delete all but the newest `keep` intact `step-*` checkpoints, and return what was deleted.

    Nothing is deleted before `keep` newer ones have been verified on the disk. Those in `protect` stay.
    """
    if keep < 1:
        raise ConfigError(f"keep: expected at least 1 checkpoint, got {keep}")
    kept = {real_path(path) for path in protect}
    num_whole, deleted = 0, []
    for path in [folder / name for name in _step_names(folder)]:
        if num_whole < keep:
            num_whole += _is_whole(path)
        elif os.path.lexists(path) and real_path(path) not in kept:
            with explain_os_errors(path, action="deleted"):
                remove_folder(path)
            deleted.append(path)
    return deleted


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`, verified; if its replacement was interrupted, the older one (see `skipped`)."""
    both = (path, beside(path, REPLACED))
    return read_live(lambda: _load_either(path), seen=lambda: entries(*both))


def _load_either(path: Path) -> Checkpoint:
    try:
        return _load(path)
    except CheckpointError as error:
        replaced = beside(path, REPLACED)
        if not replaced.is_dir():
            raise
        try:
            return replace(_load(replaced), skipped=[str(error)])
        except CheckpointError as second:
            raise CheckpointError(f"{error}; its predecessor is no better: {second}") from None


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest intact `step-*` checkpoint; None if there is none at all, a `CheckpointError` if none is intact."""
    return read_live(lambda: _load_latest(folder), seen=lambda: _step_names(folder))


def _load_latest(folder: Path) -> Checkpoint | None:
    skipped: list[str] = []
    for name in _step_names(folder) or _step_names(folder):  # a listing may miss what is renamed at that moment
        try:
            found = load_checkpoint(folder / name)
        except CheckpointError as error:
            if name not in _step_names(folder):  # a newer one has been written since, and this one deleted
                raise
            skipped.append(str(error))
        else:
            return replace(found, skipped=skipped + found.skipped)
    if skipped:
        raise CheckpointError(f"{folder}: holds no intact checkpoint: {'; '.join(skipped)}")
    return None


def _step_names(folder: Path) -> list[str]:
    """Names of the `step-*` checkpoints, newest first, including those that an interrupted save moved."""
    if not os.path.lexists(folder):
        return []
    with explain_os_errors(folder, action="listed"):
        found = {entry.name.removeprefix(REPLACED) for entry in folder.iterdir()}
    steps = {int(match[1]) for match in map(_STEP.fullmatch, found) if match}
    return [name for name in map(_STEP_NAME.format, sorted(steps, reverse=True)) if name in found]


def _is_whole(path: Path) -> bool:
    try:
        for name, entry in _read_manifest(path)[1].items():
            _read(path / name, entry)
    except CheckpointError:
        return False
    return True


def _load(path: Path) -> Checkpoint:
    step, files = _read_manifest(path)
    tensors, state = {}, None
    for name, entry in files.items():
        content = _read(path / name, entry)
        if name == _STATE:
            state = parse_json(content, name=str(path / name))
        else:
            tensors[name.removesuffix(_TENSORS)] = decode(content, name=str(path / name))
    if not isinstance(state, dict):
        raise CheckpointError(f"{path / _STATE}: expected a JSON object")
    return Checkpoint(step=step, tensors=tensors, state=state, path=path)


def _read(path: Path, entry: Mapping[str, Any]) -> bytes:
    max_bytes = _MAX_JSON_BYTES if path.name == _STATE else MAX_BYTES
    return read_hashed(path, entry, max_bytes=max_bytes, listed_in="the manifest")


def _read_manifest(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The step, and SHA-256 and size of each file; checks the manifest and that the folder holds just these files."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint (expected a folder with a {_MANIFEST})")
    where = path / _MANIFEST
    what = f"the manifest of an {FORMAT}"
    manifest = read_hashed_json(where, kind=FORMAT, version=VERSION, what=what, max_bytes=_MAX_JSON_BYTES)
    step, files = manifest.get("step"), manifest.get("files")
    if type(step) is not int or not isinstance(files, dict) or not _are_entries(files):
        raise CheckpointError(f"{where}: expected a step, and SHA-256 and size of each file")
    if manifest.keys() != {"format", "version", "step", "files"}:
        raise CheckpointError(f"{where}: damaged or changed (unknown keys)")
    with explain_os_errors(path, action="listed"):
        present = {entry.name for entry in path.iterdir()} - {_MANIFEST}
    if missing := sorted(files.keys() - present):
        raise CheckpointError(f"{path / missing[0]}: missing")
    if extra := sorted(present - files.keys()):
        raise CheckpointError(f"{path / extra[0]}: not part of the checkpoint; move it elsewhere")
    named = _STEP.fullmatch(path.name.removeprefix(REPLACED))
    if named and int(named[1]) != step:
        raise CheckpointError(f"{where}: says step {step}, unlike the folder's name")
    return step, files


def _are_entries(files: dict[str, Any]) -> bool:
    """Whether these are the state and files of tensors, each with SHA-256 and size."""
    names = all(name == _STATE or _TENSOR_FILE.fullmatch(name) for name in files)
    return _STATE in files and names and all(map(is_hash_entry, files.values()))
