"""HDF5 stacks, read in a process of its own: one damaged byte makes the library take all memory, never end, or crash.

The process starts with the first file (0.1 s) and serves all later ones. Each may take what `utils/limits.py` allows;
where a system cannot limit a process, one that takes far too long is killed.
"""

import atexit
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.limits import need
from hpunet.errors import DataError
from hpunet.utils.files import check_file
from hpunet.utils.limits import MAX_VOLUME_BYTES, allowed

_UNPACKED_PER_SECOND = 2**26  # bytes of voxels, at the least
_PATIENCE = 60  # seconds, and this many times the processor time, until a process that waits is killed
_lock = Lock()  # one file at a time


class _Reader:
    """The process that reads, and the one that asks it: a fork must start its own."""

    def __init__(self) -> None:
        if find_spec("h5py") is None:
            need("h5py")  # says how to install it
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(  # nosec B603 # this Python, a file of this package; no shell
            [sys.executable, "-P", str(Path(__file__).with_name("hdf5_child.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self.asked_by = os.getpid()
        atexit.register(self.end)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ValueError(found["error"])
        return found

    def fill(self, content: memoryview) -> None:
        assert isinstance(self.process.stdout, io.BufferedReader)
        if self.process.stdout.readinto(content) != len(content):
            raise EOFError

    def end(self) -> int:
        """Kill the process; how it ended."""
        atexit.unregister(self.end)
        if self.asked_by != os.getpid():
            return 0
        self.process.kill()
        with suppress(OSError):  # a request that was never read
            self.process.communicate()
        return self.process.wait()


_reader: _Reader | None = None


@contextmanager
def _ready(path: Path, *, seconds: float) -> Iterator[_Reader]:
    """A reader for one request, which is ended by anything but an answer."""
    global _reader
    with _lock:
        if _reader is None or _reader.asked_by != os.getpid():
            _reader = _Reader()
        impatient = Timer(_PATIENCE * (1 + seconds), _reader.process.kill)
        impatient.daemon = True
        impatient.start()
        try:
            yield _reader
        except ValueError as error:  # an answer
            raise DataError(f"{path}: {error}") from None
        except BaseException as error:
            with suppress(OSError, subprocess.TimeoutExpired):
                _reader.process.wait(1)  # if it has ended by itself, by what
            status, _reader = _reader.end(), None
            if not isinstance(error, (EOFError, OSError)):
                raise
            took = (
                f"took more than {seconds:.0f} s" if status == -getattr(signal, "SIGXCPU", 0) else f"ended, {status}"
            )
            raise DataError(f"{path}: damaged or malicious: the process that read it {took}") from None
        finally:
            impatient.cancel()


def hdf5_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the only three-dimensional dataset of a file."""
    cost = allowed(check_file(path, max_bytes=MAX_VOLUME_BYTES, error=DataError))
    request = {"path": str(path), "memory": cost.memory, "seconds": cost.seconds}
    with _ready(path, seconds=cost.seconds) as reader:
        found = reader.ask(**request, voxels=False)
        return tuple(found["shape"]), np.dtype(found["dtype"])


def read_hdf5(path: Path, *, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Shaped[np.ndarray, "z h w"]:
    """The voxels of the only three-dimensional dataset of a file; `shape` and `dtype` are from its checked header."""
    voxels = np.empty(shape, dtype)
    cost = allowed(check_file(path, max_bytes=MAX_VOLUME_BYTES, error=DataError))
    seconds = cost.seconds + voxels.nbytes / _UNPACKED_PER_SECOND
    request = {"path": str(path), "memory": cost.memory + 2 * voxels.nbytes, "seconds": seconds}
    with _ready(path, seconds=seconds) as reader:
        found = reader.ask(**request, voxels=True)
        if (tuple(found["shape"]), np.dtype(found["dtype"])) != (shape, dtype):
            raise EOFError  # the file has just been changed
        content = memoryview(voxels.reshape(-1).view(np.uint8).data)
        place = 0
        while size := reader.answer()["bytes"]:
            reader.fill(content[place : place + size])
            place += size
    return voxels
