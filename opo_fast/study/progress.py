"""The progress of a study, read from its folder, whether or not it is running."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._support.progress import Bars, wants_bars
from .._support.text import duration, figure, printable
from .grid import Run
from .signs import STALE, alive
from .storage import Store

__all__ = ["Status", "Watcher", "failed_label", "status"]

LOOK = 1.0
"""Seconds between two readings of the folder."""
LINES = 10.0
"""Seconds between two lines of output without a terminal."""


@dataclass(frozen=True)
class Status:
    """The progress of a study.

    Attributes
    ----------
    planned, finished : int
        Numbers of runs.
    under_way : dict
        Signs of life by run id: host, process, label, episode, episodes, started, updated.
    stalled : dict
        The signs of processes that are gone or have not updated them for long.
    failures : dict
        Message, episode, traceback and settings by run id.
    seconds_left : float or None
        An estimate; None if there is nothing to base it on yet.
    driven : bool
        Whether a process on this machine drives the study now.
    messages : list of str
        One for each damaged file.
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
        """Number of runs that have not begun, or were stopped before their end."""
        return self.planned - self.finished - len(self.failures) - len(self.under_way)


def status(store: Store, runs: Sequence[Run]) -> Status:
    """Read the progress of a study from its folder."""
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
    """Estimated time for the remaining runs, from finished runs of the same environment and agent and the number of running ones."""
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
            means[key] = max(0.0, now - sign["started"]) * run.episodes / sign["episode"]
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


class Watcher:
    """Shows overall and per-worker progress on standard error: bars on a terminal and in a notebook, otherwise occasional lines."""

    def __init__(self, store: Store, runs: Sequence[Run], waiting: Sequence[Run], workers: int) -> None:
        self.store, self.runs, self.workers = store, runs, workers
        self._shown = set(store.failed()) - {run.id for run in waiting}
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="opo_fast study progress", daemon=True)
        self._bars: Bars | None = None
        self._last_line = time.monotonic()

    def start(self) -> None:
        """Show the bars, and start the thread that updates them."""
        if wants_bars(None):
            self._bars = Bars()
            self._bars.set("", "runs", 0, len(self.runs), "kernels are compiled on first use")
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
        """Read the folder once, and show the progress."""
        with self._lock:
            now = status(self.store, self.runs)
            for id, failure in now.failures.items():
                if id not in self._shown:
                    self._shown.add(id)
                    self._say(f"failed: {failed_label(failure)}, episode {failure['episode']}: {failure['message']}", "red")
            failed = f", {len(now.failures)} failed" if now.failures else ""
            left = f"{duration(now.seconds_left)} left{failed}"
            if self._bars is not None:
                self._bars.set("", "runs", now.finished, len(self.runs), "" if last else left)
                self._bars.keep({"", *now.under_way})
                for id, sign in now.under_way.items():
                    self._bars.set(id, sign["label"], sign["episode"], sign["episodes"], f"on {sign['host']}, {sign['pid']}")
            elif last or time.monotonic() - self._last_line > LINES:
                self._last_line = time.monotonic()
                percent = figure(100 * now.finished / max(1, now.planned), ".0f")
                self._say(f"{now.finished:,} of {now.planned:,} runs ({percent} %){failed if last else f', {left}'}")

    def _say(self, line: str, style: str | None = None) -> None:
        if self._bars is not None:
            self._bars.say(line, style)
        else:
            sys.stderr.write(f"{printable(line)}\n")


def failed_label(failure: Mapping[str, Any]) -> str:
    """Environment, agent and seed of a failed run."""
    return f"{failure['environment']['label']} / {failure['agent']['label']} / seed {failure['seed']}"
