"""Plots of regret curves, and what all plots of the package share (extra `plot`)."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._support.checks import as_bool, as_path
from .._support.files import writing
from .._support.text import plain, setting
from ..errors import OpoError, install

if TYPE_CHECKING:
    from .result import SimulationResult

__all__ = [
    "COLOURS",
    "LINES",
    "legend_below",
    "lighten",
    "missing_matplotlib",
    "new_figure",
    "regret_curves",
    "save_figure",
    "show_in_notebook",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which remain distinct with any colour vision."""
LINES = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Line styles, so that curves that overlap or are printed in grey remain distinct."""
DECADES = 1e-4
"""A logarithmic axis begins at this share of its greatest value, or above."""
SMOOTH = 50
"""The running mean of the regret is over this fraction of a run: 1 / SMOOTH."""


def missing_matplotlib() -> str | None:
    """How to install matplotlib; None if it is installed."""
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return f"plots need matplotlib: {install('plot')}"
    return None


def new_figure(width: float, height: float) -> Any:
    """A figure that needs no window system."""
    missing = missing_matplotlib()
    if missing:
        raise OpoError(missing)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def lighten(axes: Any) -> None:
    """Remove the frame's top and right side, and add light horizontal grid lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure atomically; the ending of `path` determines the format."""
    name = as_path(path)
    ending = os.path.splitext(name)[1][1:].lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if ending not in known:
        raise OpoError(f"path is {name!r}: a picture with an ending of {', '.join(known)} is needed")
    data = io.BytesIO()
    figure.savefig(data, format=ending, dpi=150)
    with writing(name) as file:
        file.write(data.getbuffer())


def show_in_notebook(axes: Any) -> None:
    """Make a notebook show the whole figure for these axes; figures without a window system are not shown by default."""

    def png() -> bytes:
        data = io.BytesIO()
        axes.figure.savefig(data, format="png", dpi=100)
        return data.getvalue()

    axes._repr_png_ = png


def regret_curves(
    results: Mapping[str, Sequence[SimulationResult]],
    path: str | os.PathLike[str] | None = None,
    *,
    axes: Any = None,
    title: str | None = None,
    log: bool = False,
    beside: bool = True,
) -> Any:
    """Plot the mean cumulative regret of each label over its runs, and in a second panel the regret per episode.

    If a label has several runs, a band shows the middle 80 % of them. If they fall into two groups, which mean and band would hide, each
    run is a thin line instead. The dotted line is the regret of the uniform policy in the first label's runs; it is left out if a label is
    that policy. The axes are scaled for the learners, so the dotted line may leave the plot.

    Parameters
    ----------
    results : mapping from labels to sequences of SimulationResult
    path : path, optional
    axes : matplotlib Axes, optional
        Draw the cumulative regret into these axes, without a second panel.
    title : str, optional
    log : bool
        Logarithmic axes, on which growth T^b is a line of slope b.
    beside : bool
        Whether to draw the second panel, a running mean of the regret over a fiftieth of the run.

    Returns
    -------
    matplotlib Axes
        Of the cumulative regret.
    """
    if not results:
        raise OpoError("results is empty: at least one run is needed")
    for label, runs in results.items():
        if not runs:
            raise OpoError(f"results[{label!r}] is empty: at least one run is needed")
    as_bool(log, "log")
    panels = [axes]
    if axes is None:
        figure = new_figure(7.2 if as_bool(beside, "beside") else 5.2, 4.0)
        panels = [figure.add_subplot(1, 1 + beside, i + 1) for i in range(1 + beside)]
    first = next(iter(results.values()))[0]
    for i, panel in enumerate(panels):
        lighten(panel)
        low, top = _draw(panel, results, smoothed=i == 1)
        if log:
            panel.set_xscale("log")
            panel.set_yscale("log")
            low = max(DECADES * top, 0.7 * _least(panel))
        if top > 0:
            panel.set_ylim(1.05 * low, (1.2 if log else 1.05) * top)
        panel.set_xlabel("episode")
        panel.set_ylabel("regret of an episode (running mean)" if i else "cumulative regret (sum of losses)")
    panels[0].set_title(plain(title or first.settings["environment"]), fontsize=10)
    legend_below(panels[0], _seeds(results), across=axes is None)
    show_in_notebook(panels[0])
    if path is not None:
        save_figure(panels[0].figure, path)
    return panels[0]


def _least(axes: Any) -> float:
    """The smallest positive value of the curves."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
    return float(drawn[drawn > 0].min(initial=np.inf)) if (drawn > 0).any() else 0.0


def legend_below(axes: Any, title: str, *, across: bool = False) -> None:
    """Add a legend below the axes; with `across`, below the whole figure, so that the panels keep their width."""
    curves, labels = axes.get_legend_handles_labels()
    options = {"frameon": False, "alignment": "left", "fontsize": 8, "title": title, "title_fontsize": 8, "handlelength": 3.2}
    options["ncols"] = 2 if across or max(map(len, labels), default=0) < 28 else 1
    if across:
        axes.figure.legend(curves, labels, loc="outside lower left", **options)
    else:
        axes.legend(curves, labels, loc="upper left", bbox_to_anchor=(0.0, -0.2), **options)


def _draw(axes: Any, results: Mapping[str, Sequence[SimulationResult]], *, smoothed: bool) -> tuple[float, float]:
    """Draw the curves; returns the smallest and the largest value of the learners."""
    top = low = 0.0
    learners = 0
    for i, (label, runs) in enumerate(results.items()):
        length = min(run.episodes for run in runs)
        episodes, curves = _curves([run.regret[:length] for run in runs], smoothed)
        colour, line = COLOURS[i % len(COLOURS)], LINES[i % len(LINES)]
        axes.plot(episodes, curves.mean(axis=0), color=colour, linestyle=line, label=_legend(label, runs[0]), linewidth=1.6)
        span = curves
        if len(runs) > 1:
            span = np.quantile(curves, [0.1, 0.9], axis=0)
            if not smoothed and two_groups(curves[:, -1]):
                span = curves
                for curve in curves:
                    axes.plot(episodes, curve, color=colour, linestyle=line, linewidth=0.5, alpha=0.6)
            else:
                axes.fill_between(episodes, *span, color=colour, alpha=0.2, linewidth=0)
        if any((run.value != run.uniform_value).any() for run in runs):
            top, low = max(top, float(np.max(span, initial=0.0))), min(low, float(np.min(span, initial=0.0)))
            learners += 1
        if i == 0:
            whens, uniform = _curves([(run.uniform_value - run.optimal_value)[:length] for run in runs], smoothed)
            beside = whens, uniform.mean(axis=0)
    if learners == len(results):
        axes.plot(*beside, color="#888888", linestyle=(0, (1, 1.5)), label="uniform policy", linewidth=1.2)
    return low, top


def _curves(regrets: Sequence[Any], smoothed: bool) -> tuple[Any, Any]:
    """Episodes, and for each run the cumulative regret or the running mean of the regret."""
    totals = np.cumsum(np.array(regrets), axis=1)
    n = totals.shape[1]
    window = max(1, n // SMOOTH)
    if not smoothed or not n:
        return np.arange(1, n + 1), totals
    before = np.concatenate([np.zeros((len(totals), 1)), totals], axis=1)
    return np.arange(window, n + 1), (before[:, window:] - before[:, :-window]) / window


def two_groups(values: Any) -> bool:
    """Whether at least five numbers fall into two groups: one gap between neighbours is more than half the range."""
    gaps = np.diff(np.sort(values))
    return len(values) >= 5 and gaps.sum() > 0 and bool(gaps.max() > 0.5 * gaps.sum())


def _legend(label: str, run: SimulationResult) -> str:
    """A label with the settings of its run."""
    options = run.settings.get("options") or {}
    # Labels such as opo:bonus_scale=1e-5 already contain a setting.
    settings = [
        f"{key.replace('_', ' ')} {setting(value)}" for key, value in options.items() if key != "backend" and f"{key}=" not in label
    ]
    return plain(f"{label} ({', '.join(settings)})" if settings else label)


def _seeds(results: Mapping[str, Sequence[SimulationResult]]) -> str:
    """The title of the legend: what curves and bands show."""
    counts = sorted({len(runs) for runs in results.values()})
    if counts == [1]:
        seeds = {run.settings["seed"] for runs in results.values() for run in runs}
        return f"seed {seeds.pop()}" if len(seeds) == 1 else "one seed each"
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    lines = any(two_groups(np.array([run.regret[: min(r.episodes for r in runs)].sum() for run in runs])) for runs in results.values())
    return f"mean of {span} seeds, band: middle 80 %" + ("; thin: each seed" if lines else "")
