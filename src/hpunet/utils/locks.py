"""One writer at a time: a lock file that names its holder and does not outlive it.

The kernel holds the lock (flock, which NFS passes on to the server) and releases it when the process ends, however it
ends. Where that lock is no proof (the file names another machine, or the system has no flock), a heartbeat decides:
the holder touches the file every `BEAT_SECONDS`, and a lock that nobody touched for `STALE_SECONDS` is taken over.
"""

import errno
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpunet.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: the heartbeat decides
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock-hpunet"
"""Name of the lock file in a folder; of one beside a folder that does not exist yet, `LOCK` + "-" + its name."""
BEAT_SECONDS, STALE_SECONDS = 30.0, 300.0
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_FLAGS = (
    os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)
_MAX_BYTES = 4096
_inherited: set[int] = set()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder, which is made if necessary; a `ConfigError` if another process is."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _Lock(folder / LOCK, of=folder)
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{folder}: cannot be written: {reason}; choose another folder") from error
    try:
        yield
    finally:
        lock.release()
        if is_new:
            with suppress(OSError):  # it holds something, as it should
                folder.rmdir()


@contextmanager
def lock_beside(path: Path) -> Iterator[None]:
    """The same for a file or folder that does not exist yet; its parent does."""
    lock = _Lock(path.with_name(f"{LOCK}-{path.name}"), of=path)
    try:
        yield
    finally:
        lock.release()


def is_vacant(folder: Path) -> bool:
    """Whether a folder holds nothing, or nothing but a lock."""
    return all(entry.name == LOCK for entry in folder.iterdir())


def open_locked(path: Path, *, wait: bool) -> tuple[int, bool]:
    """Open or create a file and lock it: its descriptor, and whether this system has locks.

    A `BlockingIOError` if another process has locked it, unless one should `wait`.
    """
    while True:
        descriptor = os.open(path, _FLAGS, 0o666)
        try:
            has_locks = _flock(descriptor, wait=wait)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor, has_locks
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the one who had it has deleted or renamed the file


def _flock(descriptor: int, *, wait: bool) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


class _Lock:
    def __init__(self, path: Path, *, of: Path) -> None:
        self._path, self._owner, self._ended = path, os.getpid(), threading.Event()
        try:
            self._descriptor, has_locks = open_locked(path, wait=False)
        except BlockingIOError:
            raise ConfigError(_in_use(of, _read(path))) from None
        try:
            holder, silent = _read(path), time.time() - os.fstat(self._descriptor).st_mtime
            is_dead = has_locks and holder.get("machine") == _machine()
            if holder and not is_dead and silent < STALE_SECONDS:
                seen = (
                    f"last sign of life {max(0, silent):.0f} s ago; if it is dead, delete {path}, or try again later"
                )
                raise ConfigError(f"{_in_use(of, holder)} ({seen})")
            since = time.strftime("%Y-%m-%d %H:%M:%S %z")
            about = {"host": platform.node(), "machine": _machine(), "pid": self._owner, "since": since}
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, json.dumps(about).encode())
        except BaseException:
            os.close(self._descriptor)
            raise
        _inherited.add(self._descriptor)
        threading.Thread(target=self._beat, name="hpunet-lock", daemon=True).start()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):
                os.utime(self._path)

    def release(self) -> None:
        """Delete the file; does nothing in a fork of the holder."""
        if os.getpid() != self._owner:
            return
        self._ended.set()
        try:
            if fcntl is None:  # Windows deletes no open file
                os.close(self._descriptor)
            with suppress(OSError):
                if fcntl is None or os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                    os.unlink(self._path)
        finally:
            _inherited.discard(self._descriptor)
            with suppress(OSError):
                os.close(self._descriptor)


def _read(path: Path) -> dict[str, Any]:
    """What a lock file says about its holder; nothing if it cannot be read."""
    with suppress(OSError, ValueError):
        with open(path, "rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
        return found if isinstance(found, dict) else {}
    return {}


def _in_use(of: Path, holder: dict[str, Any]) -> str:
    names = {name: str(holder.get(name, "unknown"))[:100] for name in ("pid", "host", "since")}
    who = f"process {names['pid']} on {names['host']} has been writing it since {names['since']}"
    return f"{of}: in use: {who}; wait for it, end it, or choose another folder"


def _machine() -> str:
    """The running system: containers on one machine share its locks."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def _forget() -> None:
    """In a fork: close what it inherited, or it would hold the locks of its parent after that one's death."""
    for descriptor in _inherited:
        with suppress(OSError):
            os.close(descriptor)
    _inherited.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
