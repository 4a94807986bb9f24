"""Statistics of a study: paired comparisons on common random numbers, growth exponents, heat maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import OpoError
from ..runs.statistics import Estimate, estimate, growth_exponent
from .grid import canonical, choices

if TYPE_CHECKING:
    from .results import Results

__all__ = ["Heatmap", "PairedDifference", "compare", "growth", "heatmap"]

Array = npt.NDArray[Any]


class PairedDifference(NamedTuple):
    """Two agents in one environment on common seeds: the mean of first - second with its interval, and in how many it is negative."""

    environment: str
    first: str
    second: str
    difference: Estimate
    lower: int


class Heatmap(NamedTuple):
    """Means over seeds on a grid of two settings; NaN where no run is finished."""

    environment: str
    agent: str
    x_name: str
    x_values: Sequence[Any]
    y_name: str
    y_values: Sequence[Any]
    means: Array
    fixed: Mapping[str, Any]


def compare(
    results: Results,
    name: str = "regret",
    *,
    environments: Sequence[str] | None = None,
    agents: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[PairedDifference]:
    """Compare all pairs of agents in each environment, on the seeds that both have finished.

    Parameters
    ----------
    results : Results
    name : str
        The quantity to compare: "regret", "last_regret", "gap_closed", "seconds", ...
    environments, agents : sequence of str, optional
        Labels. Default: all.
    seeds : sequence of int, optional
        Default: all.
    """
    found = []
    for environment in environments or [choice.label for choice in results.environments]:
        labels = agents or [choice.label for choice in results.agents]
        numbers = {agent: results.summaries(environment, agent, name) for agent in labels}
        for first, second in itertools.combinations(numbers, 2):
            common = sorted(seed for seed in numbers[first].keys() & numbers[second].keys() if seeds is None or seed in seeds)
            if common:
                differences = np.array([numbers[first][seed] - numbers[second][seed] for seed in common])
                found.append(PairedDifference(environment, first, second, estimate(differences), int((differences < 0).sum())))
    return found


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
        Label of an agent in the study file, without the settings of its grid.
    x, y : str
        Settings in the agent's grid.
    name : str
        The quantity to average: "regret", "gap_closed", "last_regret", ...
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
