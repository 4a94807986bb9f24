"""Plots of a study (extra `plot`): recorded columns with bootstrap bands, and heat maps over two settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support import text as texts
from .._support.text import count, plain, setting
from ..errors import OpoError
from ..runs.plots import COLOURS, LINES, legend_below, lighten, new_figure
from ..runs.statistics import band
from .grid import choices
from .results import Results
from .statistics import Heatmap

__all__ = ["curves", "draw_heatmap", "shown_agents"]

Array = npt.NDArray[Any]
POINTS = 200
"""Points of a curve that are drawn."""
MOST = 8
"""Largest number of curves in a plot; if there are more agents, only the best point of each grid is shown."""
LABELS = {
    "cumulative_regret": "cumulative regret (sum of losses)",
    "expected_regret": "expected regret per episode (sum of losses)",
    "saturation": "share of bonuses at their cap",
    "model_switches": "changes of the fitted models (count)",
    "seconds": "time (s)",
    "memory": "memory (MB)",
}


def shown_agents(results: Results, environment: str) -> list[tuple[str, str, int]]:
    """The agents that plots of an environment show: label, legend, and number of the colour.

    If there are more than `MOST` agents, only the point of each grid with the least mean regret on the first half of the seeds is shown,
    and the legend says so. Its curve is that of the other half of the seeds (`judged_on`).
    """
    judged = judged_on(results)
    total, number = len(results.agents), 0
    shown = []
    for i, entry in enumerate(results.study.agents):
        points = [choice.label for choice in choices(entry, "agents")]
        done = [(label, number + j) for j, label in enumerate(points) if results.finished(environment, label)]
        number += len(points)
        if total <= MOST:
            shown += [(label, label, j) for label, j in done]
        elif done:
            best = min(
                (label for label, _ in done), key=lambda label: _mean(_without(results.summaries(environment, label, "regret"), judged))
            )
            shown.append((best, best if len(points) == 1 else f"{best}, best of {len(done)}" + (" on other seeds" if judged else ""), i))
    return shown


def judged_on(results: Results) -> list[int] | None:
    """The seeds on which the best points of grids are judged, which did not choose them; None if nothing is chosen."""
    seeds = results.study.seeds
    return list(seeds[len(seeds) // 2 :]) if len(results.agents) > MOST and len(seeds) > 1 else None


def _without(values: dict[int, float], seeds: list[int] | None) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if seed not in (seeds or ())}


def _mean(values: dict[int, float]) -> float:
    return float(np.mean(list(values.values()))) if values else math.inf


def curves(results: Results, column: str = "cumulative_regret", *, environments: Sequence[str] | None = None) -> Any:
    """Plot a recorded column, one panel per environment: means over seeds with 95 % bootstrap bands.

    Parameters
    ----------
    results : Results
    column : str
        A recorded column.
    environments : sequence of str, optional
        Labels. Default: all with finished runs.

    Returns
    -------
    matplotlib Figure
    """
    names = [environment.label for environment in results.environments]
    for name in environments or ():
        if name not in names:
            raise OpoError(f"environments has {name!r}: one of {', '.join(names)} is needed")
    shown = [name for name in environments or names if any(results.finished(name, agent.label) for agent in results.agents)]
    if not shown:
        raise OpoError(f"no run of {results.study.name!r} is finished: there is nothing to draw")
    across = min(3, len(shown))
    down = math.ceil(len(shown) / across)
    figure = new_figure(4.6 * across + 0.8, 4.7 * down)
    for i, name in enumerate(shown):
        axes = figure.add_subplot(down, across, i + 1)
        _panel(axes, results, name, column)
    return figure


def _panel(axes: Any, results: Results, environment: str, column: str) -> None:
    scale = 1e-6 if column == "memory" else 1.0
    uniform: tuple[Array, Array] | None = None
    seeds, judged, tops, least = 0, judged_on(results), list[tuple[float, float]](), 0.0
    for label, legend, number in shown_agents(results, environment):
        episodes, values, found = results.curves(environment, label, column, points=POINTS)
        chosen = [i for i, seed in enumerate(found) if judged is None or seed in judged]
        if not chosen:
            continue
        mean, low, high = band(scale * values[chosen])
        colour, style = COLOURS[number % len(COLOURS)], LINES[number % len(LINES)]
        axes.plot(episodes, mean, color=colour, linestyle=style, label=plain(legend), linewidth=1.6)
        axes.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        seeds = max(seeds, len(chosen))
        drawn = np.concatenate([mean, high])
        least = min(least, float(np.nanmin(np.concatenate([mean, low, [0.0]]))))
        tops.append((float(np.where(np.isnan(drawn), -np.inf, drawn).max()), float(mean[-1])))
        if column == "cumulative_regret" and uniform is None:
            when, base, _ = results.curves(environment, label, "cumulative_uniform_regret", points=POINTS)
            uniform = when, base[chosen].mean(axis=0)
    # The axes are scaled for the learners; the uniform policy may leave the plot.
    learners = [most for most, last in tops if uniform is None or abs(last - uniform[1][-1]) > 1e-9 * abs(last)]
    top = 1.05 * max(learners) if max(learners, default=0.0) > 0 else axes.get_ylim()[1]
    if uniform is not None and len(learners) == len(tops):
        axes.plot(*uniform, color="#888888", linestyle=(0, (1, 1.5)), label="uniform policy", linewidth=1.2)
    lighten(axes)
    axes.set_ylim(1.05 * least, top)
    axes.set_xlim(left=0)
    axes.set_title(plain(environment), fontsize=10, loc="left")
    axes.set_xlabel("episode")
    axes.set_ylabel(LABELS.get(column, column))
    title = f"mean of {count(seeds, 'seed')}" + (", band: 95 % bootstrap" if seeds > 1 else "")
    legend_below(axes, title)


def draw_heatmap(heatmap: Heatmap, name: str = "regret") -> Any:
    """Plot a heat map with numbers in its cells; returns a matplotlib Figure."""
    rows, columns = heatmap.means.shape
    figure = new_figure(max(4.2, 0.95 * columns + 2.2), max(3.0, 0.62 * rows + 1.7))
    axes = figure.add_subplot()
    image = axes.imshow(heatmap.means, cmap="cividis", aspect="auto", origin="lower")
    finite = heatmap.means[np.isfinite(heatmap.means)]
    middle = (finite.min() + finite.max()) / 2 if finite.size else 0.0
    for i in range(rows):
        for j in range(columns):
            value = heatmap.means[i, j]
            colour = "black" if value > middle else "white"
            axes.text(j, i, texts.figure(value, ".3g"), ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(columns), [plain(setting(value)) for value in heatmap.x_values])
    axes.set_yticks(range(rows), [plain(setting(value)) for value in heatmap.y_values])
    axes.set_xlabel(plain(heatmap.x_name))
    axes.set_ylabel(plain(heatmap.y_name))
    fixed = "".join(f", {key}={setting(value)}" for key, value in heatmap.fixed.items())
    axes.set_title(plain(f"{heatmap.agent} on {heatmap.environment}{fixed}"), fontsize=10, loc="left")
    unit = " (sum of losses)" if name.endswith("regret") else ""
    figure.colorbar(image, ax=axes, label=f"mean {name.replace('_', ' ')}{unit}")
    return figure
