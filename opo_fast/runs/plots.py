"""Pictures (extra `plot`)."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._support.checks import as_path
from .._support.files import writing
from .._support.text import plain
from ..errors import OpoError, install

if TYPE_CHECKING:
    from .result import SimulationResult

__all__ = ["COLOURS", "lighten", "missing_matplotlib", "new_figure", "regret_curves", "save_figure"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
LINES = ("-", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))


def missing_matplotlib() -> str | None:
    """What to do where matplotlib is not installed; None where it is."""
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return f"plots need matplotlib: {install('plot')}"
    return None


def new_figure(width: float, height: float) -> Any:
    """A figure that no window system needs to know of."""
    missing = missing_matplotlib()
    if missing:
        raise OpoError(missing)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def lighten(axes: Any) -> None:
    """Only the lines that help to read a curve."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure, whole or not at all; the ending of `path` names the format."""
    name = as_path(path)
    ending = os.path.splitext(name)[1][1:].lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if ending not in known:
        raise OpoError(f"path is {name!r}: a picture with an ending of {', '.join(known)} is needed")
    data = io.BytesIO()
    figure.savefig(data, format=ending, dpi=150)
    with writing(name) as file:
        file.write(data.getbuffer())


def regret_curves(
    results: Mapping[str, Sequence[SimulationResult]],
    path: str | os.PathLike[str] | None = None,
    *,
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Mean cumulative regret of each label over its runs, with the span of the middle 80 % where there are several.

    The dashed line is what the uniform policy would have had in the first label's runs.
    """
    if not results:
        raise OpoError("results is empty: at least one run is needed")
    for label, runs in results.items():
        if not runs:
            raise OpoError(f"results[{label!r}] is empty: at least one run is needed")
    if axes is None:
        axes = new_figure(7.0, 4.3).add_subplot()
        lighten(axes)
    for i, (label, runs) in enumerate(results.items()):
        length = min(run.episodes for run in runs)
        curves = np.array([run.cumulative_regret[:length] for run in runs])
        episodes = np.arange(1, length + 1)
        colour = COLOURS[i % len(COLOURS)]
        # More curves than colours: the next round of colours has another line.
        line = LINES[i // len(COLOURS) % len(LINES)]
        axes.plot(episodes, curves.mean(axis=0), color=colour, linestyle=line, label=plain(label))
        if len(runs) > 1:
            low, high = np.quantile(curves, [0.1, 0.9], axis=0)
            axes.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        if i == 0:
            uniform = np.mean([np.cumsum((run.uniform_value - run.optimal_value)[:length]) for run in runs], axis=0)
            axes.plot(episodes, uniform, color="#888888", linestyle="--", label="uniform policy")
    first = next(iter(results.values()))[0]
    axes.set_xlabel("episode")
    axes.set_ylabel("cumulative regret (sum of losses)")
    axes.set_title(plain(title or first.settings["environment"]))
    axes.legend(frameon=False)
    if path is not None:
        save_figure(axes.figure, path)
    return axes
