"""Progress bars on standard error, or below a notebook's cell, for whatever takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Protocol

from .text import printable

__all__ = ["Bars", "bar", "wants_bars"]

DELAY = 2.0
"""Seconds after which a bar appears."""
PAUSE = 0.1
"""Seconds between two changes of a bar."""


class Show(Protocol):
    """Shows how much is done, and a note; a function as note is only called if the bar is redrawn."""

    def __call__(self, done: int, note: str | Callable[[], str] = "") -> None: ...


def wants_bars(wanted: bool | None) -> bool:
    """Whether to show bars: as `wanted` says; if it is None, on a terminal and in a notebook."""
    return sys.stderr.isatty() or in_notebook() if wanted is None else wanted


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Output:
    """A text below a notebook's cell that is updated in place. It only needs IPython; Rich's own bars would need ipywidgets."""

    def __init__(self, delay: float) -> None:
        self._begin, self._last = time.monotonic() + delay, 0.0
        self._handle: Any = None

    def show(self, text: str, *, last: bool = False) -> None:
        """Show a text, unless the delay has not passed yet or the last update was a moment ago."""
        now = time.monotonic()
        if now < self._begin or (now - self._last < PAUSE and not last):
            return
        self._last = now
        if self._handle is None:
            display: Any = sys.modules["IPython.display"]
            self._handle = display.display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


class Bars:
    """Several bars, one below the other: label, how much of the total is done, and a note.

    Labels are never read as markup, and what a terminal cannot show is escaped.

    Parameters
    ----------
    delay : float
        Seconds after which the bars appear.
    remaining : bool
        Whether to show the estimated time that is left.
    """

    def __init__(self, delay: float = 0.0, *, remaining: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._output = _Output(delay) if in_notebook() else None
        self._console = Console(stderr=True, highlight=False, force_jupyter=False, color_system="auto" if self._output is None else None)
        wide = self._console.encoding.startswith("utf")
        overflow: Any = "ellipsis" if wide else "crop"
        label = Column(no_wrap=True, overflow=overflow, max_width=max(12, self._console.width - (42 if wide else 56)))
        narrow = Column(no_wrap=True, overflow=overflow)
        columns: list[Any] = [
            TextColumn("{task.description}", markup=False, table_column=label),
            BarColumn(bar_width=16),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=13, overflow=overflow)),
            TextColumn("{task.fields[note]}", markup=False, table_column=narrow),
        ]
        self._bars = Progress(*columns, *([TimeRemainingColumn(table_column=narrow)] if remaining else []), console=self._console)
        self._tasks: dict[str, Any] = {}
        if self._output is None:
            self._timer = threading.Timer(delay, self._bars.start)
            self._timer.daemon = True
            (self._timer if delay else self._bars).start()

    def _shown(self, text: str) -> str:
        encoding = self._console.encoding
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        self._console.print(self._shown(line), style=style, markup=False, highlight=False)

    def set(self, key: str, label: str, done: int, total: int, note: str = "") -> None:
        """Set the bar of `key`, which is added if it is new."""
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task("", total=total, note="")
        self._bars.update(self._tasks[key], description=self._shown(label), completed=done, note=self._shown(note))
        self._redraw()

    def _redraw(self, *, last: bool = False) -> None:
        if self._output is not None:
            with self._console.capture() as drawn:
                self._console.print(self._bars.get_renderable())
            self._output.show(drawn.get().rstrip("\n"), last=last)

    def keep(self, keys: Set[str]) -> None:
        """Remove all bars except these."""
        for key in self._tasks.keys() - keys:
            self._bars.remove_task(self._tasks.pop(key))

    def stop(self) -> None:
        """Leave the last state on the terminal or below the cell, if the bars have appeared at all."""
        if self._output is not None:
            self._redraw(last=True)
            return
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
        self._bars.stop()


@contextmanager
def bar(label: str, total: int, wanted: bool | None = None) -> Iterator[Show]:
    """Show a bar, and yield the function that updates it: see `Show`.

    Parameters
    ----------
    label : str
        What is being done.
    total : int
    wanted : bool, optional
        Default: show it on a terminal and in a notebook, once two seconds have passed.
    """
    if not wants_bars(wanted):
        yield lambda done, note="": None
        return
    bars = Bars(0.0 if wanted else DELAY, remaining=True)
    bars.set(label, label, 0, total)
    last = time.monotonic()

    def show(done: int, note: str | Callable[[], str] = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > PAUSE or done >= total:
            last = now
            bars.set(label, label, done, total, note if isinstance(note, str) else note())

    try:
        yield show
    finally:
        bars.stop()
