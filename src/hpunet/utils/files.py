"""Files: atomic, durable writes; bounded reads; SHA-256 checks; strict JSON.

Every failure is a `CheckpointError`, or the given `error`, that names the file, the reason and what to do.
"""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TypeVar

from hpunet.errors import CheckpointError, ConfigError, DataError, HPUNetError
from hpunet.utils.limits import MAX_FILE_BYTES
from hpunet.utils.locks import lock_beside, open_locked
from hpunet.utils.text import as_utf8

T = TypeVar("T")
MAX_READS = 100
"""Attempts to read what another process keeps replacing; the second or third succeeds."""
TEMPORARY, REPLACED = ".tmp-hpunet-", ".old-hpunet-"
"""Prefixes: being written or deleted; being replaced."""
_MAX_DIGITS = 40  # of whole numbers
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space or save elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or save elsewhere",
    errno.EFBIG: "the file is larger than this system allows; raise the limit or save elsewhere",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; change its permissions or choose another folder",
    errno.EPERM: "not permitted; change its permissions or choose another folder",
    errno.ENOENT: "it does not exist",
}


@contextmanager
def explain_os_errors(path: Path, *, action: str, error: type[HPUNetError] = CheckpointError) -> Iterator[None]:
    """Turn an `OSError` into an `error`: "PATH: cannot be ACTION: reason; advice"."""
    try:
        yield
    except OSError as found:
        reason = _ADVICE.get(found.errno or 0, found.strerror or str(found))
        raise error(f"{path}: cannot be {action}: {reason}") from found


def real_path(path: str | Path) -> Path:
    """The absolute path without symbolic links; loops of links stay, which `Path.resolve` takes for a bug."""
    return Path(os.path.realpath(path))


def below(folder: Path, name: str) -> Path:
    """The place of this name in a folder; refuses names that lead out of it, or that no file can have."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0].startswith("/") or "\0" in name:
        raise DataError(f"{name!r}: cannot be the name of a file or folder below {folder}")
    return folder / name


def beside(path: Path, prefix: str) -> Path:
    """The place in the same folder whose name has this prefix."""
    if not path.name:
        raise ConfigError(f"{path}: has no name of its own; expected the name of a file or folder")
    return path.with_name(prefix + path.name)


def atomic_write(path: Path, content: bytes, *, error: type[HPUNetError] = CheckpointError) -> None:
    """Write or replace a file in one step: after a crash it holds the old or the new content. Makes its folder.

    The temporary file is locked: a second writer waits, and takes over what a killed one left.
    """
    temporary = beside(path, TEMPORARY)
    with explain_os_errors(path, action="written", error=error):
        if path.exists() and not (path.is_file() or path.is_dir()):  # a device or pipe, which no file may replace
            path.write_bytes(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_locked(temporary, wait=True)[0], "r+b") as file:
            try:
                file.truncate()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if os.name == "nt":  # open files cannot be renamed there
                    file.close()
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False, error: type[HPUNetError] = CheckpointError) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `path` if the block succeeds and is deleted if it fails.

    With `replace`, an existing folder is moved to its `REPLACED` name first and deleted last, so that one of the two
    is complete at any moment; without, an existing `path` is an error, as is another process that writes it.
    """
    temporary = beside(path, TEMPORARY)
    with explain_os_errors(path, action="written", error=error), ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock_beside(path))
        if not replace and os.path.lexists(path):
            raise ConfigError(f"{path}: exists already; choose another folder")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            os.mkdir(temporary)
            yield temporary
            sync_folder(temporary)
            _rename_into_place(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _rename_into_place(new: Path, path: Path) -> None:
    replaced = beside(path, REPLACED)
    exists = os.path.lexists(path)
    if exists:
        if os.path.lexists(replaced):
            remove_folder(replaced)
        os.rename(path, replaced)
    try:
        os.rename(new, path)
    except BaseException:
        if exists:
            os.rename(replaced, path)
        raise
    sync_folder(path.parent)
    if os.path.lexists(replaced):
        remove_folder(replaced)


def remove_folder(path: Path) -> None:
    """Rename a folder and delete it, so that a kill leaves no damaged one; undeletable files keep the new name."""
    gone = path.with_name(f"{TEMPORARY}gone-{secrets.token_hex(4)}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on the disk; for files in an `atomic_folder`."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk, where the system supports that."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems do not support it
            raise
    finally:
        os.close(descriptor)


def check_file(path: Path, *, max_bytes: int = MAX_FILE_BYTES, error: type[HPUNetError] = CheckpointError) -> int:
    """The size of a plain file; an `error` if it is too large or no file (reading a pipe may never end)."""
    with explain_os_errors(path, action="read", error=error):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: not a plain file")
    if status.st_size > max_bytes:
        raise error(f"{path}: {status.st_size} bytes, expected at most {max_bytes}")
    return status.st_size


def read_file(
    path: Path, *, max_bytes: int = MAX_FILE_BYTES, error: type[HPUNetError] = CheckpointError, growing: bool = False
) -> bytes:
    """The content of a plain file of at most `max_bytes`; of a `growing` file, what was there when it was opened."""
    check_file(path, max_bytes=max_bytes, error=error)
    with explain_os_errors(path, action="read", error=error), open(path, "rb") as file:
        size = min(os.fstat(file.fileno()).st_size, max_bytes)  # not that of a file which has just been replaced
        content = file.read(size + (not growing))
    if len(content) != size and not growing:
        raise error(f"{path}: changed while being read")
    return content


def read_live(read: Callable[[], T], *, seen: Callable[[], object]) -> T:
    """`read()` of what another process may be replacing: again, if it fails and what can be `seen` has changed."""
    for _ in range(MAX_READS - 1):
        before = seen()
        try:
            return read()
        except HPUNetError:
            if seen() == before:
                raise
    return read()


def entries(*folders: Path) -> dict[Path, tuple[int, int] | None]:
    """What is in these folders, or None for those that are not there: inode and time of each file and folder."""
    found: dict[Path, tuple[int, int] | None] = {}
    for folder in folders:
        try:
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found[Path(entry.path)] = (status.st_ino, status.st_mtime_ns)
        except OSError:
            found[folder] = None
    return found


def write_hashed(path: Path, content: bytes) -> dict[str, Any]:
    """`write_synced`; returns the content's SHA-256 and size, for `read_hashed`."""
    write_synced(path, content)
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def read_hashed(path: Path, entry: Mapping[str, Any], *, max_bytes: int, listed_in: str) -> bytes:
    """`read_file`, checked against the SHA-256 and size in `entry`; `listed_in` names their source in errors."""
    content = read_file(path, max_bytes=max_bytes)
    if len(content) != entry["size"]:
        raise CheckpointError(f"{path}: {len(content)} bytes, {entry['size']} in {listed_in}: truncated or changed")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path}: damaged or changed (its SHA-256 differs from {listed_in})")
    return content


def is_hash_entry(entry: object) -> bool:
    """Whether this is what `write_hashed` returns."""
    kinds = {"sha256": str, "size": int}
    return isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} == kinds


def dump_hashed_json(value: Mapping[str, Any], *, name: str) -> bytes:
    """`value` as JSON that includes its own SHA-256, so that any change is detected."""
    return dump_json({**value, "sha256": _own_hash(value, name=name)}, name=name)


def _own_hash(value: Mapping[str, Any], *, name: str) -> str:
    return hashlib.sha256(dump_json(dict(value), name=name)).hexdigest()


def read_hashed_json(path: Path, *, kind: str, version: int, what: str, max_bytes: int) -> dict[str, Any]:
    """Read what `dump_hashed_json` wrote, and check its `format`, `version` and SHA-256; `what` is for errors."""
    content = read_file(path, max_bytes=max_bytes)
    found = parse_json(content, name=str(path))
    if not isinstance(found, dict) or found.get("format") != kind:
        raise CheckpointError(f"{path}: not {what}, or damaged")
    if found.get("version") != version:
        other = found.get("version")
        raise CheckpointError(f"{path}: version {other!r}, this hpunet reads {version}; use the one that wrote it")
    own, name = found.pop("sha256", None), path.name
    try:
        is_whole = own == _own_hash(found, name=name) and content == dump_json({**found, "sha256": own}, name=name)
    except RecursionError:
        is_whole = False
    if not is_whole:
        raise CheckpointError(f"{path}: damaged or changed (its own SHA-256 is wrong)")
    return found


def dump_json(value: Any, *, name: str) -> bytes:
    """JSON that reads back equal: None, bool, int, finite float, str; lists and dicts (keys str) of these."""
    _check_json(value, where=name)
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _check_json(value: Any, *, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where}: the key {key!r} is not a string")
            _check_json(item, where=f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, where=f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{where}: JSON cannot store {value}; use None or a string")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        kind = type(value).__name__
        raise CheckpointError(f"{where}: JSON cannot store a {kind}; use None, bool, int, float, str, list or dict")


def parse_json(content: bytes, *, name: str) -> Any:
    """Parse strict JSON: UTF-8, no NaN, infinity or very long number, no duplicate keys. `name` is for errors."""
    try:
        how: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite, "parse_int": _whole}
        found = json.loads(content.decode(), object_pairs_hook=_unique, **how)
        if _SURROGATE.search(content):  # those of names that are not UTF-8 can be written again, others cannot
            as_utf8(json.dumps(found, ensure_ascii=False))
        return found
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: not valid JSON ({error})") from None


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")


def _whole(text: str) -> int:
    return int(text) if len(text) <= _MAX_DIGITS else _refuse(f"a number of {len(text)} digits")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refuse(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found
