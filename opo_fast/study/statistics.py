"""Statistics of a study: bootstrap bands, paired comparisons on common random numbers, growth exponents, heat maps."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import OpoError
from .grid import canonical, choices

if TYPE_CHECKING:
    from .results import Results

__all__ = ["Comparison", "Estimate", "Heatmap", "band", "compare", "estimate", "growth", "growth_exponent", "heatmap"]

Array = npt.NDArray[Any]
RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over seeds with its bootstrap confidence interval; the interval is NaN for fewer than two seeds."""

    mean: float
    low: float
    high: float
    seeds: int


class Comparison(NamedTuple):
    """Two agents in one environment on common seeds: mean of (first - second), its interval, and in how many seeds the first
    was lower."""

    environment: str
    first: str
    second: str
    difference: Estimate
    lower: int


class Heatmap(NamedTuple):
    """Means over seeds on a grid of two settings; NaN where nothing is finished."""

    environment: str
    agent: str
    x_name: str
    x_values: Sequence[Any]
    y_name: str
    y_values: Sequence[Any]
    means: Array
    fixed: Mapping[str, Any]


def estimate(values: Sequence[float] | Array, *, level: float = LEVEL) -> Estimate:
    """Mean with a bias-corrected accelerated bootstrap interval; always the same resamples, so the same bits.

    Values that are not finite are left out.
    """
    data = np.asarray(values, np.float64)
    data = data[np.isfinite(data)]
    if data.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(data.mean())
    if data.size < 2:
        return Estimate(mean, math.nan, math.nan, 1)
    low, high = _interval(data[:, None], level, "BCa")
    return Estimate(mean, float(low[0]), float(high[0]), data.size)


def band(curves: Array, *, level: float = LEVEL) -> tuple[Array, Array, Array]:
    """Mean and pointwise percentile bootstrap band of curves (runs, points)."""
    curves = np.asarray(curves, np.float64)
    mean = curves.mean(axis=0)
    if len(curves) < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    low, high = _interval(curves, level, "percentile")
    return mean, low, high


def _interval(data: Array, level: float, method: str) -> tuple[Array, Array]:
    """Bootstrap interval of the mean of each column; a column of equal values is its own interval."""
    from scipy import stats

    low, high = data.mean(axis=0), data.mean(axis=0)
    varied = np.ptp(data, axis=0) > 0
    if varied.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap(
                (data[:, varied],),
                np.mean,
                axis=0,
                n_resamples=RESAMPLES,
                batch=max(1, 10_000_000 // data.size),
                confidence_level=level,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        low[varied], high[varied] = found.low, found.high
    return low, high


def compare(
    results: Results, name: str = "regret", *, environments: Sequence[str] | None = None, agents: Sequence[str] | None = None
) -> list[Comparison]:
    """All pairs of agents in each environment, on the seeds that both have finished.

    Parameters
    ----------
    results : Results
    name : str
        What is compared: "regret", "last_regret", "gap_closed", "seconds", ...
    environments, agents : sequence of str, optional
        Labels. Default: all.
    """
    found = []
    for environment in environments or [choice.label for choice in results.environments]:
        labels = agents or [choice.label for choice in results.agents]
        numbers = {agent: results.summaries(environment, agent, name) for agent in labels}
        for first, second in itertools.combinations(numbers, 2):
            seeds = sorted(numbers[first].keys() & numbers[second].keys())
            if seeds:
                differences = np.array([numbers[first][seed] - numbers[second][seed] for seed in seeds])
                found.append(Comparison(environment, first, second, estimate(differences), int((differences < 0).sum())))
    return found


def growth_exponent(episodes: Array, regret: Array, *, start: float = 0.1) -> float:
    """b of the least-squares fit log R(t) = a + b log t over the episodes from `start` T on.

    1 is linear growth, 1/2 that of the theory. The points are spaced evenly in log t, so that the many late episodes do
    not outweigh the rest. NaN where the regret is not positive there.
    """
    episodes, regret = np.asarray(episodes, np.float64), np.asarray(regret, np.float64)
    if episodes.size < 3:
        return math.nan
    first = max(start * episodes[-1], episodes[0])
    at = np.unique(np.searchsorted(episodes, np.geomspace(first, episodes[-1], 50)).clip(0, episodes.size - 1))
    if at.size < 3 or not (regret[at] > 0).all():
        return math.nan
    return float(np.polyfit(np.log(episodes[at]), np.log(regret[at]), 1)[0])


def growth(results: Results, environment: str, agent: str) -> Estimate:
    """Mean growth exponent of the cumulative regret over seeds, with its interval."""
    episodes, curves, _ = results.curves(environment, agent, points=1000)
    return estimate([growth_exponent(episodes, curve) for curve in curves])


def heatmap(
    results: Results, environment: str, agent: str, x: str = "bonus_scale", y: str = "eta_scale", name: str = "regret"
) -> list[Heatmap]:
    """Means over seeds on the grid of two settings of an agent, one map for each combination of its other settings.

    Parameters
    ----------
    environment : str
        Label of an environment.
    agent : str
        Label of an agent of the study file, without its grid.
    x, y : str
        Settings in the agent's grid.
    name : str
        What is averaged: "regret", "gap_closed", "last_regret", ...
    """
    entry = next((entry for entry in results.study.agents if entry.label == agent), None)
    if entry is None:
        raise OpoError(f"agent is {agent!r}: one of {', '.join(entry.label for entry in results.study.agents)} is needed")
    for setting in (x, y):
        if setting not in entry.grid:
            raise OpoError(f"{setting!r} is not in the grid of {agent!r}: one of {', '.join(entry.grid) or '(it has no grid)'} is needed")
    x_values, y_values = list(entry.grid[x]), list(entry.grid[y])
    maps: dict[str, Heatmap] = {}
    for choice in choices(entry, "agents"):
        fixed = {key: value for key, value in choice.point.items() if key not in (x, y)}
        key = canonical(fixed)
        if key not in maps:
            maps[key] = Heatmap(environment, agent, x, x_values, y, y_values, np.full((len(y_values), len(x_values)), np.nan), fixed)
        numbers = [value for value in results.summaries(environment, choice.label, name).values() if math.isfinite(value)]
        if numbers:
            at = y_values.index(choice.point[y]), x_values.index(choice.point[x])
            maps[key].means[at] = float(np.mean(numbers))
    return list(maps.values())
