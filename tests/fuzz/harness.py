"""Run fuzz cases in worker processes, each case within 2 s and 512 MiB, and print what came of them.

python tests/fuzz/harness.py              all cases
python tests/fuzz/harness.py --every 10   each tenth
python tests/fuzz/harness.py --case 123   one case, in this process, with the traceback of what went wrong
"""

import argparse
import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from corpus import write_files
from judge import FaultError, judge, valid_reading
from plan import FORMATS, NUM_CASES, case

MAX_SECONDS = 2.0
"""Processor time, so that a busy machine causes no failure."""
MAX_BYTES = 2**29
_STUCK_SECONDS = 20.0
"""A worker without an answer for this long is killed."""
_WORKER_LIMIT = 2**32
"""Address space of a worker."""


class Result(NamedTuple):
    number: int
    format: str
    outcome: str
    """read, refused or counted; for a fault, its message."""
    is_fault: bool


class _TooSlow(BaseException):
    """Not an Exception: readers turn those into refusals."""


def run_case(number: int) -> str:
    """The outcome of one case; a fault is raised."""
    chosen = case(number)
    valid, change = valid_reading(chosen.corpus), chosen.change()
    with tempfile.TemporaryDirectory() as folder:
        write_files(change.files, Path(folder) / "in")
        return within_bounds(lambda: judge(chosen.corpus(), valid, change, Path(folder)))


def within_bounds(action: Callable[[], str]) -> str:
    """What the action returns; taking too long or too much memory, or showing a warning, is a fault."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = _start_measuring()
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            outcome = action()
        except _TooSlow:
            raise FaultError(f"more than {MAX_SECONDS} s") from None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    if (taken := _most_memory() - before) > MAX_BYTES:
        raise FaultError(f"took {taken >> 20} MiB")
    if shown:
        raise FaultError(f"showed a warning: {shown[0].message}")
    return outcome


def _stop(*_: object) -> None:
    raise _TooSlow


def _start_measuring() -> int:
    """Forget the highest use of memory so far (Linux); the use now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _most_memory()


def _most_memory() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _work(connection: Connection) -> None:
    """Answer case numbers with their outcomes, until told to end."""
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        with contextlib.suppress(ValueError, OSError):  # not every system knows this limit
            resource.setrlimit(resource.RLIMIT_AS, (_WORKER_LIMIT, _WORKER_LIMIT))
        while (number := connection.recv()) is not None:
            try:
                answer = (run_case(number), False)
            except BaseException as error:  # the run continues
                place = traceback.extract_tb(error.__traceback__)[-1]
                answer = (f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}", True)
            sys.stdout.flush()
            sys.stderr.flush()
            printed.seek(0)
            if (text := printed.read()) and not answer[1]:
                answer = (f"printed {text[:200]!r}", True)
            printed.seek(0)
            printed.truncate()
            connection.send(answer)


class _Worker:
    """A process that is restarted when a case has killed it."""

    def __init__(self) -> None:
        self._process = None

    def run(self, number: int) -> tuple[str, bool]:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._connection.send(number)
            if self._connection.poll(_STUCK_SECONDS):
                return self._connection.recv()
            answer = (f"stuck for {_STUCK_SECONDS} s", True)
        except (EOFError, OSError):
            self._process.join(5)
            answer = (f"the process ended with {self._process.exitcode}", True)
        self.end()
        return answer

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def run_cases(numbers: Sequence[int], *, processes: int) -> list[Result]:
    """The results in the order of the numbers."""

    def share(start: int) -> Iterator[Result]:
        worker = _Worker()
        try:
            for number in numbers[start::processes]:
                outcome, is_fault = worker.run(number)
                yield Result(number, case(number).format, outcome, is_fault)
        finally:
            worker.end()

    with ThreadPoolExecutor(processes) as pool:
        shares = pool.map(lambda start: list(share(start)), range(processes))
        return sorted(result for found in shares for result in found)


def table(results: Sequence[Result]) -> str:
    """Cases and outcomes by format, and every fault with its number."""
    lines = [f"{'format':8}{'cases':>8}{'read':>8}{'refused':>9}{'counted':>9}{'faults':>8}"]
    for name in (*(entry.name for entry in FORMATS), "all"):
        found = [result for result in results if name in ("all", result.format)]
        count = Counter("fault" if result.is_fault else result.outcome for result in found)
        lines.append(
            f"{name:8}{len(found):8}{count['read']:8}{count['refused']:9}{count['counted']:9}{count['fault']:8}"
        )
    lines += [f"case {r.number} ({case(r.number)}): {r.outcome[:600]}" for r in results if r.is_fault]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, help="replay this one")
    parser.add_argument("--every", type=int, default=1, help="run every n-th case")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.case is not None:
        print(case(options.case), case(options.case).change().culprits)
        print(run_case(options.case))
        return 0
    start = time.perf_counter()
    results = run_cases(range(0, NUM_CASES, options.every), processes=options.processes)
    print(table(results))
    print(f"{time.perf_counter() - start:.0f} s")
    return int(any(result.is_fault for result in results))


if __name__ == "__main__":
    sys.exit(main())
