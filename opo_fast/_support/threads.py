"""The package's threads: one pool, and kernels that release the interpreter's lock.

`run_all` gives each thread work of its own (chains of different contexts); with `run_together` threads enter one kernel
and share each layer. Nothing depends on Numba's threading layer, and results never depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np

from ..kernels._jit import COMPILED
from ..kernels._sync import GATE
from .checks import whole

__all__ = ["get_threads", "run_all", "run_together", "set_threads"]

T = TypeVar("T")

_lock = threading.Lock()
_meeting = threading.Lock()
_NO_GATE = np.zeros(GATE, np.int64)
_inside = threading.local()
_count: int | None = None
_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def get_threads() -> int:
    """Number of threads in use: `set_threads`, else the variable NUMBA_NUM_THREADS, else the usable processors."""
    if _count is not None:
        return _count
    variable = os.environ.get("NUMBA_NUM_THREADS", "")
    if variable.isdigit() and int(variable) > 0:
        return int(variable)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int | None) -> None:
    """Use `n` threads in this process from now on (None: the default). Results do not depend on it."""
    global _count
    _count = None if n is None else whole(n, "n", least=1)


def _executor(n: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        # A forked child has the parent's pool object but none of its threads.
        if _pool is None or _pool[:2] != (os.getpid(), n):
            _pool = (os.getpid(), n, ThreadPoolExecutor(n, thread_name_prefix="opo_fast"))
        return _pool[2]


def run_all(function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> list[T]:
    """`function(*part)` for each part, in order; on several threads where there are several parts and threads.

    Called from inside a part, it runs in that part's thread. An exception of a part is raised here once all ended.
    """
    items = list(parts)
    n = min(get_threads(), len(items))
    if n < 2 or getattr(_inside, "yes", False):
        return [function(*item) for item in items]

    def work(item: tuple[Any, ...]) -> T:
        _inside.yes = True
        return function(*item)

    pool = _executor(get_threads())
    futures = [pool.submit(work, item) for item in items[1:]]
    try:
        _inside.yes = True
        first = function(*items[0])
    finally:
        _inside.yes = False
        for future in futures:
            future.exception()
    return [first, *(future.result() for future in futures)]


def run_together(function: Callable[..., Any], before: tuple[Any, ...], after: tuple[Any, ...], most: int) -> bool:
    """`function(*before, me, n, gate, *after)` on `n` threads at once, me = 0..n-1: kernels that `meet` after each layer.

    Returns whether one of them returned something that is true.

    n is at most `most`, and 1 inside a part of `run_all` or while another group meets: its threads must all be running
    for any of them to go on.
    """
    n = 1
    if most > 1 and COMPILED and not getattr(_inside, "yes", False):
        n = min(get_threads(), most)
    if n > 1 and _meeting.acquire(blocking=False):
        try:
            return _meet(function, before, after, n)
        finally:
            _meeting.release()
    return bool(function(*before, 0, 1, _NO_GATE, *after))


def _meet(function: Callable[..., Any], before: tuple[Any, ...], after: tuple[Any, ...], n: int) -> bool:
    gate = np.zeros(GATE, np.int64)
    done = False
    futures: list[Future[Any]] = []
    try:
        # As many workers as meet, whatever another thread sets meanwhile.
        pool = _executor(max(n, get_threads()))
        futures = [pool.submit(function, *before, me, n, gate, *after) for me in range(1, n)]
        told = [function(*before, 0, n, gate, *after), *(future.result() for future in futures)]
        done = True
        return any(told)
    finally:
        if not done:
            # Ctrl-C before this thread came to the gate: the others must not wait for it for ever.
            gate[2] = 1
            wait(futures)
