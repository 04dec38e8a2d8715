"""Files of less than a megabyte that would take gigabytes or minutes: archives, tables, settings, weights, stacks."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from corpus import hdf5
from lidc_study import Series, Session, write_xml

from hpunet.config.settings import load_settings
from hpunet.data.packs import VERSION as PACK_VERSION
from hpunet.evaluation.rows import COLUMNS
from hpunet.utils.files import dump_hashed_json, write_hashed
from hpunet.weights.safetensors_io import encode
from hpunet.weights.tensorflow.bundle import masked_crc32c

BOMBS: dict[str, Callable[[Path], Path]] = {}
_Content = Callable[[], bytes]


def _file(name: str) -> Callable[[_Content], _Content]:
    """The content of a bomb of one file."""

    def add(content: _Content) -> _Content:
        BOMBS[content.__name__] = lambda folder: _written(folder / name, content())
        return content

    return add


def folder_bomb(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """A bomb that is a folder of files."""

    def write(folder: Path) -> Path:
        path = folder / make.__name__
        path.mkdir()
        make(path)
        return path

    BOMBS[make.__name__] = write
    return make


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# Archives


def _member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def _extended(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return _member("x", len(content), kind) + content + bytes(-len(content) % 512)


def _zeros(count: int) -> bytes:
    """This many times 16 MiB, packed."""
    return gzip.compress(bytes(2**24), mtime=0) * count


@_file("negative.tar.gz")
def tar_negative_size() -> bytes:
    header = bytearray(_member("images/a.png", 0))
    header[124:136] = b"\xff" * 12  # -1 in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header)) + _zeros(50)


@_file("zeros.tar.gz")
def tar_of_zeros() -> bytes:
    return gzip.compress(_member("images/a.png", 2**29)) + _zeros(32) + gzip.compress(bytes(1024))


@_file("digits.tar")
def pax_digits() -> bytes:
    return _extended(b"1" * 900_000) + _member("a", 0) + bytes(1024)


@_file("many.tar.gz")
def pax_many_digits() -> bytes:
    return gzip.compress((_extended(b"1" * 4096) + _member("a", 0)) * 10_000 + bytes(1024))


@_file("names.tar.gz")
def gnu_long_names() -> bytes:
    """A name for a name for a name."""
    return gzip.compress(_extended(b"a" * 400, tarfile.GNUTYPE_LONGNAME) * 30_000 + _member("a", 0) + bytes(1024))


@_file("sparse.tar.gz")
def pax_sparse() -> bytes:
    record = b"GNU.sparse.major=1\n", b"GNU.sparse.minor=0\n", b"GNU.sparse.name=a\n", b"GNU.sparse.realsize=1\n"
    header = _extended(b"".join(b"%d %b" % (len(r) + 3, r) for r in record))
    return gzip.compress(header + _member("a", 2**25) + b"9" * 2**25 + bytes(1024))


@_file("members.tar.gz")
def tar_many_members() -> bytes:
    """A name and its complement have digits of the same sum, so one checksum serves all headers."""
    rest = _member(f"{0:05d}{99999:05d}", 0)[10:]
    members = b"".join(b"%05d%05d" % (number, 99999 - number) + rest for number in range(2**15))
    return gzip.compress(members * 2 + bytes(1024), 1)  # a name twice is refused, but late


@_file("names.npz")
def npz_overlapping() -> bytes:
    """Many names for one member."""
    return _zip(_npy((2**20,), bytes(2**22)), copies=4000)


@_file("zeros.npz")
def npz_of_zeros() -> bytes:
    return _zip(_npy((2**25,), bytes(2**27)))


@_file("claim.npz")
def npz_claim() -> bytes:
    return _zip(_npy((2**40,), bytes(2**16)))


@_file("examples.npz")
def examples_of_zeros() -> bytes:
    return _zip(_npy((2**25,), bytes(2**27)), name="image")


@_file("examples.npz")
def examples_claim() -> bytes:
    return _zip(_npy((2**40,), bytes(2**16)), name="image")


def _npy(shape: tuple[int, ...], content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + content


def _zip(content: bytes, *, name: str = "net/prior/conv_2d/w", copies: int = 1) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)
        (entry,) = archive.filelist
        for number in range(1, copies):
            other = zipfile.ZipInfo(f"net/prior/conv_2d_{number}/w.npy")
            for field in ("CRC", "compress_size", "compress_type", "file_size", "flag_bits", "header_offset"):
                setattr(other, field, getattr(entry, field))
            archive.filelist.append(other)
    return buffer.getvalue()


# Stacks


@_file("heap.h5")
def hdf5_heap_loop() -> bytes:
    """A free block of the local heap that is followed by itself."""
    data = bytearray(hdf5(np.zeros((4, 8, 8), np.uint8)))
    place = -1
    while (place := data.find(b"HEAP", place + 1)) >= 0:
        free, segment = (int.from_bytes(data[place + at : place + at + 8], "little") for at in (16, 24))
        if free < len(data):
            data[segment + free : segment + free + 8] = free.to_bytes(8, "little")
    return bytes(data)


@folder_bomb
def stack_of_zeros(root: Path) -> None:
    zeros = np.zeros((48, 1024, 1024), np.uint8)
    for name in ("train-input.h5", "train-labels.h5"):
        (root / name).write_bytes(hdf5(zeros, compression="gzip", compression_opts=1, chunks=(8, 1024, 1024)))


@_file("groups.h5")
def hdf5_many_groups() -> bytes:
    """Links that lead back up, of which every path is another one."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="latest") as file:
        for number in range(1500):
            file.create_group(f"{number}")
        for number in range(1499):
            for copy in range(3):
                file[f"{number}/{copy}"] = file[f"{number + 1}"]
    return buffer.getvalue()


# Annotations


def _study(root: Path, sessions: list[Session], *, side: int, num_bytes: int | None = None) -> None:
    series = Series("P1", "1.2.3", num_slices=1, shape=(24, 24), spacing=(0.5, 0.5))
    data = series.dataset(0)
    data.Rows = data.Columns = side
    data.PixelData = bytes(side * side * 2 if num_bytes is None else num_bytes)
    data.save_as(root / "1-001.dcm", enforce_file_format=True)
    write_xml(root / "study.xml", series.uid, sessions)


@folder_bomb
def lidc_claim(root: Path) -> None:
    """A scan that says to be 4096² pixels large, and outlines that go to and fro in it."""
    series = Series("P1", "1.2.3", num_slices=1, shape=(24, 24), spacing=(0.5, 0.5))
    outline = [(x, y) for x in range(0, 4096, 4) for y in (0, 4095)] + [(4095, 1), (0, 1)]
    _study(root, [Session(nodules=[[series.roi(0, outline)] for _ in range(4)])], side=4096, num_bytes=2)


@folder_bomb
def lidc_many_nodules(root: Path) -> None:
    series = Series("P1", "1.2.3", num_slices=1, shape=(24, 24), spacing=(0.5, 0.5))
    nodules = [[series.roi(0, [(2 * n, 0), (2 * n + 2, 0), (2 * n + 2, 2), (2 * n, 2)])] for n in range(1500)]
    _study(root, [Session(nodules=nodules), Session(nodules=nodules[::2])], side=3100, num_bytes=2)


@folder_bomb
def lidc_large_outlines(root: Path) -> None:
    series = Series("P1", "1.2.3", num_slices=1, shape=(24, 24), spacing=(0.5, 0.5))
    outline = [(0, 0), (599, 0), (599, 599), (0, 599)]
    _study(root, [Session(nodules=[[series.roi(0, outline)] * 600])], side=600)


def _xml(root: Path, content: bytes) -> None:
    _study(root, [Session()], side=24)
    (root / "study.xml").write_bytes(content)


@folder_bomb
def xml_entities(root: Path) -> None:
    entities = b"".join(b'<!ENTITY e%d "%b">' % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 10))
    _xml(root, b'<!DOCTYPE r [<!ENTITY e0 "ha">' + entities + b"]><r>&e9;</r>")


@folder_bomb
def xml_deep(root: Path) -> None:
    _xml(root, b"<a>" * 140_000 + b"</a>" * 140_000 + b"<")


@folder_bomb
def xml_large_entity(root: Path) -> None:
    _xml(root, b'<!DOCTYPE r [<!ENTITY e "' + b"a" * 400_000 + b'">]><r>' + b"&e;" * 100_000 + b"</r>")


def _annotation(polygons: list[list[list[int]]]) -> bytes:
    objects = [{"label": "car", "polygon": polygon} for polygon in polygons]
    return json.dumps({"imgHeight": 4096, "imgWidth": 8192, "objects": objects}).encode()


@_file("a_gtFine_polygons.json")
def polygons_over_all() -> bytes:
    return _annotation([[[0, 0], [8191, 0], [8191, 4095], [0, 4095]]] * 10_000)


@_file("a_gtFine_polygons.json")
def polygon_of_many_vertices() -> bytes:
    return _annotation([[[number % 8192, number % 2 * 4095] for number in range(80_000)]])


@_file("a_gtFine_polygons.json")
def json_deep() -> bytes:
    return b'{"objects":' + b"[" * 900_000


@_file("a_gtFine_polygons.json")
def json_digits() -> bytes:
    return b'{"imgHeight":' + b"9" * 900_000 + b"." + b"9" * 90_000 + b',"objects":[]}'


# Tables, logs and settings


@_file("data.csv")
def csv_giant_line() -> bytes:
    return b"file,patient\n" + b"a," * 490_000


@_file("data.csv")
def csv_giant_header() -> bytes:
    return b"a," * 490_000


@_file("data.csv")
def csv_open_quote() -> bytes:
    return b'file,patient\n"' + b"a\n" * 490_000


@_file("metrics.jsonl")
def log_deep() -> bytes:
    return b'{"step":' + b"[" * 900_000 + b"\n"


@_file("settings.toml")
def toml_deep() -> bytes:
    return b"a = " + b"[\n" * 30_000


@_file("settings.toml")
def toml_dotted_key() -> bytes:
    return b"a" + b".a" * 30_000 + b" = 1\n"


@_file("settings.toml")
def toml_dotted_lines() -> bytes:
    return b"".join(b"[a%d" % n + b".a" * 480 + b"]\nb" + b".b" * 480 + b" = 1\n" for n in range(32))


@_file("settings.toml")
def toml_many_keys() -> bytes:
    return b"\n".join(b"k%d = 1" % number for number in range(6_000))


@_file("settings.toml")
def toml_digits() -> bytes:
    return b"seed = " + b"9" * 60_000


@_file("settings.toml")
def toml_digits_in_a_line() -> bytes:
    return b"seed = 0x" + b"f" * 900


@_file("settings.toml")
def toml_long() -> bytes:
    return b"a = 1\n" * 150_000


@_file("rows.csv")
def rows_of_many_pairs() -> bytes:
    """Few instances, which are said to have millions of overlaps, and nearly all are 0."""
    named = dict.fromkeys(COLUMNS, "0") | {"instances": '"[[1],[1],16777216,[]]"'}
    return (",".join(COLUMNS) + "\n" + (",".join(named.values()) + "\n") * 5000).encode()


# Weights


def _published(root: Path, **model: object) -> dict[str, object]:
    settings = load_settings("lidc-hpu").model_dump(mode="json")
    settings["model"] |= model
    info = {"kind": "lidc", "in_channels": 1, "num_graders": 4, "fixed_classes": ["background", "lesion"]}
    content = encode({"a": torch.zeros(1)}, name="sampling.safetensors")
    files = {"sampling.safetensors": write_hashed(root / "sampling.safetensors", content)}
    about = {"format": "hpunet-published", "version": 1, "name": "bomb", "step": 1, "credit": ""}
    return {**about, "settings": settings, "info": info, "files": files}


def _describe(root: Path, description: dict[str, object]) -> None:
    (root / "model.json").write_bytes(dump_hashed_json(description, name="model.json"))


@folder_bomb
def weights_of_many_blocks(root: Path) -> None:
    _describe(root, _published(root, blocks_per_scale=10**6))


@folder_bomb
def weights_as_large_as_can_be(root: Path) -> None:
    _describe(root, _published(root, blocks_per_scale=32, channels=[4096] * 12, latent_dims=[1024] * 11))


@folder_bomb
def weights_of_no_network(root: Path) -> None:
    _describe(root, _published(root, channels=[4096] * 12, latent_dims=[1024] * 12))


@folder_bomb
def weights_of_many_channels(root: Path) -> None:
    about = _published(root)
    about["info"] |= {"in_channels": 10**12, "num_random_ids": 10**12}  # type: ignore[operator]
    _describe(root, about)


@folder_bomb
def weights_deep_header(root: Path) -> None:
    about = _published(root)
    content = b'{"a":' + b"[" * 900_000
    (root / "sampling.safetensors").unlink()
    entry = write_hashed(root / "sampling.safetensors", len(content).to_bytes(8, "little") + content)
    about["files"] = {"sampling.safetensors": entry}
    _describe(root, about)


@folder_bomb
def weights_deep_description(root: Path) -> None:
    (root / "model.json").write_bytes(b'{"settings":' + b"[" * 900_000)


@folder_bomb
def hub_of_many_blocks(root: Path) -> None:
    about = _published(root, blocks_per_scale=10**6)
    (root / "sampling.safetensors").rename(root / "model.safetensors")
    about["files"] = {"model.safetensors": about["files"]["sampling.safetensors"]}  # type: ignore[index]
    about |= {"format": "hpunet-hub", "model_type": "hpunet"}
    (root / "config.json").write_bytes(dump_hashed_json(about, name="config.json"))


@folder_bomb
def hub_deep_description(root: Path) -> None:
    (root / "config.json").write_bytes(b'{"settings":' + b"[" * 900_000)
    (root / "model.safetensors").write_bytes(b"")


@folder_bomb
def pack_deep(root: Path) -> None:
    (root / "pack.json").write_bytes(b'{"format":' + b"[" * 900_000)


@folder_bomb
def pack_deep_index(root: Path) -> None:
    (root / "train").mkdir()
    entry = write_hashed(root / "train/index.json", b'{"patients":' + b"[" * 900_000)
    info = {"kind": "lidc", "in_channels": 1, "num_graders": 4, "fixed_classes": ["background", "lesion"]}
    files = {"train/index.json": {"bytes": entry["size"], "sha256": entry["sha256"]}}
    manifest = {
        "format": "hpunet-pack",
        "version": PACK_VERSION,
        "info": info,
        "splits": {"train": 1},
        "files": files,
    }
    (root / "pack.json").write_bytes(dump_hashed_json(manifest, name="pack.json"))


def _varint(value: int) -> bytes:
    low = value & 127
    return bytes([low | 128]) + _varint(value >> 7) if value >> 7 else bytes([low])


def _entry(shared: int, new: bytes, value: bytes) -> bytes:
    return _varint(shared) + _varint(len(new)) + _varint(len(value)) + new + value


_HEADER = _entry(0, b"", b"\x08\x01")  # there is one data file


def _index(blocks: list[bytes], *, copies: int = 1) -> bytes:
    """A table of these blocks of entries, each of which is named this often."""
    content, pointers = b"", b""
    for block in blocks:
        place = _varint(len(content)) + _varint(len(block) + 8)
        content += _block(block)
        pointers += _entry(0, b"zz", place) * copies
    footer = _varint(len(content)) + _varint(0) + _varint(len(content)) + _varint(len(pointers) + 8)
    return content + _block(pointers) + footer + bytes(40 - len(footer)) + bytes.fromhex("57fb808b247547db")


def _block(entries: bytes) -> bytes:
    stored = entries + bytes(4) + (1).to_bytes(4, "little") + b"\0"  # a restart at 0; not compressed
    return stored + masked_crc32c(stored).to_bytes(4, "little")


@_file("model.index")
def tensorflow_shared_prefixes() -> bytes:
    keys = [_entry(0, b"a" * 50_000, b"")] + [_entry(50_000 + n, b"b", b"") for n in range(150_000)]
    return _index([_HEADER + b"".join(keys)])


@_file("model.index")
def tensorflow_same_block() -> bytes:
    keys = b"".join(_entry(0, b"%06d" % number, b"\x08\x01") for number in range(60_000))
    return _index([_HEADER + keys], copies=100)


@_file("model.index")
def tensorflow_many_entries() -> bytes:
    return _index([_HEADER + b"".join(_entry(0, b"%06d" % number, b"") for number in range(100_000))])


@folder_bomb
def tensorflow_same_bytes(root: Path) -> None:
    """Thousands of variables in the same bytes of a data file."""
    content = bytes(800_000)
    (root / "model.data-00000-of-00001").write_bytes(content)
    dim = b"\x08" + _varint(len(content) // 4)
    shape = b"\x12" + _varint(len(dim)) + dim
    checksum = masked_crc32c(content).to_bytes(4, "little")
    value = b"\x08\x01\x12" + _varint(len(shape)) + shape + b"\x28" + _varint(len(content)) + b"\x35" + checksum
    names = sorted(f"net/prior/conv_2d_{number}/w".encode() for number in range(3000))
    (root / "model.index").write_bytes(_index([_HEADER + b"".join(_entry(0, name, value) for name in names)]))
