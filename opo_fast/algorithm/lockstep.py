"""Packed chains that go on under the fits of their last steps: one call of the kernel, and next to nothing around it.

`Chain.advance` decides at every call what the coming steps need. From one episode to the next this is mostly the same: a `Going`
keeps the arguments of the kernel for as long as they hold, and says so where they no longer do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from ..kernels.packed import packed_visits
from ..kernels.weights import count_saturated
from .chain import Chain
from .forms import PackedChain
from .history import History

__all__ = ["Going", "going"]

Array = npt.NDArray[Any]


class Going:
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


def going(chain: Chain, history: History) -> Going | None:
    """What keeps a chain going from where it stands, or None where it is not known yet what that takes."""
    run = len(history.starts) - 1
    while run > 0 and history.starts[run] > chain.steps:
        run -= 1
    rule = chain.engine.rule
    if not isinstance(chain, PackedChain) or not chain.steps > history.starts[run]:
        return None
    needed = rule.bonus(chain.steps).needed
    if needed and (chain.last is None or rule.visits == "actions"):
        return None
    return Going(chain, history, run) if needed or chain.last is None else None
