"""Ctrl-C that lets the step under way, and the file that is being written, finish."""

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
"""Seconds in which further signals are taken for the first one: a key that bounces, a terminal and a wrapper that both send it."""


class _Watch:
    """Whether Ctrl-C came; the second one raises KeyboardInterrupt, once no file is being written."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told, self._first = told, float("inf")
        self.shields = 0
        self.waiting = False

    def came(self) -> bool:
        return self._first < float("inf")

    def note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if not self.came():
            self._first = now
            self._told()
        elif now - self._first >= BOUNCE:
            self.stop()

    def stop(self) -> None:
        if not self.shields:
            raise KeyboardInterrupt
        if not self.waiting:
            sys.stderr.write("\nThe file that is being written is finished first.\n")
        self.waiting = True


_watching: list[_Watch] = []
"""Those of the main thread, the innermost last."""


@contextmanager
def interrupts(*others: int, told: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came. It mostly comes while a kernel runs, and stopping right after that would split a step in two.

    Only where nobody else listens: in the main thread, and to signals that have their first handler; inside another `interrupts` it is
    that one. The second Ctrl-C raises KeyboardInterrupt, unless it comes within a second of the first.

    Parameters
    ----------
    *others : int
        Signals that count like Ctrl-C.
    told : callable
        Called when the first one comes.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _watching:
        yield _watching[-1].came
        return
    watch = _Watch(told)
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
    """Let what is inside, such as the writing of a file, end before a second Ctrl-C does.

    Only inside `interrupts`: elsewhere Ctrl-C is what it is for everybody, and the files of this package are whole or not there at all.
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
