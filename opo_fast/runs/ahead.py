"""The chains of one agent in a block of episodes: brought to its first step, and from there to the step of each episode."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algorithm.chain import Chain
from ..algorithm.prepared import PreparedSteps, SharedHistory, prepared_steps

__all__ = ["ChainsAhead", "Place"]

Array = npt.NDArray[Any]

KEPT = 8
"""Chains whose coming steps are kept ready."""


class Place(NamedTuple):
    """The chain of a context before a block, its lane, and its coming steps where they are of one kind."""

    chain: Chain
    lane: int
    ready: PreparedSteps | None


class ChainsAhead:
    """The chains of an agent over finite classes, packed.

    Parameters
    ----------
    agent : ChainAgent
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._shared = SharedHistory(agent, agent.history)
        self._prepared: dict[int, PreparedSteps] = {}
        self._taken: list[tuple[PreparedSteps, int]] = []

    def places(self, contexts: Sequence[Any], keys: Sequence[Hashable], first: int, most: int) -> list[Place]:
        """Bring the chains of coming contexts to the step of the first, and say where they are.

        Parameters
        ----------
        contexts, keys : sequence
            Of the coming episodes.
        first : int
            Contexts of this look ahead that were played already.
        most : int

        Returns
        -------
        list of Place
            At least one and at most `most`: as far as the chains can go on to the step of each episode if no fit changes.
        """
        agent, found = self.agent, list[Place]()
        known: dict[int, PreparedSteps | None] = {}
        group = agent.lookahead
        advance = self._shared.advance if agent.plausible else Chain.advance
        if len(self._prepared) > KEPT:
            self._prepared.clear()
        for j in range(most):
            if group > 1 and (first + j) % group == 0:
                agent.engine.prefetch(contexts[j : j + group], agent.history, agent.steps, advance)
            try:
                place = self._place(contexts[j], keys[j], known)
            except Exception:
                if j == 0:
                    raise
                # The episode of that context raises it.
                break
            if j > (0 if place.ready is None else place.ready.room):
                break
            found.append(place)
        return found

    def _place(self, context: Any, key: Hashable, known: dict[int, PreparedSteps | None]) -> Place:
        """The place of one context; `known` are the chains that were brought to their step already."""
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
        """Go on to the step of each episode, and take what it needs; `settle` has to follow.

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
            # The bonus of the step before may have been another one.
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
        """Keep the steps that chains have gone on, or take them back."""
        for ready, steps in self._taken:
            if keep:
                ready.settle(steps)
            else:
                ready.undo()
        self._taken.clear()
