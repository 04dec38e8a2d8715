"""One writer at a time: who is refused, and whose lock is taken over."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpunet.errors import ConfigError, DataError
from hpunet.utils import locks
from hpunet.utils.files import atomic_folder, atomic_write
from hpunet.utils.locks import LOCK, STALE_SECONDS, is_vacant, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from hpunet.utils.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    child = os.fork()  # as workers are started; it outlives its parent
    print(child or "", flush=True)
    time.sleep(100)
"""


def test_second_writer_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with lock_folder(folder):
        assert is_vacant(folder)
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on ") as caught, lock_folder(folder):
            pytest.fail("two writers")
        assert str(folder) in str(caught.value)
        (folder / "result").touch()
    with lock_folder(folder):  # free again, also after a refusal
        pass
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_lock_leaves_no_folder_that_nothing_was_written_to(tmp_path: Path) -> None:
    with pytest.raises(DataError), lock_folder(tmp_path / "new"):
        raise DataError("no such data")
    with lock_folder(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    words = holder.stdout.readline() + holder.stdout.readline()  # of both processes, in any order
    try:
        with pytest.raises(ConfigError, match=f"process {holder.pid} "), lock_folder(tmp_path):
            pytest.fail("two writers")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    try:
        with lock_folder(tmp_path):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    finally:
        os.kill(int(words), 9)


def test_lock_of_another_machine_counts_while_its_heart_beats(tmp_path: Path) -> None:
    file = tmp_path / LOCK
    file.write_text(json.dumps({"host": "node7", "machine": "another", "pid": 12, "since": "noon"}))
    with pytest.raises(ConfigError, match="process 12 on node7") as caught, lock_folder(tmp_path):
        pytest.fail("two writers")
    assert f"delete {file}" in str(caught.value)
    silent = time.time() - STALE_SECONDS - 1
    os.utime(file, (silent, silent))
    with lock_folder(tmp_path):
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_lock_without_kernel_support_is_held_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "fcntl", None)  # as on Windows
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    with lock_folder(tmp_path):
        long_ago = time.time() - STALE_SECONDS - 1
        os.utime(tmp_path / LOCK, (long_ago, long_ago))
        deadline = time.monotonic() + 20
        while (tmp_path / LOCK).stat().st_mtime == long_ago and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ConfigError, match="sign of life"), lock_folder(tmp_path):
            pytest.fail("two writers")
    assert not list(tmp_path.iterdir())


def test_damaged_lock_file_of_a_dead_process_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b'{"host": \xff')
    with lock_folder(tmp_path):
        pass


def test_files_written_by_several_at_once_are_whole(tmp_path: Path) -> None:
    contents = [bytes([65 + number]) * 100_000 for number in range(4)]
    path, failures = tmp_path / "file", []

    def write(content: bytes) -> None:
        try:
            for _ in range(20):
                atomic_write(path, content)
                assert path.read_bytes() in contents
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "pack"
    with atomic_folder(target) as first:
        (first / "content").write_text("of the first")
        with pytest.raises(ConfigError, match="in use"), atomic_folder(target):
            pytest.fail("two writers")
    assert (target / "content").read_text() == "of the first"
    assert list(tmp_path.iterdir()) == [target]
