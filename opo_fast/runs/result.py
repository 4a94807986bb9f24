"""The result of a run: what it recorded in each episode, as arrays, tables and plots."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_number, shown
from .._support.files import reading
from .._support.state import holds, read_state, write_state
from .._support.text import figure, html_table, printable
from ..errors import OpoError
from ..oracles.log import TrajectoryLog
from .columns import COLUMNS, DIAGNOSTICS, ERRORS, INTEGERS, check_numbered, check_values
from .contexts import LISTED, ManyContexts, Seen, coordinates, joined

if TYPE_CHECKING:
    from .decomposition import RegretTerms

__all__ = ["COLUMNS", "DIAGNOSTICS", "ERRORS", "INTEGERS", "ContextSummary", "SimulationResult"]

Array = npt.NDArray[Any]

_FORMAT = "opo_fast.SimulationResult"
CONTEXTS_SHOWN = 20
"""Contexts that the table of a result lists one by one, in a notebook or if they are continuous."""


class ContextSummary(NamedTuple):
    """One line of `SimulationResult.summary`: a context, or all of them.

    The values and the share of the gap are means over the last episodes, and the regret is that of the whole run. If the environment only
    gave samples, ``learned`` is the mean of the observed losses, and the other numbers are NaN.
    """

    label: str
    episodes: int
    learned: float
    uniform: float
    optimum: float
    regret: float
    gap_closed: float


class SimulationResult:
    """What a run of `simulate` recorded, with one entry per episode.

    Attributes
    ----------
    value, optimal_value, uniform_value : ndarray, shape (T,)
        V(s_1) of the played policy, the optimum and the uniform policy in the true model of the episode's context; exact.
    regret, cumulative_regret : ndarray, shape (T,)
        value - optimal_value, and its running sum (paper, section 2.2).
    observed_loss : ndarray, shape (T,)
        Sum of the observed losses.
    saturation : ndarray, shape (T,)
        Share of the bonuses at their cap, among those that determine the episode's policy; NaN for agents without bonuses.
    truncated, truncated_played : ndarray, shape (T,)
        Share of the state-action pairs whose optimistic estimate was negative and was raised to 0, so that the bonuses hide the
        differences between actions; and the same weighted by the occupancy of the played policy. Computed in the first 32 episodes and
        then 16 times per doubling of their number; NaN in the others.
    vacuous_bonuses : ndarray, shape (T,)
        Share of the state-action pairs whose bonus is at least the greatest loss-to-go, in the same episodes.
    plausible_losses, plausible_dynamics : ndarray, shape (T,)
        Numbers of plausible candidates in the last step of the chain for the episode's policy; NaN if no plausible sets are kept.
    hedge_bound : ndarray, shape (T,)
        Bound on term (iii) of the regret so far at the episode's context: twice AdaHedge's sums of mixability gaps.
    held_out_squared_error, held_out_log_loss : ndarray, shape (T,)
        Sum over the episode's steps of (f(s_h, a_h) - l_h)^2 and of -log P(s_{h+1} | s_h, a_h) under the fits from before the episode,
        which have not seen it. NaN for agents without oracles, infinite if a fit gives the observed step probability 0.
    true_squared_error, true_log_loss : ndarray, shape (T,)
        The same under the true model. The excess over it tends to 0 if the class contains the truth, and does not otherwise.
    context_index : ndarray of int64, shape (T,)
        Number of the episode's context in order of first appearance; `contexts` lists them.
    loss_fit, dynamics_fit : ndarray of int64, shape (T,)
        The oracles' fits after the episode, if the classes number them; otherwise -1.
    contexts : list
        The distinct contexts; empty if there are more than 10,000.
    many : ManyContexts or None
        For more than 10,000 contexts: a digest of each, and its coordinates if the contexts are numbers or vectors.
    settings : dict
        Environment, agent, seed, seconds, whether the run was interrupted, and ``labels``: a label for each of `contexts`.
    log : TrajectoryLog or None
        The trajectories, if `simulate` was told to keep them; they are not saved.
    terms : RegretTerms or None
        The terms of the paper's proof, if `simulate` was told to add them (`opo_fast.analysis.RegretTerms`); they are not saved.
    """

    log: TrajectoryLog | None = None
    terms: RegretTerms | None = None

    def __init__(self, columns: dict[str, Array], contexts: list[Any], settings: dict[str, Any], many: ManyContexts | None = None) -> None:
        for name in COLUMNS:
            setattr(self, name, columns[name])
        self.contexts, self.settings, self.many = contexts, settings, many

    value: Array
    optimal_value: Array
    uniform_value: Array
    observed_loss: Array
    saturation: Array
    truncated: Array
    truncated_played: Array
    vacuous_bonuses: Array
    plausible_losses: Array
    plausible_dynamics: Array
    hedge_bound: Array
    held_out_squared_error: Array
    held_out_log_loss: Array
    true_squared_error: Array
    true_log_loss: Array
    context_index: Array
    loss_fit: Array
    dynamics_fit: Array

    @property
    def episodes(self) -> int:
        """Number of episodes that were played."""
        return self.value.size

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return bool(self.settings["interrupted"])

    @property
    def exact(self) -> bool:
        """Whether values and regret are known; they are NaN if the environment only gave samples."""
        return bool(self.settings.get("exact", True))

    @property
    def first(self) -> int:
        """Number of episodes that the agent had observed before this run."""
        return int(self.settings.get("first_episode", 0))

    @property
    def regret(self) -> Array:
        """Regret of each episode, shape (T,)."""
        return self.value - self.optimal_value

    @property
    def cumulative_regret(self) -> Array:
        """Running sum of the regret, shape (T,)."""
        return np.cumsum(self.regret)

    def gap_closed(self, episodes: slice = slice(None)) -> float:
        """Share of the gap between the uniform policy and the optimum that the played policies close: 1 is optimal."""
        return _share(self.regret[episodes], (self.uniform_value - self.optimal_value)[episodes])

    def summary(self, last: float = 0.1) -> list[ContextSummary]:
        """How well each context was learned, and a last line "all" for the whole run.

        Contexts that are whole numbers are sorted, others come in order of first appearance. If there are more than 10,000 contexts, or
        more than 20 `continuous` ones, contexts that came equally often share a line: once, 2 to 9 times, 10 to 99 times, and so on;
        `summary_by_quarter` groups them by their coordinates instead.

        Parameters
        ----------
        last : float
            The values are means over this share of the episodes, counted from the end; above 0 and at most 1.
        """
        tail = self._tail(last)
        if self.episodes and (not self.contexts or (self.continuous and self.distinct > CONTEXTS_SHOWN)):
            return self._summary_by_visits(tail)
        numbers = list(range(len(self.contexts)))
        if all(isinstance(context, int) for context in self.contexts):
            numbers.sort(key=self.contexts.__getitem__)
        lines = [self._line(self.settings["labels"][number], self.context_index == number, tail) for number in numbers]
        return [*lines, self._line("all", np.ones(self.episodes, bool), tail)]

    def _summary_by_visits(self, tail: Array) -> list[ContextSummary]:
        """One line for the contexts that came once, one for those that came 2 to 9 times, and so on; and the line "all"."""
        visits = np.bincount(self.context_index)
        digits = np.where(visits == 1, 0, np.floor(np.log10(np.maximum(visits, 1))).astype(np.int64) + 1)
        lines = []
        for d in np.unique(digits).tolist():
            these = digits == d
            span = "once" if d == 0 else f"{max(2, 10 ** (d - 1)):,} to {10**d - 1:,} times"
            lines.append(self._line(f"{int(these.sum()):,} contexts that came {span}", these[self.context_index], tail))
        return [*lines, self._line("all", np.ones(self.episodes, bool), tail)]

    @property
    def distinct(self) -> int:
        """Number of distinct contexts."""
        return int(self.context_index.max()) + 1 if self.episodes else 0

    @property
    def continuous(self) -> bool:
        """Whether the contexts are floats or vectors that rarely repeat, or more than 10,000 numbers or vectors."""
        if self.many is not None:
            return self.many.points is not None
        few = 2 * len(self.contexts) <= self.episodes
        return bool(self.contexts) and not few and all(_numeric(context) for context in self.contexts)

    def summary_by_quarter(self, last: float = 0.1, *, most: int = 3) -> list[ContextSummary]:
        """As `summary`, for continuous contexts: a line for each quarter of each of the first `most` coordinates, and the line "all".

        The quartiles are those of the distinct contexts; a context on a quartile is in the lower quarter.
        """
        points = self._points()
        tail, lines = self._tail(last), []
        for i in range(min(points.shape[1], as_integer(most, "most", least=1))):
            edges = np.unique(np.quantile(points[:, i], [0.0, 0.25, 0.5, 0.75, 1.0]))
            bins = np.searchsorted(edges[1:-1], points[:, i], side="left")
            for b in range(max(1, edges.size - 1)):
                span = f"{figure(edges[b], '.3g')} to {figure(edges[min(b + 1, edges.size - 1)], '.3g')}"
                name = "context" if points.shape[1] == 1 else f"context[{i}]"
                lines.append(self._line(f"{name} {span}", (bins == b)[self.context_index], tail))
        return [*lines, self._line("all", np.ones(self.episodes, bool), tail)]

    def _points(self) -> Array:
        """The coordinates of the distinct contexts, at most 8 each."""
        points = None if self.many is None else self.many.points
        if self.many is None and self.contexts and all(_numeric(context) for context in self.contexts):
            points = Seen(self.contexts).many().points
        if points is None:
            raise OpoError("the contexts are not numbers, or vectors of one length: use summary() instead")
        return points

    def _tail(self, last: float) -> Array:
        """A mask of the last episodes, over which the values are averaged."""
        last = as_number(last, "last", least=0.0, most=1.0)
        if last == 0:
            raise OpoError("last is 0.0: a number above 0 is needed")
        tail = np.zeros(self.episodes, bool)
        tail[self.episodes - max(1, round(last * self.episodes)) if self.episodes else 0 :] = True
        return tail

    def _line(self, label: str, mine: Array, tail: Array) -> ContextSummary:
        late = mine & tail
        columns = (self.value if self.exact else self.observed_loss, self.uniform_value, self.optimal_value)
        learned, uniform, optimum = (float(column[late].mean()) if late.any() else float("nan") for column in columns)
        share = _share(self.regret[late], (self.uniform_value - self.optimal_value)[late])
        return ContextSummary(label, int(mine.sum()), learned, uniform, optimum, float(self.regret[mine].sum()), share)

    def join(self, later: SimulationResult) -> SimulationResult:
        """This run and its continuation as one result; also ``self + later``.

        Raises
        ------
        OpoError
            `later` belongs to another run, or does not begin where this one ends; or one of them was saved by an older version and has
            more than 10,000 contexts.
        """
        if not isinstance(later, SimulationResult):
            raise OpoError(f"later is a {type(later).__name__}: an opo_fast.SimulationResult is needed")
        for name in ("environment", "agent", "seed"):
            if later.settings[name] != self.settings[name]:
                raise OpoError(f"later has {name} {later.settings[name]!r}: {self.settings[name]!r}, as in this run, is needed")
        end = self.first + self.episodes
        if later.first != end:
            raise OpoError(f"later begins at episode {later.first}: {end}, where this run ends, is needed")
        many, numbers = joined(self._distinct_contexts(), later._distinct_contexts())
        contexts, labels = [*self.contexts], [*self.settings["labels"]]
        if len(many.digests) > LISTED:
            contexts, labels = [], []
        else:
            new = np.flatnonzero(numbers >= len(contexts)).tolist()
            contexts += [later.contexts[i] for i in new]
            labels += [later.settings["labels"][i] for i in new]
        columns = {name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in COLUMNS}
        columns["context_index"] = np.concatenate([self.context_index, numbers[later.context_index]])
        settings = {
            **self.settings,
            "planned_episodes": self.episodes + later.settings["planned_episodes"],
            "interrupted": later.interrupted,
            "seconds": self.settings["seconds"] + later.settings["seconds"],
            "exact": self.exact and later.exact,
            "labels": labels,
        }
        return SimulationResult(columns, contexts, settings, None if contexts or not many.digests.size else many)

    def _distinct_contexts(self) -> ManyContexts:
        """The distinct contexts as digests, however many they are."""
        if self.many is None and self.episodes and not self.contexts:
            raise OpoError(
                "a result with more than 10,000 contexts that an older version wrote does not say which of them are equal: go on with "
                "simulate(..., resume=...), which gives one result"
            )
        return Seen(self.contexts).many() if self.many is None else self.many

    def __add__(self, later: SimulationResult) -> SimulationResult:
        return self.join(later)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to `path` as npz (no pickle). Contexts of types that cannot be saved are replaced by their repr."""
        contexts = [context if holds(context) else repr(context) for context in self.contexts]
        columns = {name: getattr(self, name) for name in COLUMNS}
        settings = {**self.settings, "labels": list(self.settings["labels"])}
        state = {"format": _FORMAT, "version": 2, "settings": settings, "contexts": contexts, "columns": columns}
        if self.many is not None:
            state["many"] = self.many._asdict()
        write_state(path, state, compressed=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SimulationResult:
        """Read a result that `save` wrote.

        Raises
        ------
        OpoError
            There is no such file, or it is damaged or not a result.
        """
        what = "a result that SimulationResult.save wrote"
        state = read_state(path, what)
        with reading(path, what):
            return cls(*_checked(state))

    def plot(self, path: str | os.PathLike[str] | None = None, *, axes: Any = None, log: bool = False, beside: bool = True) -> Any:
        """Plot the cumulative regret of the agent and of the uniform policy, and in a second panel the regret per episode.

        Parameters
        ----------
        path : path, optional
            Write the plot to this file; its ending determines the format.
        axes : matplotlib Axes, optional
            Draw the cumulative regret into these axes instead of a new figure.
        log : bool
            Logarithmic axes.
        beside : bool
            Whether to draw the second panel, a running mean of the regret per episode.

        Returns
        -------
        matplotlib Axes
        """
        from .plots import regret_curves

        if not self.exact:
            raise OpoError("the environment only gave samples, so the regret is not known: use result.observed_loss instead")
        return regret_curves({self.settings["agent"]: [self]}, path, axes=axes, log=log, beside=beside)

    def __repr__(self) -> str:
        said = f"regret {float(self.cumulative_regret[-1]) if self.episodes else 0.0:.4g}"
        if not self.exact:
            said = f"observed loss {float(self.observed_loss.sum()):.4g}, regret unknown (only samples)"
        return f"<SimulationResult {self.settings['agent']} on {self.settings['environment']}: {self.episodes} episodes, {said}>"

    def _repr_html_(self) -> str:
        """For notebooks: `summary`, with at most 20 lines."""
        lines = self.summary()
        shown = lines if len(lines) <= CONTEXTS_SHOWN else [*lines[: CONTEXTS_SHOWN - 1], lines[-1]]
        heads = ["context", "episodes", "learned", "uniform", "optimum", "regret", "gap closed"]
        rows = [
            [printable(line.label), f"{line.episodes:,}", *(figure(x) for x in line[2:6]), figure(line.gap_closed, ".1%")] for line in shown
        ]
        title = f"{self.settings['agent']} on {self.settings['environment']}: {self.episodes:,} episodes"
        rest = f"{len(lines) - len(shown)} more contexts are in summary(). " if len(shown) < len(lines) else ""
        return html_table(printable(title), heads, rows, rest + "Values and the gap closed are means over the last tenth of the run.")


def _numeric(context: Any) -> bool:
    """Whether a context is a float or a vector; whole numbers count as names."""
    return not isinstance(context, (int, np.integer)) and coordinates(context) is not None


def _share(regret: Array, gap: Array) -> float:
    """1 - sum(regret) / sum(gap); NaN if the uniform policy is optimal up to rounding."""
    return float(1 - regret.sum() / gap.sum()) if gap.size and gap.mean() > 1e-12 else float("nan")


_KINDS: dict[str, Any] = {
    "environment": str,
    "agent": str,
    "seed": int,
    "planned_episodes": int,
    "interrupted": bool,
    "seconds": (int, float),
    "labels": list,
}


def _checked(state: dict[str, Any]) -> tuple[dict[str, Array], list[Any], dict[str, Any], ManyContexts | None]:
    """The arguments of `SimulationResult` from a saved state, checked."""
    if (state.get("format"), state.get("version")) != (_FORMAT, 2):
        raise OpoError(f"its format is {state.get('format')!r}, version {state.get('version')!r}: {_FORMAT!r}, version 2, is needed")
    columns, contexts, settings = (state.get(name) for name in ("columns", "contexts", "settings"))
    if not isinstance(columns, dict) or not isinstance(contexts, list) or not isinstance(settings, dict):
        raise OpoError("its columns, contexts or settings are gone")
    for name, kind in _KINDS.items():
        value = settings.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise OpoError(f"settings[{name!r}] is {shown(value)}")
    labels = settings["labels"]
    if len(labels) != len(contexts) or not all(isinstance(label, str) for label in labels):
        raise OpoError(f"there are {len(labels)} labels for {len(contexts)} contexts")
    if not np.isfinite(settings["seconds"]) or settings["seconds"] < 0:
        raise OpoError(f"settings['seconds'] is {settings['seconds']!r}")
    exact, layers = settings.get("exact", True), settings.get("layers")
    if layers is not None and (type(layers) is not int or layers < 1):
        raise OpoError(f"settings['layers'] is {shown(layers)}")
    if not isinstance(exact, bool) or type(settings.get("first_episode", 0)) is not int:
        raise OpoError(f"settings say exact {shown(settings.get('exact'))}, first_episode {shown(settings.get('first_episode'))}")
    length = None
    for name in COLUMNS:
        length = _check_column(name, columns.get(name), length)
    if length is not None and length > settings["planned_episodes"]:
        raise OpoError(f"it has {length} episodes of {settings['planned_episodes']} that were planned")
    numbers = columns["context_index"]
    if numbers.size and (numbers.min() < 0 or (contexts and numbers.max() >= len(contexts))):
        raise OpoError(f"context_index runs from {numbers.min()} to {numbers.max()}, and there are {len(contexts)} contexts")
    check_values(columns, layers, exact)
    check_numbered(numbers)
    many = None if state.get("many") is None else ManyContexts.of(state["many"], int(numbers.max(initial=-1)) + 1)
    return columns, contexts, settings, many


def _check_column(name: str, column: Any, length: int | None) -> int:
    dtype = np.dtype(np.int64 if name in INTEGERS else np.float64)
    if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
        raise OpoError(f"its column {name} is not a vector of {dtype}")
    if length is not None and column.size != length:
        raise OpoError(f"its column {name} has {column.size} entries, the others have {length}")
    return int(column.size)
