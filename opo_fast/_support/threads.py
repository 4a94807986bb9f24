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
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import numba
import numpy as np

from ..kernels import _sync
from ..kernels._jit import COMPILED
from .checks import as_integer
from .processors import granted, processors

__all__ = ["get_threads", "processors", "run_all", "run_together", "set_threads"]

T = TypeVar("T")

# A kernel that raises in one thread would leave the others waiting; none does but to report a wrong index.
_TOGETHER = COMPILED and not getattr(numba.config, "BOUNDSCHECK", None) and sys.platform != "win32"

_ONLINE = os.cpu_count() or 1
"""Processors of the machine: asked for once, since the answer comes out of a file."""

WORTH = 40_000
"""Nanoseconds of a call on one thread from which others are asked to help."""
MOST_PAUSE = 4096
"""Calls on one thread between two trials of threads that do not gain."""
BUSY_PAUSE = 64
"""Calls on one thread, at most, before a machine that was busy is looked at again."""

_count: int | None = None
_main: int | None = threading.main_thread().ident
"""The main thread; None once the interpreter ends. (`Thread.is_alive`, interrupted by Ctrl-C, takes it for ended.)"""
_inside = False
"""Whether the main thread is inside `run_all`."""


# How many threads there may be.


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
    _count = None if n is None else as_integer(n, "n", least=1)


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
    """Whether the caller's work is shared out: the main thread's, but not inside `run_all` and not once the threads ended."""
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
    """Processors for up to `most` threads, the caller's among them."""
    if _getcpu is None:
        n = min(most, processors())
        return _Places(min(n, 1 + max(0, _ONLINE - _load.running())), -1, frozenset())
    usable = os.sched_getaffinity(0)
    n = int(min(most, len(usable), granted()))
    if n > 1:
        n = min(n, 1 + max(0, _ONLINE - _load.running()))
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

    __slots__ = ("alone", "busy", "calls", "good", "pause", "rest", "shared", "together", "usual")

    def __init__(self) -> None:
        self.alone: deque[float] = deque(maxlen=5)
        self.together: deque[float] = deque(maxlen=5)
        self.usual = 0.0
        self.busy = 1
        # The first calls are shared: of a long one there may be no other.
        self.calls, self.good, self.rest, self.pause, self.shared = 3, 0, 0, 8, True

    def rests(self) -> bool:
        """Whether it is so long until the next trial that the call need not be timed."""
        if self.rest <= 8:
            return False
        self.rest -= 1
        return True

    def patience(self, work: int) -> int:
        """Nanoseconds that a call of so much work may wait for others: a hundredth of a long one, more of a short one."""
        # Nothing is known of the first call; a unit of work takes about a nanosecond.
        usual = self.usual * work
        return int(max(10_000, min(usual / 4, 100_000), usual / 100)) if usual else max(50_000, work // 100)

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

    def note_busy(self) -> None:
        """Learn that no other processor was free: looking costs some microseconds, so it is not done each time."""
        self.rest, self.busy = self.busy, min(2 * self.busy, BUSY_PAUSE)

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
        self.busy = 1
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


# The threads themselves.


def _start(threads: list[threading.Thread], n: int, target: Callable[..., object], argument: Any) -> None:
    """Have `n` threads that run `target(argument)`, or as many as there can be: none is started at exit."""
    with contextlib.suppress(RuntimeError):
        while len(threads) < n:
            thread = threading.Thread(target=target, args=(argument,), name="opo_fast", daemon=True)
            thread.start()
            threads.append(thread)


def _help_out(inbox: SimpleQueue[_Parts[Any] | None]) -> None:
    while (job := inbox.get()) is not None:
        job.help_out()
        # Nothing of it stays alive until the next one.
        del job


class _Crew:
    """Workers, which wait inside a kernel for others to join, and helpers, which wait for parts. Neither knows Ctrl-C.

    (The standard library's pool does: where it comes in `submit`, a lock of the pool may stay taken for ever.)
    """

    def __init__(self) -> None:
        words = np.zeros(_sync.GATE + 8, np.int64)
        shift = -(words.ctypes.data // 8) % 8
        self.gate = words[shift : shift + _sync.GATE]
        self.workers: list[threading.Thread] = []
        self.placed: tuple[int, AbstractSet[int]] | None = None
        self.gains: dict[tuple[Any, ...], _Gains] = {}
        self.helpers: list[threading.Thread] = []
        self.inbox: SimpleQueue[_Parts[Any] | None] = SimpleQueue()

    def gather(self, places: _Places) -> int:
        """Have workers at `places` other than the caller's; the number of threads there are, this one among them."""
        if len(self.workers) < places.n - 1 or not _sync.KEEP:
            self.workers = [worker for worker in self.workers if worker.is_alive()]
            self.placed = None
            _start(self.workers, places.n - 1, _sync.serve, self.gate)
        if self.placed != places[1:]:
            self.placed = places[1:]
            for worker in self.workers:
                _keep_off(worker.native_id or 0, places)
        return min(places.n, len(self.workers) + 1)

    def ask(self, job: _Parts[Any]) -> None:
        """Have helpers take parts of a job."""
        _start(self.helpers, job.places.n - 1, _help_out, self.inbox)
        for _ in range(job.places.n - 1):
            self.inbox.put(job)

    def dismiss(self) -> None:
        """Let all end before the code that they run is unloaded."""
        for _ in self.helpers:
            self.inbox.put(None)
        if self.workers:
            _sync.release(self.gate)
        for thread in (*self.workers, *self.helpers):
            thread.join(1.0)
        self.workers, self.helpers = [], []


_crew = _Crew()
_entrances: dict[Any, Any] = {}


def _entrance(function: Any) -> Any:
    """`function` as one that calls workers in, compiled once."""
    call = _entrances.get(function)
    if call is None:
        call = _entrances[function] = _sync.entrance(function)
    return call


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
    call, crew = _entrances.get(function) or _entrance(function), _crew
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
        else:
            gains.note_busy()
    told = call(0, n, crew.gate, *before, *after)
    took = (time.perf_counter_ns() - start) / work
    if n > 1:
        gains.note_shared(took, crew.gate[_sync.JOINED] > 1)
    else:
        gains.note_alone(took)
    return bool(told)


class _Parts(Generic[T]):
    """The parts of one `run_all`. Whoever has time takes the next, the caller among them, so that none waits for a thread."""

    def __init__(self, function: Callable[..., T], items: list[tuple[Any, ...]], places: _Places) -> None:
        self.function, self.items, self.places = function, items, places
        self.left = deque(range(len(items)))
        self.results: dict[int, T] = {}
        self.errors: dict[int, BaseException] = {}
        self.came: list[bool] = []
        self.went: SimpleQueue[bool] = SimpleQueue()
        self.over = False

    def work(self) -> None:
        while True:
            try:
                i = self.left.popleft()
            except IndexError:
                return
            try:
                self.results[i] = self.function(*self.items[i])
            except Exception as error:
                self.errors[i] = error

    def help_out(self) -> None:
        """What another thread does, even if it comes too late."""
        self.came.append(True)
        try:
            # In this order: who sees that it is not over yet is waited for.
            if not self.over:
                _keep_off(0, self.places)
                self.work()
        except BaseException as error:
            self.errors[len(self.items)] = error
        finally:
            self.went.put(True)

    def end(self) -> None:
        """Wait for those who came; whoever has not come by now is not needed."""
        self.over = True
        self.left.clear()
        for _ in range(len(self.came)):
            self.went.get()


def run_all(function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> list[T]:
    """`function(*part)` for each part, in order; on several threads where there are several parts and threads.

    Called from inside a part, it runs in that part's thread. An exception of a part is raised here once all ended.
    """
    global _inside
    items = list(parts)
    most = min(get_threads(), len(items))
    if most < 2 or not _shares() or (places := _look(most)).n < 2:
        return [function(*item) for item in items]
    job = _Parts(function, items, places)
    try:
        _inside = True
        _crew.ask(job)
        job.work()
    finally:
        _inside = False
        job.end()
    if job.errors:
        raise job.errors[min(job.errors)]
    return [job.results[i] for i in range(len(items))]


def _after_fork() -> None:
    """A child has this process's workers in its books, but none of their threads."""
    global _crew, _inside, _main
    _crew, _inside, _main = _Crew(), False, threading.main_thread().ident


def _at_exit() -> None:
    global _main
    _main = None
    _crew.dismiss()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
