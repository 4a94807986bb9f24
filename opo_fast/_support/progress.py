"""Bars on standard error, or below a notebook's cell, for what takes longer than two seconds."""

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
    """Takes how much is done, and a note, or what makes it where it is shown."""

    def __call__(self, done: int, note: str | Callable[[], str] = "") -> None: ...


def wants_bars(wanted: bool | None) -> bool:
    """Whether there is something to show: where it is asked for, else on a terminal and in a notebook."""
    return sys.stderr.isatty() or in_notebook() if wanted is None else wanted


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Output:
    """A text below a notebook's cell that is replaced by the next one, by IPython alone; Rich's bars would need ipywidgets."""

    def __init__(self, delay: float) -> None:
        self._begin, self._last = time.monotonic() + delay, 0.0
        self._handle: Any = None

    def show(self, text: str, *, last: bool = False) -> None:
        """Show it, once the delay has passed and unless the one before it is too new."""
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
    """Bars under one another: label, how much of the total is done, and a note.

    Labels may hold anything: they are never read as markup, and what a terminal cannot show is escaped.

    Parameters
    ----------
    delay : float
        Seconds after which they appear.
    remaining : bool
        Whether a bar estimates the time that is left.
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
        columns: list[Any] = [
            TextColumn("{task.description}", markup=False, table_column=label),
            BarColumn(bar_width=16),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=13, overflow=overflow)),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow=overflow)),
        ]
        self._bars = Progress(*columns, *([TimeRemainingColumn()] if remaining else []), console=self._console)
        self._tasks: dict[str, Any] = {}
        if self._output is None:
            self._timer = threading.Timer(delay, self._bars.start)
            self._timer.daemon = True
            (self._timer if delay else self._bars).start()

    def _shown(self, text: str) -> str:
        encoding = self._console.encoding
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def say(self, line: str, style: str | None = None) -> None:
        """A line above the bars."""
        self._console.print(self._shown(line), style=style, markup=False, highlight=False)

    def set(self, key: str, label: str, done: int, total: int, note: str = "") -> None:
        """Show how much of `total` is done under `key`."""
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
        """Take away all bars but these."""
        for key in self._tasks.keys() - keys:
            self._bars.remove_task(self._tasks.pop(key))

    def stop(self) -> None:
        """Leave the last state on the terminal, or below the cell, if it was ever shown."""
        if self._output is not None:
            self._redraw(last=True)
            return
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
        self._bars.stop()


@contextmanager
def bar(label: str, total: int, wanted: bool | None = None) -> Iterator[Show]:
    """Gives a function that takes how much of `total` is done, and a note.

    Parameters
    ----------
    label : str
        What is being done.
    total : int
    wanted : bool, optional
        Default: a bar on a terminal and in a notebook, once two seconds have passed.
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
