import json
import pickle
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_sources import ListSource, random_source

from hpunet.data.packs import Pack, is_pack, open_pack, pack_origin, write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.types import Identity, make_sample
from hpunet.errors import ConfigError, DataError
from hpunet.utils import files
from hpunet.utils.files import dump_hashed_json, dump_json

SOURCES = {
    "two classes as bits": {"num_classes": 2, "sizes": [(5, 7)] * 6},
    "several classes": {"num_classes": 9, "sizes": [(4, 4)] * 5},
    "instances": {"num_classes": 1, "instances": 700, "sizes": [(9, 6)] * 4, "graders": 1},
    "16 bit": {"num_classes": 2, "bits": 16, "sizes": [(4, 4)] * 3},
    "float": {"num_classes": 3, "bits": 32, "sizes": [(4, 5)] * 3},
    "volumes": {"num_classes": 2, "sizes": [(3, 5, 7)] * 4},
    "volumes of instances": {"num_classes": 1, "instances": 700, "sizes": [(4, 9, 6)] * 3, "graders": 1},
    "float volumes of several sizes": {"num_classes": 3, "bits": 32, "sizes": [(4, 5, 6), (2, 3, 9), (5, 2, 2)]},
    "several sizes": {"num_classes": 2, "sizes": [(5, 7), (3, 3), (8, 2), (5, 7)]},
}


@pytest.mark.parametrize("name", SOURCES)
def test_pack_gives_back_every_sample_bit_for_bit(name: str, tmp_path: Path) -> None:
    source = random_source(**SOURCES[name])
    write_pack({"train": source}, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="train")
    assert pack.info == source.info
    assert pack.identities == source.identities
    for expected, found in zip(source.samples, (pack[i] for i in range(len(pack))), strict=True):
        for field in ("image", "labels", "valid", "graders"):
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)


@pytest.mark.parametrize("name", SOURCES)
def test_pack_batches_hold_their_samples_and_invalid_padding(name: str, tmp_path: Path) -> None:
    source = random_source(**SOURCES[name])
    write_pack({"train": source}, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="train")
    indices = torch.tensor([2, 0, 2, 1])
    batch = pack.batch(indices)
    whole = batch.valid.shape[1:]
    for i, index in enumerate(indices.tolist()):
        sample = source[index]
        sides = list(zip(whole, sample.valid.shape, strict=True))
        middle = tuple(slice((most - side) // 2, (most - side) // 2 + side) for most, side in sides)
        np.testing.assert_array_equal(batch.image[i][:, *middle], sample.image)
        np.testing.assert_array_equal(batch.labels[i][:, *middle], sample.labels)
        expected = np.zeros(whole, dtype=bool)
        expected[middle] = sample.valid
        np.testing.assert_array_equal(batch.valid[i], expected)
        np.testing.assert_array_equal(batch.graders[i], sample.graders)


WINDOWED = ["volumes", "volumes of instances", "float volumes of several sizes", "several sizes", "16 bit"]


@pytest.mark.parametrize("name", WINDOWED)
def test_pack_windows_hold_a_part_of_each_sample_and_where_it_lies(name: str, tmp_path: Path) -> None:
    source = random_source(**SOURCES[name])
    pack = open_pack(write_pack({"train": source}, tmp_path / "pack"), split="train")
    rng, ndim = np.random.default_rng(0), source.info.ndim
    for _ in range(20):
        indices = torch.from_numpy(rng.integers(0, len(source), 3))
        first = torch.from_numpy(rng.integers(-2, 5, (3, ndim)))
        last = first + torch.from_numpy(rng.integers(0, 5, (3, ndim)))
        batch = pack.windows(indices, first=first, last=last)
        assert batch.window is not None
        extent = batch.valid.shape[1:]
        for i, index in enumerate(indices.tolist()):
            sample, corner = source[index], batch.window.corner[i].tolist()
            size = sample.valid.shape
            assert tuple(batch.window.size[i].tolist()) == size
            for axis, side in enumerate(size):  # all that was asked for and exists; nothing else if all ask for it
                assert 0 <= corner[axis] <= max(0, int(first[i, axis]))
                assert corner[axis] + extent[axis] > min(side - 1, int(last[i, axis]))
                ends = torch.minimum(last[:, axis] + 1, batch.window.size[:, axis])
                assert extent[axis] == max(1, int((ends - first[:, axis].clamp(min=0)).max()))
            cut = tuple(slice(start, start + side) for start, side in zip(corner, extent, strict=True))
            there = tuple(slice(0, side) for side in sample.valid[cut].shape)
            expected = np.zeros(extent, dtype=bool)
            expected[there] = sample.valid[cut]
            np.testing.assert_array_equal(batch.valid[i], expected)
            np.testing.assert_array_equal(batch.image[i][:, *there], sample.image[:, *cut])
            np.testing.assert_array_equal(batch.labels[i][:, *there], sample.labels[:, *cut])
            np.testing.assert_array_equal(batch.graders[i], sample.graders)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux what is in memory")
def test_pack_windows_leave_the_rest_of_a_large_volume_on_the_disk(tmp_path: Path) -> None:
    size = (256, 256, 256)
    info = random_source(num_classes=3, sizes=[(1, 1, 1)], graders=1).info
    planes = {"image": np.ones((2, *size), dtype=np.uint8), "labels": np.ones((1, *size), dtype=np.uint8)}
    sample = make_sample(**planes, identity=Identity("p", "k"), info=info, where="test")
    write_pack({"train": ListSource([sample], info=info)}, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="train")

    def resident(name: str) -> int:
        """Kilobytes of a file that this process has looked at."""
        entries = Path("/proc/self/smaps").read_text().split(f"{tmp_path}/pack/train/{name}")[1:]
        return sum(int(entry.split("Rss:")[1].split()[0]) for entry in entries)

    assert resident("images.bin") == 0
    corner = torch.tensor([[20, 100, 100]])
    pack.windows(torch.tensor([0]), first=corner, last=corner + torch.tensor([3, 40, 40]))
    for name, channels in (("images.bin", 2), ("labels.bin", 1)):
        assert 0 < resident(name) < channels * 2**24 / 1024 / 3  # the system maps up to 2 MB at once
    pack.batch(torch.tensor([0]))
    assert resident("images.bin") >= 2 * 2**24 / 1024


@pytest.mark.parametrize(
    "sizes", [[[5, 7]], [[1, 5, 7]], [[-3, -5, 7]], [[3, 5, 0]], [[3, 5, 7.0]], [[3, 5, True]], [3], [[3, 5, 10**30]]]
)
def test_pack_of_volumes_refuses_sizes_that_are_not_its_own(sizes: list[object], tmp_path: Path) -> None:
    pack = write_pack({"train": random_source(num_classes=2, sizes=[(3, 5, 7)])}, tmp_path / "pack")
    index = json.loads((pack / "train/index.json").read_text())
    assert index["sizes"] == [[3, 5, 7]]
    content = json.dumps(index | {"sizes": sizes})
    (pack / "train/index.json").write_text(content)
    with pytest.raises(DataError, match="index"):
        open_pack(pack, split="train")
    manifest = json.loads((pack / "pack.json").read_text())
    manifest["files"]["train/index.json"]["bytes"] = len(content)
    del manifest["sha256"]
    (pack / "pack.json").write_bytes(dump_hashed_json(manifest, name="as if we had written it"))
    with pytest.raises(DataError, match=r"make (it|the pack) again"):
        open_pack(pack, split="train", verify=False)


def test_pack_stores_two_classes_as_bits_and_full_validity_not_at_all(tmp_path: Path) -> None:
    source = open_synthetic("lesions", split="val", num_images=10, size=64)
    write_pack({"val": source}, tmp_path / "pack")
    assert (tmp_path / "pack/val/labels.bin").stat().st_size == 10 * 4 * 64 * 64 / 8
    assert not (tmp_path / "pack/val/valid.bin").exists()
    assert open_pack(tmp_path / "pack", split="val").nbytes == 10 * (64 * 64 + 4 * 64 * 64 // 8 + 4)


def test_pack_read_by_several_processes_is_the_same(tmp_path: Path) -> None:
    source = open_synthetic("lesions", split="train", num_images=20, size=16)
    one = write_pack({"train": source}, tmp_path / "one")
    two = write_pack({"train": source}, tmp_path / "two", processes=2)
    assert (one / "pack.json").read_text() == (two / "pack.json").read_text()


def test_pack_travels_to_another_process_as_its_place(tmp_path: Path) -> None:
    write_pack({"train": random_source(**SOURCES["several sizes"])}, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="train")
    content = pickle.dumps(pack)
    assert len(content) < 2000
    copy = pickle.loads(content)
    assert isinstance(copy, Pack)
    assert torch.equal(copy.batch(torch.tensor([1])).image, pack.batch(torch.tensor([1])).image)


def test_pack_moves_to_a_device_whole(tmp_path: Path) -> None:
    write_pack({"train": random_source(**SOURCES["two classes as bits"])}, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack", split="train")
    before = pack.batch(torch.tensor([0, 3]))
    moved = pack.to(torch.device("cpu")).batch(torch.tensor([0, 3]))
    assert torch.equal(before.labels, moved.labels)
    shutil.rmtree(tmp_path / "pack")  # it no longer needs its files
    assert torch.equal(pack.batch(torch.tensor([0, 3])).image, before.image)


def test_pack_refuses_damage_by_name(tmp_path: Path) -> None:
    good = write_pack({"train": random_source(**SOURCES["instances"])}, tmp_path / "good")
    assert is_pack(good)

    def damaged(name: str) -> Path:
        copy = tmp_path / name
        shutil.copytree(good, copy)
        return copy

    flipped = damaged("flipped")
    content = bytearray((flipped / "train/images.bin").read_bytes())
    content[7] ^= 1
    (flipped / "train/images.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"images\.bin: its content has changed"):
        open_pack(flipped, split="train")
    open_pack(flipped, split="train", verify=False)  # asked not to look
    cut = damaged("cut")
    (cut / "train/labels.bin").write_bytes((cut / "train/labels.bin").read_bytes()[:-1])
    with pytest.raises(DataError, match=r"labels\.bin: is missing or not"):
        open_pack(cut, split="train", verify=False)
    gone = damaged("gone")
    (gone / "train/index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        open_pack(gone, split="train")
    for name, change in {
        "other format": {"format": "something"},
        "newer": {"version": 99},
        "escaping": {"files": {"../secret": {"bytes": 1, "sha256": ""}}},
        "no files": {"files": None},
        "no options": {"options": 3},
    }.items():
        wrong = damaged(name)
        manifest = json.loads((wrong / "pack.json").read_text()) | change
        del manifest["sha256"]
        (wrong / "pack.json").write_bytes(dump_hashed_json(manifest, name="as if we had written it"))
        with pytest.raises(DataError, match=r"pack\.json"):
            open_pack(wrong, split="train")
    with pytest.raises(DataError, match="no split 'val', only train"):
        open_pack(good, split="val")


def test_pack_is_sealed_against_every_flipped_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = write_pack({"train": random_source(**SOURCES["two classes as bits"])}, tmp_path / "pack")
    sealed = (pack / "pack.json").read_bytes()
    content, passed = bytearray(sealed), []
    monkeypatch.setattr(files, "read_file", lambda _path, **_how: bytes(content))
    for bit in range(8 * len(sealed)):
        content[bit // 8] ^= 1 << bit % 8
        with suppress(DataError):
            pack_origin(pack)
            passed.append(bit)
        content[bit // 8] ^= 1 << bit % 8
    assert not passed
    assert pack_origin(pack) == ("test", None)


def test_pack_refuses_a_list_from_which_a_file_was_dropped(tmp_path: Path) -> None:
    pack = write_pack({"train": random_source(**SOURCES["two classes as bits"])}, tmp_path / "pack")
    sealed = (pack / "pack.json").read_bytes()
    manifest = json.loads(sealed)
    for name in manifest["files"]:
        left = {other: entry for other, entry in manifest["files"].items() if other != name}
        (pack / "pack.json").write_bytes(dump_json(manifest | {"files": left}, name="one dropped"))
        with pytest.raises(DataError, match="changed"):
            open_pack(pack, split="train")
    (pack / "pack.json").write_bytes(sealed)
    open_pack(pack, split="train")


def test_pack_refuses_files_that_it_does_not_list(tmp_path: Path) -> None:
    pack = write_pack({"val": open_synthetic("lesions", split="val", num_images=2, size=16)}, tmp_path / "pack")
    (pack / "val/.DS_Store").touch()
    open_pack(pack, split="val")
    (pack / "val/valid.bin").write_bytes(bytes(2 * 16 * 16 // 8))  # as if no pixel were valid
    with pytest.raises(DataError, match=r"valid\.bin"):
        open_pack(pack, split="val")


def test_pack_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    source = random_source(**SOURCES["instances"])
    many = replace(source.samples[0], labels=np.full_like(source.samples[0].labels, 2**16))
    with pytest.raises(DataError, match="label 65536 is more than a pack holds"):
        write_pack({"train": ListSource([many], info=source.info)}, tmp_path / "pack")
    assert not list(tmp_path.iterdir())  # nothing half-written stays behind
    with pytest.raises(ConfigError, match="at least one split"):
        write_pack({}, tmp_path / "pack")
    other = ListSource(source.samples, info=source.info, split="val")
    with pytest.raises(DataError, match="are of one patient"):
        write_pack({"train": source, "val": other}, tmp_path / "p")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_pack({"train": source}, tmp_path / "taken")
