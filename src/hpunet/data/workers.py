"""Work on many items at once in several processes.

Each worker has a pipe of its own, so that one that is killed, at whatever moment, leaves nothing locked or half sent
to the others and is noticed at once. Ctrl-C and SIGTERM are for the process that started them; they end with it.
"""

import atexit
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from threading import Thread
from typing import Any

from hpunet.errors import DataError
from hpunet.utils.cores import usable_cores

AHEAD = 2  # chunks that a worker has: the one that it works on, and the next
WINDOW = 4  # chunks per worker that may be ahead of the one that is waited for
LOOK_SECONDS = 1.0  # how often silent workers are looked after
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM)
Run = Callable[..., Iterator[Any]]
"""An ordered `map(function, items)`; `chunk` items are sent at once."""


@contextmanager
def workers(processes: int | None, *shared: Any) -> Iterator[Run]:
    """An ordered `map(function, items)` over `processes` (None: one per usable core) of `function(*shared, item)`.

    `shared` is sent to each process once. With one process the work is done in this one.
    """
    if processes == 1:
        yield lambda function, items: map(partial(function, *shared), items)
        return
    # Spawned, not forked: a fork of a process that runs threads may hang.
    with worker_pool(processes or usable_cores(), *shared, method="spawn", advice="try fewer processes") as run:
        yield run


@contextmanager
def worker_pool(processes: int, *shared: Any, method: str, advice: str) -> Iterator[Run]:
    """The same in other processes only, also if it is a single one; `advice` is for the error if one is killed."""
    pool = _Pool(processes, ForkingPickler.dumps(shared), method=method, advice=advice)
    atexit.register(pool.stop)  # a generator that nobody has closed; its workers would be waited for
    try:
        yield pool.run
    finally:
        pool.stop()
        atexit.unregister(pool.stop)


class _Pool:
    def __init__(self, processes: int, shared: Any, *, method: str, advice: str) -> None:
        self._most, self._shared, self._method, self._advice = processes, shared, method, advice
        self._workers: list[_Worker] = []

    def run(self, function: Callable[..., Any], items: Sequence[Any], chunk: int = 0) -> Iterator[Any]:
        size = chunk or max(1, min(64, len(items) // 1000))
        chunks, sent = range(0, len(items), size), 0
        done: dict[int, list[Any]] = {}
        for number in range(len(chunks)):
            while number not in done:
                while sent < min(len(chunks), number + WINDOW * self._most) and (worker := self._free()):
                    worker.ask(sent, (function, items[chunks[sent] : chunks[sent] + size]))
                    sent += 1
                busy = {worker.connection: worker for worker in self._workers if worker.asked}
                ready = wait(list(busy), timeout=LOOK_SECONDS)
                for worker in [busy[c] for c in ready] or [w for w in busy.values() if not w.process.is_alive()]:
                    which, results = worker.answer()
                    done[which] = results
            yield from done.pop(number)

    def _free(self) -> "_Worker | None":
        """A worker for the next chunk: an idle one, a new one, or the one with the least to do."""
        best = min(self._workers, key=lambda worker: len(worker.asked), default=None)
        if (best is None or best.asked) and len(self._workers) < self._most:
            best = _Worker(self._shared, method=self._method, advice=self._advice, pool=self._workers)
        return best if best is not None and len(best.asked) < AHEAD else None

    def stop(self) -> None:
        """End all workers, whatever they do."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


class _Worker:
    def __init__(self, shared: Any, *, method: str, advice: str, pool: "list[_Worker]") -> None:
        context: Any = get_context(method)
        self.asked: deque[int] = deque()
        self._advice = advice
        self.connection, theirs = context.Pipe()
        # A fork has a copy of our end, and would not see that we have ended.
        own = self.connection if method == "fork" else None
        self.process = context.Process(target=_work, args=(theirs, own))
        with _signals_blocked(with_tracker=method == "spawn"):
            self.process.start()
            pool.append(self)
        theirs.close()
        self._send(shared)

    def ask(self, number: int, task: Any) -> None:
        self._send(ForkingPickler.dumps(task))
        self.asked.append(number)

    def _send(self, content: Any) -> None:
        try:
            self.connection.send_bytes(content)  # does not wait for long: a thread of the worker receives
        except OSError as error:
            raise self._ended(error) from None

    def answer(self) -> tuple[int, list[Any]]:
        try:
            error, results = self.connection.recv()
        except (EOFError, OSError) as why:
            raise self._ended(why) from None
        if error is not None:
            raise error
        return self.asked.popleft(), results

    def _ended(self, why: Exception) -> Exception:
        self.process.join(LOOK_SECONDS)
        code = self.process.exitcode
        if code is None:
            return why
        how = f"was killed (signal {-code}), possibly out of memory" if code < 0 else f"ended with exit code {code}"
        return DataError(f"a worker {how}; {self._advice}")


@contextmanager
def _signals_blocked(*, with_tracker: bool) -> Iterator[None]:
    """Start a process that no signal for its parent can end before it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if with_tracker:
        resource_tracker.ensure_running()  # its start would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: "Connection[Any, Any]", other_end: "Connection[Any, Any] | None") -> None:
    """Do what is asked for until the other end is closed."""
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
    if other_end is not None:
        other_end.close()
    messages: SimpleQueue[bytes | None] = SimpleQueue()
    Thread(target=_receive, args=(connection, messages), daemon=True).start()
    packed, shared = messages.get(), None
    with suppress(OSError):  # nobody is there any more
        while packed is not None and (message := messages.get()) is not None:
            try:
                shared = pickle.loads(packed) if shared is None else shared  # nosec B301 # from our parent, by our pipe
                function, items = pickle.loads(message)  # nosec B301 # from our parent, by our pipe
                reply = ForkingPickler.dumps((None, [function(*shared, item) for item in items]))
            except Exception as error:
                reply = ForkingPickler.dumps((_sendable(error), None))
            connection.send_bytes(reply)


def _receive(connection: "Connection[Any, Any]", messages: "SimpleQueue[bytes | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    messages.put(None)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note, or its words if it cannot be sent."""
    where = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))  # nosec B301 # made in this line
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(where)
    return error
