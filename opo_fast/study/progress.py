"""How a study is going, read from its folder; while it runs and at any other time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .grid import Run
from .storage import STALE, Store, alive

__all__ = ["Status", "Watcher", "duration", "status"]

LOOK = 1.0
"""Seconds between two looks at the folder."""
LINES = 10.0
"""Seconds between two lines where there is no terminal."""


@dataclass(frozen=True)
class Status:
    """How a study is going.

    Attributes
    ----------
    planned, finished : int
        Runs of the study.
    under_way : dict
        Signs of life by run id: host, process, label, episode, episodes, started, updated.
    stalled : dict
        The same of processes that are gone or silent.
    failures : dict
        By run id: message, episode, traceback and settings.
    seconds_left : float or None
        An estimate; None before anything is known.
    driven : bool
        Whether a process on this machine drives the study now.
    messages : list of str
        Damaged files.
    """

    planned: int
    finished: int
    under_way: Mapping[str, dict[str, Any]]
    stalled: Mapping[str, dict[str, Any]]
    failures: Mapping[str, dict[str, Any]]
    seconds_left: float | None
    driven: bool
    messages: Sequence[str]

    @property
    def waiting(self) -> int:
        """Runs that have not begun, or stopped on their way."""
        return self.planned - self.finished - len(self.failures) - len(self.under_way)


def status(store: Store, runs: Sequence[Run]) -> Status:
    """Look at the folder; nothing in it is changed."""
    done, messages = store.finished()
    ids = {run.id for run in runs}
    finished = ids & done.keys()
    failed = store.failed()
    failures = {run.id: failed[run.id] for run in runs if run.id in failed and run.id not in finished}
    signs = {id: sign for id, sign in store.under_way().items() if id in ids - finished}
    now = time.time()
    under_way = {id: sign for id, sign in signs.items() if alive(sign) and now - float(sign["updated"]) < 10 * STALE}
    stalled = {id: sign for id, sign in signs.items() if id not in under_way}
    return Status(
        planned=len(runs),
        finished=len(finished),
        under_way=under_way,
        stalled=stalled,
        failures=failures,
        seconds_left=seconds_left(runs, done, finished, failures, under_way),
        driven=store.busy(),
        messages=messages,
    )


def seconds_left(
    runs: Sequence[Run], done: Mapping[str, Any], finished: set[str], failures: Mapping[str, Any], under_way: Mapping[str, Any]
) -> float | None:
    """Work that is left by what finished runs of the same environment and agent took, shared among the runs under way."""
    totals: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.id in finished:
            totals.setdefault((run.environment.label, run.agent.label), []).append(float(done[run.id]["summary"]["seconds"]))
    means = {key: sum(values) / len(values) for key, values in totals.items()}
    now = time.time()
    for run in runs:
        sign = under_way.get(run.id)
        key = (run.environment.label, run.agent.label)
        if sign is not None and sign["episode"] > 0 and key not in means:
            means[key] = (now - sign["started"]) * run.episodes / sign["episode"]
    if not means:
        return None
    other = sum(means.values()) / len(means)
    left = 0.0
    for run in runs:
        if run.id in finished or run.id in failures:
            continue
        sign = under_way.get(run.id)
        share = 1.0 if sign is None else 1.0 - sign["episode"] / run.episodes
        left += share * means.get((run.environment.label, run.agent.label), other)
    return left / max(1, len(under_way))


def duration(seconds: float | None) -> str:
    """1:02:03, or ? where nothing is known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


class Watcher:
    """Overall and per-worker progress on standard error: bars on a terminal, a line now and then elsewhere."""

    def __init__(self, store: Store, runs: Sequence[Run], waiting: Sequence[Run], workers: int) -> None:
        from rich.console import Console

        self.store, self.runs, self.workers = store, runs, workers
        self.console = Console(stderr=True, highlight=False)
        self._shown = set(store.failed()) - {run.id for run in waiting}
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="opo_fast study progress", daemon=True)
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._overall: Any = None
        self._last_line = time.monotonic()

    def start(self) -> None:
        """Begin to show."""
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.table import Column

            name = Column(no_wrap=True, overflow="ellipsis", max_width=max(12, self.console.width - 56))
            self._bars = Progress(
                TextColumn("{task.description}", table_column=name),
                BarColumn(bar_width=16),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=13)),
                TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
                console=self.console,
            )
            self._overall = self._bars.add_task("[bold]runs", total=len(self.runs), note="kernels are compiled on first use")
            self._bars.start()
        self._thread.start()

    def stop(self) -> None:
        """Show the last state and end."""
        self._end.set()
        self._thread.join()
        self.look(last=True)
        if self._bars is not None:
            self._bars.stop()

    def _work(self) -> None:
        while not self._end.wait(LOOK):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Read the folder once and show what is new."""
        with self._lock:
            now = status(self.store, self.runs)
            for id, failure in now.failures.items():
                if id not in self._shown:
                    self._shown.add(id)
                    label = f"{failure['environment']['label']} / {failure['agent']['label']} / seed {failure['seed']}"
                    self.console.print(f"failed: {label}, episode {failure['episode']}: {failure['message']}", style="red", markup=False)
            left = f"{duration(now.seconds_left)} left" + (f", {len(now.failures)} failed" if now.failures else "")
            if self._bars is not None:
                self._show_bars(now, "" if last else left)
            elif last or time.monotonic() - self._last_line > LINES:
                self._last_line = time.monotonic()
                percent = 100 * now.finished / max(1, now.planned)
                tail = f", {len(now.failures)} failed" if last and now.failures else "" if last else f", {left}"
                self.console.print(f"{now.finished:,} of {now.planned:,} runs ({percent:.0f} %){tail}", markup=False)

    def _show_bars(self, now: Status, note: str) -> None:
        self._bars.update(self._overall, completed=now.finished, note=note)
        for id in [id for id in self._tasks if id not in now.under_way]:
            self._bars.remove_task(self._tasks.pop(id))
        for id, sign in now.under_way.items():
            if id not in self._tasks:
                self._tasks[id] = self._bars.add_task(sign["label"], total=sign["episodes"], note=f"on {sign['host']}, {sign['pid']}")
            self._bars.update(self._tasks[id], completed=sign["episode"])
