"""Files of a data set by their relative names, whether they lie in a folder or inside a tar archive.

An archive is read once, into memory, and never unpacked to disk; its files stay as compressed as they are.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from hpunet.data.io.images import read_bytes
from hpunet.data.io.limits import max_unpacked_bytes
from hpunet.errors import DataError

MAX_ARCHIVE_BYTES = 2**32
"""Largest archive, unpacked (4 GiB): it is held in memory."""
MAX_DEPTH = 4
"""So many folders below the root are looked into."""
_ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def is_archive(path: Path) -> bool:
    """Whether the name is that of a tar archive."""
    return path.name.lower().endswith(_ARCHIVE_ENDINGS)


def read_tar(path: Path) -> dict[str, bytes]:
    """All files of a tar archive, packed or not. Links, devices and names that lead outside are refused.

    So is an archive that does not end as it should: cut off or damaged ones would else be short of some files.
    """
    files: dict[str, bytes] = {}
    try:
        with _open_unpacked(path) as unpacked:
            stream = _BoundedStream(unpacked, path=path)
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    where = f"{path}/{member.name}"
                    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
                        raise DataError(f"{where}: a name that leads out of the archive is refused")
                    if member.isdir():
                        continue
                    if not member.isreg() or member.issparse():
                        raise DataError(f"{where}: links, devices and sparse files are refused")
                    if str(name) in files:
                        raise DataError(f"{where}: is in the archive twice")
                    files[str(name)] = stream.read(member.size)
                    if len(files[str(name)]) < member.size:
                        raise DataError(f"{where}: cut off after {len(files[str(name)])} of {member.size} bytes")
            _check_end(stream, path=path)
    except DataError:
        raise
    except Exception as error:  # tarfile.TarError, OSError, EOFError, and errors of zlib, lzma and bz2
        raise DataError(f"{path}: not a readable archive ({error})") from None
    return files


def _open_unpacked(path: Path) -> io.BufferedIOBase:
    openers: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    with path.open("rb") as file:
        opener = openers.get(file.read(2), open)
    return cast(io.BufferedIOBase, opener(path, "rb"))


class _BoundedStream:
    """What tarfile needs of a file; refuses to unpack without bounds, whatever the archive's headers claim."""

    def __init__(self, file: io.BufferedIOBase, *, path: Path) -> None:
        self._file, self._path = file, path
        self._limit = min(MAX_ARCHIVE_BYTES, max_unpacked_bytes(path.stat().st_size))
        self.seek, self.tell = file.seek, file.tell
        self.last = b""
        """What was read last."""

    def read(self, size: int) -> bytes:
        self.last = self._file.read(min(size, max(0, self._limit + 1 - self.tell())))
        if self.tell() > self._limit:
            raise DataError(f"{self._path}: unpacks to more than {self._limit} bytes; unpack it into a folder")
        return self.last


def _check_end(stream: _BoundedStream, *, path: Path) -> None:
    """Refuse an archive whose last block was no end mark: tarfile takes a damaged header for the end, too."""
    if len(stream.last) != tarfile.BLOCKSIZE or any(stream.last):
        raise DataError(f"{path}: damaged or cut off at byte {stream.tell() - len(stream.last)}")
    while rest := stream.read(2**16):  # to the very end, where packed files have their checksum
        if any(rest):
            raise DataError(f"{path}: damaged, there is something behind the end of the archive")


class FileTree:
    """The files below `tops` (names of files and folders at the root, or all), by relative name; no hidden ones.

    In an archive the root may be a single folder that holds everything; with `root` it must be of that name.
    """

    def __init__(self, path: Path, *, tops: Sequence[str] | None = None, root: str | None = None) -> None:
        self.path = path
        self._content = read_tar(path) if is_archive(path) else None
        if self._content is not None:
            self._content = {name: self._content[name] for name in self._content if not _is_hidden(name)}
            self._content = _from_root(self._content, tops or (), root=root, path=path)
            names = [name for name in self._content if tops is None or name.split("/")[0] in tops]
        elif path.is_dir():
            names = [name for top in tops or (".",) for name in _walk(path, top) if not _is_hidden(name)]
        else:
            raise DataError(f"{path}: no such folder or tar archive")
        self.names = sorted(names)

    def where(self, name: str) -> str:
        """The full name of a file, for errors."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """A file's content."""
        return read_bytes(self.path / name) if self._content is None else self._content[name]

    def size(self, name: str) -> int:
        """A file's size in bytes."""
        if self._content is not None:
            return len(self._content[name])
        try:
            return (self.path / name).stat().st_size
        except OSError as error:
            raise _unreadable(self.path / name, error) from None

    def head(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        if self._content is not None:
            return self._content[name][:size]
        try:
            with (self.path / name).open("rb") as file:
                return file.read(size)
        except OSError as error:
            raise _unreadable(self.path / name, error) from None


def _unreadable(path: Path | str, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror or error})")


def _is_hidden(name: str) -> bool:
    return name.split("/")[-1].startswith(".")


def _from_root(content: dict[str, bytes], tops: Sequence[str], *, root: str | None, path: Path) -> dict[str, bytes]:
    """Names counted from the folder that holds everything, if there is one or must be one."""
    roots = {name.split("/")[0] for name in content}
    if root is not None:
        for name in content:
            if not name.startswith(f"{root}/"):
                raise DataError(f"{path}/{name}: expected names that begin with {root}/")
    elif len(roots) != 1 or roots & set(tops):
        return content
    return {name.split("/", 1)[1]: value for name, value in content.items() if "/" in name}


def _walk(root: Path, top: str) -> list[str]:
    """Names below one top. Links to folders are followed; what lies too deep, as loops of links do, is an error."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error.filename, error)

    if not (root / top).is_dir():
        return [top] if (root / top).is_file() else []
    names = []
    for folder, folders, files in os.walk(root / top, followlinks=True, onerror=refuse):
        relative = Path(folder).relative_to(root)
        if len(relative.parts) > MAX_DEPTH:
            raise DataError(f"{folder}: lies more than {MAX_DEPTH} folders deep, or is a loop of links")
        folders.sort()
        names += [(relative / file).as_posix() for file in files]
    return names
