"""Work in several processes: what happens to it when one of them, or the one that started them, is ended."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpunet.data.workers import worker_pool
from hpunet.errors import ConfigError, DataError

ADVICE = "try fewer"
FORKED = {"method": "fork", "advice": ADVICE}
HOLD = r"""
import os, sys, time
from hpunet.data.workers import worker_pool
def work(item):
    os.write(1, b"%d\n" % os.getpid())
    time.sleep(0.1)
with worker_pool(2, method="fork", advice="") as run:
    for _ in run(work, range(1000), chunk=1):
        pass
"""


def large(item: int) -> tuple[int, bytes]:
    """More than a pipe holds, so that most kills strike while it is sent."""
    return item, bytes(300_000)


def fail_at(worst: int, item: int) -> int:
    if item == worst:
        raise ConfigError("of the function")
    return item


def end_at(worst: int, item: int) -> int:
    if item == worst:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_results_come_in_order_and_stop_when_nobody_wants_them() -> None:
    with worker_pool(3, -1, **FORKED) as run:
        assert list(run(fail_at, range(50), chunk=3)) == list(range(50))
    with worker_pool(2, **FORKED) as run:
        assert next(run(large, range(10**6), chunk=1))[0] == 0
    assert not multiprocessing.active_children()


def test_error_of_a_worker_is_the_error_here() -> None:
    with pytest.raises(ConfigError, match="of the function"), worker_pool(2, 7, **FORKED) as run:
        list(run(fail_at, range(50), chunk=1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_killed_worker_is_an_error_with_a_cure(method: str) -> None:
    with pytest.raises(DataError, match="killed") as caught, worker_pool(2, 9, method=method, advice=ADVICE) as run:
        list(run(end_at, range(50), chunk=1))
    assert "signal 9" in str(caught.value)
    assert ADVICE in str(caught.value)


def test_worker_killed_at_any_moment_never_hangs_the_others() -> None:
    rng = random.Random(0)
    for _ in range(12):
        with pytest.raises(DataError, match="killed"):
            work_until_killed(after=rng.uniform(0, 0.05), which=rng.randrange(2))
    assert not multiprocessing.active_children()


def work_until_killed(*, after: float, which: int) -> None:
    with worker_pool(2, **FORKED) as run:
        results = run(large, range(10**6), chunk=1)
        next(results)
        pid = [child.pid or 0 for child in multiprocessing.active_children()][which]
        threading.Timer(after, os.kill, [pid, signal.SIGKILL]).start()
        for _ in results:
            pass


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_workers_say_nothing_and_end_with_their_parent(signal_number: int, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, and is for the parent; a kill only the parent."""
    script = tmp_path / "hold.py"
    script.write_text(HOLD)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-W", "ignore", script], start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        workers = {int(process.stdout.readline()) for _ in range(4)}
        send = os.killpg if signal_number == signal.SIGINT else os.kill
        send(process.pid, signal_number)
        said = process.communicate(timeout=60)[1]
    assert said.count("Traceback") == (signal_number == signal.SIGINT)  # of this script, which catches nothing
    deadline = time.monotonic() + 60
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
