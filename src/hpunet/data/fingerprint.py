"""Fingerprints of data: a hash of what is in every file that a source reads.

Evaluations and runs keep the SHA-256 of each file in their `files.json`, with its size, times and inode. As long as
these are the same, the file is not read again. A file that changed just before it was read may change once more
without another time: of such a file only the hash is kept, and it is read again.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hpunet.data.types import Source
from hpunet.errors import CheckpointError
from hpunet.utils.files import atomic_write, dump_hashed_json, read_hashed_json

FILES_FILE = "files.json"
FORMAT, VERSION = "hpunet-files", 1
SETTLED_SECONDS = 2.0
"""How long a file must be unchanged before its times are trusted: some file systems count in steps of two seconds."""
_UNREADABLE = "unreadable"
_MAX_BYTES = 2**28
_THREADS = 8  # most of the time goes into waiting for the disk


class FileHashes:
    """SHA-256 of the files of data by name, remembered in the file at `path` if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known = {} if path is None else _read(path)  # hash, size, times and inode in words
        self._found: dict[str, str] = {}

    @property
    def remembered(self) -> dict[str, str]:
        """The hashes that were saved before."""
        return {name: words.partition(" ")[0] for name, words in self._known.items()}

    @property
    def asked(self) -> dict[str, str]:
        """The hashes of all files that were asked for."""
        return {name: words.partition(" ")[0] for name, words in self._found.items()}

    def of(self, files: Mapping[str, Path | bytes]) -> dict[str, str]:
        """The hashes of files on the disk, or of their content."""
        known = self._known | self._found
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda name: _hashed(files[name], known.get(name, "")), files)
            self._found |= zip(files, found, strict=True)
        return {name: self._found[name].partition(" ")[0] for name in files}

    def save(self) -> None:
        """Remember the files that were asked for."""
        if self._path is not None and self._found != self._known:
            content = {"format": FORMAT, "version": VERSION, "files": self._found}
            atomic_write(self._path, dump_hashed_json(content, name=FILES_FILE))
            self._known = dict(self._found)


class Contents(NamedTuple):
    """What a source reads."""

    fingerprint: str
    """A hash of everything that its samples depend on."""
    description: str
    """A hash of the same without the content of files: their names, images, patients, classes, options."""
    files: Mapping[str, str]
    """SHA-256 of each file."""


def read_contents(source: Source, *, options: Mapping[str, Any], hashes: FileHashes) -> Contents:
    """What a source that was opened with `options` reads; a pack brings its own fingerprint."""
    if isinstance(own := getattr(source, "fingerprint", None), str):
        return Contents(own, own, {})
    by_image = [source.files(index) for index in range(len(source))]
    files = hashes.of({name: file for found in by_image for name, file in found.items()})
    described = [source.info.as_json(), source.split, [list(i) for i in source.identities], dict(options)]
    description = _sum([*described, list(map(list, by_image))] if files else described)
    return Contents(_sum([description, sorted(files.items())]) if files else description, description, files)


def fingerprints(
    sources: Mapping[str, Source], *, options: Mapping[str, Any] | None, hashes: FileHashes
) -> dict[str, str]:
    """The fingerprint of each split."""
    how: dict[str, Any] = {"options": options or {}, "hashes": hashes}
    return {split: read_contents(source, **how).fingerprint for split, source in sources.items()}


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which files differ, in words; nothing if none does."""
    names = sorted({name for name, _ in before.items() ^ now.items()})
    return "" if not names else names[0] if len(names) == 1 else f"{len(names)} files, the first {names[0]}"


def _hashed(file: Path | bytes, known: str) -> str:
    if isinstance(file, bytes):
        return hashlib.sha256(file).hexdigest()
    start = time.time()
    try:
        before = os.stat(file)
        if not stat.S_ISREG(before.st_mode):  # reading a pipe may never end
            return _UNREADABLE
        if known.partition(" ")[2] == (stamp := _stamp(before)):
            return known
        with open(file, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        is_settled = max(before.st_mtime, before.st_ctime) < start - SETTLED_SECONDS
        return f"{found} {stamp}" if is_settled and _stamp(os.stat(file)) == stamp else found
    except OSError:
        return _UNREADABLE


def _stamp(status: os.stat_result) -> str:
    """What changes when a file is written or replaced; only the last two, if its size and time were set back."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _read(path: Path) -> dict[str, str]:
    """What was remembered; nothing if it is missing or damaged."""
    with suppress(CheckpointError):
        found = read_hashed_json(path, kind=FORMAT, version=VERSION, what="hashes", max_bytes=_MAX_BYTES)["files"]
        if isinstance(found, dict) and all(isinstance(words, str) for words in found.values()):
            return found
    return {}


def _sum(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
