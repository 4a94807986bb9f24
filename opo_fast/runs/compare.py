"""Comparison of agents in one environment, on common random numbers."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import agents as registry
from .._support.checks import as_integer, as_items, having, instance
from .._support.files import as_folder
from .._support.progress import bar
from ..agents.base import difference
from ..errors import OpoError
from ..model.contextual import ContextualMDP, Trajectory
from ..model.streams import Streams
from .makers import Maker
from .many import seed_numbers
from .plots import regret_curves
from .result import SimulationResult
from .simulation import simulate
from .statistics import Estimate, estimate, growth_exponent

__all__ = ["AgentSummary", "Comparison", "compare"]

Array = npt.NDArray[Any]


class AgentSummary(NamedTuple):
    """One agent of a comparison: means over the seeds, with 95 % bootstrap intervals.

    Attributes
    ----------
    agent : str
    regret : Estimate
        Cumulative regret of the whole run.
    gap_closed : Estimate
        Share of the gap between the uniform policy and the optimum that the last tenth of the episodes closes.
    exponent : Estimate
        b of the regret's growth T^b, without the first tenth of the run (`runs.statistics.growth_exponent`); 1 is linear.
    saturation : float
        Share of the bonuses at their cap in the last tenth; NaN for agents without bonuses.
    planning_calls : float
        Backward inductions per run, each at one context; a step of a chain counts as one.
    milliseconds : Estimate
        Processor time per episode, summed over all threads, that the agent spends in ``policy``, ``observe`` and ``prefetch``.
    """

    agent: str
    regret: Estimate
    gap_closed: Estimate
    exponent: Estimate
    saturation: float
    planning_calls: float
    milliseconds: Estimate


class Comparison:
    """The result of `compare`.

    Attributes
    ----------
    environment : str
    results : dict of str to list of SimulationResult
        The runs of each agent, in the order of the seeds. Their ``settings`` also have ``agent_seconds`` and ``planning_calls``.
    interrupted : bool
        Whether Ctrl-C ended the comparison early; `results` then has the runs that were finished.
    """

    def __init__(self, environment: str, results: Mapping[str, Sequence[SimulationResult]], *, interrupted: bool = False) -> None:
        self.environment, self.interrupted = environment, interrupted
        self.results = {label: list(runs) for label, runs in results.items()}

    def summary(self) -> list[AgentSummary]:
        """One line for each agent that has finished a run, sorted by regret."""
        lines = [_summary(label, runs) for label, runs in self.results.items() if runs]
        return sorted(lines, key=lambda line: line.regret.mean)

    def difference(self, first: str, second: str) -> Estimate:
        """Regret of `first` minus that of `second`, paired by the seeds that both have finished."""
        for label in (first, second):
            if label not in self.results:
                raise OpoError(f"there is no agent {label!r} in this comparison: one of {', '.join(self.results)} is needed")
        totals = [{run.settings["seed"]: run.cumulative_regret[-1] for run in self.results[label]} for label in (first, second)]
        return estimate([totals[0][seed] - totals[1][seed] for seed in totals[0] if seed in totals[1]])

    def plot(self, path: str | os.PathLike[str] | None = None, *, axes: Any = None, log: bool = False, beside: bool = True) -> Any:
        """Plot the mean cumulative regret of each agent with a band of the middle 80 % of its runs; see `plots.regret_curves`."""
        results = {line.agent: self.results[line.agent] for line in self.summary()}
        if not results:
            raise OpoError("no run was finished: there is nothing to draw")
        return regret_curves(results, path, axes=axes, title=self.environment, log=log, beside=beside)

    def __repr__(self) -> str:
        runs = sum(map(len, self.results.values()))
        return f"<Comparison on {self.environment}: {len(self.results)} agents, {runs} runs>"


def _summary(label: str, runs: Sequence[SimulationResult]) -> AgentSummary:
    tails = [slice(run.episodes - max(1, run.episodes // 10), None) for run in runs]
    exponents = [growth_exponent(np.arange(1, run.episodes + 1), run.cumulative_regret) for run in runs]
    saturations = [run.saturation[tail] for run, tail in zip(runs, tails, strict=True)]
    known = [float(s.mean()) for s in saturations if not np.isnan(s).any()]
    return AgentSummary(
        label,
        estimate([run.cumulative_regret[-1] for run in runs]),
        estimate([run.gap_closed(tail) for run, tail in zip(runs, tails, strict=True)]),
        estimate(exponents),
        float(np.mean(known)) if known else float("nan"),
        float(np.mean([run.settings["planning_calls"] for run in runs])),
        estimate([1e3 * run.settings["agent_seconds"] / run.episodes for run in runs]),
    )


class _Timed:
    """An agent whose calls are timed, in processor time, so that other work on the machine does not count."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.agent_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def policy(self, context: Any) -> Array:
        began = time.process_time()
        policy: Array = self._agent.policy(context)
        self.agent_seconds += time.process_time() - began
        return policy

    def observe(self, trajectory: Trajectory) -> None:
        began = time.process_time()
        self._agent.observe(trajectory)
        self.agent_seconds += time.process_time() - began

    def prefetch(self, contexts: Sequence[Any]) -> None:
        began = time.process_time()
        self._agent.prefetch(contexts)
        self.agent_seconds += time.process_time() - began


def compare(
    cmdp: ContextualMDP,
    agents: Sequence[str] | Mapping[str, str | Callable[[int], Any]] | None = None,
    episodes: int = 1000,
    seeds: int | Sequence[int] = 20,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run several agents on the same seeds: each seed gives all of them the same contexts and the same uniforms.

    Parameters
    ----------
    cmdp : ContextualMDP
    agents : sequence of str, or mapping from a label to a name or to a callable, optional
        Names from `opo_fast.agents.names`, or your own labels, each with such a name or with a function ``make(seed)`` that returns a
        new agent. Default: all agents that can play this layout, and the optimum.
    episodes : int
        T of each run.
    seeds : int or sequence of int
        The seeds, or their number: n stands for 0, ..., n - 1.
    options : mapping from a label to keyword arguments, optional
        Keyword arguments of `opo_fast.agents.make`, for agents given by name. Default: the practical setting of each agent.
    folder : path, optional
        Save each finished run there; runs that are there already and were played with the same arguments are read instead of played.
    progress : bool, optional
        Show a bar. Default: on a terminal and in a notebook, once two seconds have passed.

    Returns
    -------
    Comparison
        After Ctrl-C, with the runs that were finished.
    """
    episodes = as_integer(episodes, "episodes", least=1)
    having(cmdp, "cmdp", ("layout", "sample_context", "mdp"), "a ContextualMDP")
    numbers = seed_numbers(seeds)
    makers, given = _makers(cmdp, agents, options)
    place = None if folder is None else as_folder(folder, "folder")
    environment = str(getattr(cmdp, "name", type(cmdp).__name__))
    model = "" if place is None else _fingerprint(cmdp)
    results: dict[str, list[SimulationResult]] = {label: [] for label in makers}
    warm: set[str] = set()
    with bar("runs", len(makers) * len(numbers), progress) as shown:
        try:
            for seed in numbers:
                for label, maker in makers.items():
                    # Only the agent itself knows the settings of one that a function makes.
                    agent = maker(seed) if place is not None and isinstance(maker, Maker) else None
                    identity = _identity(cmdp, environment, model, label, maker, episodes, seed, given[label], agent)
                    path = None if place is None else place / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', label)}-seed{seed}.npz"
                    run = _saved(path, identity)
                    if run is None:
                        run = _played(cmdp, label, maker, episodes, seed, given[label], warm, agent)
                        run.settings["comparison"] = identity
                        if path is not None:
                            run.save(path)
                    results[label].append(run)
                    shown(sum(map(len, results.values())), f"{label}, seed {seed}")
        except KeyboardInterrupt:
            return Comparison(environment, results, interrupted=True)
    return Comparison(environment, results)


def _makers(cmdp: Any, agents: Any, options: Any) -> tuple[dict[str, str | Maker], dict[str, dict[str, Any]]]:
    """The agents by label, and the options of each."""
    chosen = registry.names(cmdp.layout) if agents is None else agents
    makers = (
        dict(chosen) if isinstance(chosen, Mapping) else {registry.info(name).name: name for name in as_items(chosen, "agents", "names")}
    )
    if not makers:
        raise OpoError("agents: at least one agent is needed, got none")
    makers = {label: maker if isinstance(maker, str) else Maker(maker, f"agents[{label!r}]") for label, maker in makers.items()}
    options = {} if options is None else options
    instance(options, "options", Mapping, needed="a mapping from labels to keyword arguments")
    for label in options:
        if label not in makers:
            raise OpoError(f"options has {label!r}, which is not one of the agents: {', '.join(makers)}")
        instance(options[label], f"options[{label!r}]", Mapping, needed="a mapping from names of arguments to their values")
    return makers, {label: dict(options.get(label, {})) for label in makers}


def _played(
    cmdp: ContextualMDP, label: str, maker: str | Maker, episodes: int, seed: int, options: Mapping[str, Any], warm: set[str], agent: Any
) -> SimulationResult:
    """Play one run, and time the agent; raises KeyboardInterrupt if the run was interrupted."""
    if label not in warm:
        # A short run first, so that compilation is not timed.
        simulate(cmdp, _made(maker, cmdp, episodes, seed, options), min(episodes, 3), seed, progress=False)
        warm.add(label)
    timed = _Timed(_made(maker, cmdp, episodes, seed, options) if agent is None else agent)
    run = simulate(cmdp, timed, episodes, seed, progress=False)
    if run.interrupted:
        raise KeyboardInterrupt
    calls = getattr(timed, "planning_calls", float("nan"))
    used = {**(registry.practical(maker) if isinstance(maker, str) else {}), **options}
    run.settings.update(agent=label, agent_seconds=timed.agent_seconds, planning_calls=calls, options=used)
    return run


def _made(maker: str | Maker, cmdp: Any, episodes: int, seed: int, options: Mapping[str, Any]) -> Any:
    if isinstance(maker, str):
        return registry.make(maker, cmdp, episodes=episodes, seed=seed, **options)
    if options:
        raise OpoError("options are only for agents given by name: set those of a function inside it")
    return maker(seed)


def _fingerprint(cmdp: ContextualMDP) -> str:
    """A checksum of the models at the contexts of the first episodes, which tells an edited environment from the one before."""
    found = hashlib.blake2b(digest_size=8)
    streams = Streams(0, cmdp.layout.horizon)
    for episode in range(8):
        mdp = cmdp.mdp(cmdp.sample_context(streams.generator("contexts", episode)))
        t = mdp.transitions
        for array in (mdp.losses, t.data, t.indptr, t.indices, t.block):
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _identity(
    cmdp: Any,
    environment: str,
    model: str,
    label: str,
    maker: str | Maker,
    episodes: int,
    seed: int,
    options: Mapping[str, Any],
    agent: Any,
) -> str:
    from .. import __version__

    setting = registry.practical(maker) if isinstance(maker, str) else {}
    parts = {
        "environment": environment,
        "model": model,
        "layout": repr(cmdp.layout),
        "label": label,
        "agent": maker if isinstance(maker, str) else "make(seed)",
        "episodes": episodes,
        "seed": int(seed),
        "options": {**setting, **options},
        "opo_fast": __version__,
    }
    if callable(getattr(agent, "settings", None)):
        parts["settings"] = agent.settings()
    return json.dumps(parts, sort_keys=True, default=repr)


def _saved(path: pathlib.Path | None, identity: str) -> SimulationResult | None:
    if path is None or not os.path.exists(path):
        return None
    run = SimulationResult.load(path)
    theirs = run.settings.get("comparison")
    if theirs != identity:
        what = "is not a run of a comparison"
        if theirs is not None:
            old, new = _parts(theirs), _parts(identity)
            # Files of older versions have no settings.
            found = [difference(name, old.get(name), new.get(name)) for name in {**new, **old} if name != "settings" or name in old]
            differing = [f"{place} {was} instead of {now}" for place, was, now in found if place]
            if not differing:
                return run
            what = f"was played with {', '.join(differing)}"
        raise OpoError(f"folder: {str(path)!r} {what}: name another folder (--out), or remove the file")
    return run


def _parts(identity: Any) -> dict[str, Any]:
    """The parts of a run's identity; none if it cannot be read."""
    try:
        parts = json.loads(identity)
    except (TypeError, ValueError):
        return {}
    return parts if isinstance(parts, dict) else {}
