"""Tar archives of every format, as `tarfile` writes them; damaged ones are in `test_images.py` and `tests/fuzz`."""

import io
import tarfile
from pathlib import Path

import pytest

from hpunet.data.io.archives import read_tar
from hpunet.errors import DataError

LONG = "images/" + "/".join("folder" * 6 for _ in range(4)) + "/" + "x" * 120 + ".png"
FILES = {"images/a.png": b"1" * 512, LONG: b"2" * 700, "images/empty": b"", "images/b.png": b"3"}


def archive(path: Path, files: dict[str, bytes], *, kind: int, headers: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w", format=kind, pax_headers=headers or {}) as opened:
        folder = tarfile.TarInfo("images")
        folder.type = tarfile.DIRTYPE
        opened.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 0.5 if kind == tarfile.PAX_FORMAT else 0
            opened.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_read_tar_reads_long_and_odd_names(tmp_path: Path, kind: int) -> None:
    files = FILES | {"images/Größe-π.png": b"4", "images/\udcff.png": b"5"}
    assert read_tar(archive(tmp_path / "a.tar", files, kind=kind)) == files


def test_read_tar_reads_ustar_with_split_names(tmp_path: Path) -> None:
    files = {"images/" + "y" * 140 + "/c.png": b"6", **{name: FILES[name] for name in FILES if name != LONG}}
    assert read_tar(archive(tmp_path / "a.tar", files, kind=tarfile.USTAR_FORMAT)) == files


def test_read_tar_takes_a_comment_for_all_members_but_no_name(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    assert read_tar(archive(path, FILES, kind=tarfile.PAX_FORMAT, headers={"comment": "0123456789abcdef"})) == FILES
    with pytest.raises(DataError, match=r"a\.tar.*for all members"):
        read_tar(archive(path, FILES, kind=tarfile.PAX_FORMAT, headers={"path": "images/b.png"}))


def extended(record: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, len(record)
    return member.tobuf() + record + bytes(-len(record) % 512)


DAMAGED = (b"11 size=-1\n", b"13 path=../a\n", b"99 path=a\n", b"8 path=a\n", b"path=a\n", b"1" * 600, b"10 path=a")
OTHERS = (b"0 a=\n", b"22 GNU.sparse.major=1\n", b"\xb2 a=b\n", b"4200 path=" + b"a" * 4189 + b"\n")


@pytest.mark.parametrize("record", [*DAMAGED, *OTHERS])
def test_read_tar_refuses_damaged_records(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(extended(record) + tarfile.TarInfo("a").tobuf() + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar"):
        read_tar(path)


def test_read_tar_takes_the_size_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(extended(b"9 size=3\n") + tarfile.TarInfo("a").tobuf() + b"123" + bytes(509 + 1024))
    assert read_tar(path) == {"a": b"123"}


def test_read_tar_refuses_two_records_for_one_member(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    names = extended(b"b\0", tarfile.GNUTYPE_LONGNAME) + extended(b"c\0", tarfile.GNUTYPE_LONGNAME)
    path.write_bytes(names + tarfile.TarInfo("a").tobuf() + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar.*two records"):
        read_tar(path)
