"""The events of the proof over many seeds: how often each statement held, as a table and as a plot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import agents
from .._support.checks import as_integer, as_number, having
from .._support.files import writing
from .._support.interrupts import interrupts
from .._support.progress import bar
from ..errors import OpoError
from ..runs.many import seed_numbers
from ..runs.plots import COLOURS, LINES, lighten, new_figure, save_figure
from ..runs.simulation import simulate
from ..runs.statistics import band
from .bounds import Bounds, thresholds
from .events import Frequency, event_frequencies, run_events
from .stacked import constant_betas

__all__ = ["EventStudy", "event_study"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class EventStudy:
    """The events of runs that only differ in their seed.

    Attributes
    ----------
    name : str
        Name of the environment.
    seeds : tuple of int
        The seeds whose runs were finished.
    frequencies : dict of Frequency
        For each statement, in the order of the proof.
    columns : dict of ndarray, shape (seeds, T)
        `RunEvents.columns` of all runs.
    bounds : Bounds
        The bounds of the first run.
    gamma, gamma_visits : float
    """

    name: str
    seeds: tuple[int, ...]
    frequencies: dict[str, Frequency]
    columns: dict[str, Array]
    bounds: Bounds
    gamma: float
    gamma_visits: float

    @property
    def consistent(self) -> bool:
        """Whether the runs are consistent with every statement of the paper."""
        return all(found.consistent for found in self.frequencies.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the columns, each of shape (seeds, T), as npz."""
        with writing(path) as file:
            np.savez_compressed(file, seeds=np.array(self.seeds), **self.columns)  # type: ignore[arg-type]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot events, bonus sums, errors of the fits and frequencies (extra `plot`); returns the matplotlib Figure."""
        figure = new_figure(11.0, 7.6)
        axes = figure.subplots(2, 2)
        episodes = np.arange(1, next(iter(self.columns.values())).shape[1] + 1)
        for i, (name, label) in enumerate((("inaccurate", "A: inaccurate dynamics"), ("under_explored", "B: share of the pairs"))):
            self._curve(axes[0, 0], episodes, self.columns[name], label, i)
        axes[0, 0].set(title="Events", ylabel="share", ylim=(-0.03, 1.03))
        for i, label in enumerate(("under A", "under not A and B", "under not A and not B")):
            self._curve(axes[0, 1], episodes, np.cumsum(self.columns[f"bonus_case_{i + 1}"], axis=1), label, i)
        axes[0, 1].set(title="Expected bonuses so far", ylabel="sum of bonuses")
        for i, (name, right) in enumerate((("squared", self.bounds.squared), ("hellinger", self.bounds.hellinger))):
            self._curve(axes[1, 0], episodes, np.maximum(self.columns[name], 1e-3), f"{name} errors", i)
            axes[1, 0].axhline(right, color=COLOURS[i], linestyle=LINES[i], linewidth=0.8, label=f"guarantee, {right:,.0f}")
        axes[1, 0].set(title="Errors of the fits", ylabel="expected sum over the past, at least 0.001", yscale="log")
        for one in axes.flat[:3]:
            one.set_xlabel("episode")
            one.legend(frameon=False, fontsize=8)
        self._frequencies(axes[1, 1])
        for one in axes.flat:
            lighten(one)
        figure.suptitle(f"{self.name}, {len(self.seeds)} seeds", fontsize=11)
        if path is not None:
            save_figure(figure, path)
        return figure

    def _curve(self, axes: Any, episodes: Array, values: Array, label: str, number: int) -> None:
        mean, low, high = band(values)
        axes.plot(episodes, mean, color=COLOURS[number], linestyle=LINES[number], label=label)
        axes.fill_between(episodes, low, high, color=COLOURS[number], alpha=0.2, linewidth=0)

    def _frequencies(self, axes: Any) -> None:
        """Frequencies with their intervals, and a tick at the least frequency according to the paper."""
        for y, found in enumerate(self.frequencies.values()):
            share = found.held / found.runs
            colour, marker = (COLOURS[0], "o") if found.consistent else (COLOURS[1], "X")
            axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2)
            axes.plot(share, y, marker, color=colour, markersize=4 if found.consistent else 7)
            axes.plot(found.probability, y, "|", color="black", markersize=9)
        axes.set_yticks(range(len(self.frequencies)), list(self.frequencies), fontsize=7)
        axes.invert_yaxis()
        axes.set(title="Frequencies (tick: the paper's lower bound; cross: below it)", xlabel="share of the runs, 95 % interval")


def event_study(
    env: Any,
    episodes: int,
    seeds: int | Any = 20,
    *,
    delta: float = 0.05,
    gamma: float | None = None,
    gamma_visits: float | None = None,
    progress: bool | None = None,
    **options: Any,
) -> EventStudy:
    """Run OPO under many seeds and count how often each statement of the paper held.

    Parameters
    ----------
    env : Environment
        It must list its contexts.
    episodes : int
        T.
    seeds : int or sequence of int
        Different seeds, or their number: n stands for 0, ..., n - 1.
    delta, gamma, gamma_visits : float
        As in `bounds`; `delta` is also given to the agent.
    progress : bool, optional
        Show a bar. Default: on a terminal and in a notebook, once two seconds have passed.
    **options
        Keyword arguments of `opo_fast.agents.make`. Default: the theory's constants.

    Returns
    -------
    EventStudy
        After Ctrl-C, with the seeds that were finished.
    """
    chosen, episodes = _seeds(seeds), as_integer(episodes, "episodes", least=1)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    options = {**(options or {"tuning": "theory"}), "delta": delta}
    having(env, "env", ("layout", "loss_class", "dynamics_class"), "an Environment")
    agent = _agent(env, episodes, options)
    # Bad thresholds are refused before the first run, which may take long.
    own = thresholds(env.layout.horizon, *constant_betas(agent, episodes), gamma, gamma_visits)
    runs, done = [], []
    with bar("events", len(chosen), progress) as show, interrupts() as interrupted:
        for seed in chosen:
            agent = _agent(env, episodes, options)
            run = simulate(env, agent, episodes, seed, progress=False)
            if interrupted():
                break
            runs.append(run_events(env, agent, run, delta=delta, gamma=own.gamma, gamma_visits=own.gamma_visits, progress=False))
            done.append(seed)
            show(len(done))
    if not runs:
        raise OpoError("interrupted before the first run was finished")
    frequencies = event_frequencies(run.statements() for run in runs)
    columns = [run.columns() for run in runs]
    return EventStudy(
        str(getattr(env, "name", "environment")),
        tuple(done),
        frequencies,
        {name: np.array([one[name] for one in columns]) for name in columns[0]},
        runs[0].bounds,
        own.gamma,
        own.gamma_visits,
    )


def _seeds(seeds: Any) -> list[int]:
    """The seeds, which must be different."""
    found = list(seed_numbers(seeds))
    if not found:
        raise OpoError("seeds: at least one is needed, got none")
    for i, seed in enumerate(found):
        if seed in found[:i]:
            raise OpoError(f"seeds[{i}] is {seed}, and so is seeds[{found.index(seed)}]: give each seed only once")
    return found


def _agent(env: Any, episodes: int, options: dict[str, Any]) -> agents.OPO:
    """OPO for one run; self-tuning OPO is told the number of episodes, so that its betas are constant."""
    if options.get("tuning") != "auto":
        return agents.make("opo", env, episodes=episodes, **options)  # type: ignore[no-any-return]
    mask = getattr(env, "action_mask", None)
    return agents.OPO(env.layout, env.loss_class, env.dynamics_class, **{"action_mask": mask, "episodes": episodes, **options})
