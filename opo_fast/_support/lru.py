"""A least-recently-used store with a byte budget."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["LRU"]

T = TypeVar("T")

_LOCK = threading.RLock()
"""One for all stores: each holds it for a moment only, and a lock of its own could not be copied with its owner."""


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A process forks between two uses of the stores, so that the child finds them whole; what waits for the lock stays behind.
    os.register_at_fork(before=lambda: _LOCK.acquire(), after_in_parent=lambda: _LOCK.release(), after_in_child=_after_fork)


class LRU(Generic[T]):
    """Values by key; the least recently used go once their sizes exceed `budget` bytes. The newest always stays.

    Chains of several contexts ask the same oracle from several threads.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """The value of `key`, now the most recently used, or None."""
        with _LOCK:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Store a value that takes `size` bytes."""
        with _LOCK:
            self.nbytes += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (value, size)
            while self.nbytes > self.budget and len(self._values) > 1:
                self.nbytes -= self._values.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._values)
