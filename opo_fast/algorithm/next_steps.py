"""The coming steps of the chain of one context, one at a time, with next to nothing around the calls of the kernel.

`Chain.advance` decides at every step what it needs. As long as the dynamics stay the same, a step needs the losses of its model alone.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..model.contextual import context_key
from .chain import SMALL_STORE, Chain
from .forms import OneLaneChain, SingleChain
from .history import History
from .policies import VisitSum

__all__ = ["NextSteps", "next_steps"]


class NextSteps:
    """The coming steps under the dynamics of the last one.

    Parameters
    ----------
    chain : OneLaneChain or SingleChain
        Under `opo_rule`; its last step is one under these dynamics.
    history : History
    fit : hashable
        The dynamics.
    entry : VisitSum
        Their visits.
    """

    def __init__(self, chain: OneLaneChain | SingleChain, history: History, fit: Hashable, entry: VisitSum) -> None:
        self.chain, self.history, self.fit, self.entry = chain, history, fit, entry
        self._last, self._key = len(chain.policies.lines) - 1, context_key(chain.contexts[0])
        # No other sum of visits needs the past policies, and there is no room for more: the kernel may overwrite them.
        budget = chain.engine.store_bytes
        self._wraps = len(chain.visits) == 1 and chain.policies.is_full(budget if chain.surprised else min(SMALL_STORE, budget))
        self._step = chain.one_by_one(fit, chain.engine.rule.bonus(chain.steps), entry.counts)

    def advance(self, n: int) -> bool:
        """Bring the chain to `n` steps, or leave it as it is and return False: the engine is needed then.

        The caller holds the lock of the engine, and asks the engine for nothing else in between.
        """
        chain, fits = self.chain, self.history.runs[-1]
        engine, steps = chain.engine, chain.steps
        held, line = engine.held(self._key), steps - chain.policies.first
        if held is None or held[0] is not chain:
            return False
        if n != steps + 1 or fits.dynamics != self.fit or (line == self._last and not self._wraps):
            return n == steps
        losses = engine.source.losses(fits.loss, None)
        try:
            self._step(losses, line)
            if line == self._last:
                chain.policies.note_steps(steps, 1)
            chain.steps = n
            chain.planned += 1
            engine.planned += 1
            self.entry.counted = steps
        except BaseException:
            # The step may be half done.
            engine.discard(chain)
            raise
        return True


def next_steps(chain: Chain, history: History) -> NextSteps | None:
    """The coming steps of a chain, or None: it has none behind it."""
    if chain.steps == 0 or not isinstance(chain, OneLaneChain | SingleChain):
        return None
    fit = history[chain.steps - 1].dynamics
    entry = chain.visits.get(fit)
    return None if entry is None else NextSteps(chain, history, fit, entry)
