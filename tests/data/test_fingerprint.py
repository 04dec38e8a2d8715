"""Fingerprints: whatever is in a file that a source reads counts, and no file is read twice without need."""

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hpunet.data import fingerprint
from hpunet.data.fingerprint import FILES_FILE, FileHashes, read_contents
from hpunet.data.open import open_data, pack_data
from hpunet.data.synthetic.writers import write_cityscapes_scenes, write_lidc_crops, write_snemi3d_stack
from hpunet.errors import DataError


def write_folder(path: Path, *masks: str, image: str = "images/{}.png") -> None:
    for i in range(4):
        for pattern in (image, *masks):
            file = path / pattern.format(i)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), i % 2, dtype=np.uint8)).save(file)


def write_volumes(path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    for i in range(2):
        for folder in ("images", "masks"):
            (path / folder).mkdir(parents=True, exist_ok=True)
            nibabel.save(
                nibabel.Nifti1Image(np.eye(4, dtype=np.uint8)[..., None], np.eye(4)), path / folder / f"{i}.nii"
            )


def write_lidc_archives(path: Path) -> None:
    write_lidc_crops(path, num_patients=2, size=32)
    for split in ("train", "val", "test"):
        with tarfile.open(path / f"{split}.tar.gz", "w:gz") as archive:
            archive.add(path / split, split)
        shutil.rmtree(path / split)


def write_scenes(path: Path) -> None:
    write_cityscapes_scenes(path, num_images=1, size=(32, 64), processes=1)


KINDS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "masks": (lambda path: write_folder(path, "masks/{}.png"), {"val_every": 2}),
    "graders": (lambda path: write_folder(path, "graders/a/{}.png", "graders/b/{}.png"), {"val_every": 2}),
    "patterns": (
        lambda path: write_folder(path, "{}_1.png", "{}_2.png", image="{}.png"),
        {"val_every": 2, "graders": ["{name}_1.png", "{name}_2.png"]},
    ),
    "volumes": (write_volumes, {"val_every": 2}),
    "lidc": (lambda path: write_lidc_crops(path, num_patients=2, size=32), {}),
    "lidc archives": (write_lidc_archives, {}),
    "snemi3d": (lambda path: write_snemi3d_stack(path, depth=10, size=32), {"patch": 16}),
    "cityscapes": (write_scenes, {"size": [32, 64]}),
}


def contents_of(path: Path, options: dict[str, Any], hashes: FileHashes | None = None) -> fingerprint.Contents:
    source = open_data(str(path), split="val", options=options)
    return read_contents(source, options=options, hashes=hashes or FileHashes())


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_a_source_opens_counts_and_its_place_does_not(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, options = KINDS[kind]
    write(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    before = contents_of(tmp_path / "one", options)
    assert contents_of(tmp_path / "two", options) == before

    opened = set()
    source = open_data(str(tmp_path / "two"), split="val", options=options)
    to_open = Path.open

    def noting(path: Path, *args: Any, **how: Any) -> Any:
        opened.add(path)
        return to_open(path, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", noting)
        patch.setattr("builtins.open", lambda path, *args, **how: noting(Path(path), *args, **how))
        for i in range(len(source)):
            _ = source[i]
    known = {file for i in range(len(source)) for file in source.files(i).values()}
    if kind != "lidc archives":
        assert {path for path in opened if path.is_relative_to(tmp_path)} <= known
        assert all(isinstance(file, Path) and file.is_file() for file in known)
    for file in known if kind != "lidc archives" else ():
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        now = read_contents(source, options=options, hashes=FileHashes())
        assert now.fingerprint != before.fingerprint
        assert now.description == before.description
        file.write_bytes(content)
    assert read_contents(source, options=options, hashes=FileHashes()) == before


def test_archives_count_by_what_is_in_them(tmp_path: Path) -> None:
    found = []
    for value in (0, 255):
        write_lidc_archives(tmp_path / "data")
        with tarfile.open(tmp_path / "data/val.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        mask = min((tmp_path / "val/gt").rglob("*.png"))
        Image.fromarray(np.full((32, 32), value, dtype=np.uint8)).save(mask)
        with tarfile.open(tmp_path / "data/val.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "val", "val")
        found.append(contents_of(tmp_path / "data", {}))
        shutil.rmtree(tmp_path / "data")
    one, two = found
    assert one.description == two.description
    assert [name for name in one.files if one.files[name] != two.files[name]] == [
        f"val/gt/{mask.parent.name}/{mask.name}"
    ]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read = []
    digest = fingerprint.hashlib.file_digest

    def counting(file: Any, kind: str) -> Any:
        read.append(file.name)
        return digest(file, kind)

    monkeypatch.setattr(
        fingerprint, "hashlib", SimpleNamespace(sha256=fingerprint.hashlib.sha256, file_digest=counting)
    )
    return read


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the files had been written a while ago."""
    now = fingerprint.time.time
    monkeypatch.setattr(fingerprint, "time", SimpleNamespace(time=lambda: now() + 60))


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "data", "masks/{}.png")
    options, read = {"val_every": 2}, count_reads(monkeypatch)
    hashes = FileHashes(tmp_path / FILES_FILE)
    first = contents_of(tmp_path / "data", options, hashes)
    hashes.save()
    assert len(read) == 4
    assert contents_of(tmp_path / "data", options, FileHashes(tmp_path / FILES_FILE)) == first
    assert len(read) == 8  # written a moment ago: they might change again without another time
    later(monkeypatch)
    for expected in (12, 12):
        hashes = FileHashes(tmp_path / FILES_FILE)
        assert contents_of(tmp_path / "data", options, hashes) == first
        hashes.save()
        assert len(read) == expected
    mask = tmp_path / "data/masks/0.png"
    status, content = mask.stat(), mask.read_bytes()
    mask.write_bytes(bytes(len(content)))
    os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time as before
    assert contents_of(tmp_path / "data", options, FileHashes(tmp_path / FILES_FILE)).fingerprint != first.fingerprint
    assert len(read) == 13

    saved = (tmp_path / FILES_FILE).read_bytes()
    for damaged in (b"", saved[:-9], saved.replace(b"a", b"b")):
        (tmp_path / FILES_FILE).write_bytes(damaged)
        assert FileHashes(tmp_path / FILES_FILE).remembered == {}


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_file_that_changes_again_within_one_tick_of_the_clock_is_noticed(
    is_settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, hashes = tmp_path / "mask", FileHashes()
    monkeypatch.setattr(fingerprint, "_stamp", lambda _status: "of this tick")
    if is_settled:
        later(monkeypatch)
    file.write_bytes(b"old")
    first = hashes.of({"mask": file})
    file.write_bytes(b"new")
    assert (hashes.of({"mask": file}) == first) == is_settled  # the shortcut is taken, or not


def test_what_cannot_be_read_counts_as_such_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    names = ("pipe", "link", "folder", "missing")
    assert set(FileHashes().of({name: tmp_path / name for name in names}).values()) == {"unreadable"}


def test_data_that_change_while_they_are_packed_make_no_pack(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", "masks/{}.png")

    def meddling(samples: Any, _count: int, _title: str) -> Any:
        Image.fromarray(np.ones((8, 8), dtype=np.uint8)).save(tmp_path / "data/masks/0.png")
        return samples

    how: dict[str, Any] = {"options": {"val_every": 2}, "progress": meddling}
    with pytest.raises(DataError, match="changed"):
        pack_data(str(tmp_path / "data"), tmp_path / "pack", **how)
    assert not (tmp_path / "pack").exists()
    pack_data(str(tmp_path / "data"), tmp_path / "pack", **how)  # the second time, it only writes what is there
