"""Runs of a study on existing schedulers: joblib, with its own processes (loky), Dask or Ray behind it.

The folder of the study is the only channel: workers write signs of life, checkpoints, results and failures there, and the
driving process reads them. So progress is the same under every scheduler, and any process may die at any moment.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import agents, envs
from .._support.checks import MANY, instance, whole
from .._support.threads import get_threads, set_threads
from ..errors import OpoError, install
from ..model.operations import evaluate, solve
from ..runs.simulation import Simulation
from . import checkpoint
from .file import Checkpoints, Record, Study
from .grid import Choice, Run
from .storage import Store, StoreError, default_format, read_json, require_pyarrow, running, versions, write_json

__all__ = ["Outcome", "Summary", "run_study"]

Array = npt.NDArray[Any]
Backend = Literal["loky", "dask", "ray"]

BEAT = 1.0
"""Seconds between signs of life, and between looks at whether to stop."""
COST = 0.02
"""Most of a run's time that checkpoints by the clock take."""
_stopped = threading.Event()
"""Set by Ctrl-C in the driving process, for runs inside it."""


@dataclass(frozen=True)
class Task:
    """A run with all that a worker needs to know."""

    run: Run
    folder: str
    root: str
    format: str
    record: Record
    checkpoints: Checkpoints
    threads: int | None
    driver: tuple[str, int]
    owned: bool
    """Whether the worker belongs to the driving process (loky) or to a cluster."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "done", "failed" or "stopped"."""

    id: str
    kind: str
    message: str = ""


@dataclass(frozen=True)
class Summary:
    """How a call of `run_study` ended.

    Attributes
    ----------
    planned, done, failed : int
        Runs of the study; those that are finished and those that failed, whenever that was.
    stopped : bool
        Whether Ctrl-C (or a stop file) ended it early.
    messages : tuple of str
        What was put aside, restarted or could not be written.
    """

    planned: int
    done: int
    failed: int
    stopped: bool
    messages: tuple[str, ...]


# -- one run -----------------------------------------------------------------------------------------------------------------


def load(path: str, root: str) -> Any:
    """The function of an import path ``module:function``; modules beside the study file are found too."""
    module, _, name = path.partition(":")
    added = root not in sys.path
    if added:
        sys.path.insert(0, root)
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise OpoError(f"{path!r}: there is no module {module!r}, neither installed nor in {root!r}") from None
        raise
    except AttributeError:
        raise OpoError(f"{path!r}: the module {module!r} has no {name!r}") from None
    finally:
        if added:
            with contextlib.suppress(ValueError):
                sys.path.remove(root)


_made: OrderedDict[str, Any] = OrderedDict()


def make_environment(choice: Choice, root: str) -> Any:
    """The environment of a run. Those of the package never change, so a worker keeps the last few."""
    if ":" in choice.name:
        return load(choice.name, root)(**choice.options)
    if choice.key not in _made:
        beside = pathlib.Path(root, choice.name)
        _made[choice.key] = envs.make(os.fspath(beside) if beside.is_file() else choice.name, **choice.options)
        while len(_made) > 4:
            _made.popitem(last=False)
    _made.move_to_end(choice.key)
    return _made[choice.key]


def make_agent(choice: Choice, environment: Any, episodes: int, seed: int, root: str) -> Any:
    """A fresh agent; ``episodes`` and ``seed`` are given to those that take them, unless the options have them."""
    if ":" not in choice.name:
        return agents.make(choice.name, environment, **{"episodes": episodes, "seed": seed, **choice.options})
    function = load(choice.name, root)
    known = inspect.signature(function).parameters
    given = {name: value for name, value in (("episodes", episodes), ("seed", seed)) if name in known}
    return function(environment, **{**given, **choice.options})


class Recorder:
    """The columns of a run: those of the simulation at the recorded episodes, and what is measured on the way."""

    def __init__(self, simulation: Simulation, record: Record) -> None:
        self.simulation, self.record = simulation, record
        total = simulation.episodes
        self.rows = np.unique(np.append(np.arange(record.every, total + 1, record.every), total))
        wanted: list[str] = [name for name in ("expected_regret", "seconds", "memory") if name in record.measures]
        self.measured: dict[str, Array] = {name: np.full(self.rows.size, np.nan) for name in wanted}
        self._line = 0
        self._looked = self._resident = 0.0
        self._models: list[tuple[Any, float, float]] | None = None
        if "expected_regret" in wanted:
            self._models = [
                (context, probability, float(solve(simulation.cmdp.mdp(context), backend=simulation.backend).v[0]))
                for context, probability in _finite_contexts(simulation.cmdp)
            ]

    def step(self) -> None:
        """Play an episode, and measure where it is recorded."""
        simulation = self.simulation
        recorded = simulation.episode + 1 == self.rows[self._line]
        if recorded and self._models is not None:
            self.measured["expected_regret"][self._line] = self._expected_regret(self._models)
        simulation.step()
        if recorded:
            if "seconds" in self.measured:
                self.measured["seconds"][self._line] = simulation.seconds
            if "memory" in self.measured:
                self.measured["memory"][self._line] = self._memory()
            self._line += 1

    def _memory(self) -> float:
        """Bytes in memory, looked up at most ten times a second."""
        now = time.monotonic()
        if now - self._looked > 0.1:
            self._looked, self._resident = now, _resident()
        return self._resident

    def _expected_regret(self, models: list[tuple[Any, float, float]]) -> float:
        total = 0.0
        for context, probability, best in models:
            mdp = self.simulation.cmdp.mdp(context)
            value = float(evaluate(mdp, self.simulation.agent.policy(context), backend=self.simulation.backend).v[0])
            total += probability * (value - best)
        return total

    def state(self) -> dict[str, Any]:
        """The simulation's state, and what was measured."""
        state = self.simulation.state()
        # Chains whose contexts are objects of the user's own are built again instead.
        if not checkpoint.holds(state.get("chains")):
            del state["chains"]
        return {"simulation": state, "measured": {name: column[: self._line] for name, column in self.measured.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.simulation.restore(state["simulation"])
        self._line = int(np.searchsorted(self.rows, self.simulation.episode, side="right"))
        for name, column in self.measured.items():
            known = state["measured"].get(name)
            if known is not None and len(known) == self._line:
                column[: self._line] = known

    def columns(self) -> dict[str, Array]:
        """The recorded columns."""
        result = self.simulation.result()
        at = self.rows - 1
        columns: dict[str, Array] = {
            "episode": self.rows.astype(np.int64),
            "value": result.value[at],
            "optimal_value": result.optimal_value[at],
            "uniform_value": result.uniform_value[at],
            "cumulative_regret": result.cumulative_regret[at],
            "cumulative_uniform_regret": np.cumsum(result.uniform_value - result.optimal_value)[at],
            "observed_loss": result.observed_loss[at],
            "context_index": result.context_index[at],
            "loss_fit": result.loss_fit[at],
            "dynamics_fit": result.dynamics_fit[at],
        }
        if "saturation" in self.record.measures:
            columns["saturation"] = result.saturation[at]
        if "model_switches" in self.record.measures:
            fits = np.stack([result.loss_fit, result.dynamics_fit])
            switched = np.append(0, (np.diff(fits, axis=1) != 0).any(axis=0))
            columns["model_switches"] = np.cumsum(switched)[at].astype(np.int64)
        return {**columns, **self.measured}

    def summary(self) -> dict[str, float]:
        """The numbers that a table of runs shows."""
        result = self.simulation.result()
        tail = slice(result.episodes - max(1, result.episodes // 10), None)
        numbers = {
            "regret": float(result.cumulative_regret[-1]),
            "uniform_regret": float((result.uniform_value - result.optimal_value).sum()),
            "last_regret": float(result.regret[tail].mean()),
            "gap_closed": result.gap_closed(tail),
            "saturation": float(result.saturation[tail].mean()),
            "seconds": self.simulation.seconds,
        }
        if "expected_regret" in self.measured:
            numbers["expected_regret"] = float(self.measured["expected_regret"][-1])
        if "memory" in self.measured:
            numbers["memory"] = float(self.measured["memory"].max())
        return numbers


def _finite_contexts(cmdp: Any) -> list[tuple[Any, float]]:
    probabilities = getattr(cmdp, "probabilities", None)
    if probabilities is None:
        raise OpoError("the expected regret over all contexts needs an environment with finitely many contexts: leave out expected_regret")
    contexts = getattr(cmdp, "contexts", None)
    contexts = range(len(probabilities)) if contexts is None else contexts
    return [(context, float(p)) for context, p in zip(contexts, probabilities, strict=True) if p > 0]


def _resident() -> float:
    """Bytes that this process has in memory."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        try:
            import resource
        except ImportError:
            return float("nan")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else 1024 * peak)


class Life:
    """Signs of life of a run, and whether it is to stop."""

    def __init__(self, task: Task, store: Store) -> None:
        self.task, self.store = task, store
        self.path = store.running / f"{task.run.id}.json"
        self.sign = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "driver": list(task.driver),
            "label": task.run.label,
            "episodes": task.run.episodes,
            "started": time.time(),
        }
        self._next = 0.0
        # The first sign also finds out, before hours of work, whether the folder can be written.
        self.beat(0, must=True)

    def beat(self, episode: int, *, must: bool = False, **more: Any) -> None:
        """Tell how far the run is."""
        self.sign.update(more)
        try:
            write_json(self.path, {**self.sign, "episode": episode, "updated": time.time()}, durable=False)
        except StoreError:
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
        """Whether the driving process asked for it, or is gone."""
        return _stopped.is_set() or self.store.stop_file.exists() or self.orphaned()

    def orphaned(self) -> bool:
        """Whether the driving process is gone, as far as can be seen from this machine."""
        host, pid = self.task.driver
        return host == self.sign["host"] and pid != os.getpid() and running(pid) is False

    def end(self) -> None:
        """No more signs."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def execute(task: Task) -> Outcome:
    """Do one run, from its last checkpoint where there is one; whatever happens to it becomes an outcome."""
    inside = task.driver == (socket.gethostname(), os.getpid())
    if not inside and threading.current_thread() is threading.main_thread():
        # Ctrl-C goes to all processes of the terminal; the driving one asks the workers to stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = get_threads()
    if task.threads is not None:
        set_threads(task.threads)
    store = Store(task.folder)
    where = {"episode": 0}
    life: Life | None = None
    try:
        life = Life(task, store)
        if life.to_stop():
            return Outcome(task.run.id, "stopped")
        return _execute(task, store, life, where)
    except Exception as error:
        failure = _failure(task, error, where["episode"])
        try:
            store.write_failure(task.run.id, failure)
        except StoreError as second:
            reasons = dict.fromkeys([failure["message"], str(second)])
            return Outcome(task.run.id, "failed", f"{task.run.label}: {'; '.join(reasons)}")
        return Outcome(task.run.id, "failed")
    finally:
        if life is not None:
            life.end()
            if task.owned and life.orphaned():
                os._exit(1)  # Nobody is there for an answer; loky's worker would wait for more tasks for minutes.
        if task.threads is not None and inside:
            set_threads(before)


def _failure(task: Task, error: BaseException, episode: int) -> dict[str, Any]:
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


def _execute(task: Task, store: Store, life: Life, where: dict[str, int]) -> Outcome:
    run = task.run
    started = time.time()
    environment = make_environment(run.environment, task.root)
    recorder = Recorder(_simulation(task, environment), task.record)
    state, messages = checkpoint.latest(store.checkpoints, run.id)
    resumed = 0
    if state is not None:
        reason = _unfit(task, state)
        if reason is None:
            try:
                recorder.restore(state["recorder"])
                resumed = int(state["resumed"]) + 1
            except OpoError as error:
                reason = str(error)
                recorder = Recorder(_simulation(task, environment), task.record)
        if reason is not None:
            messages.append(f"the checkpoint of {run.label} is left aside, and the run starts anew: {reason}")
    simulation = recorder.simulation
    where["episode"] = simulation.episode
    life.beat(simulation.episode, messages=messages)
    saved, able = simulation.episode, True
    next_save = time.monotonic() + task.checkpoints.seconds
    every = task.checkpoints.episodes

    def save() -> None:
        nonlocal saved, next_save
        began = time.monotonic()
        if able and simulation.episode > saved:
            content = {"version": versions()["opo_fast"], "record": _kept(task.record), "resumed": resumed, "recorder": recorder.state()}
            checkpoint.write(store.checkpoints, run.id, simulation.episode, content)
            saved = simulation.episode
        took = time.monotonic() - began
        next_save = time.monotonic() + max(task.checkpoints.seconds, took / COST)

    while simulation.episode < run.episodes:
        if life.due():
            life.beat(simulation.episode, messages=messages)
            if life.to_stop():
                save()
                return Outcome(run.id, "stopped", "\n".join(messages))
        if (every is not None and simulation.episode - saved >= every) or time.monotonic() >= next_save:
            try:
                save()
            except StoreError:
                raise
            except OpoError as error:
                able = False
                messages.append(f"{run.label} has no checkpoints and starts anew when it is interrupted: {error}")
        recorder.step()
        where["episode"] = simulation.episode
    meta = {
        "format": "opo_fast.study",
        "version": 1,
        "id": run.id,
        "environment": run.environment.record(),
        "agent": run.agent.record(),
        "episodes": run.episodes,
        "seed": run.seed,
        "record": _kept(task.record),
        "versions": versions(),
        "host": socket.gethostname(),
        "started": started,
        "finished": time.time(),
        "resumed": resumed,
        "summary": recorder.summary(),
    }
    store.write_run(meta, recorder.columns(), task.format)
    checkpoint.remove(store.checkpoints, run.id)
    (store.failures / f"{run.id}.json").unlink(missing_ok=True)
    return Outcome(run.id, "done", "\n".join(messages))


def _simulation(task: Task, environment: Any) -> Simulation:
    run = task.run
    agent = make_agent(run.agent, environment, run.episodes, run.seed, task.root)
    return Simulation(environment, agent, run.episodes, run.seed)


def _kept(record: Record) -> dict[str, Any]:
    return {"every": record.every, "measures": list(record.measures)}


def _unfit(task: Task, state: dict[str, Any]) -> str | None:
    """Why a checkpoint is not of this run; its name already says environment, agent, episodes and seed."""
    mine = versions()["opo_fast"]
    if state["version"] != mine:
        return f"it was written by opo_fast {state['version']}, and this is {mine}"
    if state["record"] != _kept(task.record):
        return "the study records something else now"
    return None


def covers(stored: dict[str, Any], record: Record) -> bool:
    """Whether a stored run has what the study records now: all measures, at all recorded episodes."""
    has = stored.get("record", {})
    return record.every % int(has.get("every", 1)) == 0 and set(record.measures) <= set(has.get("measures", ()))


# -- many runs ---------------------------------------------------------------------------------------------------------------


def run_study(
    study: Study,
    folder: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    backend: Backend = "loky",
    address: str | None = None,
    threads: int | None = None,
    retry_failed: bool = True,
    progress: bool | None = None,
) -> Summary:
    """Do all runs of a study that are not finished; finished ones are never done again.

    Parameters
    ----------
    study : Study
    folder : path, optional
        Where everything is kept. Default: ``NAME-study`` in the working directory. With workers on other machines it must
        be a folder that they see too.
    workers : int, optional
        Processes. Default: 1, inside this process.
    backend : {"loky", "dask", "ray"}
        What starts the processes, through joblib. Dask and Ray are extras.
    address : str, optional
        Of a Dask scheduler or a Ray cluster that is running. Default: a local one is started and stopped.
    threads : int, optional
        Per worker. Default: the processors shared out among the workers; never changes a result.
    retry_failed : bool
        Whether runs that failed before are tried again.
    progress : bool, optional
        Bars on standard error. Default: on a terminal.

    Returns
    -------
    Summary
        A failed run never stops the study. After Ctrl-C the workers write checkpoints, and the next call goes on from
        them; a second Ctrl-C stops at once.

    Raises
    ------
    OpoError
        The folder cannot be written or belongs to another study, an extra is missing, a scheduler cannot be reached.
    """
    instance(study, "study", Study, needed="an opo_fast.study.Study")
    workers = whole(1 if workers is None else workers, "workers", least=1, most=MANY)
    if threads is not None:
        threads = whole(threads, "threads", least=1, most=MANY)
    if backend not in ("loky", "dask", "ray"):
        raise OpoError(f"backend is {backend!r}: 'loky', 'dask' or 'ray' is needed")
    if address is not None and backend == "loky":
        raise OpoError(f"address is {address!r}: only the backends 'dask' and 'ray' take one")
    here = workers == 1 and backend == "loky"
    if not here:
        _require(backend)
    format = study.format or default_format()
    if format == "parquet":
        require_pyarrow()
    _check_names(study)
    store = Store(f"{study.name}-study" if folder is None else folder)
    store.prepare(study)
    if threads is None and not here:
        threads = max(1, processors() // workers) if address is None else 1
    with store.locked():
        store.clean()
        messages = store.reindex()
        runs = study.runs()
        done = _tidied(store, study.record)
        failed = store.failed()
        driver = (socket.gethostname(), os.getpid())
        root = os.fspath(study.root.resolve())
        tasks = [
            Task(run, os.fspath(store.folder.resolve()), root, format, study.record, study.checkpoint, threads, driver, backend == "loky")
            for run in runs
            if not (run.id in done and covers(done[run.id], study.record)) and (retry_failed or run.id not in failed)
        ]
        for task in tasks:
            (store.failures / f"{task.run.id}.json").unlink(missing_ok=True)
        with _interrupts(store) as interrupted, _watch(store, runs, tasks, workers, progress) as told:
            if tasks:
                if not here:
                    _warm_up(tasks)
                outcomes = (
                    [_tell(execute(task), told) for task in tasks] if here else _fan_out(tasks, store, workers, backend, address, told)
                )
                messages += [line for outcome in outcomes for line in outcome.message.split("\n") if line]
            stopped = interrupted() or store.stop_file.exists()
        store.clean()
        messages += store.reindex()
        done = _tidied(store, study.record)
        failed = store.failed()
    ids = {run.id for run in runs}
    return Summary(len(runs), len(ids & done.keys()), len(ids & failed.keys() - done.keys()), stopped, tuple(dict.fromkeys(messages)))


def _tidied(store: Store, record: Record) -> dict[str, dict[str, Any]]:
    """The finished runs. What a process that was killed right after storing one did not remove any more is removed."""
    done, _ = store.finished()
    kept = {path.stem.rpartition("-")[0] for path in store.checkpoints.glob("[!.]*.ckpt")}
    for id in (kept | store.failed().keys()) & done.keys():
        if covers(done[id], record):
            checkpoint.remove(store.checkpoints, id)
            (store.failures / f"{id}.json").unlink(missing_ok=True)
    return done


def _tell(outcome: Outcome, told: Callable[[Outcome], None]) -> Outcome:
    told(outcome)
    return outcome


def _check_names(study: Study) -> None:
    """Refuse unknown names before anything is run; import paths are looked at by the runs themselves."""
    for kind, known in (("environments", envs.names()), ("agents", agents.names())):
        for i, entry in enumerate(getattr(study, kind)):
            if ":" not in entry.name and entry.name not in known and not (study.root / entry.name).is_file():
                raise OpoError(
                    f"{kind}[{i}].name is {entry.name!r}: one of {', '.join(known)}, or an import path 'module:function', is needed"
                )


def _require(backend: str) -> None:
    packages = {"loky": ("joblib",), "dask": ("joblib", "distributed"), "ray": ("joblib", "ray")}[backend]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = "study" if package == "joblib" else backend
            raise OpoError(f"the backend {backend!r} needs {package}: {install(extra)}")


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _warm_up(tasks: Sequence[Task]) -> None:
    """Compile the kernels that the study needs once, into the cache that the workers share.

    One tiny run for each pair of built-in environment and agent. What fails here fails in its own run, with a report.
    """
    seen = set()
    for task in tasks:
        run = task.run
        kind = (run.environment.key, run.agent.name)
        if kind in seen or ":" in run.environment.name or ":" in run.agent.name:
            continue
        seen.add(kind)
        with contextlib.suppress(Exception):
            environment = make_environment(run.environment, task.root)
            simulation = Simulation(environment, make_agent(run.agent, environment, run.episodes, run.seed, task.root), 3, run.seed)
            while simulation.episode < 3:
                simulation.step()
    _made.clear()


def _fan_out(
    tasks: list[Task], store: Store, workers: int, backend: Backend, address: str | None, told: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run the tasks in processes. When one dies, the runs that were under way are suspects: they go on at the end, one at a
    time, so that the one that kills its process is known."""
    outcomes: dict[str, Outcome] = {}
    suspects: list[Task] = []
    waiting = list(tasks)
    with _cluster(backend, workers, address) as parallel:
        while waiting:
            try:
                outcomes.update((outcome.id, outcome) for outcome in parallel(waiting))
                break
            except OpoError:
                raise
            except Exception as error:
                under_way = store.under_way()
                ended = store.finished()[0].keys() | store.failed().keys()
                died = [task for task in waiting if task.run.id in under_way and task.run.id not in ended]
                if not died and not any(task.run.id in ended for task in waiting):
                    raise OpoError(f"the backend {backend!r} failed before any run began: {type(error).__name__}: {error}") from error
                suspects += died
                waiting = [task for task in waiting if task not in died and task.run.id not in ended]
                for task in died:
                    (store.running / f"{task.run.id}.json").unlink(missing_ok=True)
        for task in suspects:
            if _stopped.is_set() or store.stop_file.exists():
                break
            try:
                outcome = parallel([task])[0]
            except Exception as error:
                outcome = _killed(task, store, error)
            outcomes[outcome.id] = _tell(outcome, told)
    return list(outcomes.values())


def _killed(task: Task, store: Store, error: Exception) -> Outcome:
    sign = read_json(store.running / f"{task.run.id}.json") or {}
    (store.running / f"{task.run.id}.json").unlink(missing_ok=True)
    reason = OpoError(
        f"the worker process died (killed, out of memory, or crashed in native code) after episode {sign.get('episode', 0)}, twice; "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    )
    failure = _failure(task, reason, int(sign.get("episode", 0)))
    try:
        store.write_failure(task.run.id, failure)
    except StoreError as second:
        return Outcome(task.run.id, "failed", f"{task.run.label}: {failure['message']}; {second}")
    return Outcome(task.run.id, "failed")


@contextlib.contextmanager
def _cluster(backend: Backend, workers: int, address: str | None) -> Iterator[Callable[[list[Task]], list[Outcome]]]:
    """A function that runs tasks on a scheduler through joblib; a local cluster ends with it."""
    import joblib

    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {}
        jobs = max(2, workers)
        if backend == "dask":
            distributed: Any = importlib.import_module("distributed")
            where: Any = address
            if address is None:
                # Processes are spawned, never forked: a fork after OpenMP started would die.
                where = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
                    )
                )
            try:
                client = stack.enter_context(distributed.Client(where, timeout="20s", set_as_default=False))
            except (OSError, ValueError) as error:
                raise OpoError(f"address is {address!r}: no Dask scheduler answers there ({error})") from None
            options, jobs = {"client": client}, -1
        elif backend == "ray":
            ray: Any = importlib.import_module("ray")
            importlib.import_module("ray.util.joblib").register_ray()
            if not ray.is_initialized():
                try:
                    if address is None:
                        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
                    else:
                        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                except (ConnectionError, RuntimeError, ValueError) as error:
                    raise OpoError(f"address is {address!r}: no Ray cluster answers there ({error})") from None
                stack.callback(ray.shutdown)
            jobs = workers

        def parallel(tasks: list[Task]) -> list[Outcome]:
            inner = {"inner_max_num_threads": tasks[0].threads} if backend == "loky" else {}
            with joblib.parallel_config(backend=backend, **inner, **options):
                return list(joblib.Parallel(n_jobs=jobs, batch_size=1)(joblib.delayed(execute)(task) for task in tasks))

        yield parallel


@contextlib.contextmanager
def _interrupts(store: Store) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks all workers to write checkpoints and stop; the second stops at once."""
    _stopped.clear()

    def note(number: int, frame: Any) -> None:
        if _stopped.is_set():
            raise KeyboardInterrupt
        _stopped.set()
        with contextlib.suppress(OSError):
            store.stop_file.touch()
        sys.stderr.write("\nStopping: the runs under way write checkpoints. Ctrl-C again stops at once.\n")

    mine = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)} if mine else {}
    try:
        yield _stopped.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _stopped.clear()


@contextlib.contextmanager
def _watch(store: Store, runs: list[Run], tasks: list[Task], workers: int, progress: bool | None) -> Iterator[Callable[[Outcome], None]]:
    """Show how the study is going, from a thread that reads its folder."""
    if not tasks or progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda outcome: None
        return
    from .progress import Watcher

    watcher = Watcher(store, runs, [task.run for task in tasks], workers)
    watcher.start()
    try:
        yield lambda outcome: watcher.look()
    finally:
        watcher.stop()
