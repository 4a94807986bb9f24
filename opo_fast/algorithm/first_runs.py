"""The first steps of a chain, during which the fits change often, in one kernel call.

`Chain.advance` calls a kernel for each run of equal fits. In the first episodes the fits change from one episode to the next, and later
hardly ever. A new context's chain has to go through all of them. The last run is left to `Chain.advance`, since it goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.ahead import packed_first_runs
from ..model.layout import aligned
from .chain import SMALL_STORE, Chain
from .forms import PackedChain
from .history import History
from .policies import VisitSum

__all__ = ["FirstRuns"]

Array = npt.NDArray[Any]

FEW, MANY = 3, 64
"""With `FEW` runs or fewer one call saves nothing; with more than `MANY` there would be too many sums of visits."""


class _Runs(NamedTuple):
    """Runs of equal fits, in the form that `packed_first_runs` takes."""

    ends: Array
    """The first step after each run."""
    fits: Array
    slots: Array
    """For each run, the index of its dynamics in `dynamics`."""
    dynamics: list[Any]


class FirstRuns:
    """All runs of a history of fits but the last, for chains of Algorithm 1 over finite classes.

    Parameters
    ----------
    history : History
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._known: _Runs | None = None

    def advance(self, chain: Chain, history: History, n: int) -> None:
        """Do what `Chain.advance` does, the first runs of a new chain in one call."""
        rule = chain.engine.rule
        if (
            isinstance(chain, PackedChain)
            and chain.steps == 0 < n
            and not (chain.surprised or chain.visits or rule.hedged or rule.greedy)
            and history is self.history
            and FEW < len(history.runs) <= MANY
            and history.starts[-1] <= n
        ):
            self._run(chain)
        chain.advance(history, n)

    def _run(self, chain: PackedChain) -> None:
        """Run the steps of all runs but the last; do nothing if they need no bonus, too much memory, or dynamics that are not valid."""
        engine, classes, runs, n = chain.engine, chain.classes, self._runs(), self.history.starts[-1]
        bonus, store = engine.rule.bonus(0), chain.policies
        if classes is None or bonus.end < n or not bonus.needed or not all(map(classes.has, runs.dynamics)):
            return
        store.grow(0, n, min(SMALL_STORE, engine.store_bytes))
        if store.free(0) < n:
            return
        visits = aligned(len(runs.dynamics) * chain.width, zero=True).reshape(-1, chain.width)
        counted = np.zeros(len(visits), np.int64)
        packed_first_runs(
            engine.packed_block, engine.layout.offsets, engine.rows, runs.ends, runs.fits, runs.slots, classes.losses, classes.dynamics,
            visits, counted, store.lines, chain.sum_q, chain.v, chain.d, chain.w, bonus.beta_loss / 2, bonus.beta_dynamics / 2,
            engine.rule.weight, engine.rule.eta,
        )  # fmt: skip
        for fit, counts, done in zip(runs.dynamics, visits, counted.tolist(), strict=True):
            chain.visits[fit] = VisitSum(counts, done)
        chain.steps, chain.last = n, visits[runs.slots[-1]]
        chain.planned += n * len(chain.contexts)

    def _runs(self) -> _Runs:
        history = self.history
        count = len(history.runs) - 1
        if self._known is None or len(self._known.ends) != count:
            pairs = [run[:2] for run in history.runs[:-1]]
            slots = {fit: i for i, fit in enumerate(dict.fromkeys(fit for _, fit in pairs))}
            where = np.array([slots[fit] for _, fit in pairs], np.int64)
            self._known = _Runs(np.array(history.starts[1:], np.int64), np.array(pairs, np.int64), where, list(slots))
        return self._known
