"""The files of a data set by relative name, from a folder or from a tar archive.

An archive is read once into memory and never unpacked to disk; compressed images in it stay compressed.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

from hpunet.data.io.limits import named_errors
from hpunet.errors import DataError
from hpunet.utils.files import check_file, explain_os_errors, read_file
from hpunet.utils.limits import MAX_ARCHIVE_BYTES, MAX_FILE_BYTES, MAX_KEY_BYTES, Deadline, allowed

MAX_DEPTH = 6  # deepest folder below the root that is searched: derivatives/NAME/sub-1/ses-1/anat and one more
_ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def is_archive(path: Path) -> bool:
    """Whether the name is that of a tar archive."""
    return path.name.lower().endswith(_ARCHIVE_ENDINGS)


def read_tar(path: Path) -> dict[str, bytes]:
    """All files of a tar archive, compressed or not.

    Refuses links, devices, names that lead outside, and archives without a proper end, which may lack files. The
    library reads blocks, but not the records that extend them: some of its versions need minutes for a small one.
    """
    files: dict[str, bytes] = {}
    with named_errors("archive", name=str(path)), _open_unpacked(path) as unpacked:
        stream = _BoundedStream(unpacked, path=path)
        extended: dict[str, str] = {}
        while any(block := stream.read(tarfile.BLOCKSIZE)) or not stream.tell():
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError:
                if stream.tell() <= tarfile.BLOCKSIZE:
                    raise
                break
            member.size = int(extended.get("size", member.size))
            name = extended.get("path", member.name)
            where = f"{path}/{name[:_SHOWN]}"
            if member.size < 0 or len(name) > MAX_KEY_BYTES:
                raise DataError(f"{where}: a member of {member.size} bytes with a name of {len(name)} characters")
            if member.type in _EXTENSIONS:
                if extended.keys() & (new := _records(member.type, stream.content(member.size))).keys():
                    raise DataError(f"{path}: two records for one member, at byte {stream.tell()}")
                extended |= new
                continue
            extended = {}
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts or "\\" in name:
                raise DataError(f"{where}: a name that leads out of the archive is refused")
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise DataError(f"{where}: links, devices and sparse files are refused")
            if (key := str(PurePosixPath(name))) in files:
                raise DataError(f"{where}: is in the archive twice")
            files[key] = stream.content(member.size)
        _check_end(stream, path=path)
    return files


_SHOWN = 200  # characters of a name
_EXTENSIONS = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
)


def _records(kind: bytes, content: bytes) -> dict[str, str]:
    """The name and size that an extended header gives to the member that follows."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.split(b"\0")[0].decode(errors="surrogateescape")}
    found: dict[str, str] = {}
    place = 0
    while place < len(content) and kind != tarfile.GNUTYPE_LONGLINK:
        digits = content[place : place + 20].partition(b" ")[0]
        end = place + int(digits)
        key, equals, value = content[place + len(digits) + 1 : end - 1].partition(b"=")
        if not place < end <= len(content) or not equals or content[end - 1 : end] != b"\n":
            raise ValueError(f"a damaged record in an extended header: {digits!r}")
        if key.startswith(b"GNU.sparse"):
            raise ValueError("sparse files are refused")
        if kind == tarfile.XGLTYPE and key in (b"path", b"size"):
            raise ValueError(f"one {key.decode()} for all members")
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode(errors="surrogateescape")
        place = end
    return found


def _open_unpacked(path: Path) -> io.BufferedIOBase:
    openers: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    with path.open("rb") as file:
        opener = openers.get(file.read(2), open)
    return cast(io.BufferedIOBase, opener(path, "rb"))


class _BoundedStream:
    """A file object that stops unpacking at the limits of bytes and time, whatever the headers claim."""

    def __init__(self, file: io.BufferedIOBase, *, path: Path) -> None:
        packed = path.stat().st_size
        self._file, self._path, self.tell = file, path, file.tell
        self._limit = min(MAX_ARCHIVE_BYTES, allowed(packed).unpacked)
        self._deadline = Deadline(packed, name=str(path))
        self.last = b""  # the most recent read

    def read(self, size: int) -> bytes:
        """Up to `size` bytes."""
        self._deadline.check()
        self.last = self._file.read(min(size, max(0, self._limit + 1 - self.tell())))
        if self.tell() > self._limit:
            raise DataError(f"{self._path}: unpacks to more than {self._limit} bytes; unpack it into a folder")
        return self.last

    def content(self, size: int) -> bytes:
        """Exactly `size` bytes; also reads the rest of their last block."""
        found = self.read(size)
        if len(found) < size or len(self.read(-size % tarfile.BLOCKSIZE)) < -size % tarfile.BLOCKSIZE:
            raise DataError(f"{self._path}: cut off at byte {self.tell()}")
        return found


def _check_end(stream: _BoundedStream, *, path: Path) -> None:
    """Refuse an archive whose last block is not an end mark: tarfile also takes a damaged header for the end."""
    if len(stream.last) != tarfile.BLOCKSIZE or any(stream.last):
        raise DataError(f"{path}: damaged or cut off at byte {stream.tell() - len(stream.last)}")
    while rest := stream.read(2**16):  # to the very end, where compressed files have their checksum
        if any(rest):
            raise DataError(f"{path}: damaged, there are data behind the end of the archive")


class FileTree:
    """The files below `tops` (files and folders at the root; None for all) by relative name, hidden ones left out.

    The files of an archive may all lie in one folder, which is left out of names unless it is one of `kept`; with
    `root` they must lie in the folder of that name.
    """

    def __init__(
        self,
        path: Path,
        *,
        tops: Sequence[str] | None = None,
        root: str | None = None,
        kept: Collection[str] = (),
    ) -> None:
        self.path, self._tops, self._root, self._kept = path, tops, root, kept
        self._content = read_tar(path) if is_archive(path) else None
        if self._content is not None:
            shown = {name: file for name, file in self._content.items() if not name.split("/")[-1].startswith(".")}
            self._content = _from_root(shown, {*(tops or ()), *kept}, root=root, path=path)
            names = [name for name in self._content if tops is None or name.split("/")[0] in tops]
        elif path.is_dir():
            names = [name for top in tops or (".",) for name in _walk(path, top)]
        else:
            raise DataError(f"{path}: no such folder or tar archive")
        self.names = sorted(names)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its path, so that worker processes read an archive themselves."""
        return partial(FileTree, self.path, tops=self._tops, root=self._root, kept=self._kept), ()

    def where(self, name: str) -> str:
        """The full name of a file, for errors."""
        return str(self.path / name)

    def read(self, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """The content of a file of at most `max_bytes`."""
        if self._content is None:
            return read_file(self.path / name, max_bytes=max_bytes, error=DataError)
        if len(self._content[name]) > max_bytes:
            raise DataError(f"{self.where(name)}: {len(self._content[name])} bytes, expected at most {max_bytes}")
        return self._content[name]

    def file(self, name: str) -> Path | bytes:
        """Where a file is, or the content of one in an archive."""
        return self.path / name if self._content is None else self._content[name]

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return check_file(self.path / name, error=DataError) if self._content is None else len(self._content[name])

    def head(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        if self._content is not None:
            return self._content[name][:size]
        path = self.path / name
        with explain_os_errors(path, action="read", error=DataError), path.open("rb") as file:
            return file.read(size)


def _from_root(content: dict[str, bytes], kept: set[str], *, root: str | None, path: Path) -> dict[str, bytes]:
    """Names relative to the folder that holds all files, if there is one or must be one."""
    roots = {name.split("/")[0] for name in content}
    if root is None and (len(roots) != 1 or roots & (kept | content.keys())):  # or a single file
        return content
    for name in content:
        if root is not None and not name.startswith(f"{root}/"):
            raise DataError(f"{path}/{name}: expected names that begin with {root}/")
    return {name.split("/", 1)[1]: value for name, value in content.items() if "/" in name}


def _walk(root: Path, top: str) -> list[str]:
    """Names below one top. Follows links to folders; folders too deep, as in a loop of links, are an error."""

    def refuse(error: OSError) -> None:
        with explain_os_errors(Path(error.filename), action="read", error=DataError):
            raise error

    if not (root / top).is_dir():
        return [top] if (root / top).is_file() else []
    names = []
    for folder, folders, files in os.walk(root / top, followlinks=True, onerror=refuse):
        relative = Path(folder).relative_to(root)
        if len(relative.parts) > MAX_DEPTH:
            raise DataError(f"{folder}: lies more than {MAX_DEPTH} folders deep, or is a loop of links")
        folders.sort()
        names += [(relative / file).as_posix() for file in files if not file.startswith(".")]
    return names
