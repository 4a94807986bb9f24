"""One run of a study in a worker: it starts from the last checkpoint, if there is one, and writes signs of life."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .._support.checks import shown
from .._support.interrupts import shielded
from .._support.threads import get_threads, set_threads
from ..errors import OpoError
from ..runs.simulation import Simulation
from . import checkpoint, policies
from .build import make_agent, make_environment
from .file import Checkpoints, Record, record_data
from .grid import Run
from .origin import changes, origin, versions
from .recorder import Recorder
from .runfile import FORMAT
from .signs import running, this_process
from .storage import Store, StoreError, write_json

__all__ = ["STOPPED", "Life", "Outcome", "Task", "covers", "execute", "failure_of"]

BEAT = 1.0
"""Seconds between two signs of life, and between two checks whether to stop."""
COST = 0.02
"""Largest share of a run's time that checkpoints by the clock may take."""
STOPPED = threading.Event()
"""Set by Ctrl-C in the driving process, for the runs inside that process."""


@dataclass(frozen=True)
class Task:
    """A run with everything that a worker needs to know."""

    run: Run
    folder: str
    root: str
    format: str
    record: Record
    checkpoints: Checkpoints
    threads: int | None
    driver: tuple[str, int]
    owned: bool
    """Whether the worker belongs to the driving process (loky) and not to a cluster."""
    keep: bool = False
    """Whether to use a checkpoint from before a change of code or files."""
    policy: bool = False
    """Whether to store the learned policy for the report."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    id: str
    kind: Literal["done", "failed", "stopped"]
    message: str = ""


class Life:
    """The signs of life of a run, and whether it should stop."""

    def __init__(self, task: Task, store: Store) -> None:
        self.task, self.store = task, store
        self.path = store.running / f"{task.run.id}.json"
        self.sign = {
            **this_process(),
            "driver": list(task.driver),
            "label": task.run.label,
            "episodes": task.run.episodes,
            "started": time.time(),
        }
        self._next = 0.0
        # The first sign fails if the folder cannot be written, before hours of work.
        self.beat(0, must=True)

    def beat(self, episode: int, *, must: bool = False, **more: Any) -> None:
        """Write a sign of life with the run's progress; errors only count if it `must` be written."""
        self.sign.update(more)
        try:
            write_json(self.path, {**self.sign, "episode": episode, "updated": time.time()}, durable=False)
        except OpoError:
            if must:
                raise

    def due(self) -> bool:
        """Whether it is time for a sign of life."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + BEAT
        return True

    def to_stop(self) -> bool:
        """Whether the driving process asked the run to stop, or is gone."""
        return STOPPED.is_set() or self.store.stop_file.exists() or self.orphaned()

    def orphaned(self) -> bool:
        """Whether the driving process is gone, as far as can be seen from this machine."""
        host, pid = self.task.driver
        return host == self.sign["host"] and pid != os.getpid() and running(pid) is False

    def end(self) -> None:
        """Remove the sign of life."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def execute(task: Task) -> Outcome:
    """Do one run, from its last checkpoint if there is one; errors are stored and become an outcome."""
    inside = task.driver == (socket.gethostname(), os.getpid())
    if not inside and threading.current_thread() is threading.main_thread():
        # Ctrl-C goes to all processes of the terminal; the driving one asks the workers to stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = get_threads()
    if task.threads is not None:
        set_threads(task.threads)
    store = Store(task.folder)
    played = _Played()
    life: Life | None = None
    try:
        life = Life(task, store)
        if life.to_stop():
            return Outcome(task.run.id, "stopped")
        return _execute(task, store, life, played)
    except Exception as error:
        failure = failure_of(task, error, played.episode)
        try:
            store.write_failure(task.run.id, failure)
        except OpoError as second:
            reasons = dict.fromkeys([failure["message"], str(second)])
            return Outcome(task.run.id, "failed", f"{task.run.label}: {'; '.join(reasons)}")
        return Outcome(task.run.id, "failed")
    finally:
        if life is not None:
            life.end()
            if task.owned and life.orphaned():
                os._exit(1)  # Otherwise the loky worker would wait for further tasks for minutes.
        if task.threads is not None and inside:
            set_threads(before)


def failure_of(task: Task, error: BaseException, episode: int) -> dict[str, Any]:
    """The record of a failed run."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    kind = "" if isinstance(error, OpoError) else f"{type(error).__name__}: "
    return {
        "message": f"{kind}{error}{notes}" if str(error) else f"{type(error).__name__}{notes}",
        "episode": episode,
        "environment": task.run.environment.record(),
        "agent": task.run.agent.record(),
        "seed": task.run.seed,
        "time": time.time(),
        "host": socket.gethostname(),
        "traceback": "".join(traceback.format_exception(error)),
    }


@dataclass
class _Played:
    """The progress of a run, and messages about it."""

    episode: int = 0
    resumed: int = 0
    messages: list[str] = field(default_factory=list)


class _Saves:
    """Writes the checkpoints of a run when they are due."""

    def __init__(self, task: Task, store: Store, recorder: Recorder, origin: Mapping[str, str], played: _Played) -> None:
        self.task, self.store, self.recorder, self.origin, self.played = task, store, recorder, origin, played
        self._saved, self._able = recorder.simulation.episode, True
        self._next = time.monotonic() + task.checkpoints.seconds

    def due(self) -> bool:
        every = self.task.checkpoints.episodes
        return (every is not None and self.recorder.simulation.episode - self._saved >= every) or time.monotonic() >= self._next

    def save(self) -> None:
        """Write a checkpoint if there are new episodes; for an agent that cannot be saved, leave a message."""
        began, episode = time.monotonic(), self.recorder.simulation.episode
        if self._able and episode > self._saved:
            try:
                with shielded():
                    checkpoint.write(self.store.checkpoints, self.task.run.id, episode, self._content())
                    self._saved = episode
            except StoreError:
                raise
            except OpoError as error:
                self._able = False
                label = self.task.run.label
                self.played.messages.append(f"{label} has no checkpoints, and begins again if it is interrupted: {error}")
        took = time.monotonic() - began
        self._next = time.monotonic() + max(self.task.checkpoints.seconds, took / COST)

    def _content(self) -> dict[str, Any]:
        return {
            "version": versions()["opo_fast"],
            "origin": dict(self.origin),
            "record": record_data(self.task.record),
            "resumed": self.played.resumed,
            "recorder": self.recorder.state(),
        }


def _execute(task: Task, store: Store, life: Life, played: _Played) -> Outcome:
    run = task.run
    started = time.time()
    came_from = origin(run, task.root)
    environment = make_environment(run, task.root)
    recorder = _resumed(task, store, environment, came_from, played)
    simulation = recorder.simulation
    played.episode = simulation.episode
    life.beat(simulation.episode, messages=played.messages)
    saves = _Saves(task, store, recorder, came_from, played)
    while simulation.episode < run.episodes:
        if life.due():
            life.beat(simulation.episode, messages=played.messages)
            if life.to_stop():
                saves.save()
                return Outcome(run.id, "stopped", "\n".join(played.messages))
        if saves.due():
            saves.save()
        recorder.step()
        played.episode = simulation.episode
    meta = {
        "format": FORMAT,
        "version": 1,
        "id": run.id,
        "environment": run.environment.record(),
        "agent": run.agent.record(),
        "episodes": run.episodes,
        "seed": run.seed,
        "record": record_data(task.record),
        "versions": versions(),
        "origin": came_from,
        "host": socket.gethostname(),
        "started": started,
        "finished": time.time(),
        "resumed": played.resumed,
        "summary": recorder.summary(),
    }
    with shielded():
        if task.policy:
            policies.keep(store, run.id, simulation)
        store.write_run(meta, recorder.columns(), task.format)
    checkpoint.remove(store.checkpoints, run.id)
    (store.failures / f"{run.id}.json").unlink(missing_ok=True)
    return Outcome(run.id, "done", "\n".join(played.messages))


def _resumed(task: Task, store: Store, environment: Any, came_from: Mapping[str, str], played: _Played) -> Recorder:
    """The run at its last checkpoint, if that fits, or at its beginning."""
    recorder = Recorder(_simulation(task, environment), task.record)
    state, messages = checkpoint.latest(store.checkpoints, task.run.id)
    played.messages += messages
    if state is None:
        return recorder
    reason = _unfit(task, state, came_from)
    if reason is None:
        try:
            recorder.restore(state["recorder"])
            played.resumed = state["resumed"] + 1
            return recorder
        except OpoError as error:
            reason = str(error)
    played.messages.append(f"the checkpoint of {task.run.label} is ignored, and the run begins again: {reason}")
    return Recorder(_simulation(task, environment), task.record)


def _simulation(task: Task, environment: Any) -> Simulation:
    run = task.run
    agent = make_agent(run.agent, environment, run.episodes, run.seed, task.root)
    return Simulation(environment, agent, run.episodes, run.seed)


def _unfit(task: Task, state: dict[str, Any], came_from: Mapping[str, str]) -> str | None:
    """Why a checkpoint does not fit; its name already stands for environment, agent, episodes and seed."""
    missing = [name for name in ("version", "record", "resumed", "recorder") if name not in state]
    if missing:
        return f"it has no {missing[0]!r}"
    mine = versions()["opo_fast"]
    if state["version"] != mine:
        return f"it was written by opo_fast {state['version']}, and this is {mine}"
    if state["record"] != record_data(task.record):
        return "the study records something else now"
    if type(state["resumed"]) is not int:
        return f"its 'resumed' is {shown(state['resumed'])}"
    changed = changes(state.get("origin"), came_from)
    if changed and not task.keep:
        return f"it was written before a change of {', '.join(changed)} (--keep uses it anyway)"
    return None


def covers(stored: Mapping[str, Any], record: Record) -> bool:
    """Whether a stored run has everything that the study records now: all measures in all recorded episodes."""
    has = stored.get("record", {})
    return record.every % int(has.get("every", 1)) == 0 and set(record.measures) <= set(has.get("measures", ()))
