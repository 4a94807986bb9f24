"""One setting under many seeds."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._support.checks import MANY, as_integer, as_items, as_path
from .._support.files import as_folder
from .._support.interrupts import interrupts
from .._support.progress import bar
from ..agents.oracle_agent import OracleAgent
from ..errors import OpoError
from ..kernels._simd import LANES
from ..model.contextual import ContextualMDP
from ..model.operations import Backend
from .lockstep import lockstep
from .makers import Maker
from .result import SimulationResult
from .saver import Saver
from .simulation import Simulation, play_out, read_run

__all__ = ["seed_numbers", "simulate_many"]


def seed_numbers(seeds: Any) -> Sequence[int]:
    """How many seeds, from 0 on, or which."""
    if isinstance(seeds, (int, np.integer)):
        return range(as_integer(seeds, "seeds", least=1, most=MANY))
    return [as_integer(seed, f"seeds[{i}]", least=0, most=None) for i, seed in enumerate(as_items(seeds, "seeds", "seeds"))]


def simulate_many(
    cmdp: ContextualMDP,
    make_agent: Callable[[int], Any],
    episodes: int,
    seeds: int | Sequence[int],
    *,
    progress: bool | None = None,
    backend: Backend = "numba",
    save: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> list[SimulationResult]:
    """`simulate` one setting under several seeds, to the same bits and in less time.

    Runs of `OPO` and `EUC3RL` over finite classes of small dense models go side by side, eight seeds at a time: what an episode asks of
    each is asked of all in one operation. All other runs are played one after the other.

    Parameters
    ----------
    cmdp : ContextualMDP
        The same for all runs: what it gives depends on its arguments alone.
    make_agent : callable
        ``make_agent(seed)`` makes a new agent, with oracles of its own. Runs go side by side only where these differ in nothing, which
        includes that they are given the same objects `FiniteLossClass` and `FiniteDynamicsClass`, or the same candidates.
    episodes : int
        T of each run, at least 1.
    seeds : int or sequence of int
        How many seeds, from 0 on, or which, none of them twice.
    progress : bool, optional
        A bar on standard error. Default: on a terminal, once two seconds have passed.
    backend : {"numba", "numpy"}
        As for `simulate`.
    save : path, optional
        A folder: the run of seed n is saved there as ``seed-n.npz`` every half minute, at its end and at Ctrl-C.
    resume : path, optional
        A folder that `save` wrote to: the runs that are found there go on, the others begin.

    Returns
    -------
    list of SimulationResult
        One for each seed, in their order. After Ctrl-C: of the seeds that were begun, each of the episodes that it finished, with
        ``interrupted`` set where some are missing.

    Raises
    ------
    OpoError
        As `simulate`; the error names the episode and the seeds that were under way.

    Examples
    --------
    >>> env = of.envs.make("random-finite", seed=1)
    >>> runs = of.simulate_many(env, lambda seed: of.OPO(env.layout, env.loss_class, env.dynamics_class), 50, seeds=3)
    >>> [run.settings["seed"] for run in runs]
    [0, 1, 2]
    """
    numbers = seed_numbers(seeds)
    if len(set(numbers)) != len(numbers):
        raise OpoError("seeds holds a seed twice: each gives one run")
    maker = Maker(make_agent, "make_agent")
    saved = None if save is None else as_folder(save, "save")
    folders = saved, None if resume is None else pathlib.Path(as_path(resume, "resume"))
    results: list[SimulationResult] = []
    for i in range(0, len(numbers), LANES):
        runs = _begun(cmdp, maker, episodes, numbers[i : i + LANES], backend, folders[1])
        results += _side_by_side(runs, progress, saved)
        if results and results[-1].interrupted:
            break
    return results


def _begun(cmdp: Any, make: Maker, episodes: int, seeds: Sequence[int], backend: Backend, folder: Any) -> list[Simulation]:
    """The runs of these seeds, where they were left or at their beginning."""
    runs = []
    for seed in seeds:
        agent = make(seed)
        if isinstance(agent, OracleAgent):
            # All agents are made before the first of them learns.
            agent.own_oracles()
        run = Simulation(cmdp, agent, episodes, seed, backend=backend)
        if folder is not None and os.path.exists(path := folder / f"seed-{seed}.npz"):
            run.restore(read_run(path))
        runs.append(run)
    return runs


def _side_by_side(runs: list[Simulation], progress: bool | None, folder: Any) -> list[SimulationResult]:
    """Play these runs to their ends, in lockstep where that is possible."""
    savers = [Saver(run, None if folder is None else folder / f"seed-{run.streams.seed}.npz") for run in runs]
    # Runs that were saved at different episodes meet at the latest of them.
    meeting = max(run.episode for run in runs)
    together, total = None, runs[0].episodes
    with bar(f"{runs[0].agent_name}, {len(runs)} seeds", total, progress) as shown, interrupts() as interrupted:
        try:
            with _telling(runs):
                for run, saver in zip(runs, savers, strict=True):
                    while run.episode < meeting and not interrupted():
                        run.step()
                        shown(run.episode, run.regret_so_far)
                        saver.save()
                together = None if interrupted() else lockstep(runs)
                while together is not None and runs[0].episode < total and not interrupted():
                    together.step()
                    shown(runs[0].episode, runs[0].regret_so_far)
                    for saver in savers:
                        saver.save()
        except KeyboardInterrupt:
            for saver in savers:
                saver.warn_of_loss()
            return [run.result(interrupted=run.episode < total) for run in runs]
        if together is not None or interrupted():
            for saver in savers:
                saver.save(now=True)
            return [run.result(interrupted=run.episode < total) for run in runs]
    return _one_by_one(runs, progress, savers)


def _one_by_one(runs: list[Simulation], progress: bool | None, savers: list[Saver]) -> list[SimulationResult]:
    results: list[SimulationResult] = []
    while runs and not (results and results[-1].interrupted):
        run = runs.pop(0)
        with _telling([run], episode=False):
            results.append(play_out(run, progress=progress, save=savers[len(results)].path))
    return results


@contextlib.contextmanager
def _telling(runs: list[Simulation], *, episode: bool = True) -> Iterator[None]:
    """Say of an error where it came from."""
    try:
        yield
    except Exception as error:
        if episode:
            error.add_note(f"in episode {min(run.episode for run in runs) + 1} of {runs[0].episodes}")
        error.add_note(f"with seed {', '.join(str(run.streams.seed) for run in runs)}")
        raise
