"""Run fuzz cases and bombs in worker processes, each within 2 s and 512 MiB, and print what came of them.

python tests/fuzz/harness.py                                    all cases of the first seed, and all bombs
python tests/fuzz/harness.py --seeds 1-20 --cases 50000         cases of other seeds
python tests/fuzz/harness.py --formats NIfTI3D DICOM3D          cases of these formats
python tests/fuzz/harness.py --case 123 [--seeds 7]             one case, with the traceback of what went wrong
python tests/fuzz/harness.py --bomb pax_digits                  one bomb

The limits are those of a worker, and a single case or bomb runs in one, too. What a reader's own child processes take
counts as the reader's.
"""

import argparse
import contextlib
import importlib
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
from judge import FaultError, judge, judge_bomb, valid_reading
from plan import FORMATS, NUM_CASES, SEED, case, numbers

MAX_SECONDS = 2.0
"""Processor time, so that a busy machine causes no failure."""
MAX_BYTES = 2**29
_STUCK_SECONDS = 300.0
"""A worker without an answer for this long is killed; one that computes is killed after a few seconds of its own."""
_WORKER_LIMIT = 2**32
"""Address space of a worker."""
_BOMB_BYTES = 10**6
_FOLDER = Path(__file__).parent
_MODULES = [importlib.import_module(module.stem) for module in sorted(_FOLDER.glob("bombs*.py"))]
BOMBS: dict[str, Callable[[Path], Path]] = {k: make for module in _MODULES for k, make in module.BOMBS.items()}
"""What writes a bomb into a folder and gives back its path, by name."""
READ = {name for module in _MODULES for name in getattr(module, "READ", ())}
"""Bombs that hold as much as is allowed: they are read."""


class Result(NamedTuple):
    item: int | str
    """The number of a case, or the name of a bomb."""
    format: str
    outcome: str
    """read, refused or counted; for a fault, its message."""
    is_fault: bool

    def __str__(self) -> str:
        named = f"bomb {self.item}" if isinstance(self.item, str) else f"case {self.item} ({case(self.item)})"
        return f"{named}: {self.outcome[:600]}"


class _TooSlow(BaseException):
    """Not an Exception: readers turn those into refusals."""


def run_item(item: int | str) -> str:
    """The outcome of one case or bomb; a fault is raised."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(item, str):
            path = BOMBS[item](Path(folder))
            if sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) >= _BOMB_BYTES:
                raise FaultError(f"{item} is no small file")
            return within_bounds(lambda: judge_bomb(path, Path(folder), is_read=item in READ))
        chosen = case(item)
        valid, change = valid_reading(chosen.corpus), chosen.change()
        write_files(change.files, Path(folder) / "in")
        return within_bounds(lambda: judge(chosen.corpus(), valid, change, Path(folder)))


def within_bounds(action: Callable[[], str]) -> str:
    """What the action returns; taking too long or too much memory, or showing a warning, is a fault."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before, began = _start_measuring(), _seconds()
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            outcome = action()
        except _TooSlow:
            raise FaultError(f"more than {MAX_SECONDS} s") from None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    if (seconds := _seconds() - began) > MAX_SECONDS:
        raise FaultError(f"took {seconds:.1f} s, more than {MAX_SECONDS} s")
    if (taken := _most_memory() - before) > MAX_BYTES:
        raise FaultError(f"took {taken >> 20} MiB")
    if shown:
        raise FaultError(f"showed a warning: {shown[0].message}")
    return outcome


def _stop(*_: object) -> None:
    raise _TooSlow


def _processes() -> list[str]:
    """This one and its children that are alive (Linux)."""
    found = ["self"]
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has just ended
            found += file.read_text().split()
    return found


def _seconds() -> float:
    """Processor time of this process and its children, ended or not."""
    used = sum(os.times()[:4])
    for process in _processes()[1:]:
        with contextlib.suppress(OSError):
            fields = Path("/proc", process, "stat").read_text().rsplit(")", 1)[1].split()
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def _start_measuring() -> int:
    """Forget the highest use of memory so far (Linux); the use now."""
    for process in _processes():
        with contextlib.suppress(OSError):
            Path("/proc", process, "clear_refs").write_text("5")
    return _most_memory()


def _most_memory() -> int:
    """Of this process and its living children, and of the largest one that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    try:
        statuses = [Path("/proc", process, "status").read_text() for process in _processes()]
        alive = sum(int(status.split("VmHWM:")[1].split()[0]) * 1024 for status in statuses)
    except (OSError, IndexError):
        alive = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return alive + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def _work(connection: Connection) -> None:
    """Answer cases and bombs with their outcomes and the tracebacks of faults, until told to end."""
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        with contextlib.suppress(ValueError, OSError):  # not every system knows this limit
            resource.setrlimit(resource.RLIMIT_AS, (_WORKER_LIMIT, _WORKER_LIMIT))
        connection.send("ready")
        while (item := connection.recv()) is not None:
            trace = ""
            with contextlib.suppress(ValueError, OSError):  # for code that hears no signals
                seconds = int(sum(os.times()[:2]) + 3 * MAX_SECONDS) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            try:
                answer, is_fault = run_item(item), False
            except BaseException as error:  # the run continues
                place = traceback.extract_tb(error.__traceback__)[-1]
                answer, is_fault = (
                    f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}",
                    True,
                )
                trace = "".join(traceback.format_exception(error))
            sys.stdout.flush()
            sys.stderr.flush()
            printed.seek(0)
            if (text := printed.read()) and not is_fault:
                answer, is_fault = f"printed {text[:200]!r}", True
            printed.seek(0)
            printed.truncate()
            connection.send((answer, is_fault, trace))


class _Worker:
    """A process that is restarted when a case has killed it."""

    def __init__(self) -> None:
        self._process = None

    def run(self, item: int | str) -> tuple[str, bool, str]:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            self._connection.recv()
        try:
            self._connection.send(item)
            if self._connection.poll(_STUCK_SECONDS):
                return self._connection.recv()
            answer = f"stuck for {_STUCK_SECONDS} s"
        except (EOFError, OSError):
            self._process.join(5)
            answer = f"the process ended with {self._process.exitcode}"
        self.end()
        return answer, True, ""

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def run_items(items: Sequence[int | str], *, processes: int) -> list[Result]:
    """The results in the order of the items."""

    def share(start: int) -> Iterator[tuple[int, Result]]:
        worker = _Worker()
        try:
            for place in range(start, len(items), processes):
                item = items[place]
                outcome, is_fault, _ = worker.run(item)
                result = Result(item, "bombs" if isinstance(item, str) else case(item).format, outcome, is_fault)
                if is_fault:
                    print(result, file=sys.stderr, flush=True)
                yield place, result
        finally:
            worker.end()

    with ThreadPoolExecutor(processes) as pool:
        shares = pool.map(lambda start: list(share(start)), range(processes))
        return [result for _, result in sorted(found for each in shares for found in each)]


def table(results: Sequence[Result]) -> str:
    """Cases and outcomes by format, and every fault with what replays it."""
    lines = [f"{'format':8}{'cases':>8}{'read':>8}{'refused':>9}{'counted':>9}{'faults':>8}"]
    for name in (*(entry.name for entry in FORMATS), "bombs", "all"):
        found = [result for result in results if name in ("all", result.format)]
        count = Counter("fault" if result.is_fault else result.outcome for result in found)
        lines.append(
            f"{name:8}{len(found):8}{count['read']:8}{count['refused']:9}{count['counted']:9}{count['fault']:8}"
        )
    return "\n".join([*lines, *(str(result) for result in results if result.is_fault)])


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=[SEED], help="one, or the first and last as 1-20")
    parser.add_argument("--cases", type=int, help="how many, of all seeds together")
    parser.add_argument(
        "--formats", nargs="+", choices=[entry.name for entry in FORMATS], help="only these, no bombs"
    )
    parser.add_argument("--case", type=int, help="replay this one, of the first seed")
    parser.add_argument("--bomb", choices=sorted(BOMBS), help="replay this one")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.case is not None or options.bomb is not None:
        item = options.bomb or (options.seeds[0] - SEED) * NUM_CASES + options.case
        worker = _Worker()
        outcome, is_fault, trace = worker.run(item)
        worker.end()
        print(
            item if isinstance(item, str) else f"{case(item)} {case(item).change().culprits}",
            outcome,
            trace,
            sep="\n",
        )
        return int(is_fault)
    start = time.perf_counter()
    items = numbers(options.seeds, num_cases=options.cases, formats=options.formats)
    results = run_items([*(() if options.formats else sorted(BOMBS)), *items], processes=options.processes)
    print(table(results))
    print(f"{time.perf_counter() - start:.0f} s")
    return int(any(result.is_fault for result in results))


if __name__ == "__main__":
    sys.exit(main())
