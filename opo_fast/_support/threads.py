"""The package's threads, which never change a bit of a result: where they help they are used, elsewhere they stay away.

`run_all` gives threads work of their own (chains of different contexts); with `run_together` threads enter one kernel and
share each layer (see `kernels._sync`). Nothing depends on Numba's threading layer.

A second thread that has to wait for a processor makes a call many times slower, since the first one waits for it in each
layer. So three questions are asked before each call. *Is there a processor?* As many as the process may use, by its
affinity and its control group, less those that run something at this moment; workers are kept off the caller's. *Do threads
gain?* Calls of a kind are timed with and without, and what does not gain is tried again ever more rarely. *Whose call is
it?* The main thread's, while the interpreter runs: whoever has threads of their own needs none of ours.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import pathlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from ..kernels import _sync
from ..kernels._jit import COMPILED
from .checks import whole

__all__ = ["get_threads", "processors", "run_all", "run_together", "set_threads"]

T = TypeVar("T")

# A kernel that raises in one thread would leave the others waiting; none does but to report a wrong index.
_TOGETHER = COMPILED and not getattr(numba.config, "BOUNDSCHECK", None) and sys.platform != "win32"

WORTH = 40_000
"""Nanoseconds of a call on one thread from which others are asked to help."""
MOST_PAUSE = 4096
"""Calls on one thread between two trials of threads that do not gain."""

_count: int | None = None
_main = threading.main_thread().ident
_inside = False
"""Whether the main thread is inside `run_all`."""


# How many threads there may be.


def _quota(text: str) -> float:
    """Processors that a control group grants: `cpu.max` (version 2), or the quota and the period of version 1."""
    quota, *period = text.split()
    if quota == "max" or int(quota) <= 0:
        return float("inf")
    return int(quota) / int(period[0] if period else 100_000)


def _cgroups(text: str) -> list[tuple[bool, str]]:
    """The control groups in /proc/self/cgroup that may limit processors: (version 2, path)."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    return [(number == "0" and not names, path) for number, names, path in lines if not names or "cpu" in names.split(",")]


def _granted(root: pathlib.Path) -> float:
    """Processors that the control groups of this process grant: the least of each group and those that it lies in."""
    least = float("inf")
    with contextlib.suppress(OSError):
        for new, path in _cgroups((root / "proc/self/cgroup").read_text()):
            for mount in ("", "unified") if new else ("cpu", "cpu,cpuacct"):
                top = root / "sys/fs/cgroup" / mount
                inner = top / path.lstrip("/")
                for folder in (inner, *inner.parents):
                    with contextlib.suppress(OSError, ValueError, IndexError):
                        if new:
                            least = min(least, _quota((folder / "cpu.max").read_text()))
                        else:
                            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                            least = min(least, _quota(f"{quota} {period}"))
                    if folder == top:
                        break
    return least


@functools.cache
def _group() -> float:
    return _granted(pathlib.Path("/"))


def processors() -> int:
    """Processors that this process may use at once: by its affinity, and whole ones that its control group grants."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(usable, _group())))


def _wanted() -> int:
    """`set_threads`, else the variable NUMBA_NUM_THREADS; 0: neither."""
    if _count is not None:
        return _count
    variable = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(variable) if variable.isdigit() else 0


def get_threads() -> int:
    """Number of threads in use: `set_threads`, else the variable NUMBA_NUM_THREADS, else the usable processors.

    Never more work at once than there are processors, whatever was set.
    """
    return _wanted() or processors()


def set_threads(n: int | None) -> None:
    """Use `n` threads in this process from now on (None: the default). Results do not depend on it."""
    global _count
    _count = None if n is None else whole(n, "n", least=1)


# Whether a processor waits for one.


class _Load:
    """How many threads the whole machine runs at this moment."""

    def __init__(self) -> None:
        self.file: int | None = None
        with contextlib.suppress(OSError):
            self.file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def running(self) -> int:
        """This thread among them; 1 where the system does not tell."""
        if self.file is None:
            return 1
        try:
            return int(os.pread(self.file, 64, 0).split()[3].partition(b"/")[0])
        except (OSError, ValueError, IndexError):
            self.file = None
            return 1


_load = _Load()


def _shares() -> bool:
    """Whether the caller's work is shared out: the main thread's, but not inside `run_all`."""
    return not _inside and threading.get_ident() == _main


class _Places(NamedTuple):
    """Where a call finds processors at this moment."""

    n: int
    """Processors that are free, the caller's among them."""
    here: int
    """The caller's; -1 where the system does not tell."""
    usable: AbstractSet[int]
    """All that it may use; none where the system does not tell."""


def _look(most: int) -> _Places:
    """Processors for up to `most` threads, the caller's among them; while the interpreter ends, that one alone."""
    if not threading.main_thread().is_alive():
        most = 1
    if _getcpu is None:
        n = min(most, processors())
        return _Places(min(n, 1 + max(0, (os.cpu_count() or 1) - _load.running())), -1, frozenset())
    usable = os.sched_getaffinity(0)
    n = int(min(most, len(usable), _group()))
    if n > 1:
        n = min(n, 1 + max(0, (os.cpu_count() or 1) - _load.running()))
    return _Places(n, int(_getcpu()), usable)


# `PyDLL` keeps the interpreter's lock, as befits a call of some nanoseconds.
_getcpu = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None


def _keep_off(thread: int, places: _Places) -> None:
    """Have a thread run on processors other than the caller's."""
    others = places.usable - {places.here}
    if others:
        # The thread may have ended, the processors may have been taken away.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, others)


# Whether threads gain.


class _Gains:
    """Times of the last calls of a kind, alone and together, per unit of work; from them, whether the next is shared."""

    __slots__ = ("alone", "calls", "good", "pause", "rest", "shared", "together", "usual")

    def __init__(self) -> None:
        self.alone: deque[float] = deque(maxlen=5)
        self.together: deque[float] = deque(maxlen=5)
        self.usual = 0.0
        # The first calls are shared: of a long one there may be no other.
        self.calls, self.good, self.rest, self.pause, self.shared = 3, 0, 0, 8, True

    def rests(self) -> bool:
        """Whether it is so long until the next trial that the call need not be timed."""
        if self.rest <= 8:
            return False
        self.rest -= 1
        return True

    def patience(self, work: int) -> int:
        """Nanoseconds that a call of so much work may wait for others."""
        return int(min(max(10_000, self.usual * work / 4), 100_000)) if self.usual else 50_000

    def ask(self, work: int) -> bool:
        """Whether the next call is worth sharing. What gains is checked now and then, what does not is tried ever more rarely."""
        if self.rest > 0:
            self.rest -= 1
            return False
        self.calls += 1
        if 0 < self.usual * work < WORTH:
            self.rest = MOST_PAUSE // 16
            return False
        return self.calls % (8 if len(self.alone) < 3 else 64) > 2

    def note_alone(self, time: float) -> None:
        """Learn from a call on one thread that took `time` per unit of work."""
        # After a shared call a part of the memory is in other processors' caches: that is not what one thread takes.
        if not self.shared:
            self.alone.append(time)
            self.usual = _median(self.alone)
        self.shared = False

    def note_shared(self, time: float, joined: bool) -> None:
        """Learn from a call that others were asked to join, and did or did not."""
        self.shared = True
        usual = self.usual or time
        if joined:
            self.together.append(time)
        if joined and time < 1.4 * usual and (len(self.together) < 3 or _median(self.together) < 0.9 * usual or not self.usual):
            self.good += 1
            if self.good % 32 == 0:
                self.pause = max(8, self.pause // 2)
        else:
            self.rest, self.pause, self.good = self.pause, min(2 * self.pause, MOST_PAUSE), 0
            self.together.clear()


def _median(times: deque[float]) -> float:
    return sorted(times)[len(times) // 2]


# The threads that enter kernels.


class _Crew:
    """Workers, and the array in which they and the caller meet."""

    def __init__(self) -> None:
        words = np.zeros(_sync.GATE + 8, np.int64)
        shift = -(words.ctypes.data // 8) % 8
        self.gate = words[shift : shift + _sync.GATE]
        self.workers: list[threading.Thread] = []
        self.placed: tuple[int, AbstractSet[int]] | None = None
        self.gains: dict[tuple[Any, ...], _Gains] = {}

    def gather(self, places: _Places) -> int:
        """Have workers at `places` other than the caller's; the number of threads there are, this one among them."""
        if len(self.workers) < places.n - 1 or not _sync.KEEP:
            self.workers = [worker for worker in self.workers if worker.is_alive()]
            self.placed = None
            # At exit and at the limit of threads none can be started.
            with contextlib.suppress(RuntimeError):
                while len(self.workers) < places.n - 1:
                    worker = threading.Thread(target=_sync.serve, args=(self.gate,), name="opo_fast", daemon=True)
                    worker.start()
                    self.workers.append(worker)
        if self.placed != places[1:]:
            self.placed = places[1:]
            for worker in self.workers:
                _keep_off(worker.native_id or 0, places)
        return min(places.n, len(self.workers) + 1)

    def dismiss(self) -> None:
        """Let the workers end before the code that they run is unloaded."""
        if self.workers:
            _sync.release(self.gate)
            for worker in self.workers:
                worker.join(1.0)
            self.workers = []


_crew = _Crew()
_entrance = functools.cache(_sync.entrance)


_executor: tuple[int, ThreadPoolExecutor] | None = None


def run_together(function: Callable[..., Any], before: tuple[Any, ...], after: tuple[Any, ...], most: int, work: int = 1) -> bool:
    """`function(*before, me, n, gate, *after)` on up to `most` threads at once, me = 0..n-1: kernels that `meet` after each layer.

    Parameters
    ----------
    function : a kernel
        See `kernels._sync.entrance`.
    before, after : tuple
        Its arguments.
    most : int
        Threads that there is work for.
    work : int
        How much work the call is, in a unit of the kernel's own: calls of like size are compared with each other.

    Returns
    -------
    bool
        Whether one of the threads returned something true.
    """
    if not COMPILED:
        return bool(function(*before, 0, 1, _crew.gate, *after))
    call, crew = _entrance(function), _crew
    if most < 2 or _count == 1 or not _TOGETHER or not _shares():
        return bool(call(0, 1, crew.gate, *before, *after))
    work = max(1, work)
    key = function, work.bit_length()
    gains = crew.gains.get(key)
    if gains is None:
        gains = crew.gains[key] = _Gains()
    if gains.rests():
        return bool(call(0, 1, crew.gate, *before, *after))
    n, start = 1, time.perf_counter_ns()
    if gains.ask(work):
        places = _look(min(most, _wanted() or most))
        if places.n > 1:
            n = crew.gather(places)
            crew.gate[_sync.PATIENCE] = gains.patience(work)
    told = call(0, n, crew.gate, *before, *after)
    took = (time.perf_counter_ns() - start) / work
    if n > 1:
        gains.note_shared(took, crew.gate[_sync.JOINED] > 1)
    else:
        gains.note_alone(took)
    return bool(told)


def run_all(function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> list[T]:
    """`function(*part)` for each part, in order; on several threads where there are several parts and threads.

    Called from inside a part, it runs in that part's thread. An exception of a part is raised here once all ended.
    """
    global _inside
    items = list(parts)
    most = min(get_threads(), len(items))
    if most < 2 or not _shares() or (places := _look(most)).n < 2:
        return [function(*item) for item in items]
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}
    left = deque(range(len(items)))

    def work() -> None:
        while True:
            try:
                i = left.popleft()
            except IndexError:
                return
            try:
                results[i] = function(*items[i])
            except Exception as error:
                errors[i] = error

    def help_out() -> None:
        _keep_off(0, places)
        work()

    helpers: list[Future[None]] = []
    try:
        _inside = True
        # At exit none can be started: then this thread does all.
        with contextlib.suppress(RuntimeError):
            for _ in range(places.n - 1):
                helpers.append(_pool(places.n - 1).submit(help_out))
        work()
    finally:
        _inside = False
        left.clear()
        # Whoever has not come by now is not needed.
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(len(items))]


def _pool(n: int) -> ThreadPoolExecutor:
    global _executor
    if _executor is None or _executor[0] < n:
        if _executor is not None:
            _executor[1].shutdown(wait=False)
        _executor = n, ThreadPoolExecutor(n, thread_name_prefix="opo_fast")
    return _executor[1]


def _after_fork() -> None:
    """A child has this process's workers in its books, but none of their threads."""
    global _crew, _executor, _inside, _main
    _crew, _executor, _inside, _main = _Crew(), None, False, threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _crew.dismiss())
