"""TensorFlow's checkpoint files, read without TensorFlow (the format of tf.train.Saver since 2016).

A checkpoint with the prefix `model.ckpt-12345` consists of two kinds of files:

    model.ckpt-12345.index                  a sorted table: name of a variable → type, shape, position in which file
    model.ckpt-12345.data-00000-of-00001    the bytes

The table has LevelDB's format: blocks of entries with prefix-compressed keys, an index block with their positions,
and a footer with the position of the index. Values are protocol buffers. All checksums are verified.
"""

import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpunet.errors import CheckpointError
from hpunet.utils.files import explain_os_errors, read_file
from hpunet.utils.limits import MAX_INDEX_BYTES, MAX_KEY_BYTES, MAX_PARTS, MAX_VARIABLE_BYTES

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # of a block: its compression and checksum
_MAX_DIMENSIONS = 8
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""TensorFlow's type numbers; others (text, bfloat16, ...) are not supported."""
NPZ_HINT = (
    "On a machine with TensorFlow, convert the checkpoint to an .npz file, which is supported: "
    'reader = tf.train.load_checkpoint("model.ckpt-12345"); '
    'np.savez("variables.npz", **{n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()})'
)


@dataclass(frozen=True)
class _Entry:
    """Type, shape and position of a variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    has_slices: bool


class _DamagedError(Exception):
    """The content is inconsistent."""


class _UnsupportedError(Exception):
    """A feature of the format that is not supported here."""


def read_bundle(prefix: Path, *, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The variables whose names are wanted, and the names of all others; a `CheckpointError` if one is damaged."""
    index = prefix.with_name(prefix.name + ".index")
    content = read_file(index, max_bytes=MAX_INDEX_BYTES)
    try:
        num_shards, entries = _read_index(content)
    except _UnsupportedError as error:
        raise CheckpointError(f"{index}: {error}, which is not supported. {NPZ_HINT}") from None
    except (_DamagedError, IndexError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{index}: not the index of a TensorFlow checkpoint, or damaged ({error})") from None
    variables = {}
    held: Counter[Path] = Counter()
    for name, entry in entries.items():
        if wanted(name):
            shard = prefix.with_name(f"{prefix.name}.data-{entry.shard:05d}-of-{num_shards:05d}")
            held[shard] += entry.size
            variables[name] = _read_variable(shard, entry, name=name, held=held[shard])
    return variables, [name for name in entries if name not in variables]


def _read_variable(path: Path, entry: _Entry, *, name: str, held: int) -> np.ndarray:
    """A variable of a file from which `held` bytes have been taken with it: no byte is part of two variables."""
    if entry.has_slices:
        raise CheckpointError(f"{path}: {name}: stored in slices, which is not supported. {NPZ_HINT}")
    if entry.dtype not in _TYPES:
        known = ", ".join(str(np.dtype(kind)) for kind in _TYPES.values())
        raise CheckpointError(f"{path}: {name}: of TensorFlow's type {entry.dtype}, expected one of {known}")
    dtype = np.dtype(_TYPES[entry.dtype])
    num_bytes = dtype.itemsize * int(np.prod(entry.shape, dtype=object))
    if entry.size != num_bytes or not 0 < num_bytes <= MAX_VARIABLE_BYTES or len(entry.shape) > _MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: {name}: {entry.size} bytes do not hold {entry.shape} of {dtype}")
    with explain_os_errors(path, action="read"):
        if not stat.S_ISREG((status := path.stat()).st_mode):
            raise CheckpointError(f"{path}: not a plain file")
        if status.st_size < max(entry.offset + entry.size, held):
            raise CheckpointError(f"{path}: {name}: lies beyond the file's {status.st_size} bytes: truncated")
        with open(path, "rb") as file:
            file.seek(entry.offset)
            content = file.read(entry.size)
    if masked_crc32c(content) != entry.checksum:
        raise CheckpointError(f"{path}: {name}: damaged (its checksum is not the index's)")
    return np.frombuffer(content, dtype=dtype).reshape(entry.shape)


def masked_crc32c(content: bytes) -> int:
    """CRC-32C, rotated and shifted as TensorFlow stores it."""
    try:
        from google_crc32c import value
    except ImportError:
        words = "reading TensorFlow's files needs google-crc32c: pip install google-crc32c"
        raise CheckpointError(f"{words}. {NPZ_HINT}") from None
    plain = int(value(content))
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_index(content: bytes) -> tuple[int, dict[str, _Entry]]:
    """The number of data files, and the entry of every variable."""
    if len(content) < _FOOTER_BYTES or not content.endswith(_MAGIC):
        raise _DamagedError("it has no footer")
    footer = content[-_FOOTER_BYTES:]
    _, place = _handle(footer, 0)
    (offset, size), _ = _handle(footer, place)
    num_shards, end = 0, 0
    entries: dict[str, _Entry] = {}
    for _, pointer in _pairs(_block(content, offset=offset, size=size)):
        (offset, size), _ = _handle(pointer, 0)
        if offset < end:
            raise _DamagedError("its blocks overlap")
        end = offset + size + _TRAILER_BYTES
        for key, value in _pairs(_block(content, offset=offset, size=size)):
            if len(entries) > MAX_PARTS:
                raise _DamagedError(f"more than {MAX_PARTS} variables")
            if key:
                entries[key.decode()] = _entry(value)
            else:  # the header
                fields = dict(_fields(value))
                num_shards = _number(fields, 1)
                if _number(fields, 2):
                    raise _UnsupportedError("of big-endian numbers")
    if num_shards < 1:
        raise _DamagedError("it does not say how many data files there are")
    return num_shards, entries


def _block(content: bytes, *, offset: int, size: int) -> bytes:
    stored = content[offset : offset + size + _TRAILER_BYTES]
    if len(stored) != size + _TRAILER_BYTES:
        raise _DamagedError("it ends before its last block")
    if masked_crc32c(stored[:-4]) != int.from_bytes(stored[-4:], "little"):
        raise _DamagedError("the checksum of a block is wrong")
    if stored[size]:
        raise _UnsupportedError("compressed")
    return stored[:size]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    num_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (num_restarts + 1)
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        num_new, place = _varint(block, place)
        num_value, place = _varint(block, place)
        middle = place + num_new
        if shared > len(key) or middle + num_value > end:
            raise _DamagedError("an entry is longer than its block")
        if shared + num_new > MAX_KEY_BYTES:
            raise _DamagedError(f"a name of {shared + num_new} bytes")
        key = key[:shared] + block[place:middle]
        place = middle + num_value
        yield key, block[middle:place]


def _entry(value: bytes) -> _Entry:
    fields = list(_fields(value))
    single = dict(fields)
    shape = single.get(2, b"")
    dims = [size for number, size in _fields(shape if isinstance(shape, bytes) else b"") if number == 2]
    dtype, shard, offset, size, checksum = (_number(single, field) for field in (1, 3, 4, 5, 6))
    sizes = tuple(_number(dict(_fields(dim)), 1) for dim in dims if isinstance(dim, bytes))
    return _Entry(dtype, sizes, shard, offset, size, checksum, has_slices=7 in single)


def _number(fields: dict[int, int | bytes], number: int) -> int:
    """The value of a numeric field; 0 if absent, as in protocol buffers."""
    value = fields.get(number, 0)
    if not isinstance(value, int):
        raise _DamagedError(f"field {number} of an entry is not a number")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a protocol buffer's fields."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, place = _varint(message, place)
        elif not size:
            raise _DamagedError("an entry has a field of an unknown kind")
        part = message[place : place + size]
        if len(part) != size:
            raise _DamagedError("an entry is cut off")
        yield tag >> 3, part if kind == 2 else int.from_bytes(part, "little")
        place += size


def _handle(content: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = _varint(content, place)
    size, place = _varint(content, place)
    return (offset, size), place


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number with seven bits per byte, lowest first, and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise _DamagedError("a number has no end")
