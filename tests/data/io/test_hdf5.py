"""HDF5 is read in a process of its own, which may die."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpunet.data.io import hdf5
from hpunet.data.io.volumes import read_stack, stack_header
from hpunet.errors import DataError
from hpunet.utils.limits import Cost

STACK = np.arange(5 * 6 * 7, dtype=">u2").reshape(5, 6, 7)


def stack_file(folder: Path, **options: object) -> Path:
    with h5py.File(folder / "stack.h5", "w") as file:
        file.create_dataset("volumes/data", data=STACK, **options)
    return folder / "stack.h5"


def reader_pid() -> int:
    assert hdf5._reader is not None
    return hdf5._reader.process.pid


def test_one_process_reads_all_files_and_is_followed_by_another(tmp_path: Path) -> None:
    path = stack_file(tmp_path)
    assert np.array_equal(read_stack(path), STACK)
    assert stack_header(path) == (STACK.shape, STACK.dtype)
    first = reader_pid()
    stack_header(path)
    assert reader_pid() == first
    os.kill(first, signal.SIGKILL)
    with pytest.raises(DataError, match=r"stack\.h5: .*ended"):
        read_stack(path)
    assert np.array_equal(read_stack(path), STACK)
    assert reader_pid() != first


@pytest.mark.skipif(sys.platform != "linux", reason="not every system limits the memory of a process")
def test_a_file_that_needs_too_much_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.zeros((64, 1024, 1024), np.uint8), chunks=(64, 1024, 1024), compression=1)
    assert read_stack(path).shape == (64, 1024, 1024)
    monkeypatch.setattr(hdf5, "allowed", lambda _: Cost(unpacked=0, memory=2**20, seconds=1.0))
    with pytest.raises(DataError, match=r"large\.h5"):
        read_stack(path)


def test_the_process_imports_neither_torch_nor_hpunet() -> None:
    child = Path(hdf5.__file__).with_name("hdf5_child.py")
    code = f"import runpy, sys; runpy.run_path({str(child)!r}); print({{'torch', 'hpunet'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_reads_through_a_process_of_its_own(tmp_path: Path) -> None:
    path = stack_file(tmp_path, chunks=(2, 3, 4), compression="gzip")
    code = (
        "import os, sys; from pathlib import Path; from hpunet.data.io.volumes import read_stack\n"
        "path = Path(sys.argv[1]); total = int(read_stack(path).sum())\n"
        "child = os.fork()\n"
        "same = int(read_stack(path).sum()) == total\n"
        "sys.exit(not same or child and os.waitpid(child, 0)[1])"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
