"""Steps of packed chains with as little Python as possible around each kernel call.

`Chain.advance` works out the arguments of a kernel at every call. From one episode to the next they rarely change: `PreparedSteps` keeps
them for as long as they are valid, and reports when they no longer are. Packs that start at new contexts under one history share most of
theirs, which `SharedHistory` keeps.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.ahead import packed_ahead, packed_fit_runs, packed_self_tuning_ahead
from ..kernels.packed import packed_visits
from ..model.layout import aligned
from .chain import Chain
from .forms import NO_ROWS, PackedChain
from .history import History
from .packed_classes import PackedClasses

__all__ = ["PreparedSteps", "SharedHistory", "prepared_steps"]

Array = npt.NDArray[Any]


class PreparedSteps:
    """The coming steps of a chain under one pair of fits and one bonus.

    Parameters
    ----------
    chain : PackedChain
        One that has already run a step under the current fits.
    history : History
    run : int
        Index into ``history.runs``: the run of equal fits that contains the next step.
    """

    def __init__(self, chain: PackedChain, history: History, run: int) -> None:
        engine, fits, bonus = chain.engine, history.runs[run], chain.engine.rule.bonus(chain.steps)
        self.chain, self.history, self.run = chain, history, run
        self.bonus, self.end, self.begin = bonus, bonus.end, history.starts[run]
        self.keep = chain.surprised or bonus.needed
        self.entry = chain.visits.get(fits.dynamics if engine.rule.visits == "latest" else None) if bonus.needed else None
        counts = None if self.entry is None else self.entry.counts
        kernel, arguments = chain.call(fits, bonus, counts, 1, self.keep)
        self.kernel, self.arguments = kernel, list(arguments)
        self.lines, self.model = chain.policies.lines, chain.model(fits.dynamics)
        # The arrays that steps overwrite. Stored policies are not among them: steps append to those.
        hedge = [] if chain.hedge is None else [chain.hedge.gap, chain.hedge.total]
        visits, line = [] if counts is None else [counts], [] if self.keep else [self.lines[0]]
        self._changing: list[Array] = [chain.sum_q, chain.v, *hedge, *visits, *line]
        self._before: list[Array] = []

    @property
    def room(self) -> int:
        """Number of steps for which the arguments are valid; if it is 0, `Chain.advance` has to run the next one."""
        chain, store, starts = self.chain, self.chain.policies, self.history.starts
        steps, entry = chain.steps, self.entry
        end = min(starts[self.run + 1] if self.run + 1 < len(starts) else sys.maxsize, self.end)
        line = steps - store.first
        if not self.begin <= steps < end or store.lines is not self.lines:
            return 0
        # The visit sums must lack one policy only, the last step's, and that step must have had the current fits.
        if entry is not None and (chain.last is not entry.counts or entry.counted != steps - 1 or steps <= self.begin or line < 1):
            return 0
        if self.keep:
            return min(end - steps, len(store.lines) - (line + 1))
        # Where policies are not kept, the kernel overwrites line 0.
        return 0 if line else end - steps

    def advance(self, n: int) -> bool:
        """Bring the chain to `n` steps. If the arguments are not valid for that, change nothing and return False."""
        chain, count = self.chain, n - self.chain.steps
        if not 0 < count <= self.room:
            return False
        line = chain.steps - chain.policies.first
        if self.entry is not None:
            engine = chain.engine
            layout = engine.packed_block, engine.layout.offsets, engine.rows
            packed_visits(*layout, self.model, self.lines, line - 1, 1, chain.d, chain.w, self.entry.counts)
        self.arguments[3], self.arguments[4] = count, line
        self.kernel(*self.arguments)
        self._came_to(n)
        return True

    def _came_to(self, n: int) -> None:
        chain = self.chain
        done = (n - chain.steps) * len(chain.contexts)
        chain.steps = n
        chain.planned += done
        chain.engine.planned += done
        if not self.keep:
            chain.policies.first = n
        if self.entry is not None:
            self.entry.counted = n - 1

    def ahead(self, at: Array, lanes: Array) -> tuple[Array, Array, Array]:
        """Run up to `room` steps and record the state of the context in lanes[j] after at[j] of them. Call `settle` or `undo` next.

        Parameters
        ----------
        at, lanes : ndarray of int64, shape (m,)
            `at` is in ascending order.

        Returns
        -------
        policies : ndarray, shape (m, n_rows)
        gaps : ndarray, shape (m, n_states)
            AdaHedge's Delta, where the rule has it.
        saturated : ndarray, shape (m,)
            Share of the rows whose bonus was at its cap in the preceding step; not set where at is 0.
        """
        chain, engine = self.chain, self.chain.engine
        self._before = [array.copy() for array in self._changing]
        self.arguments[4] = chain.steps - chain.policies.first
        policies, gaps = np.empty((at.size, engine.n_rows)), np.empty((at.size, engine.layout.n_states))
        saturated = np.full(at.size, float(engine.n_rows))
        if chain.hedge is None:
            packed_ahead(tuple(self.arguments), at, lanes, policies, saturated)
        else:
            packed_self_tuning_ahead(tuple(self.arguments), at, lanes, policies, gaps, saturated)
        return policies, gaps, saturated / engine.n_rows

    def settle(self, count: int) -> None:
        """Keep the `count` steps that `ahead` has run."""
        self._came_to(self.chain.steps + count)

    def undo(self) -> None:
        """Go back to the state before `ahead`."""
        for array, before in zip(self._changing, self._before, strict=True):
            array[...] = before


def prepared_steps(chain: Chain, history: History) -> PreparedSteps | None:
    """The prepared next steps of a chain.

    None if it is not packed, has run no step under the current fits, or is about to start or stop using bonuses.
    """
    run = len(history.starts) - 1
    while run > 0 and history.starts[run] > chain.steps:
        run -= 1
    rule = chain.engine.rule
    if not isinstance(chain, PackedChain) or not chain.steps > history.starts[run]:
        return None
    needed = rule.bonus(chain.steps).needed
    if needed and (chain.last is None or rule.visits == "actions"):
        return None
    return PreparedSteps(chain, history, run) if needed or chain.last is None else None


class _FitRuns(NamedTuple):
    """All runs of equal fits, in the form that `packed_fit_runs` takes."""

    ends: Array
    """The first step after each run; the last run has no end."""
    fits: Array
    members: Array
    listed: Array
    used: frozenset[Any]
    """All dynamics that are fitted or plausible in one of the runs."""


class SharedHistory:
    """The arguments of steps under one history of fits with plausible sets, shared by all chains while no bonus makes a difference.

    Parameters
    ----------
    source : ModelSource
        A source of finite classes. It is asked for each plausible set once.
    history : History
    """

    def __init__(self, source: Any, history: History) -> None:
        self.source, self.history = source, history
        self._known: _FitRuns | None = None

    def advance(self, chain: Chain, history: History, n: int) -> None:
        """Do what `Chain.advance` does, for a chain without steps in one kernel call."""
        classes = chain.classes if isinstance(chain, PackedChain) else None
        fresh = n > 0 and chain.steps == 0 and not (chain.surprised or chain.kept)
        if classes is None or not fresh or history is not self.history or not self._run_all(chain, classes, n):
            chain.advance(history, n)

    def _run_all(self, chain: Any, classes: PackedClasses, n: int) -> bool:
        """Run the first `n` steps. If one of them needs a bonus or invalid dynamics, change nothing and return False."""
        engine, hedge = chain.engine, chain.hedge
        bonus = engine.rule.bonus(0)
        while bonus.end < n and not bonus.needed:
            bonus = engine.rule.bonus(bonus.end)
        runs = self._fit_runs(len(classes.losses), len(classes.dynamics))
        # `used` may also contain dynamics of steps after these; they are few, and mostly the same ones.
        if bonus.needed or not (classes.sound or all(map(classes.has, runs.used))):
            return False
        packed_fit_runs(
            engine.packed_block, engine.layout.offsets, engine.rows, n, *runs[:4], classes.losses, classes.dynamics, classes.base,
            bonus.beta_loss / 2, bonus.beta_dynamics / 2, engine.rule.weight, aligned(chain.width),
            np.empty((len(classes.dynamics), 2), np.int64), np.empty(0, np.int64), chain.policies.lines, chain.sum_q, chain.v, hedge.gap,
            hedge.total, hedge.log_actions, hedge.excess, NO_ROWS, chain.d, chain.w,
        )  # fmt: skip
        chain.steps = chain.policies.first = n
        chain.planned += n * len(chain.contexts)
        return True

    def _fit_runs(self, n: int, m: int) -> _FitRuns:
        """The history's runs so far, over `n` candidate losses and `m` candidate dynamics."""
        history, source, known = self.history, self.source, self._known
        count = len(history.runs)
        if known is None or len(known.ends) < count:
            old = 0 if known is None else len(known.ends)
            members, listed = np.zeros((count, n), bool), np.zeros((count, m), bool)
            if known is not None:
                members[:old], listed[:old] = known.members, known.listed
            for r, fits in enumerate(history.runs[old:], old):
                members[r, source.loss_candidates(fits.loss_version)] = True
                listed[r, list(source.candidates(fits.dynamics_version))] = True
            pairs = np.array([run[:2] for run in history.runs], np.int64)
            used = frozenset([*np.flatnonzero(listed.any(axis=0)).tolist(), *pairs[:, 1].tolist()])
            self._known = known = _FitRuns(np.array([*history.starts[1:], sys.maxsize]), pairs, members, listed, used)
        return known
