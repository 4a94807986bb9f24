"""What a run recorded: one entry per episode, and what a table or a picture says of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_number, shown
from .._support.files import reading
from .._support.state import holds, read_state, write_state
from .._support.text import figure
from ..errors import OpoError
from ..model.contextual import context_key
from ..oracles.log import TrajectoryLog

if TYPE_CHECKING:
    from .decomposition import RegretTerms

__all__ = ["COLUMNS", "DIAGNOSTICS", "ERRORS", "WHOLE", "ContextSummary", "SimulationResult"]

Array = npt.NDArray[Any]

DIAGNOSTICS = ("truncated", "truncated_played", "vacuous_bonuses", "plausible_losses", "plausible_dynamics", "hedge_bound")
ERRORS = ("held_out_squared_error", "held_out_log_loss", "true_squared_error", "true_log_loss")
COLUMNS = (
    "value", "optimal_value", "uniform_value", "observed_loss", "saturation", *DIAGNOSTICS, *ERRORS, "context_index", "loss_fit",
    "dynamics_fit",
)  # fmt: skip
WHOLE = ("context_index", "loss_fit", "dynamics_fit")
_FORMAT = "opo_fast.SimulationResult"


class ContextSummary(NamedTuple):
    """One line of `SimulationResult.summary`: a context, or all of them.

    The values and the share of the gap are means over the last episodes, the regret is that of the whole run. Where the
    environment gave samples alone, ``learned`` is the mean of the observed losses, and the rest is NaN.
    """

    label: str
    episodes: int
    learned: float
    uniform: float
    optimum: float
    regret: float
    gap_closed: float


class SimulationResult:
    """What a run of `simulate` recorded, one entry per episode.

    Attributes
    ----------
    value, optimal_value, uniform_value : ndarray, shape (T,)
        V(s_1) at the episode's context of the policy played, of the optimum and of the uniform policy, exact on the
        true model.
    regret, cumulative_regret : ndarray, shape (T,)
        value - optimal_value, and its running sum (paper, section 2.2).
    observed_loss : ndarray, shape (T,)
        Sum of the observed losses.
    saturation : ndarray, shape (T,)
        Share of the bonuses at their cap behind the episode's policy; NaN for agents without bonuses.
    truncated, truncated_played : ndarray, shape (T,)
        Share of the pairs whose optimistic estimate is below 0 before it is raised to 0: their bonuses hide the differences
        between actions; and the same weighted by what the played policy visits. Looked at in the first 32 episodes, then 16 times
        while their number doubles, else NaN.
    vacuous_bonuses : ndarray, shape (T,)
        Share of the pairs whose bonus is at least the greatest loss-to-go, so that it says nothing; in the same episodes.
    plausible_losses, plausible_dynamics : ndarray, shape (T,)
        Numbers of candidates that were plausible in the last step behind the episode's policy; NaN where no sets are kept.
    hedge_bound : ndarray, shape (T,)
        Bound on term (iii) of the regret so far at the episode's context, twice AdaHedge's sums of mixability gaps.
    held_out_squared_error, held_out_log_loss : ndarray, shape (T,)
        Sum over the episode's steps of (f(s_h, a_h) - l_h)^2 and of -log P(s_{h+1} | s_h, a_h) under the fits from before
        the episode, which have not seen it; NaN for agents without oracles, infinite where a fit excludes what happened.
    true_squared_error, true_log_loss : ndarray, shape (T,)
        The same under the true model. The excess over these tends to 0 for a class that holds the truth, and does not
        for one that does not.
    context_index : ndarray of int64, shape (T,)
        Number of the episode's context in order of first appearance; `contexts` lists them.
    loss_fit, dynamics_fit : ndarray of int64, shape (T,)
        The oracles' fits after the episode, for classes that number them; -1 elsewhere.
    contexts : list
        The distinct contexts; empty where there are more than 10,000.
    settings : dict
        Environment, agent, seed, seconds, whether the run was interrupted, and ``labels``: what each of `contexts` means.
    log : TrajectoryLog or None
        The trajectories, where `simulate` was told to keep them; a result that was saved and loaded has none.
    terms : RegretTerms or None
        The terms of the paper's proof, where `simulate` was told to add them (`opo_fast.analysis.RegretTerms`); not saved either.
    """

    log: TrajectoryLog | None = None
    terms: RegretTerms | None = None

    def __init__(self, columns: dict[str, Array], contexts: list[Any], settings: dict[str, Any]) -> None:
        for name in COLUMNS:
            setattr(self, name, columns[name])
        self.contexts, self.settings = contexts, settings

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
        """Whether values and regret are those of a known model; NaN where the environment gave samples alone."""
        return bool(self.settings.get("exact", True))

    @property
    def first(self) -> int:
        """Episodes that the agent had observed before this run."""
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

        Numbered contexts come in their order, others in that of their first appearance.

        Parameters
        ----------
        last : float
            Share of the episodes, counted from the end, that stands for what was learned; above 0 and at most 1.
        """
        tail = self._tail(last)
        numbers = list(range(len(self.contexts)))
        if all(isinstance(context, int) for context in self.contexts):
            numbers.sort(key=self.contexts.__getitem__)
        lines = [self._line(self.settings["labels"][number], self.context_index == number, tail) for number in numbers]
        return [*lines, self._line("all", np.ones(self.episodes, bool), tail)]

    @property
    def continuous(self) -> bool:
        """Whether the contexts are numbers or vectors of numbers that hardly return."""
        few = 2 * len(self.contexts) <= self.episodes
        return bool(self.contexts) and not few and all(_numeric(context) for context in self.contexts)

    def summary_by_quarter(self, last: float = 0.1, *, most: int = 3) -> list[ContextSummary]:
        """As `summary`, for continuous contexts: a line for each quarter of their first `most` coordinates, and the line "all".

        The quarters are those of the distinct contexts; a context on a border is in the lower one.
        """
        if not self.contexts or not all(_numeric(context) for context in self.contexts):
            raise OpoError("the contexts are not numbers, or vectors of one length: summary() has a line for each")
        points = np.array([np.ravel(context) for context in self.contexts], np.float64)
        tail, lines = self._tail(last), []
        for i in range(min(points.shape[1], as_integer(most, "most", least=1))):
            edges = np.unique(np.quantile(points[:, i], [0.0, 0.25, 0.5, 0.75, 1.0]))
            bins = np.searchsorted(edges[1:-1], points[:, i], side="left")
            for b in range(max(1, edges.size - 1)):
                span = f"{figure(edges[b], '.3g')} to {figure(edges[min(b + 1, edges.size - 1)], '.3g')}"
                name = "context" if points.shape[1] == 1 else f"context[{i}]"
                lines.append(self._line(f"{name} {span}", (bins == b)[self.context_index], tail))
        return [*lines, self._line("all", np.ones(self.episodes, bool), tail)]

    def _tail(self, last: float) -> Array:
        """Which episodes stand for what was learned."""
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
        """This run and the one that goes on from it as one; also ``self + later``.

        Raises
        ------
        OpoError
            `later` is another run, or does not begin where this one ends; or there are more than 10,000 contexts, which a
            result does not list (``simulate(..., resume=)`` gives one result).
        """
        if not isinstance(later, SimulationResult):
            raise OpoError(f"later is a {type(later).__name__}: an opo_fast.SimulationResult is needed")
        for name in ("environment", "agent", "seed"):
            if later.settings[name] != self.settings[name]:
                raise OpoError(f"later has {name} {later.settings[name]!r}: {self.settings[name]!r}, as this run, is needed")
        end = self.first + self.episodes
        if later.first != end:
            raise OpoError(f"later begins at episode {later.first}: {end}, where this run ends, is needed")
        if any(run.episodes and not run.contexts for run in (self, later)):
            raise OpoError("the contexts of a run of more than 10,000 are not listed: simulate(..., resume=...) gives one result")
        keys = {context_key(context): i for i, context in enumerate(self.contexts)}
        contexts, labels = list(self.contexts), list(self.settings["labels"])
        numbers = np.empty(len(later.contexts), np.int64)
        for i, (context, label) in enumerate(zip(later.contexts, later.settings["labels"], strict=True)):
            numbers[i] = keys.setdefault(context_key(context), len(contexts))
            if numbers[i] == len(contexts):
                contexts.append(context)
                labels.append(label)
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
        return SimulationResult(columns, contexts, settings)

    def __add__(self, later: SimulationResult) -> SimulationResult:
        return self.join(later)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to `path` as npz (no pickle). Contexts that a file cannot hold are kept as their repr."""
        contexts = [context if holds(context) else repr(context) for context in self.contexts]
        columns = {name: getattr(self, name) for name in COLUMNS}
        settings = {**self.settings, "labels": list(self.settings["labels"])}
        state = {"format": _FORMAT, "version": 2, "settings": settings, "contexts": contexts, "columns": columns}
        write_state(path, state, compressed=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SimulationResult:
        """Read a result that `save` wrote.

        Raises
        ------
        OpoError
            No such file, or one that is damaged or does not hold what a result holds.
        """
        what = "a result that SimulationResult.save wrote"
        state = read_state(path, what)
        with reading(path, what):
            return cls(*_checked(state))

    def plot(self, path: str | os.PathLike[str] | None = None, *, axes: Any = None, log: bool = False, beside: bool = True) -> Any:
        """Cumulative regret over episodes, that of the uniform policy, and beside it the regret of an episode.

        Parameters
        ----------
        path : path, optional
            Write the picture there; its ending names the format.
        axes : matplotlib Axes, optional
            Draw the cumulative regret there instead of in a new figure.
        log : bool
            Logarithmic axes.
        beside : bool
            Draw the regret of an episode too, as a running mean.

        Returns
        -------
        matplotlib Axes
        """
        from .plots import regret_curves

        if not self.exact:
            raise OpoError("the environment gave samples alone, so the regret is not known: result.observed_loss is what there is")
        return regret_curves({self.settings["agent"]: [self]}, path, axes=axes, log=log, beside=beside)

    def __repr__(self) -> str:
        said = f"regret {float(self.cumulative_regret[-1]) if self.episodes else 0.0:.4g}"
        if not self.exact:
            said = f"observed loss {float(self.observed_loss.sum()):.4g}, regret unknown (samples alone)"
        return f"<SimulationResult {self.settings['agent']} on {self.settings['environment']}: {self.episodes} episodes, {said}>"


def _numeric(context: Any) -> bool:
    if isinstance(context, np.ndarray):
        return context.dtype.kind in "iuf"
    return isinstance(context, float) or (isinstance(context, tuple) and all(isinstance(x, (int, float)) for x in context))


def _share(regret: Array, gap: Array) -> float:
    """1 - sum(regret) / sum(gap); NaN where the uniform policy is optimal up to rounding."""
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
_MEASURED = ("saturation", *DIAGNOSTICS, *ERRORS)
"""Columns that may be NaN or infinite: agents without bonuses or oracles, fits that exclude what happened."""


def _checked(state: dict[str, Any]) -> tuple[dict[str, Array], list[Any], dict[str, Any]]:
    """The columns, contexts and settings of a state, or an error that names what is wrong."""
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
    if not isinstance(settings.get("exact", True), bool) or type(settings.get("first_episode", 0)) is not int:
        raise OpoError(f"settings say exact {shown(settings.get('exact'))}, first_episode {shown(settings.get('first_episode'))}")
    unknown = _MEASURED if settings.get("exact", True) else (*_MEASURED, "value", "optimal_value", "uniform_value")
    length = None
    for name in COLUMNS:
        length = _check_column(name, columns.get(name), length, unknown)
    if length is not None and length > settings["planned_episodes"]:
        raise OpoError(f"it has {length} episodes of {settings['planned_episodes']} that were planned")
    numbers = columns["context_index"]
    if numbers.size and (numbers.min() < 0 or (contexts and numbers.max() >= len(contexts))):
        raise OpoError(f"context_index runs from {numbers.min()} to {numbers.max()}, and there are {len(contexts)} contexts")
    return columns, contexts, settings


def _check_column(name: str, column: Any, length: int | None, unknown: tuple[str, ...]) -> int:
    dtype = np.dtype(np.int64 if name in WHOLE else np.float64)
    if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
        raise OpoError(f"its column {name} is not a vector of {dtype}")
    if length is not None and column.size != length:
        raise OpoError(f"its column {name} has {column.size} entries, the others have {length}")
    if name not in WHOLE and name not in unknown and not np.isfinite(column).all():
        raise OpoError(f"its column {name} has an entry that is not finite, in episode {int(np.flatnonzero(~np.isfinite(column))[0]) + 1}")
    return int(column.size)
