"""Ctrl-C that lets the step under way finish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupts"]


@contextmanager
def interrupts(*others: int, told: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came. It mostly comes while a kernel runs, and stopping right after that would split a step in two.

    Only where nobody else listens: in the main thread, and to signals that have their first handler. The second one
    raises KeyboardInterrupt.

    Parameters
    ----------
    *others : int
        Signals that count like Ctrl-C.
    told : callable
        Called when the first one comes.
    """
    came = False

    def note(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        told()

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *others)}
        before = {number: handler for number, handler in handlers.items() if handler in (signal.default_int_handler, signal.SIG_DFL)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
