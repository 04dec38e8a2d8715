"""A memory that forgets what was used least recently, bounded in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """At most `max_bytes` of values, but always the newest one; safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> T | None:
        """The value, if it is still there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def items(self) -> list[tuple[Hashable, T]]:
        """What is kept; asking is no use of it."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._values.items()]

    def put(self, key: Hashable, value: T, num_bytes: int) -> T:
        """Keep a value; others are forgotten to make room."""
        with self._lock:
            self.forget(key)
            while self._values and self.num_bytes + num_bytes > self.max_bytes:
                self.num_bytes -= self._values.popitem(last=False)[1][1]
            self._values[key] = value, num_bytes
            self.num_bytes += num_bytes
        return value

    def forget(self, key: Hashable) -> None:
        """Drop a value, if it is there."""
        with self._lock:
            if key in self._values:
                self.num_bytes -= self._values.pop(key)[1]

    def get_or(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value, made if necessary; two threads may make it at the same time."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found, size(found))
        return found
