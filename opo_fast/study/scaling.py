"""How the regret grows along the axes of a study: exponents with bootstrap intervals, and a plot of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, as_real, instance, shown
from .._support.text import plain
from ..errors import OpoError
from ..runs.plots import COLOURS, lighten, new_figure
from ..runs.statistics import Estimate
from .file import Entry, Study
from .grid import Choice, canonical
from .results import Results

__all__ = ["Growth", "draw_growth", "growth_along", "growth_over_episodes", "power_law", "scaling_study"]

Array = npt.NDArray[Any]
RESAMPLES = 2000
LEVEL = 0.95


class Growth(NamedTuple):
    """How a quantity of an agent's runs grows along an axis.

    Attributes
    ----------
    axis, agent : str
    values : tuple of float
        Values of the axis, increasing.
    means : tuple of float
        The mean over all runs at each value.
    exponent : Estimate
        b of the least-squares fit log mean = a + b log value, its 95 % bootstrap interval, and the smallest number of runs at a value.
    fixed : dict
        The other options of the environment.
    """

    axis: str
    agent: str
    values: tuple[float, ...]
    means: tuple[float, ...]
    exponent: Estimate
    fixed: Mapping[str, Any]


def power_law(values: Sequence[float], samples: Sequence[Sequence[float]], *, paired: bool = False) -> Estimate:
    """b of the fit log mean = a + b log value, with a percentile bootstrap interval over the samples of each value.

    The resamples are fixed, so equal samples give equal bits. The result is NaN if a mean or a value is not positive, and the interval is
    NaN if a value has fewer than two samples. Resamples with a mean that is not positive have no logarithm and are left out, so the
    interval is too narrow if some samples are negative.

    Parameters
    ----------
    values : sequence of float
        At least two different values.
    samples : sequence of sequences
        The numbers observed at each value.
    paired : bool
        Whether the i-th samples of all values belong together, such as those of one environment at several T; they are then drawn together.
    """
    x = np.array([as_number(v, f"values[{i}]", least=-np.inf) for i, v in enumerate(as_items(values, "values", "numbers"))])
    listed = as_items(samples, "samples", "sequences of numbers")
    data = [as_real(sample, f"samples[{i}]").astype(np.float64) for i, sample in enumerate(listed)]
    if len(data) != x.size or np.unique(x).size < 2 or any(sample.ndim != 1 or not sample.size for sample in data):
        raise OpoError("values and samples: at least two different values are needed, and for each of them at least one number")
    fewest = min(sample.size for sample in data)
    means = np.array([sample.mean() for sample in data])
    if not ((x > 0).all() and (means > 0).all()):
        return Estimate(math.nan, math.nan, math.nan, fewest)
    centred = np.log(x) - np.log(x).mean()
    weights = centred / (centred**2).sum()
    exponent = float(weights @ np.log(means))
    if fewest < 2:
        return Estimate(exponent, math.nan, math.nan, fewest)
    rng = np.random.default_rng(0)
    together = rng.integers(fewest, size=(RESAMPLES, fewest)) if paired and len({sample.size for sample in data}) == 1 else None
    which = [rng.integers(sample.size, size=(RESAMPLES, sample.size)) if together is None else together for sample in data]
    drawn = np.array([sample[indices].mean(axis=1) for sample, indices in zip(data, which, strict=True)])
    usable = drawn[:, (drawn > 0).all(axis=0)]
    if not usable.size:
        return Estimate(exponent, math.nan, math.nan, fewest)
    low, high = np.quantile(weights @ np.log(usable), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(exponent, float(low), float(high), fewest)


def growth_along(
    results: Results, axis: str | Sequence[str], *, name: str = "regret", replicates: Sequence[str] = ("seed",)
) -> list[Growth]:
    """Growth exponents along an option of the environments of a study.

    Parameters
    ----------
    results : Results
    axis : str or sequence of str
        An option of the environments with numbers as values. Of several options that grow together, such as the sizes of both classes, the
        first gives the values.
    name : str
        The quantity that grows: "regret", "last_regret", "seconds", ... (see `Results.summaries`).
    replicates : sequence of str
        Options that make another environment of the same kind, such as its seed; they are treated like seeds of the runs.

    Returns
    -------
    list of Growth
        One for each agent and each setting of the other options for which the axis has at least two values.
    """
    instance(results, "results", Results)
    axes = [axis] if isinstance(axis, str) else as_items(axis, "axis", "names of options", some=True)
    replicates = as_items(replicates, "replicates", "names of options")
    known = {key for choice in results.environments for key in choice.options}
    for one in axes:
        if one not in known:
            raise OpoError(f"axis is {one!r}: an option of the environments is needed, one of {', '.join(sorted(known)) or '(none)'}")
    groups: dict[str, tuple[dict[str, Any], list[tuple[float, Choice]]]] = {}
    for choice in results.environments:
        if all(_is_number(choice.options.get(one)) for one in axes):
            fixed = {key: value for key, value in choice.options.items() if key not in (*axes, *replicates)}
            entry = groups.setdefault(canonical({"name": choice.name, "fixed": fixed}), (fixed, []))
            entry[1].append((float(choice.options[axes[0]]), choice))
    found = []
    for fixed, members in groups.values():
        for agent in results.agents:
            samples = _samples((value, results, choice, agent.label, name) for value, choice in members)
            if len(samples) > 1:
                found.append(_growth("+".join(axes), agent.label, samples, fixed))
    return found


def growth_over_episodes(
    results: Mapping[int, Results], *, name: str = "regret", fixed: Mapping[str, Any] | None = None, replicates: Sequence[str] = ("seed",)
) -> list[Growth]:
    """Growth exponents along T, from studies that differ in their number of episodes.

    The bootstrap resamples environments and seeds, each with its runs at all T. For an agent that is given T this differs from the growth
    of a single curve (`opo_fast.study.statistics.growth`), since its parameters depend on T.

    Parameters
    ----------
    results : dict of Results
        The results for each T.
    name, replicates
        As in `growth_along`.
    fixed : dict, optional
        Only use environments with these options. Default: all environments are pooled.
    """
    instance(results, "results", Mapping, needed="a dict of Results by T")
    for t, one in results.items():
        as_integer(t, "results: a number of episodes", least=1)
        instance(one, f"results[{t}]", Results, needed="an opo_fast.study.Results")
    replicates = as_items(replicates, "replicates", "names of options")
    labels = dict.fromkeys(agent.label for found in results.values() for agent in found.agents)
    growths = []
    for agent in labels:
        looked_at = (
            (float(t), found, choice, agent, name)
            for t, found in results.items()
            if agent in {other.label for other in found.agents}
            for choice in found.environments
            if fixed is None or canonical({k: v for k, v in choice.options.items() if k not in replicates}) == canonical(dict(fixed))
        )
        samples = _samples(looked_at)
        if len(samples) > 1:
            growths.append(_growth("episodes", agent, samples, dict(fixed or {}), paired=True))
    return growths


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _samples(where: Iterable[tuple[float, Results, Choice, str, str]]) -> dict[float, list[float]]:
    """The finite numbers of all finished runs at each value."""
    samples: dict[float, list[float]] = {}
    for value, results, choice, agent, name in where:
        numbers = [number for number in results.summaries(choice.label, agent, name).values() if math.isfinite(number)]
        if numbers:
            samples.setdefault(value, []).extend(numbers)
    return dict(sorted(samples.items()))


def _growth(axis: str, agent: str, samples: Mapping[float, Sequence[float]], fixed: Mapping[str, Any], paired: bool = False) -> Growth:
    means = tuple(float(np.mean(sample)) for sample in samples.values())
    return Growth(axis, agent, tuple(samples), means, power_law(list(samples), list(samples.values()), paired=paired), fixed)


def scaling_study(
    name: str,
    environment: str,
    base: Mapping[str, Any],
    axes: Mapping[str | tuple[str, ...], Sequence[float]],
    agents: Sequence[Any],
    *,
    episodes: int,
    replicates: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 1,
) -> Study:
    """A study in which each axis is varied separately around a base setting.

    Parameters
    ----------
    name, agents, episodes, seeds
        As in `Study`.
    environment : str
        Name of the environment.
    base : dict
        Options of the environment; those that are axes have these values while another axis is varied.
    axes : dict
        Values to try for each option, or for a tuple of options that have the same value.
    replicates : dict of lists, optional
        Options that make other environments of the same kind, such as ``{"seed": [0, 1, 2]}``; all combinations are run at each value.
    """
    instance(base, "base", Mapping, needed="a dict of options")
    instance(axes, "axes", Mapping, needed="a dict of values by option")
    points: dict[str, tuple[str, dict[str, Any]]] = {canonical(dict(base)): ("base", dict(base))}
    for axis, values in axes.items():
        names = (axis,) if isinstance(axis, str) else axis
        for i, value in enumerate(as_items(values, f"axes[{axis!r}]", "numbers", some=True)):
            if not _is_number(value):
                raise OpoError(f"axes[{axis!r}][{i}] is {shown(value)}: a number is needed")
            options = {**base, **dict.fromkeys(names, value)}
            points.setdefault(canonical(options), (f"{'+'.join(names)}={value:g}", options))
    grid = dict(replicates or {})
    entries = [Entry(environment, label, options, grid) for label, options in points.values()]
    record = {"every": max(1, episodes // 10), "measures": ["regret"]}
    return Study(name, entries, agents, episodes=episodes, seeds=seeds, record=record)


def draw_growth(growths: Sequence[Growth], theory: Mapping[str, float] | None = None, *, title: str = "") -> Any:
    """One panel per axis with the exponent of each agent and its interval; returns a matplotlib Figure (extra `plot`).

    Parameters
    ----------
    growths : sequence of Growth
    theory : dict, optional
        For each axis an exponent to compare with, drawn as a dashed line.
    title : str
    """
    growths = as_items(growths, "growths", "Growth", some=True)
    for i, one in enumerate(growths):
        instance(one, f"growths[{i}]", Growth, needed="a Growth of growth_along or growth_over_episodes")
    axes_names, agents = (list(dict.fromkeys(getattr(growth, key) for growth in growths)) for key in ("axis", "agent"))
    figure = new_figure(2.3 * len(axes_names) + 1.6, 0.36 * len(agents) + 1.6)
    panels = np.atleast_1d(figure.subplots(1, len(axes_names), sharey=True))
    for panel, axis in zip(panels, axes_names, strict=True):
        for growth in (growth for growth in growths if growth.axis == axis):
            y, b = agents.index(growth.agent), growth.exponent
            colour = COLOURS[0] if growth.agent.startswith("opo") else COLOURS[6]
            panel.plot([b.low, b.high], [y, y], color=colour, linewidth=2)
            panel.plot(b.mean, y, "o", color=colour, markersize=4)
        if theory and math.isfinite(theory.get(axis, math.nan)):
            panel.axvline(theory[axis], color=COLOURS[1], linestyle="--", linewidth=1)
        panel.axvline(0.0, color="#bbbbbb", linewidth=0.8, zorder=0)
        lighten(panel)
        panel.set_title(plain(axis), fontsize=9)
        panel.tick_params(labelsize=8)
    panels[0].set_yticks(range(len(agents)), [plain(agent) for agent in agents], fontsize=8)
    panels[0].invert_yaxis()
    figure.supxlabel("exponent b of regret ~ value^b, 95 % interval; dashed: the theorem's bound on the same values", fontsize=9)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    return figure
