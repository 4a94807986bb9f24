"""Steps of packed chains with next to nothing around the calls of the kernel.

`Chain.advance` decides at every call what the coming steps need. From one episode to the next this is mostly the same: `PreparedSteps`
keep the arguments of the kernel for as long as they hold, and say so where they no longer do. And it is the same for all packs
that begin at new contexts under one history: a `SharedHistory` keeps what their steps need.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.packed import packed_visits
from ..kernels.packed_self_tuning import packed_self_tuning_steps
from ..kernels.weights import count_saturated
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
        self.halves = bonus.beta_loss / 2, bonus.beta_dynamics / 2

    def advance(self, n: int) -> bool:
        """Bring the chain to `n` steps, or leave it as it is and return False: `Chain.advance` is needed then."""
        chain, store, starts = self.chain, self.chain.policies, self.history.starts
        steps = chain.steps
        end = starts[self.run + 1] if self.run + 1 < len(starts) else math.inf
        if not self.begin <= steps < n <= min(end, self.end):
            return False
        line = steps - store.first
        if self.keep:
            if store.lines is not self.lines or len(store.lines) - (line + 1) < n - steps:
                return False
        elif line != 0:
            return False
        if self.entry is not None and not self._counted(steps, line):
            return False
        self.arguments[3], self.arguments[4] = n - steps, line
        self.kernel(*self.arguments)
        done = (n - steps) * len(chain.contexts)
        chain.steps = n
        chain.planned += done
        chain.engine.planned += done
        if not self.keep:
            store.first = n
        if self.entry is not None:
            self.entry.counted = n - 1
        return True

    def _counted(self, steps: int, line: int) -> bool:
        """Add the policy of the last step to the visits; whether it is the only one that is missing, and of these fits."""
        assert self.entry is not None
        chain, engine = self.chain, self.chain.engine
        if self.chain.last is not self.entry.counts or self.entry.counted != steps - 1 or steps <= self.begin or line < 1:
            return False
        layout = engine.packed_block, engine.layout.offsets, engine.rows
        packed_visits(*layout, self.model, self.lines, line - 1, 1, chain.d, chain.w, self.entry.counts)
        return True

    def saturation(self, lane: int) -> float:
        """What `Chain.saturation` gives after `advance`."""
        chain = self.chain
        if chain.last is None:
            return 1.0
        engine = chain.engine
        count = count_saturated(chain.last, lane, chain.lanes, engine.layout.offsets, engine.rows, *self.halves)
        return count / engine.n_rows  # type: ignore[no-any-return]


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


class _FitRun(NamedTuple):
    """Steps under the same fits."""

    start: int
    loss: Any
    fit: Any
    version: Hashable
    members: Array
    """Indices of the plausible losses."""
    listed: tuple[Any, ...]
    """The plausible dynamics."""


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
        self.fit_runs: list[_FitRun] = []

    def advance(self, chain: Chain, history: History, n: int) -> None:
        """`Chain.advance`."""
        bonus = chain.engine.rule.bonus(n - 1) if n > 0 else None
        whole = chain.whole if isinstance(chain, PackedChain) else None
        fresh = chain.steps == 0 and bonus is not None and not (bonus.needed or chain.surprised or chain.kept)
        if whole is None or not fresh or history is not self.history or not self._run_all(chain, whole, n):
            chain.advance(history, n)

    def _run_all(self, chain: Any, whole: WholeClasses, n: int) -> bool:
        """Run the first `n` steps, or leave the chain as it is and return False."""
        fit_runs, starts, rule = self._fit_runs(), self.history.starts, chain.engine.rule
        # Bonuses are needed from some number of steps on, and asked for as powers of two pass.
        if any(rule.bonus(1 << power).needed for power in range(n.bit_length())) or rule.bonus(0).needed:
            return False
        if not all(whole.has(fit) for fit_run in fit_runs if fit_run.start < n for fit in (fit_run.fit, *fit_run.listed)):
            return False
        engine, hedge = chain.engine, chain.hedge
        layout = engine.packed_block, engine.layout.offsets, engine.rows
        bonus = rule.bonus(n - 1)
        betas = bonus.beta_loss / 2, bonus.beta_dynamics / 2, rule.weight
        work = chain.sum_q, chain.v, hedge.gap, hedge.total, hedge.log_actions, hedge.excess, NO_ROWS, chain.d, chain.w
        order, lower, version = np.empty(0, np.int64), NO_ROWS, object()
        for r, fit_run in enumerate(fit_runs):
            if fit_run.start >= n:
                break
            end = min(n, starts[r + 1]) if r + 1 < len(starts) else n
            if fit_run.version != version:
                lower, version = whole.least(fit_run.members), fit_run.version
            packed_self_tuning_steps(
                *layout, end - fit_run.start, 0, 0, 0, whole.dynamics[fit_run.fit], whole.losses[fit_run.loss], NO_ROWS, *betas,
                lower, whole.table(fit_run.listed), chain.sets.no_rows, order, chain.policies.lines, *work,
            )  # fmt: skip
        chain.steps = chain.policies.first = n
        chain.planned += n * len(chain.contexts)
        return True

    def _fit_runs(self) -> list[_FitRun]:
        """One for each run of equal fits."""
        runs, starts = self.history.runs, self.history.starts
        for r in range(len(self.fit_runs), len(runs)):
            fits, source = runs[r], self.source
            members, listed = source.loss_candidates(fits.loss_version), source.candidates(fits.dynamics_version)
            self.fit_runs.append(_FitRun(starts[r], fits.loss, fits.dynamics, fits.loss_version, members, listed))
        return self.fit_runs
