"""The package's threads. They are used only where they save time, and never change a bit of a result.

`run_all` gives each thread a separate piece of work (chains of different contexts); with `run_together` several threads enter one kernel
and share each layer (see `kernels._sync`). Nothing depends on Numba's threading layer.

A second thread that has to wait for a processor makes a call many times slower, since the first one waits for it in each layer. So three
questions are asked before each call:

- Is a processor free? The process may use those of its affinity and its control group; those that run something at this moment are taken
  off, and workers are kept away from the caller's.
- Do threads save time? Calls of a kind are timed with and without; if threads do not help, they are tried again ever more rarely.
- Who calls? Only calls from the main thread are shared out, and only until the interpreter ends: a caller with its own threads needs no
  others.
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

# A kernel that raises in one thread would leave the others waiting. Kernels raise nothing but index errors, with bounds checks.
_TOGETHER = COMPILED and not getattr(numba.config, "BOUNDSCHECK", None) and sys.platform != "win32"

_ONLINE = os.cpu_count() or 1
"""Processors of the machine; read only once, since `os.cpu_count` reads a file."""

WORTH = 40_000
"""A call is shared only if it takes at least this long on one thread, in nanoseconds."""
MOST_PAUSE = 4096
"""At most so many calls run on one thread between two trials of threads that did not help."""
BUSY_PAUSE = 64
"""At most so many calls run on one thread before a busy machine is looked at again."""

_count: int | None = None
_main: int | None = threading.main_thread().ident
"""The main thread; None once the interpreter ends. (`Thread.is_alive`, interrupted by Ctrl-C, takes it for ended.)"""
_inside = False
"""Whether the main thread is inside `run_all`."""


# The number of threads.


def _wanted() -> int:
    """The number from `set_threads`, else from the variable NUMBA_NUM_THREADS; 0 if neither is set."""
    if _count is not None:
        return _count
    variable = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(variable) if variable.isdigit() else 0


def get_threads() -> int:
    """Number of threads in use: `set_threads`, else the variable NUMBA_NUM_THREADS, else the usable processors.

    Never more threads work at once than there are processors.
    """
    return _wanted() or processors()


def set_threads(n: int | None) -> None:
    """Use `n` threads in this process from now on (None: the default). Results do not depend on it."""
    global _count
    _count = None if n is None else as_integer(n, "n", least=1)


# Whether a processor is free.


class _Load:
    """How many threads the whole machine runs at this moment."""

    def __init__(self) -> None:
        self.file: int | None = None
        with contextlib.suppress(OSError):
            self.file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def running(self) -> int:
        """Running threads, this one included; 1 if the system does not tell."""
        if self.file is None:
            return 1
        try:
            return int(os.pread(self.file, 64, 0).split()[3].partition(b"/")[0])
        except (OSError, ValueError, IndexError):
            self.file = None
            return 1


_load = _Load()


def _shares() -> bool:
    """Whether the caller's work may be shared out: in the main thread, outside `run_all`, and until the interpreter ends."""
    return not _inside and threading.get_ident() == _main


class _Places(NamedTuple):
    """The processors that a call can use at this moment."""

    n: int
    """How many are free, including the caller's."""
    here: int
    """The caller's processor; -1 if the system does not tell."""
    usable: AbstractSet[int]
    """All that the process may use; empty if the system does not tell."""


def _look(most: int) -> _Places:
    """Processors for up to `most` threads, including the caller's."""
    if _getcpu is None:
        n = min(most, processors())
        return _Places(min(n, 1 + max(0, _ONLINE - _load.running())), -1, frozenset())
    usable = os.sched_getaffinity(0)
    n = int(min(most, len(usable), granted()))
    if n > 1:
        n = min(n, 1 + max(0, _ONLINE - _load.running()))
    return _Places(n, int(_getcpu()), usable)


# The call takes nanoseconds, so `PyDLL`, which does not release the interpreter's lock, is the cheaper one.
_getcpu = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None


def _keep_off(thread: int, places: _Places) -> None:
    """Restrict a thread to processors other than the caller's."""
    others = places.usable - {places.here}
    if others:
        # It fails if the thread has ended, or if the processors are no longer ours.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, others)


# Whether threads save time.


class _Gains:
    """Times per unit of work of the last calls of a kind, on one thread and on several; they decide whether the next call is shared."""

    __slots__ = ("alone", "busy", "calls", "good", "pause", "rest", "shared", "together", "usual")

    def __init__(self) -> None:
        self.alone: deque[float] = deque(maxlen=5)
        self.together: deque[float] = deque(maxlen=5)
        self.usual = 0.0
        self.busy = 1
        # The first calls are shared, since a long call may be the only one of its kind.
        self.calls, self.good, self.rest, self.pause, self.shared = 3, 0, 0, 8, True

    def rests(self) -> bool:
        """Whether the next trial is so far off that the call need not be timed."""
        if self.rest <= 8:
            return False
        self.rest -= 1
        return True

    def patience(self, work: int) -> int:
        """Nanoseconds that a call may wait for others: a hundredth of a long call, a larger part of a short one."""
        # Before the first call has been timed, a unit of work is taken to last a nanosecond.
        usual = self.usual * work
        return int(max(10_000, min(usual / 4, 100_000), usual / 100)) if usual else max(50_000, work // 100)

    def ask(self, work: int) -> bool:
        """Whether to share the next call. If sharing helps it is still checked now and then; if not, it is tried ever more rarely."""
        if self.rest > 0:
            self.rest -= 1
            return False
        self.calls += 1
        if 0 < self.usual * work < WORTH:
            self.rest = MOST_PAUSE // 16
            return False
        return self.calls % (8 if len(self.alone) < 3 else 64) > 2

    def note_busy(self) -> None:
        """Note that no other processor was free. Looking costs microseconds, so the next calls do not look."""
        self.rest, self.busy = self.busy, min(2 * self.busy, BUSY_PAUSE)

    def note_alone(self, time: float) -> None:
        """Note a call on one thread that took `time` per unit of work."""
        # The first call after a shared one is slower than usual, since part of the data is in other processors' caches.
        if not self.shared:
            self.alone.append(time)
            self.usual = _median(self.alone)
        self.shared = False

    def note_shared(self, time: float, joined: bool) -> None:
        """Note a call that other threads were asked to join; `joined` says whether any did."""
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
    """Start threads that run `target(argument)` until there are `n`, or until no more can be started, as at exit."""
    with contextlib.suppress(RuntimeError):
        while len(threads) < n:
            thread = threading.Thread(target=target, args=(argument,), name="opo_fast", daemon=True)
            thread.start()
            threads.append(thread)


def _help_out(inbox: SimpleQueue[_Parts[Any] | None]) -> None:
    while (job := inbox.get()) is not None:
        job.help_out()
        # So that the job's arrays are freed before the next job comes.
        del job


class _Crew:
    """Workers, which wait inside a kernel for calls to join, and helpers, which wait for parts of a `run_all`.

    Ctrl-C does not reach either. In the standard library's pool it does: there, a Ctrl-C during `submit` may leave a lock taken forever.
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
        """Start workers, and keep them off the caller's processor; returns the number of threads, including this one."""
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
        """Put a job into the inbox of each helper that there is a processor for."""
        _start(self.helpers, job.places.n - 1, _help_out, self.inbox)
        for _ in range(job.places.n - 1):
            self.inbox.put(job)

    def dismiss(self) -> None:
        """End all threads before the code that they run is unloaded."""
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
    """Run `function(*before, me, n, gate, *after)` on up to `most` threads at once, me = 0, ..., n - 1.

    Parameters
    ----------
    function : kernel
        One whose threads `barrier` after each layer; see `kernels._sync.entrance`.
    before, after : tuple
        Its arguments.
    most : int
        Number of threads that there is work for.
    work : int
        Amount of work, in a unit that the caller chooses for this kernel; only calls of similar size are compared.

    Returns
    -------
    bool
        Whether any thread returned a true value.
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
    reported = call(0, n, crew.gate, *before, *after)
    took = (time.perf_counter_ns() - start) / work
    if n > 1:
        gains.note_shared(took, crew.gate[_sync.JOINED] > 1)
    else:
        gains.note_alone(took)
    return bool(reported)


class _Parts(Generic[T]):
    """The parts of one `run_all`. Every free thread takes the next one, and so does the caller, so that no part waits for a thread."""

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
        """Called by another thread, perhaps after all parts are done."""
        self.came.append(True)
        try:
            # `end` waits for every thread that sees `over` unset: such a thread has already been counted in `came`.
            if not self.over:
                _keep_off(0, self.places)
                self.work()
        except BaseException as error:
            self.errors[len(self.items)] = error
        finally:
            self.went.put(True)

    def end(self) -> None:
        """Wait for the threads that have come; later ones find nothing to do."""
        self.over = True
        self.left.clear()
        for _ in range(len(self.came)):
            self.went.get()


def run_all(function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> list[T]:
    """`function(*part)` for each part, in order; on several threads if there are several parts and threads.

    A call from inside a part runs in that part's thread. An exception of a part is raised after all parts have ended.
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
    """A child process inherits the record of the workers, but not their threads."""
    global _crew, _inside, _main
    _crew, _inside, _main = _Crew(), False, threading.main_thread().ident


def _at_exit() -> None:
    global _main
    _main = None
    _crew.dismiss()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
