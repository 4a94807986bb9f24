"""A least-recently-used store with a byte budget, and states on disk."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from .errors import OpoError

__all__ = ["LRU", "read_state", "write_state"]

T = TypeVar("T")


_LOCK = threading.Lock()
"""One for all stores: each holds it for a moment only, and a lock of its own could not be copied with its owner."""


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


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able values to `path` as npz without pickle: to a temporary file first, then renamed."""
    arrays: dict[str, Any] = {f"array.{key}": value for key, value in state.items() if isinstance(value, np.ndarray)}
    rest = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    for key, value in arrays.items():
        if value.dtype.hasobject:
            raise OpoError(f"state[{key.removeprefix('array.')!r}] is an array of objects: numbers are needed")
    try:
        meta = json.dumps(rest)
    except TypeError as error:
        raise OpoError(f"state holds a value that JSON cannot hold: {error}") from None
    temporary = f"{os.fspath(path)}.part"
    try:
        with open(temporary, "wb") as file:
            np.savez(file, meta=np.array(meta), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            state = dict(json.loads(str(file["meta"])))
            state.update({name.removeprefix("array."): file[name] for name in file.files if name.startswith("array.")})
    except FileNotFoundError:
        raise OpoError(f"path: there is no file {os.fspath(path)!r}") from None
    except Exception as error:
        raise OpoError(f"path: {os.fspath(path)!r} is not a state that was saved, or is damaged ({error})") from None
    return state
