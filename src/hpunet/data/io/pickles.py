"""Pickles of plain containers and numpy arrays, read without Python's unpickler: nothing in a file can run.

`pickletools` tells the instructions of a file apart; this module interprets those that make containers, texts and
numbers. What a file asks to import stays a name: of the six names that numpy writes this module knows what they make,
and any other one, known to Python or not, is refused. So are arrays of objects, and all other instructions.

A file takes about as much memory as it has bytes, and at most 16 million instructions, on average of 8 bytes or more;
lengths that it claims are compared with what is left of it before anything is read.
"""

import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.limits import named_errors
from hpunet.errors import DataError
from hpunet.utils.files import check_file, explain_os_errors
from hpunet.utils.limits import MAX_PICKLE_BYTES, Deadline

MAX_INSTRUCTIONS = 2**24
_ALWAYS_INSTRUCTIONS, _BYTES_PER_INSTRUCTION = 10_000, 8
_MAX_LINE = 2**22  # bytes of a text that ends with its line, as arrays do in the oldest protocol
_MAX_DIMENSIONS = 4
_LARGE = 2**12  # bytes of a text that is not remembered: that of an array is needed once
_NUMBERS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_SHOWN = 80  # characters of a name


class PickledArray:
    """An array in a pickle; None until the instruction that fills it."""

    value: Shaped[np.ndarray, "*shape"] | None = None


class _Name(str):
    """What a file asks to import, as module.name."""

    __slots__ = ()


class _Kind:
    """A numpy dtype: a number type, and the order of its bytes."""

    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)


def _modules(name: str) -> set[_Name]:
    return {_Name(f"numpy.{core}.{name}") for core in ("core", "_core")}  # before and since numpy 2


_ARRAYS = _modules("multiarray._reconstruct")
_SCALARS = _modules("multiarray.scalar")
_BUFFERS = _modules("numeric._frombuffer")
_ARRAY_TYPE, _DTYPE, _ENCODE = _Name("numpy.ndarray"), _Name("numpy.dtype"), _Name("_codecs.encode")
KNOWN_NAMES = frozenset({*_ARRAYS, *_SCALARS, *_BUFFERS, _ARRAY_TYPE, _DTYPE, _ENCODE})
_PLAIN = frozenset({
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
})  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(path: Path) -> Any:
    """What a file holds: dicts, lists, tuples, texts, numbers, None and `PickledArray`s."""
    size = check_file(path, max_bytes=MAX_PICKLE_BYTES, error=DataError)
    with explain_os_errors(path, action="read", error=DataError), path.open("rb") as file:
        bounded = _BoundedFile(file, size=size, name=str(path))
        with named_errors("pickle", name=str(path)):
            found = _Interpreter(str(path), size=size).run(bounded)
            if bounded.read(1):
                raise DataError(f"{path}: holds more than one pickle")
    return found


class _BoundedFile:
    """What pickletools reads from: it takes any length that a file claims for true."""

    def __init__(self, file: IO[bytes], *, size: int, name: str) -> None:
        self._file, self._size, self._name, self.tell = file, size, name, file.tell

    @property
    def left(self) -> int:
        return max(0, self._size - self.tell())

    def read(self, size: int) -> bytes:
        if not 0 <= size <= max(1, self.left):
            raise DataError(f"{self._name}: claims {size} bytes at byte {self.tell()}, {self.left} are left")
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise DataError(f"{self._name}: a text of more than {_MAX_LINE} bytes at byte {self.tell()}")
        return line


class _Interpreter:
    def __init__(self, name: str, *, size: int) -> None:
        self._name, self._size, self._place = name, size, 0
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # what lay below each mark
        self._memo: dict[int, Any] = {}
        self._encoded = 0  # bytes that were made of texts

    def run(self, file: _BoundedFile) -> Any:
        deadline = Deadline(self._size, name=self._name)
        most = min(MAX_INSTRUCTIONS, _ALWAYS_INSTRUCTIONS + self._size // _BYTES_PER_INSTRUCTION)
        for number, (opcode, argument, place) in enumerate(pickletools.genops(file)):  # type: ignore[arg-type]
            self._place = place or 0
            if number >= most:
                raise DataError(f"{self._name}: more than {most} instructions in {self._size} bytes; malicious")
            if number % 1024 == 0:
                deadline.check()
            if opcode.name == "FRAME" and int(argument or 0) > file.left:
                raise self._refused(f"claims a frame of {argument} bytes, {file.left} are left")
            if opcode.name == "STOP":
                break
            self._do(opcode.name, argument)
        found = self._stack.pop()
        if self._stack or self._marked:
            raise self._refused("holds more than one object")
        return found

    def _refused(self, words: str) -> DataError:
        return DataError(f"{self._name}: {words}, at byte {self._place}; refused, nothing was run")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _PLAIN:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._remember(len(self._memo) if name == "MEMOIZE" else argument)
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            if (found := self._memo[argument]) is None:
                raise self._refused("repeats a large text")
            stack.append(found)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _SIZES:
            count = _SIZES[name]
            parts = [stack.pop() for _ in range(count)]
            stack.append(tuple(reversed(parts)))
        elif name == "MARK":
            self._marked.append(stack)
            self._stack = []
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "LIST", "DICT", "TUPLE"):
            self._fill(name)
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(self._made(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()
            self._build(stack[-1], state)
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            stack.append(self._named(name, argument))
        elif name not in ("PROTO", "FRAME"):
            raise self._refused(f"has the instruction {name} ({_short(argument)})")

    def _remember(self, number: int) -> None:
        if not 0 <= number < MAX_INSTRUCTIONS:
            raise self._refused(f"remembers an object as number {_short(number)}")
        newest = self._stack[-1]
        is_large = isinstance(newest, str | bytes | bytearray) and len(newest) > _LARGE
        self._memo[number] = None if is_large else newest

    def _fill(self, name: str) -> None:
        """Put what was made into a container: the last one or two, or all since the mark."""
        if name in ("APPEND", "SETITEM"):
            count = 1 if name == "APPEND" else 2
            items, self._stack[-count:] = self._stack[-count:], []
        else:
            items, self._stack = self._stack, self._marked.pop()
        if name in ("LIST", "TUPLE"):
            self._stack.append(items if name == "LIST" else tuple(items))
            return
        if name == "DICT":
            self._stack.append({})
        container = self._stack[-1]
        if name in ("APPEND", "APPENDS"):
            if type(container) is not list:
                raise self._refused(f"appends to a {type(container).__name__}")
            container.extend(items)
            return
        if type(container) is not dict or len(items) % 2:
            raise self._refused(f"sets items of a {type(container).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str or key in container:
                raise self._refused(f"has the key {_short(key)} twice, or it is no text")
            container[key] = value

    def _named(self, instruction: str, argument: Any) -> _Name:
        if instruction == "STACK_GLOBAL":
            words = [self._stack.pop(), self._stack.pop()][::-1]
            if not all(type(word) is str for word in words):
                raise self._refused("asks to import what is no name")
            asked = _Name(".".join(words))
        else:  # pickletools gives both words with a space between them
            asked = _Name(str(argument).replace(" ", ".", 1))
        if asked not in KNOWN_NAMES or instruction == "INST":
            raise self._refused(f"asks to import {_short(str(asked))}, which no numpy array needs")
        return asked

    def _made(self, what: Any, arguments: Any) -> Any:
        """What numpy's functions would make; they themselves are not called."""
        if not isinstance(what, _Name) or type(arguments) is not tuple:
            raise self._refused(f"calls what is no name ({type(what).__name__})")
        if what in _ARRAYS and arguments and arguments[0] is not None and arguments[0] == _ARRAY_TYPE:
            return PickledArray()
        if what == _DTYPE and arguments and type(arguments[0]) is str:
            if not _NUMBERS.fullmatch(arguments[0]):
                raise self._refused(f"has values of type {_short(arguments[0])}; expected numbers")
            return _Kind(arguments[0])
        if what == _ENCODE and len(arguments) == 2 and arguments[1] == "latin1" and type(arguments[0]) is str:
            return self._bytes(arguments[0])
        if what in _SCALARS and len(arguments) == 2:
            return self._array((1,), *arguments).item()
        if what in _BUFFERS and len(arguments) == 4 and arguments[3] in ("C", "F"):
            content, kind, shape, order = arguments
            made = PickledArray()
            made.value = self._array(shape, kind, content, is_fortran=order == "F")
            return made
        raise self._refused(f"calls {what} in an unknown way")

    def _build(self, what: Any, state: Any) -> None:
        """Fill an array, or say the order of bytes of a type."""
        parts = state if type(state) is tuple else ()
        if type(what) is PickledArray and what.value is None and len(parts) == 5 and parts[0] == 1:
            _, shape, kind, is_fortran, content = parts
            what.value = self._array(shape, kind, content, is_fortran=bool(is_fortran))
        elif type(what) is _Kind and len(parts) == 8 and parts[0] == 3 and parts[2:] == (*3 * (None,), -1, -1, 0):
            if parts[1] not in ("<", ">", "|", "="):
                raise self._refused("has a type of an unknown order of bytes")
            what.dtype = what.dtype.newbyteorder(parts[1])
        else:
            raise self._refused(f"sets the state of a {type(what).__name__} in an unknown way")

    def _bytes(self, text: str) -> bytes:
        """What a text stands for; all together hold no more than the file, so that none is there many times."""
        self._encoded += len(text)
        if self._encoded > self._size:
            raise self._refused(f"makes more than {self._size} bytes of its texts")
        return text.encode("latin-1")

    def _array(self, shape: Any, kind: Any, content: Any, *, is_fortran: bool = False) -> np.ndarray:
        if type(kind) is not _Kind:
            raise self._refused("has an array without a type")
        if type(content) is str:  # of Python 2
            content = self._bytes(content)
        if type(content) not in (bytes, bytearray):
            raise self._refused("has an array of objects; expected numbers")
        sides = shape if type(shape) is tuple else (-1,)
        is_shape = len(sides) <= _MAX_DIMENSIONS and all(type(side) is int and 0 <= side < 2**31 for side in sides)
        if not is_shape or int(np.prod(sides, dtype=object)) * kind.dtype.itemsize != len(content):
            raise self._refused(f"has {len(content)} bytes for an array of shape {_short(shape)}")
        found: np.ndarray = np.frombuffer(content, kind.dtype).reshape(sides, order="F" if is_fortran else "C")
        return found


def _short(value: Any) -> str:
    """A value of a file in a few words; containers, which may hold themselves, only by their type."""
    known = isinstance(value, str | int | float) or (type(value) is tuple and all(type(v) is int for v in value))
    text = repr(value) if known and not (type(value) is int and value.bit_length() > 256) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
