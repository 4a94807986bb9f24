"""Ctrl-C that takes effect after the current step, or after the file that is being written."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupts", "shielded"]

BOUNCE = 1.0
"""Seconds during which further signals count as the first one: the key may bounce, or terminal and wrapper may both send it."""


class _Watch:
    """Remembers the first Ctrl-C; the second one raises KeyboardInterrupt, as soon as no file is being written."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first, self._first = on_first, float("inf")
        self.shields = 0
        self.waiting = False

    def came(self) -> bool:
        return self._first < float("inf")

    def note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if not self.came():
            self._first = now
            self._on_first()
        elif now - self._first >= BOUNCE:
            self.stop()

    def stop(self) -> None:
        if not self.shields:
            raise KeyboardInterrupt
        if not self.waiting:
            sys.stderr.write("\nFinishing the file that is being written first.\n")
        self.waiting = True


_watching: list[_Watch] = []
"""The active watches of the main thread, the innermost last."""


@contextmanager
def interrupts(*others: int, on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed, so that the caller can stop between two steps.

    Ctrl-C mostly comes while a kernel runs; raising right after the kernel would split a step in two. The second Ctrl-C raises
    KeyboardInterrupt, unless it comes within a second of the first.

    Signals are only caught in the main thread, and only if they still have their default handler. A nested call gives the function of the
    outer one.

    Parameters
    ----------
    *others : int
        Signals to be treated like Ctrl-C.
    on_first : callable
        Called at the first signal.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _watching:
        yield _watching[-1].came
        return
    watch = _Watch(on_first)
    before: dict[int, Any] = {}
    if main:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *others)}
        before = {number: handler for number, handler in handlers.items() if handler in (signal.default_int_handler, signal.SIG_DFL)}
    if before:
        _watching.append(watch)
    for number in before:
        signal.signal(number, watch.note)
    try:
        yield watch.came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            _watching.remove(watch)


@contextmanager
def shielded() -> Iterator[None]:
    """Delay the KeyboardInterrupt of a second Ctrl-C to the end of the block, which writes a file, say.

    Only inside `interrupts`. Elsewhere Ctrl-C raises at once, which leaves no half-written files either (see `files.writing`).
    """
    watch = _watching[-1] if _watching and threading.current_thread() is threading.main_thread() else None
    if watch is None:
        yield
        return
    watch.shields += 1
    try:
        yield
    finally:
        watch.shields -= 1
    if watch.waiting and not watch.shields:
        watch.waiting = False
        raise KeyboardInterrupt
