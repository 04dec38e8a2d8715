"""Pickles read without an unpickler: what numpy writes is read, what could run is refused by name and never runs."""

import copyreg
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpunet.data.io import pickles
from hpunet.data.io.pickles import PickledArray, read_pickle
from hpunet.errors import DataError


def written(folder: Path, content: bytes) -> Path:
    path = folder / "crops.pickle"
    path.write_bytes(content)
    return path


def plain(value: Any) -> Any:
    if isinstance(value, PickledArray):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)(plain(each) for each in value)
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("protocol", range(6))
def test_plain_containers_and_arrays_are_those_of_the_unpickler(protocol: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shared = rng.random((3, 4))
    arrays = [rng.integers(0, 2, (5, 6)).astype(kind) for kind in ("?", "u1", "<i2", ">i4", "<f4", ">f8", "f2")]
    value = {
        "arrays": [*arrays, shared, shared, np.asfortranarray(shared), np.float64(0.1), np.int16(7)],
        "plain": (None, True, False, 0, -1, 255, 65536, 2**40, -(2**80), 1.5, "text ü", "", [], {}, (), (1,), (1, 2)),
        "long": list(range(3000)),
        "many": (1, 2, 3, 4, 5),
    }
    content = pickle.dumps(value, protocol)
    found = plain(read_pickle(written(tmp_path, content)))
    expected = pickle.loads(content)
    for mine, theirs in zip(found.pop("arrays"), expected.pop("arrays"), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert np.asarray(mine).dtype.itemsize == theirs.dtype.itemsize or theirs.ndim == 0
    assert found == expected


def test_arrays_of_python_2_are_read(tmp_path: Path) -> None:
    content = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02K\x02\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x04\x00\x01\xfe\xfftb."
    )
    np.testing.assert_array_equal(pickle.loads(content, encoding="latin-1"), [[0, 1], [254, 255]])
    np.testing.assert_array_equal(plain(read_pickle(written(tmp_path, content))), [[0, 1], [254, 255]])


class _Calls:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class _Plain:
    def __init__(self) -> None:
        self.value = 1


class _WithNew:
    def __getnewargs__(self) -> tuple[int]:
        return (1,)


def _runs(canary: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that touch the canary when they are loaded by Python, and what must be named."""
    touch = f"open({str(canary)!r}, 'w').close()"
    shell = f"touch {canary}"
    inst = b"(S'%s'\niposix\nsystem\n." % shell.encode()
    obj = b"(cposix\nsystem\nS'%s'\no." % shell.encode()
    nested = {"a": {"image": np.zeros((2, 2)), "masks": [_Calls(os.system, shell)], "series_uid": "1"}}
    return {
        **{f"system {p}": (pickle.dumps(_Calls(os.system, shell), p), "posix.system") for p in range(6)},
        **{f"eval {p}": (pickle.dumps(_Calls(eval, touch), p), "builtin") for p in range(6)},
        "exec": (pickle.dumps(_Calls(exec, touch)), "builtins.exec"),
        "popen": (pickle.dumps(_Calls(subprocess.call, ["touch", str(canary)])), "subprocess.call"),
        "inst": (inst, "posix.system"),
        "obj": (obj, "posix.system"),
        "nested": (pickle.dumps(nested), "posix.system"),
        "behind numpy": (b"\x80\x04\x8c\x05numpy\x94\x8c\x07ndarray\x93" + pickle.dumps(_Calls(os.system, shell))[2:],
                         "posix.system"),
    }  # fmt: skip


CASES = (
    "system 0",
    "system 2",
    "system 5",
    "eval 0",
    "eval 4",
    "exec",
    "popen",
    "inst",
    "obj",
    "nested",
    "behind numpy",
)


@pytest.mark.parametrize("name", CASES)
def test_hostile_pickles_run_nothing_and_are_refused_by_name(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    content, forbidden = _runs(canary)[name]
    code = f"import pickle; pickle.loads({content!r})"  # Python's own would run it
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert canary.exists()
    canary.unlink()
    with pytest.raises(DataError, match=r"crops\.pickle: .*" + forbidden) as error:
        read_pickle(written(tmp_path, content))
    assert "\n" not in str(error.value)
    assert not canary.exists()


def _with_state(state: Any) -> bytes:
    """An array of two numbers whose dtype has another state."""
    return pickle.dumps(_Calls(np.dtype, "f8", False, True), 2)[:-1] + pickle.dumps(state, 2)[2:-1] + b"b."


def _global(module: str, name: str) -> bytes:
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n."


UNKNOWN = {
    "object array": pickle.dumps(np.array([_Plain()], dtype=object)),
    "objects in a list": pickle.dumps(np.array([None, 1], dtype=object), 2),
    "text array": pickle.dumps(np.array(["ab"])),
    "structured array": pickle.dumps(np.zeros(2, dtype=[("a", "f8"), ("b", "i4")])),
    "subclass": pickle.dumps(np.rec.array([1.0])),
    "masked": pickle.dumps(np.ma.array([1.0], mask=[True])),
    "datetime": pickle.dumps(np.array(["2020-01-01"], dtype="M8[D]")),
    "own class": pickle.dumps(_Plain(), 2),
    "own class, oldest": pickle.dumps(_Plain(), 0),
    "new with arguments": pickle.dumps(_WithNew(), 4),
    "set": pickle.dumps({1, 2}),
    "frozen set": pickle.dumps(frozenset({1})),
    "complex": pickle.dumps(1j),
    "function": pickle.dumps(os.system),
    "extension 1": b"\x80\x02\x82\x01.",
    "extension 2": b"\x80\x02\x83\x01\x00.",
    "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "persistent": b"P123\n.",
    "persistent, binary": b"\x80\x02K\x01Q.",
    "out of band": b"\x80\x05\x97.",
    "read only buffer": b"\x80\x05K\x01\x98.",
    "names from the stack": b"\x80\x04K\x01K\x02\x93.",
    "pandas": _global("pandas.core.frame", "DataFrame"),
    "near numpy": _global("numpy.core.multiarray", "fromfile"),
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "called text": b"\x80\x02X\x05\x00\x00\x00numpy)R.",
    "called twice": b"\x80\x02cnumpy\ndtype\n)R.",
    "dtype with names": _with_state((3, "<", None, ("a",), {"a": 1}, 8, 8, 0)),
    "dtype with subarray": _with_state((3, "<", ("f8", (9,)), None, None, -1, -1, 0)),
    "dtype of a size": _with_state((3, "<", None, None, None, 2**30, 1, 0)),
    "dtype with flags": _with_state((3, "<", None, None, None, -1, -1, 63)),
    "dtype with metadata": _with_state((4, "<", None, None, None, -1, -1, 0, {})),
    "state of a dict": b"\x80\x02}}b.",
    "state of a number": b"\x80\x02K\x01}b.",
    "item of a number": b"\x80\x02K\x01K\x02K\x03s.",
    "append to a dict": b"\x80\x02}K\x02a.",
    "list as key": b"\x80\x02}](K\x01es.",
    "key twice": b"\x80\x02}(U\x01aK\x01U\x01aK\x02u.",
    "large text twice": b"\x80\x02(X" + struct.pack("<I", 5000) + b"a" * 5000 + b"q\x00h\x00l.",
    "two objects": b"\x80\x02K\x01K\x02.",
    "two pickles": pickle.dumps(1) + pickle.dumps(2),
    "popped": b"\x80\x02K\x01K\x020.",
    "open mark": b"\x80\x02(K\x01.",
    "nothing": b"\x80\x02.",
    "no mark": b"\x80\x02K\x01e.",
    "unknown memo": b"\x80\x02h\x07.",
    "no end": pickle.dumps([1, 2])[:-1],
    "no pickle": b"hello",
    "empty": b"",
    "long number": b"I" + b"9" * 5000 + b"\n.",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_everything_else_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"crops\.pickle: ") as error:
        read_pickle(written(tmp_path, UNKNOWN[name]))
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


def _shape(shape: tuple[int, ...], content: bytes) -> bytes:
    """A numpy array that claims another shape."""
    whole = pickle.dumps(np.frombuffer(content, np.uint8), 2)
    before = pickle.dumps((len(content),), 2)[2:-1].replace(b"q\x00", b"")
    after = pickle.dumps(shape, 2)[2:-1].replace(b"q\x00", b"")
    assert before in whole
    return whole.replace(before, after, 1)


def _text_many_times(uses: bytes) -> bytes:
    """A remembered text, b"latin1" and three names, and 600 times what `uses` makes of them."""
    texts = b"X" + struct.pack("<I", 4096) + b"a" * 4096 + b"q\x00U\x06latin1q\x01"
    named = b"c_codecs\nencode\nq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    kind = b"cnumpy\ndtype\nU\x02u1\x85Rq\x05"
    return b"\x80\x02(" + texts + named + kind + 600 * uses + b"l."


BOMBS = {
    "text encoded": _text_many_times(b"h\x02h\x00h\x01\x86R"),
    "text as array": _text_many_times(b"h\x03h\x04\x85R(K\x01M\x00\x10\x85h\x05\x89h\x00tb"),
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"K\x01.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"a.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"a.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 2**50) + b"a.",
    "four bytes": b"\x80\x03B" + struct.pack("<I", 2**32 - 1) + b"a.",
    "negative": b"\x80\x02T" + struct.pack("<i", -5) + b"a.",
    "long": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"a.",
    "line": b"V" + b"a" * (2**22 + 10) + b"\n.",
    "memo": b"\x80\x02K\x01r" + struct.pack("<I", 2**32 - 1) + b".",
    "memo of a long number": b"K\x01p" + b"9" * 4000 + b"\n.",
    "lists": b"\x80\x02" + b"]" * 30_000 + b".",
    "marks": b"\x80\x02" + b"(" * 30_000 + b".",
    "nested tuples": b"\x80\x02)" + b"\x85" * 30_000 + b".",
    "nested lists": b"\x80\x02" + b"]" * 15_000 + b"a" * 15_000 + b".",
    "repeated": b"\x80\x02(]q\x00" + b"h\x00" * 20_000 + b"l.",
    "shape": _shape((2**30, 2**30), b"abc"),
    "negative shape": _shape((-3, -1), b"abc"),
    "dimensions": _shape((1,) * 40 + (3,), b"abc"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_claims_are_compared_with_the_file_before_anything_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"crops\.pickle: "):
        read_pickle(written(tmp_path, BOMBS[name]))


def test_a_list_that_holds_itself_is_no_trouble(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    found = read_pickle(written(tmp_path, pickle.dumps(endless)))
    assert found[0] is found


def test_known_names_are_what_numpy_writes() -> None:
    arrays = [np.zeros(2), np.float32(1), np.zeros((2, 2), order="F")]
    for protocol in range(6):
        content = pickle.dumps(arrays, protocol)
        asked = {
            f"{argument}".replace(" ", ".")
            for opcode, argument, _ in pickletools.genops(content)
            if opcode.name == "GLOBAL"
        }
        assert asked <= pickles.KNOWN_NAMES
    assert not any(
        name.partition(".")[0] in ("builtins", "os", "posix", copyreg.__name__) for name in pickles.KNOWN_NAMES
    )


def test_source_has_no_unpickler() -> None:
    source = Path(pickles.__file__).read_text()
    assert "import pickle\n" not in source
    assert "Unpickler(" not in source
    assert "getattr(" not in source
    assert "__import__" not in source
