"""A least-recently-used store with a byte budget."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["LRU", "Caching"]

T = TypeVar("T")

_LOCK = threading.RLock()
"""One lock for all stores: it is only held for a moment, and a store with its own lock could not be copied."""


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A fork waits until no store is being changed, so that the child's stores are consistent. The child gets a new lock.
    os.register_at_fork(before=lambda: _LOCK.acquire(), after_in_parent=lambda: _LOCK.release(), after_in_child=_after_fork)


class LRU(Generic[T]):
    """Values by key; the least recently used are dropped once the sizes exceed `budget` bytes. The newest always stays.

    It is thread-safe, since chains of several contexts use the same oracle from several threads.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """The value of `key`, which becomes the most recently used, or None."""
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
            self._shrink()

    def put_all(self, values: Iterable[tuple[Hashable, T]], size: int) -> None:
        """Store several values by key, each of which takes `size` bytes."""
        with _LOCK:
            for key, value in values:
                self.nbytes += size - self._values.pop(key, (None, 0))[1]
                self._values[key] = (value, size)
            self._shrink()

    def _shrink(self) -> None:
        while self.nbytes > self.budget and len(self._values) > 1:
            self.nbytes -= self._values.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._values)


class Caching:
    """Base class of objects that keep caches, whose sizes are in bytes."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of what is kept only to save time."""
        return sum(cache.nbytes for cache in self._caches())

    def _caches(self) -> tuple[Any, ...]:
        return ()
