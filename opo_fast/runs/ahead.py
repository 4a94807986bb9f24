"""The policy chains of one agent in a block of episodes: advanced to the first episode's step, then on to the step of each episode."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algorithm.chain import Chain
from ..algorithm.first_runs import FirstRuns
from ..algorithm.forms import PackedChain
from ..algorithm.packed_classes import PackedClasses
from ..algorithm.prepared import PreparedSteps, SharedHistory, prepared_steps
from .tables import ContextTables

__all__ = ["ChainsAhead", "Place"]

Array = npt.NDArray[Any]

KEPT = 8
"""Number of chains whose next steps stay prepared from one block to the next."""


class Place(NamedTuple):
    """Where a context of a block is computed: its chain, its lane in it, and the chain's next steps if they could be prepared."""

    chain: Chain
    lane: int
    ready: PreparedSteps | None


class ChainsAhead:
    """The packed chains of an agent over finite classes.

    Parameters
    ----------
    agent : ChainAgent
    tables : ContextTables
        They have the contexts that are prefetched.
    """

    def __init__(self, agent: Any, tables: ContextTables) -> None:
        self.agent, self.tables = agent, tables
        self._shared = SharedHistory(agent, agent.history) if agent.plausible else FirstRuns(agent.history)
        self._prepared: dict[int, PreparedSteps] = {}
        self._taken: list[tuple[PreparedSteps, int]] = []

    def places(self, contexts: Sequence[Any], keys: Sequence[Hashable], first: int, most: int) -> list[Place]:
        """Advance the chains of the next contexts to the step of the first of them, and return where each context is computed.

        Parameters
        ----------
        contexts, keys : sequence
            The contexts of the next episodes, and their hashable keys.
        first : int
            Number of contexts of the current look-ahead that have been played.
        most : int
            Maximum number of places.

        Returns
        -------
        list of Place
            At least one. The list ends before the first context that would need a change of fits to reach its episode's step.
        """
        agent, found = self.agent, list[Place]()
        known: dict[int, PreparedSteps | None] = {}
        group = agent.lookahead
        if len(self._prepared) > KEPT:
            self._prepared.clear()
        for j in range(most):
            if group > 1 and (first + j) % group == 0:
                agent.engine.prefetch(contexts[j : j + group], agent.history, agent.steps, self._shared.advance, self._begin)
            try:
                place = self._place(contexts[j], keys[j], known)
            except Exception:
                if j == 0:
                    raise
                # The error belongs to a later episode, which raises it when it is played.
                break
            if j > (0 if place.ready is None else place.ready.room):
                break
            found.append(place)
        return found

    def _begin(self, chain: Chain) -> None:
        """Tell a new chain the candidates at its contexts, where the tables have them as the oracles would give them."""
        known = self.tables.candidates(chain.contexts)
        if known is not None and isinstance(chain, PackedChain):
            chain.classes = PackedClasses(chain.engine, *known)

    def _place(self, context: Any, key: Hashable, known: dict[int, PreparedSteps | None]) -> Place:
        """The place of one context; `known` has the prepared steps of the chains that have been advanced for this block."""
        agent = self.agent
        n, held = agent.steps, agent.engine.held(key)
        if held is not None:
            which = id(held[0])
            if which in known:
                return Place(held[0], held[1], known[which])
            ready = self._prepared.get(which)
            if ready is not None and (ready.advance(n) or held[0].steps == n) and ready.room:
                known[which] = ready
                return Place(held[0], held[1], ready)
        chain, lane = agent.engine.chain(context, agent.history, n)
        ready = known[id(chain)] = prepared_steps(chain, agent.history)
        if ready is None:
            self._prepared.pop(id(chain), None)
        else:
            self._prepared[id(chain)] = ready
        return Place(chain, lane, ready)

    def take(self, places: Sequence[Place], policies: Array, gaps: Array, saturation: Array) -> None:
        """Advance to the step of each episode and write down its policy and diagnostics. Call `settle` next.

        Parameters
        ----------
        places : sequence of k
        policies : ndarray, shape (k, n_rows)
        gaps : ndarray, shape (k, n_states)
            AdaHedge's Delta, where the rule has it.
        saturation : ndarray, shape (k,)
        """
        groups: dict[int, list[int]] = {}
        for j, place in enumerate(places):
            groups.setdefault(id(place.chain), []).append(j)
        for which in groups.values():
            chain, lane, ready = places[which[0]]
            # The chain's own last step, before the prepared ones, may have had another bonus, so its saturation is read now.
            first = chain.saturation(lane) if which[0] == 0 else 0.0
            if ready is None:
                policies[0] = chain.policy(lane)
                if chain.hedge is not None:
                    gaps[0] = chain.hedge.gap[lane : chain.hedge.size : chain.lanes]
            else:
                self._taken.append((ready, which[-1]))
                policies[which], gaps[which], saturation[which] = ready.ahead(np.array(which), np.array([places[j].lane for j in which]))
            if which[0] == 0:
                saturation[0] = first

    def settle(self, *, keep: bool) -> None:
        """Keep the steps of `take`, or undo them."""
        for ready, steps in self._taken:
            if keep:
                ready.settle(steps)
            else:
                ready.undo()
        self._taken.clear()
