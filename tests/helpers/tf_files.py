"""TensorFlow checkpoints for tests: the authors' own, and any other, written by the format's description."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from places import TESTS

from hpunet.weights.tensorflow.bundle import masked_crc32c

GOLDEN = TESTS / "golden"
MAGIC = bytes.fromhex("57fb808b247547db")
TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def golden_variables() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "hpu_small.npz") as arrays:
        return {str(name): arrays[name] for name in arrays["var_names"]}


def write_golden_checkpoint(folder: Path) -> Path:
    """The checkpoint that tf.train.Saver wrote: its index is in tests/golden, its data are hpu_small.npz's arrays.

    They lie in the order of their names there; the index holds checksums of them all, so that one bit in another
    place would be refused.
    """
    folder.mkdir(parents=True)
    prefix = folder / "tf_graph_data.ckpt"
    (folder / "tf_graph_data.ckpt.index").write_bytes((GOLDEN / "tf_graph_data.ckpt.index").read_bytes())
    content = b"".join(array.tobytes() for _, array in sorted(golden_variables().items()))
    (folder / "tf_graph_data.ckpt.data-00000-of-00001").write_bytes(content)
    return prefix


def varint(value: int) -> bytes:
    content = b""
    while value > 127:
        content, value = content + bytes([value & 127 | 128]), value >> 7
    return content + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entries(pairs: list[tuple[bytes, bytes]]) -> bytes:
    content = b"".join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs)
    return content + struct.pack("<II", 0, 1)


def block(content: bytes, *, compression: int = 0) -> bytes:
    content += bytes([compression])
    return content + struct.pack("<I", masked_crc32c(content))


def entry(array: np.ndarray, *, offset: int, dtype: int | None = None, more: bytes = b"") -> bytes:
    shape = b"".join(field(2, field(1, size)) for size in array.shape)
    return (
        field(1, TYPES[str(array.dtype)] if dtype is None else dtype)
        + field(2, shape)
        + field(4, offset)
        + field(5, array.nbytes)
        + varint(6 << 3 | 5)
        + struct.pack("<I", masked_crc32c(array.tobytes()))
        + more
    )


def index_file(content: bytes, *, compression: int = 0) -> bytes:
    """A table of one block of entries, with checksums that are right whatever it holds."""
    data = block(content, compression=compression)
    handle = varint(0) + varint(len(data) - 5)
    index = block(entries([(b"~", handle)]))
    footer = (varint(0) * 2 + varint(len(data)) + varint(len(index) - 5)).ljust(40, b"\0")
    return data + index + footer + MAGIC


HEADER = (b"", field(1, 1))


def write_checkpoint(prefix: Path, variables: Mapping[str, np.ndarray]) -> Path:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    pairs, content = [HEADER], b""
    for name, array in sorted(variables.items()):
        pairs.append((name.encode(), entry(array, offset=len(content))))
        content += array.tobytes()
    prefix.with_name(prefix.name + ".index").write_bytes(index_file(entries(pairs)))
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(content)
    return prefix
