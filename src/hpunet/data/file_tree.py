"""Files of a data set by their relative names, whether they lie in a folder or inside a tar archive.

An archive is read once, into memory, and never unpacked to disk; its files stay as compressed as they are.
"""

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from hpunet.data.files import MAX_FILE_BYTES, read_bytes
from hpunet.errors import DataError

MAX_ARCHIVE_BYTES = 2**32
"""Largest content of an archive, unpacked (4 GiB)."""
MAX_DEPTH = 4
"""So many folders below the root are looked into."""
_ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def is_archive(path: Path) -> bool:
    """Whether the name is that of a tar archive."""
    return path.name.lower().endswith(_ARCHIVE_ENDINGS)


def read_tar(path: Path) -> dict[str, bytes]:
    """All files of a tar archive, packed or not. Links, devices and names that lead outside are refused."""
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, mode="r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or "\\" in member.name:
                    raise DataError(f"{path}: member {member.name!r} would lie outside of the archive")
                if member.isdir():
                    continue
                total += member.size
                if member.size > MAX_FILE_BYTES or total > MAX_ARCHIVE_BYTES:
                    raise DataError(f"{path}: member {member.name!r} makes it more than this reader takes")
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or str(name) in files:
                    raise DataError(f"{path}: member {member.name!r} is no plain file, or is there twice")
                files[str(name)] = content.read()
    except DataError:
        raise
    except Exception as error:  # tarfile.TarError, OSError, EOFError, and errors of zlib, lzma and bz2
        raise DataError(f"{path}: not a readable archive ({error})") from None
    return files


class FileTree:
    """The files below `tops` (names of files and folders at the root), hidden ones left out, by relative name.

    In an archive the root may be a single folder that holds everything.
    """

    def __init__(self, path: Path, *, tops: Sequence[str]) -> None:
        self.path = path
        self._content = read_tar(path) if is_archive(path) else None
        if self._content is not None:
            self._content = _from_root(self._content, tops)
            names = [name for name in self._content if name.split("/")[0] in tops]
        elif path.is_dir():
            names = [name for top in tops for name in _walk(path, top)]
        else:
            raise DataError(f"{path}: no such folder or tar archive")
        self.names = sorted(name for name in names if not name.split("/")[-1].startswith("."))

    def where(self, name: str) -> str:
        """The full name of a file, for errors."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """A file's content."""
        return read_bytes(self.path / name) if self._content is None else self._content[name]

    def head(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        if self._content is not None:
            return self._content[name][:size]
        try:
            with (self.path / name).open("rb") as file:
                return file.read(size)
        except OSError as error:
            raise DataError(f"{self.path / name}: cannot be read ({error.strerror or error})") from None


def _from_root(content: dict[str, bytes], tops: Sequence[str]) -> dict[str, bytes]:
    """Names counted from the folder that holds everything, if there is one."""
    roots = {name.split("/")[0] for name in content}
    if len(roots) == 1 and not roots & set(tops):
        return {name.split("/", 1)[1]: value for name, value in content.items() if "/" in name}
    return content


def _walk(root: Path, top: str) -> list[str]:
    """Names below one top. Links to folders are followed, and the depth is bounded, so loops end."""
    if (root / top).is_file():
        return [top]
    names = []
    for folder, folders, files in os.walk(root / top, followlinks=True):
        relative = Path(folder).relative_to(root)
        if len(relative.parts) >= MAX_DEPTH:
            folders.clear()
        names += [(relative / file).as_posix() for file in files]
    return names
