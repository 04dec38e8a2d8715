"""The warning about oversubscribed threads, from injected times; and that real times can be read."""

import sys

import pytest

from hpunet.training.threads import INTERVAL_S, ThreadWatch, Times, thread_times

SECOND = 1_000_000_000


def warnings(*, ran: float, waited: float, num_threads: int = 2, interval: float = INTERVAL_S) -> list[str | None]:
    """Of three looks at threads that ran and waited so long in each interval, after a past full of waiting."""
    look = iter(range(100))
    ticks = iter(range(100))

    def read() -> Times:
        n = next(look)
        own = (int(n * ran * SECOND), int((1000 + n * waited) * SECOND))
        return {1: own, 2: own, 100 + n: (0, 10**12)}  # one is new each time

    watch = ThreadWatch(num_threads, read=read, clock=lambda: next(ticks) * interval)
    return [watch.warning() for _ in range(3)]


def test_threads_that_wait_for_cores_are_named_once_with_the_cure() -> None:
    first, *later = warnings(ran=10, waited=10)
    assert first is not None
    assert "50%" in first
    assert "OMP_NUM_THREADS=1 " in first
    assert later == [None, None]
    quota = warnings(ran=2 / 64, waited=62 / 64, num_threads=64)[0]  # a container that may use 2 of 64 cores
    assert quota is not None
    assert "OMP_NUM_THREADS=2 " in quota


@pytest.mark.parametrize(
    "normal",
    [
        {"ran": 19, "waited": 1},
        {"ran": 5, "waited": 2},  # mostly asleep: the data are slow
        {"ran": 0, "waited": 0},  # a system without such times
        {"ran": 1, "waited": 19, "num_threads": 1},
        {"ran": 10, "waited": 10, "interval": INTERVAL_S / 10},  # too short to tell
    ],
)
def test_normal_runs_are_not_warned_about(normal: dict[str, float]) -> None:
    assert warnings(**normal) == [None, None, None]  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's scheduler")
def test_thread_times_grow_while_a_thread_works() -> None:
    before = thread_times()
    sum(range(1_000_000))
    after = thread_times()
    assert before.keys() <= after.keys()
    assert sum(ran for ran, _ in after.values()) > sum(ran for ran, _ in before.values())
