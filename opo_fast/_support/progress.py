"""A bar on standard error for what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar"]


@contextmanager
def bar(label: str, total: int, wanted: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Gives a function that takes how much of `total` is done.

    Parameters
    ----------
    label : str
        What is being done.
    total : int
    wanted : bool, optional
        Default: a bar on a terminal, once two seconds have passed.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    shown = Progress(console=Console(stderr=True))
    task = shown.add_task(label, total=total)
    timer = threading.Timer(2.0, shown.start)
    timer.daemon = True
    (shown if wanted else timer).start()
    try:
        yield lambda done: shown.update(task, completed=done)
    finally:
        timer.cancel()
        if not wanted:
            timer.join()
        shown.stop()
