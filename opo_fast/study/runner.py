"""Running the unfinished runs of a study.

Workers and the driving process only communicate through the folder of the study: workers write signs of life, checkpoints, results and
failures there, and the driving process reads them. So progress works alike with every scheduler, and any process may die at any moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .._support.checks import MANY, as_integer, instance, one_of
from .._support.interrupts import interrupts
from .._support.progress import wants_bars
from .._support.threads import processors
from ..errors import OpoError
from . import checkpoint
from .build import check_names
from .file import Record, Study
from .grid import Run
from .origin import changes, origin
from .runfile import default_format, require_pyarrow
from .scheduler import SCHEDULERS, Scheduler, fan_out, require, warm_up
from .storage import Store
from .worker import STOPPED, Outcome, Task, covers, execute

__all__ = ["Summary", "run_study"]

Changed = Literal["ask", "redo", "keep"]


@dataclass(frozen=True)
class Summary:
    """How a call of `run_study` ended.

    Attributes
    ----------
    planned, done, failed : int
        Numbers of all runs of the study, of finished and of failed ones, including those of earlier calls.
    stopped : bool
        Whether Ctrl-C (or a stop file) ended it early.
    messages : tuple of str
        Files that were put aside or could not be written, and runs that had to begin again.
    """

    planned: int
    done: int
    failed: int
    stopped: bool
    messages: tuple[str, ...]


def run_study(
    study: Study,
    folder: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    scheduler: Scheduler = "loky",
    address: str | None = None,
    threads: int | None = None,
    retry_failed: bool = True,
    changed: Changed = "ask",
    progress: bool | None = None,
) -> Summary:
    """Do all runs of a study that are not finished yet.

    A failed run does not stop the study. After Ctrl-C the workers write checkpoints, from which the next call goes on; a second Ctrl-C
    stops at once.

    Parameters
    ----------
    study : Study
    folder : path, optional
        The folder of the study. Default: ``NAME-study`` in the working directory. Workers on other machines must have access to it.
    workers : int, optional
        Number of processes. Default: 1, which runs everything inside this process.
    scheduler : {"loky", "dask", "ray"}
        What joblib uses to start the processes. Dask and Ray are extras.
    address : str, optional
        Address of a running Dask scheduler or Ray cluster. Default: a local one is started and stopped.
    threads : int, optional
        Threads per worker, which never change a result. Default: the number of processors divided by the number of workers.
    retry_failed : bool
        Whether to try runs again that failed before.
    changed : {"ask", "redo", "keep"}
        What to do if files or modules, or the version of the package, have changed since some runs were finished: raise an error that
        names the changes, do these runs again, or keep them together with the new ones.
    progress : bool, optional
        Show bars. Default: on a terminal and in a notebook.

    Returns
    -------
    Summary

    Raises
    ------
    OpoError
        The folder cannot be written or belongs to another study, an extra is missing, the scheduler cannot be reached, or code or files
        have changed since some runs were finished.
    """
    instance(study, "study", Study, needed="an opo_fast.study.Study")
    workers = as_integer(1 if workers is None else workers, "workers", least=1, most=MANY)
    if threads is not None:
        threads = as_integer(threads, "threads", least=1, most=MANY)
    here = workers == 1 and scheduler == "loky"
    _check_choices(scheduler, changed, address, here)
    format = study.format or default_format()
    if format == "parquet":
        require_pyarrow()
    check_names(study)
    store = Store(f"{study.name}-study" if folder is None else folder)
    store.prepare(study)
    if threads is None and not here:
        threads = max(1, processors() // workers) if address is None else 1
    with store.locked():
        store.clean()
        messages = store.reindex()
        runs = study.runs()
        tasks = _tasks(study, store, runs, format, threads, scheduler == "loky", retry_failed, changed)
        for task in tasks:
            (store.failures / f"{task.run.id}.json").unlink(missing_ok=True)
        with _stopping(store) as interrupted, _watch(store, runs, tasks, workers, progress) as report:
            if tasks and here:
                outcomes = [_tell(execute(task), report) for task in tasks]
            elif tasks:
                warm_up(tasks)
                outcomes = fan_out(tasks, store, workers, scheduler, address, report)
            else:
                outcomes = []
            messages += [line for outcome in outcomes for line in outcome.message.split("\n") if line]
            stopped = interrupted() or store.stop_file.exists()
        store.clean()
        messages += store.reindex()
        done = _tidied(store, study.record)
        failed = store.failed()
    ids = {run.id for run in runs}
    return Summary(len(runs), len(ids & done.keys()), len(ids & failed.keys() - done.keys()), stopped, tuple(dict.fromkeys(messages)))


def _check_choices(scheduler: str, changed: str, address: str | None, here: bool) -> None:
    one_of(scheduler, "scheduler", SCHEDULERS)
    one_of(changed, "changed", ("ask", "redo", "keep"))
    if address is not None and scheduler == "loky":
        raise OpoError(f"address is {address!r}: only the schedulers 'dask' and 'ray' take one")
    if not here:
        require(scheduler)


def _tasks(
    study: Study, store: Store, runs: list[Run], format: str, threads: int | None, owned: bool, retry_failed: bool, changed: Changed
) -> list[Task]:
    """The runs to do: those that are not finished, and with `changed` = "redo" those that other code or files have done."""
    root = os.fspath(study.root.resolve())
    done = {id: meta for id, meta in _tidied(store, study.record).items() if covers(meta, study.record)}
    if changed != "keep":
        differing = _changed(runs, done, root)
        if differing and changed == "ask":
            what = "; ".join(dict.fromkeys(change for changes in differing.values() for change in changes))
            raise OpoError(
                f"{len(differing):,} of {len(done):,} finished runs were done before a change ({what}): --redo (changed='redo') does "
                "them again, --keep (changed='keep') keeps them together with the new ones"
            )
        done = {id: meta for id, meta in done.items() if id not in differing}
    failed = store.failed()
    driver, folder = (socket.gethostname(), os.getpid()), os.fspath(store.folder.resolve())
    return [
        Task(
            run=run,
            folder=folder,
            root=root,
            format=format,
            record=study.record,
            checkpoints=study.checkpoint,
            threads=threads,
            driver=driver,
            owned=owned,
            keep=changed == "keep",
            policy=run.seed == study.seeds[0],
        )
        for run in runs
        if run.id not in done and (retry_failed or run.id not in failed)
    ]


def _changed(runs: list[Run], done: Mapping[str, Mapping[str, Any]], root: str) -> dict[str, list[str]]:
    """What changed since each finished run was done."""
    origins: dict[tuple[str, str], dict[str, str]] = {}
    found = {}
    for run in runs:
        if run.id in done:
            pair = run.environment.key, run.agent.key
            if pair not in origins:
                origins[pair] = origin(run, root)
            differing = changes(done[run.id].get("origin"), origins[pair])
            if differing:
                found[run.id] = differing
    return found


def _tidied(store: Store, record: Record) -> dict[str, dict[str, Any]]:
    """The finished runs, after removing checkpoints and failures of theirs that a killed process left behind."""
    done, _ = store.finished()
    kept = {path.stem.rpartition("-")[0] for path in store.checkpoints.glob("[!.]*.ckpt")}
    for id in (kept | store.failed().keys()) & done.keys():
        if covers(done[id], record):
            checkpoint.remove(store.checkpoints, id)
            (store.failures / f"{id}.json").unlink(missing_ok=True)
    return done


def _tell(outcome: Outcome, report: Callable[[Outcome], None]) -> Outcome:
    report(outcome)
    return outcome


@contextlib.contextmanager
def _stopping(store: Store) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C ask all workers to write checkpoints and stop, and the second stop at once."""
    STOPPED.clear()

    def on_first() -> None:
        STOPPED.set()
        with contextlib.suppress(OSError):
            store.stop_file.touch()
        sys.stderr.write(
            "\nStopping: running runs write checkpoints. Ctrl-C again stops at once; they then resume from older checkpoints.\n"
        )

    try:
        with interrupts(signal.SIGTERM, on_first=on_first) as came:
            yield came
    finally:
        STOPPED.clear()


@contextlib.contextmanager
def _watch(store: Store, runs: list[Run], tasks: list[Task], workers: int, progress: bool | None) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress of the study, from a thread that reads its folder."""
    if not tasks or not wants_bars(progress):
        yield lambda outcome: None
        return
    from .progress import Watcher

    watcher = Watcher(store, runs, [task.run for task in tasks], workers)
    watcher.start()
    try:
        yield lambda outcome: watcher.look()
    finally:
        watcher.stop()
