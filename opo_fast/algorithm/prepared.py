"""Steps of packed chains with next to nothing around the calls of the kernel.

`Chain.advance` decides at every call what the coming steps need. From one episode to the next this is mostly the same: `PreparedSteps`
keep the arguments of the kernel for as long as they hold, and say so where they no longer do. And it is the same for all packs
that begin at new contexts under one history: a `SharedHistory` keeps what their steps need.
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
from .whole import WholeClasses

__all__ = ["PreparedSteps", "SharedHistory", "prepared_steps"]

Array = npt.NDArray[Any]


class PreparedSteps:
    """The coming steps of a chain under one pair of fits and one bonus.

    Parameters
    ----------
    chain : PackedChain
        In which steps under these fits have been run.
    history : History
    run : int
        The run of equal fits in `history` that the coming step lies in.
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
        # What steps change; stored policies are written beyond the current one alone.
        hedge = [] if chain.hedge is None else [chain.hedge.gap, chain.hedge.total]
        visits, line = [] if counts is None else [counts], [] if self.keep else [self.lines[0]]
        self._changing: list[Array] = [chain.sum_q, chain.v, *hedge, *visits, *line]
        self._before: list[Array] = []

    @property
    def room(self) -> int:
        """How many steps the arguments hold for; 0: `Chain.advance` is needed."""
        chain, store, starts = self.chain, self.chain.policies, self.history.starts
        steps, entry = chain.steps, self.entry
        end = min(starts[self.run + 1] if self.run + 1 < len(starts) else sys.maxsize, self.end)
        line = steps - store.first
        if not self.begin <= steps < end or store.lines is not self.lines:
            return 0
        # The policy of the last step is the only one that the visits miss, and it is of these fits.
        if entry is not None and (chain.last is not entry.counts or entry.counted != steps - 1 or steps <= self.begin or line < 1):
            return 0
        if self.keep:
            return min(end - steps, len(store.lines) - (line + 1))
        return 0 if line else end - steps

    def advance(self, n: int) -> bool:
        """Bring the chain to `n` steps, or leave it as it is and return False: `Chain.advance` is needed then."""
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
        """What the contexts of `lanes` have after `at` more steps each, for which there is `room`; `settle` or `undo` has to follow.

        Parameters
        ----------
        at, lanes : ndarray of int64, shape (m,)
            `at` ascends.

        Returns
        -------
        policies : ndarray, shape (m, n_rows)
        gaps : ndarray, shape (m, n_states)
            AdaHedge's Delta, where the rule has it.
        saturated : ndarray, shape (m,)
            Share of the rows whose bonus was at its cap in the step before, for at > 0.
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
        """Keep the `count` steps that `ahead` has done."""
        self._came_to(self.chain.steps + count)

    def undo(self) -> None:
        """Stand before the steps that `ahead` has done."""
        for array, before in zip(self._changing, self._before, strict=True):
            array[...] = before


def prepared_steps(chain: Chain, history: History) -> PreparedSteps | None:
    """The coming steps of a chain, or None: it is not packed, ran no step under its fits yet, or changes the kind of its steps."""
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
    """Runs of steps under the same fits, as `packed_fit_runs` takes them."""

    ends: Array
    """The first step after each; there is none after the last."""
    fits: Array
    members: Array
    listed: Array
    used: frozenset[Any]
    """All dynamics that steps look at."""


class SharedHistory:
    """A history of fits with plausible sets, as long as bonuses make no difference: what its steps need, for all chains.

    Parameters
    ----------
    source : ModelSource
        Of finite classes; asked for each set once.
    history : History
    """

    def __init__(self, source: Any, history: History) -> None:
        self.source, self.history = source, history
        self._known: _FitRuns | None = None

    def advance(self, chain: Chain, history: History, n: int) -> None:
        """`Chain.advance`."""
        whole = chain.whole if isinstance(chain, PackedChain) else None
        fresh = n > 0 and chain.steps == 0 and not (chain.surprised or chain.kept)
        if whole is None or not fresh or history is not self.history or not self._run_all(chain, whole, n):
            chain.advance(history, n)

    def _run_all(self, chain: Any, whole: WholeClasses, n: int) -> bool:
        """Run the first `n` steps, or leave the chain as it is and return False."""
        engine, hedge = chain.engine, chain.hedge
        bonus = engine.rule.bonus(0)
        while bonus.end < n and not bonus.needed:
            bonus = engine.rule.bonus(bonus.end)
        runs = self._fit_runs(len(whole.losses), len(whole.dynamics))
        # Dynamics of later steps than these are few, and mostly the same.
        if bonus.needed or not (whole.sound or all(map(whole.has, runs.used))):
            return False
        packed_fit_runs(
            engine.packed_block, engine.layout.offsets, engine.rows, n, *runs[:4], whole.losses, whole.dynamics, whole.base,
            bonus.beta_loss / 2, bonus.beta_dynamics / 2, engine.rule.weight, aligned(chain.width),
            np.empty((len(whole.dynamics), 2), np.int64), np.empty(0, np.int64), chain.policies.lines, chain.sum_q, chain.v, hedge.gap,
            hedge.total, hedge.log_actions, hedge.excess, NO_ROWS, chain.d, chain.w,
        )  # fmt: skip
        chain.steps = chain.policies.first = n
        chain.planned += n * len(chain.contexts)
        return True

    def _fit_runs(self, n: int, m: int) -> _FitRuns:
        """All runs, of `n` losses and `m` dynamics."""
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
