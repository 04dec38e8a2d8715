"""Files that are whole or not there: durable writes, bounded reads, sums, strict JSON.

Every failure is a `CheckpointError` that names the file, the reason and what to do.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hpunet.errors import CheckpointError, ConfigError, HPUNetError

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space or save elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or save elsewhere",
    errno.EFBIG: "the file is larger than this system allows; raise the limit or save elsewhere",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; change its permissions or choose another folder",
    errno.EPERM: "not permitted; change its permissions or choose another folder",
    errno.ENOENT: "it does not exist",
}
MAX_FILE_BYTES = 2**30
"""Largest file that is read, unless the reader sets another limit."""


@contextmanager
def naming_errors(path: Path, *, action: str, error: type[HPUNetError] = CheckpointError) -> Iterator[None]:
    """Turn an `OSError` into an `error` that names `path`, the action that failed, the reason and what to do."""
    try:
        yield
    except OSError as found:
        reason = _ADVICE.get(found.errno or 0, found.strerror or str(found))
        raise error(f"{path}: cannot be {action}: {reason}") from found


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the folder's entries (renames among them), where the system can do that."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems offer no such thing
            raise
    finally:
        os.close(descriptor)


def check_file(path: Path, *, max_bytes: int = MAX_FILE_BYTES, error: type[HPUNetError] = CheckpointError) -> int:
    """The size of a plain file, or an `error` if it is too large or not a file: reading a pipe may never end."""
    with naming_errors(path, action="read", error=error):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: not a plain file")
    if status.st_size > max_bytes:
        raise error(f"{path}: {status.st_size} bytes, expected at most {max_bytes}")
    return status.st_size


def read_file(path: Path, *, max_bytes: int = MAX_FILE_BYTES, error: type[HPUNetError] = CheckpointError) -> bytes:
    """The content of a plain file of at most `max_bytes`; a larger one is refused unread."""
    size = check_file(path, max_bytes=max_bytes, error=error)
    with naming_errors(path, action="read", error=error), open(path, "rb") as file:
        content = file.read(size + 1)
    if len(content) != size:
        raise error(f"{path}: changed while it was read")
    return content


def write_summed(path: Path, content: bytes) -> dict[str, Any]:
    """`write_file`; returns what `read_summed` needs: the content's SHA-256 and size."""
    write_file(path, content)
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def read_summed(path: Path, entry: Mapping[str, Any], *, max_bytes: int, said_by: str) -> bytes:
    """`read_file`, if the content has the SHA-256 and size of `entry`, which `said_by` says."""
    content = read_file(path, max_bytes=max_bytes)
    if len(content) != entry["size"]:
        raise CheckpointError(f"{path}: {len(content)} bytes, {said_by} says {entry['size']}: cut off or changed")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path}: damaged or changed (its SHA-256 is not what {said_by} says)")
    return content


def is_sum(entry: object) -> bool:
    """Whether this is what `write_summed` returns."""
    return (
        isinstance(entry, dict)
        and entry.keys() == {"sha256", "size"}
        and type(entry["sha256"]) is str
        and type(entry["size"]) is int
    )


def sealed(value: Mapping[str, Any], *, name: str) -> bytes:
    """`value` as JSON with a sum of its own, `sha256`, so that a changed digit in it does not go unseen."""
    own = hashlib.sha256(dump_json(dict(value), name=name)).hexdigest()
    return dump_json({**value, "sha256": own}, name=name)


def read_sealed(path: Path, *, kind: str, version: int, what: str, max_bytes: int) -> dict[str, Any]:
    """What `sealed` wrote as an object with `format` and `version`, without its sum; `what` it is, in words."""
    content = read_file(path, max_bytes=max_bytes)
    found = parse_json(content, name=str(path))
    if not isinstance(found, dict) or found.get("format") != kind:
        raise CheckpointError(f"{path}: not {what}, or damaged")
    if found.get("version") != version:
        raise CheckpointError(
            f"{path}: version {found.get('version')!r}, this hpunet reads {version}; use the one that wrote it"
        )
    if found.pop("sha256", None) is None or content != sealed(found, name=path.name):
        raise CheckpointError(f"{path}: damaged or changed (its own SHA-256 is wrong)")
    return found


def dump_json(value: Any, *, name: str) -> bytes:
    """JSON that comes back equal: only None, bool, int, finite float, str, and lists and dicts (keys str) of them."""
    _check_json(value, where=name)
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _check_json(value: Any, *, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where}: the key {key!r} is not a string, which JSON cannot keep")
            _check_json(item, where=f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, where=f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{where}: {value} has no place in JSON; store None or a string instead")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise CheckpointError(
            f"{where}: a {type(value).__name__} does not survive JSON; use None, bool, int, float, str, list or dict"
        )


def parse_json(content: bytes, *, name: str) -> Any:
    """JSON as the standard has it: no NaN or infinity, no key twice, UTF-8. `name` is for the error."""

    def refuse(token: str) -> NoReturn:
        raise ValueError(f"{token} is not JSON")

    def number(text: str) -> float:
        return float(text) if math.isfinite(float(text)) else refuse(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        return json.loads(content.decode(), parse_constant=refuse, parse_float=number, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: not valid JSON ({error})") from None


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in its place, whole, for one that may be there; its folder is made."""
    partial = path.with_name(f".{path.name}.partial")
    with naming_errors(path, action="written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        try:
            write_file(partial, content)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when all went well; else nothing is left of it. `path` must be new."""
    if os.path.lexists(path):
        raise ConfigError(f"{path}: exists already; choose another folder")
    partial = path.with_name(f".tmp-hpunet-{path.name}")
    with naming_errors(path, action="written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            yield partial
            sync_folder(partial)
            os.rename(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(path.parent)
