"""Pickles and samples of less than a megabyte that would run code, or take gigabytes or minutes."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mutate_samples import CANARY, _Call

BOMBS: dict[str, Callable[[Path], Path]] = {}


def _pickle(content: Callable[[], bytes]) -> Callable[[], bytes]:
    BOMBS[content.__name__] = lambda folder: _written(folder / "data_lidc.pickle", content())
    return content


def _samples(content: Callable[[], bytes]) -> Callable[[], bytes]:
    BOMBS[content.__name__] = lambda folder: _written(folder / "samples.npz", content())
    return content


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@_pickle
def pickle_system() -> bytes:
    return pickle.dumps({"crop": {"image": _Call(os.system, f"touch {CANARY}")}})


@_pickle
def pickle_lists() -> bytes:
    return b"\x80\x02" + b"]" * 990_000 + b"."


@_pickle
def pickle_marks() -> bytes:
    return b"\x80\x02" + b"(" * 990_000 + b"."


@_pickle
def pickle_nested() -> bytes:
    return b"\x80\x02)" + b"\x85" * 990_000 + b"."


@_pickle
def pickle_repeated() -> bytes:
    return b"\x80\x02(]q\x00" + b"h\x00" * 490_000 + b"l."


@_pickle
def pickle_billion_laughs() -> bytes:
    """A list of ten lists of ten lists …: small as objects, endless when printed."""
    return b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % n * 10 + b"eq%c" % (n + 1) for n in range(200)) + b"."


@_pickle
def pickle_frame() -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"K\x01."


@_pickle
def pickle_bytes() -> bytes:
    return b"\x80\x04\x8e" + struct.pack("<Q", 2**35) + bytes(900_000)


@_pickle
def pickle_memo() -> bytes:
    return b"\x80\x02K\x01" + b"".join(b"r" + struct.pack("<I", 2**32 - 1 - n) for n in range(150_000)) + b"."


@_pickle
def pickle_memo_of_one_hash() -> bytes:
    """Numbers that fall into one place of a dict."""
    return b"K\x01" + b"".join(b"p%d\n" % (n * (2**61 - 1)) for n in range(40_000)) + b"."


@_pickle
def pickle_digits() -> bytes:
    return b"\x80\x02" + b"I" + b"9" * 900_000 + b"\n."


@_pickle
def pickle_long() -> bytes:
    return b"\x80\x02\x8b" + struct.pack("<i", 990_000) + b"\x7f" * 990_000 + b"."


@_pickle
def pickle_one_array_many_times() -> bytes:
    image = np.zeros((512, 512), np.uint8)
    return pickle.dumps({str(i): {"image": image, "masks": [image], "series_uid": "1"} for i in range(9000)})


@_pickle
def pickle_shape() -> bytes:
    whole = pickle.dumps(np.zeros(3, np.uint8), 2)
    return whole.replace(b"K\x03\x85", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", 1)


def _npz(array: bytes, *, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.writestr("samples.npy", array)
    return buffer.getvalue()


def _head(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@_samples
def npz_shape() -> bytes:
    return _npz(_head((2**40, 64, 64)))


@_samples
def npz_zeros() -> bytes:
    """A gigabyte that is there, packed."""
    return _npz(_head((2**17, 64, 64)) + bytes(2**29))


@_samples
def npz_lzma() -> bytes:
    return _npz(_head((4, 64, 64)) + bytes(4 * 64 * 64), kind=zipfile.ZIP_LZMA)


@_samples
def npz_wide_numbers() -> bytes:
    return _npz(_head((4, 64, 64), "|V100000000"))


@_samples
def npz_long_header() -> bytes:
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"4," * 400_000 + b")}"
    return _npz(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text)


@_samples
def npz_deep_header() -> bytes:
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': " + b"(" * 30_000 + b")" * 30_000 + b"}"
    return _npz(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)


@_samples
def npz_many_entries() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(8000):
            archive.writestr(str(number), b"")
    return buffer.getvalue()
