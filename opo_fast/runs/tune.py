"""Search for the best setting of an agent in an environment, validated on other seeds (extra `tune`)."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import agents as registry
from .._support.checks import MANY, as_integer, as_items, having, instance, pair_of, shown
from .._support.progress import bar
from .._support.text import setting
from ..errors import OpoError, install
from ..model.contextual import ContextualMDP
from .compare import Comparison, compare
from .simulation import simulate
from .statistics import Estimate

__all__ = ["RANGES", "Trial", "Tuning", "tune"]

RANGES: dict[str, tuple[float, float]] = {
    "bonus_scale": (1e-7, 1.0),
    "eta_scale": (1.0, 1e4),
    "trust_scale": (1.0, 1e6),
    "scale": (1e-3, 1.0),
}
"""Default search ranges; an agent is tuned over those of these settings that it has."""
SEARCH, VALIDATION = 10_000, 20_000
"""The first seeds of the search and of the validation. Studies and comparisons use seeds from 0 on, so they share none."""
EDGE = 0.05
"""A value is at the edge of its range if it is within this share of the range's logarithm from an end."""


class Trial(NamedTuple):
    """A setting and its mean cumulative regret over the first `seeds` seeds, which are fewer than all if the setting was dropped."""

    setting: dict[str, float]
    regret: float
    seeds: int


class Tuning:
    """The result of `tune`.

    Attributes
    ----------
    agent : str
    best : dict
        The setting with the least mean regret among those that were tried on all seeds of the search.
    trials : list of Trial
        All settings, in the order in which they were tried.
    edges : list of str
        Settings whose best value is at the edge of its range, so that a better one may lie outside.
    validation : Comparison
        The agents "best" and "default" (the agent's practical setting) on seeds that the search did not use.
    interrupted : bool
        Whether Ctrl-C ended the search early.
    """

    def __init__(
        self, agent: str, best: dict[str, float], trials: list[Trial], edges: list[str], validation: Comparison, *, interrupted: bool
    ) -> None:
        self.agent, self.best, self.trials, self.edges = agent, best, trials, edges
        self.validation, self.interrupted = validation, interrupted

    def difference(self) -> Estimate:
        """Regret of the best setting minus that of the default one, on the seeds of the validation."""
        return self.validation.difference("best", "default")

    def __repr__(self) -> str:
        best = ", ".join(f"{key}={setting(value)}" for key, value in self.best.items())
        edges = f"; at the edge: {', '.join(self.edges)}" if self.edges else ""
        return f"<Tuning of {self.agent} on {self.validation.environment}: {best} of {len(self.trials)} settings{edges}>"


def tune(
    cmdp: ContextualMDP,
    agent: str = "opo",
    episodes: int = 1000,
    *,
    over: Mapping[str, Any] | None = None,
    trials: int = 30,
    seeds: int = 8,
    validation: int = 20,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Tuning:
    """Search for the setting of an agent with the least cumulative regret, and validate it on other seeds.

    All settings see the same contexts and uniforms. Each is first tried on one seed; by successive halving (K. Jamieson, A. Talwalkar,
    AISTATS 2016, in its asynchronous form in Optuna) only the better third goes on to three, nine, ... seeds.

    Parameters
    ----------
    cmdp : ContextualMDP
    agent : str
        One of `opo_fast.agents.names`.
    episodes : int
        T of each run.
    over : mapping, optional
        For the name of each setting a pair (low, high), which is searched on a logarithmic scale, or a list of values. Default: those of
        `RANGES` that the agent has.
    trials : int
        Number of settings to try. If `over` only has lists, with no more combinations than that, each combination is tried once.
    seeds, validation : int
        Number of seeds of the search and of the validation.
    options : mapping, optional
        Other keyword arguments of `opo_fast.agents.make`.
    seed : int
        Seed of the search itself.
    progress : bool, optional
        Show a bar. Default: on a terminal and in a notebook.

    Returns
    -------
    Tuning
        After Ctrl-C, with the settings that were tried.

    Raises
    ------
    OpoError
        Optuna is missing, or the agent has none of the settings.
    """
    having(cmdp, "cmdp", ("layout", "sample_context", "mdp"), "a ContextualMDP")
    episodes, trials = as_integer(episodes, "episodes", least=1), as_integer(trials, "trials", least=1, most=MANY)
    seeds, validation = as_integer(seeds, "seeds", least=1, most=SEARCH), as_integer(validation, "validation", least=2, most=MANY)
    options = {} if options is None else options
    instance(options, "options", Mapping, needed="a mapping from names to keyword arguments")
    space, fixed = _space(agent, over), dict(options)
    search = _Search(cmdp, registry.info(agent).name, episodes, seeds, space, fixed)
    interrupted = search.run(trials, as_integer(seed, "seed", least=0, most=2**32 - 1), progress)
    done = [trial for trial in search.trials if trial.seeds == seeds]
    if not done:
        raise KeyboardInterrupt
    best = min(done, key=lambda trial: trial.regret).setting
    judged = range(VALIDATION, VALIDATION + validation)
    both = {"best": {**fixed, **best}, "default": fixed}
    found = compare(cmdp, dict.fromkeys(both, agent), episodes, judged, options=both, progress=progress)
    return Tuning(agent, best, search.trials, _edges(best, space), found, interrupted=interrupted or found.interrupted)


def _space(agent: str, over: Mapping[str, Any] | None) -> dict[str, tuple[float, float] | list[float]]:
    """The search space: a pair for each range, a list for each set of values."""
    known = registry.info(agent).options
    chosen = {name: span for name, span in RANGES.items() if name in known} if over is None else over
    instance(chosen, "over", Mapping, needed="a mapping from settings to ranges or values")
    if not chosen:
        raise OpoError(f"agent {agent!r} has no setting to tune" if over is None else "over is empty: at least one setting is needed")
    space: dict[str, tuple[float, float] | list[float]] = {}
    for name, span in chosen.items():
        place = f"over[{name!r}]"
        if name not in known:
            raise OpoError(f"{place}: agent {agent!r} has no setting {name!r}; one of {', '.join(known)} is needed")
        values = as_items(span, place, "numbers")
        if isinstance(span, list) or len(values) != 2:
            if len(set(map(repr, values))) < 2:
                raise OpoError(f"{place} is {shown(span)}: a pair (low, high), or a list of at least 2 values, is needed")
            space[name] = values
            continue
        low, high = pair_of(values, place, "(low, high)")
        if not 0 < low < high:
            raise OpoError(f"{place} is {shown(span)}: 0 < low < high is needed, as it is searched in its logarithm")
        space[name] = (low, high)
    return space


class _Search:
    """A search that tries each setting on more and more seeds."""

    def __init__(self, cmdp: Any, agent: str, episodes: int, seeds: int, space: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.cmdp, self.agent, self.episodes, self.seeds = cmdp, agent, episodes, seeds
        self.space, self.fixed = space, fixed
        self.trials: list[Trial] = []

    def run(self, trials: int, seed: int, progress: bool | None) -> bool:
        """Try settings; returns whether Ctrl-C ended it."""
        optuna = _optuna()
        grid = {name: values for name, values in self.space.items() if isinstance(values, list)}
        size = math.prod(map(len, grid.values()))
        whole_grid = len(grid) == len(self.space) and size <= trials
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.GridSampler(grid, seed=seed) if whole_grid else optuna.samplers.TPESampler(seed=seed)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
        said = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="minimize", sampler=sampler, pruner=pruner)
        count = size if whole_grid else trials
        try:
            with bar(f"settings of {self.agent}", count, progress) as show:

                def objective(trial: Any) -> float:
                    regret = self._try(trial)
                    least = min((t.regret for t in self.trials if t.seeds == self.seeds), default=math.nan)
                    show(len(self.trials), f"least regret {least:.4g}")
                    if regret is None:
                        raise optuna.TrialPruned
                    return regret

                study.optimize(objective, n_trials=count)
        except KeyboardInterrupt:
            return True
        finally:
            optuna.logging.set_verbosity(said)
        return False

    def _try(self, trial: Any) -> float | None:
        """Mean regret of a setting over all seeds; None if it is dropped before that."""
        chosen: dict[str, float] = {
            name: trial.suggest_categorical(name, span) if isinstance(span, list) else trial.suggest_float(name, *span, log=True)
            for name, span in self.space.items()
        }
        regrets: list[float] = []
        for k in range(self.seeds):
            regrets.append(self._regret(SEARCH + k, chosen))
            mean = float(np.mean(regrets))
            trial.report(mean, k + 1)
            if k + 1 < self.seeds and trial.should_prune():
                self.trials.append(Trial(chosen, mean, k + 1))
                return None
        self.trials.append(Trial(chosen, mean, self.seeds))
        return mean

    def _regret(self, seed: int, chosen: Mapping[str, float]) -> float:
        agent = registry.make(self.agent, self.cmdp, episodes=self.episodes, seed=seed, **{**self.fixed, **chosen})
        result = simulate(self.cmdp, agent, self.episodes, seed, progress=False)
        if result.interrupted:
            raise KeyboardInterrupt
        return float(result.regret.sum())


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise OpoError(f"tuning needs optuna: {install('tune')}") from None
    return optuna


def _edges(best: Mapping[str, float], space: Mapping[str, Any]) -> list[str]:
    """The settings whose best value is at the edge of its range."""
    found = []
    for name, span in space.items():
        value = best[name]
        if isinstance(span, list):
            numbers = [x for x in span if isinstance(x, (int, float)) and not isinstance(x, bool)]
            at_edge = len(numbers) == len(span) > 2 and value in (min(span), max(span))
        else:
            share = math.log(value / span[0]) / math.log(span[1] / span[0])
            at_edge = min(share, 1 - share) < EDGE
        if at_edge:
            found.append(f"{name} {setting(value)}")
    return found
