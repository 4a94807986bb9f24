"""Schedulers for the runs of a study: joblib with loky, Dask or Ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ..errors import OpoError, install
from ..runs.simulation import Simulation
from .build import forget, make_agent, make_environment
from .storage import Store, read_json
from .worker import STOPPED, Outcome, Task, execute, failure_of

__all__ = ["SCHEDULERS", "Scheduler", "fan_out", "require", "warm_up"]

Scheduler = Literal["loky", "dask", "ray"]
SCHEDULERS = ("loky", "dask", "ray")
Parallel = Callable[[list[Task]], list[Outcome]]


def require(scheduler: str) -> None:
    """Refuse a scheduler if its packages are not installed."""
    packages = {"loky": ("joblib",), "dask": ("joblib", "distributed"), "ray": ("joblib", "ray")}[scheduler]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = "study" if package == "joblib" else scheduler
            raise OpoError(f"the scheduler {scheduler!r} needs {package}: {install(extra)}")


def warm_up(tasks: Sequence[Task]) -> None:
    """Compile the kernels that the study needs into the cache that the workers share.

    It plays a tiny run for each pair of a built-in environment and agent. Errors are ignored: they come up again in the run itself, which
    reports them.
    """
    seen = set()
    for task in tasks:
        run = task.run
        kind = (run.environment.key, run.agent.name)
        if kind in seen or ":" in run.environment.name or ":" in run.agent.name:
            continue
        seen.add(kind)
        with contextlib.suppress(Exception):
            environment = make_environment(run, task.root)
            simulation = Simulation(environment, make_agent(run.agent, environment, run.episodes, run.seed, task.root), 3, run.seed)
            while simulation.episode < 3:
                simulation.step()
    forget()


def fan_out(
    tasks: list[Task], store: Store, workers: int, scheduler: Scheduler, address: str | None, report: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run the tasks in processes.

    If a process dies, all runs that were under way are suspects. They are resumed at the end, one at a time, which shows which run kills
    its process.
    """
    outcomes: dict[str, Outcome] = {}
    suspects: list[Task] = []
    waiting = list(tasks)
    with _cluster(scheduler, workers, address) as parallel:
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
                    raise OpoError(f"the scheduler {scheduler!r} failed before any run began: {type(error).__name__}: {error}") from error
                suspects += died
                waiting = [task for task in waiting if task not in died and task.run.id not in ended]
                for task in died:
                    (store.running / f"{task.run.id}.json").unlink(missing_ok=True)
        for task in suspects:
            if STOPPED.is_set() or store.stop_file.exists():
                break
            try:
                outcome = parallel([task])[0]
            except Exception as error:
                outcome = _killed(task, store, error)
            outcomes[outcome.id] = outcome
            report(outcome)
    return list(outcomes.values())


def _killed(task: Task, store: Store, error: Exception) -> Outcome:
    sign = read_json(store.running / f"{task.run.id}.json")
    (store.running / f"{task.run.id}.json").unlink(missing_ok=True)
    episode = sign.get("episode", 0) if isinstance(sign, dict) else 0
    reason = OpoError(
        f"the worker process died (killed, out of memory, or crashed in native code) after episode {episode}, twice; "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    )
    failure = failure_of(task, reason, int(episode))
    try:
        store.write_failure(task.run.id, failure)
    except OpoError as second:
        return Outcome(task.run.id, "failed", f"{task.run.label}: {failure['message']}; {second}")
    return Outcome(task.run.id, "failed")


@contextlib.contextmanager
def _cluster(scheduler: Scheduler, workers: int, address: str | None) -> Iterator[Parallel]:
    """Yield a function that runs tasks through joblib; a local cluster is stopped at the end."""
    import joblib

    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {}
        jobs = max(2, workers)
        if scheduler == "dask":
            options, jobs = {"client": _dask(stack, workers, address)}, -1
        elif scheduler == "ray":
            _ray(stack, workers, address)
            jobs = workers

        def parallel(tasks: list[Task]) -> list[Outcome]:
            inner = {"inner_max_num_threads": tasks[0].threads} if scheduler == "loky" else {}
            with joblib.parallel_config(backend=scheduler, **inner, **options):
                return list(joblib.Parallel(n_jobs=jobs, batch_size=1)(joblib.delayed(execute)(task) for task in tasks))

        yield parallel


def _dask(stack: contextlib.ExitStack, workers: int, address: str | None) -> Any:
    """A client of the Dask scheduler at `address`, or of a local cluster."""
    distributed: Any = importlib.import_module("distributed")
    where: Any = address
    if address is None:
        # Processes are spawned, since a fork after OpenMP has started would die.
        where = stack.enter_context(
            distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50)
        )
    try:
        return stack.enter_context(distributed.Client(where, timeout="20s", set_as_default=False))
    except (OSError, ValueError) as error:
        raise OpoError(f"address is {address!r}: no Dask scheduler answers there ({error})") from None


def _ray(stack: contextlib.ExitStack, workers: int, address: str | None) -> None:
    """Connect to the Ray cluster at `address`, or start a local one."""
    ray: Any = importlib.import_module("ray")
    importlib.import_module("ray.util.joblib").register_ray()
    if ray.is_initialized():
        return
    try:
        if address is None:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise OpoError(f"address is {address!r}: no Ray cluster answers there ({error})") from None
    stack.callback(ray.shutdown)
