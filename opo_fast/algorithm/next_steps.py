"""The next steps of the chain of one context, one at a time, with little Python around each kernel call.

`Chain.advance` works out at every step what the step needs. As long as the dynamics stay the same, it needs nothing new but its losses.
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
    """The next steps of a chain, as long as they are under the dynamics of its last step.

    Parameters
    ----------
    chain : OneLaneChain or SingleChain
        A chain of `opo_rule` whose last step was under these dynamics.
    history : History
    fit : hashable
        The dynamics.
    entry : VisitSum
        The sum of visits under these dynamics.
    """

    def __init__(self, chain: OneLaneChain | SingleChain, history: History, fit: Hashable, entry: VisitSum) -> None:
        self.chain, self.history, self.fit, self.entry = chain, history, fit, entry
        self._last, self._key = len(chain.policies.lines) - 1, context_key(chain.contexts[0])
        # The kernel may overwrite past policies if the store is as large as it may become and this is the only sum of visits.
        budget = chain.engine.store_bytes
        self._wraps = len(chain.visits) == 1 and chain.policies.is_full(budget if chain.surprised else min(SMALL_STORE, budget))
        self._step = chain.one_by_one(fit, chain.engine.rule.bonus(chain.steps), entry.counts)

    def advance(self, n: int) -> bool:
        """Bring the chain to `n` steps. If that needs the engine, change nothing and return False. The caller holds the engine's lock."""
        chain, fits = self.chain, self.history.runs[-1]
        engine, steps = chain.engine, chain.steps
        held, line = engine.held(self._key), steps - chain.policies.first
        if held is None or held[0] is not chain:
            return False
        if n == steps:
            return True
        if n != steps + 1 or fits.dynamics != self.fit or (line == self._last and not self._wraps):
            return False
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
            # The step may be incomplete, so the chain cannot be used any more.
            engine.discard(chain)
            raise
        return True


def next_steps(chain: Chain, history: History) -> NextSteps | None:
    """The next steps of a chain; None if it has not run a step yet, or is of another form."""
    if chain.steps == 0 or not isinstance(chain, OneLaneChain | SingleChain):
        return None
    fit = history[chain.steps - 1].dynamics
    entry = chain.visits.get(fit)
    return None if entry is None else NextSteps(chain, history, fit, entry)
