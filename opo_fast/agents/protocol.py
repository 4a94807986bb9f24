"""The protocol of agents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ..model.contextual import Trajectory
from ..model.layout import Layout

__all__ = ["Agent"]

Array = npt.NDArray[Any]


@runtime_checkable
class Agent(Protocol):
    """A learner that `simulate` can run; `BaseAgent` has all of these methods except the policy.

    `simulate` itself only needs ``policy`` and ``observe``. Optional attributes:

    * ``saturation(context)``, the share of bonuses at their cap, and ``fits``, a pair of the current fits of losses and
      dynamics, which `simulate` records;
    * ``lookahead``, the number of upcoming contexts that a call of ``prefetch`` can use;
    * ``planning_calls``, the number of backward inductions so far, which `compare` reports;
    * ``value(context)``, its estimate of V(s_1) for the next policy;
    * ``state()`` and ``restore(state)``, for checkpoints, with arrays and plain values; and ``chains()`` and
      ``restore_chains(chains)``, for caches that take long to rebuild.
    """

    layout: Layout

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) of the next episode at `context`. A pure query: it changes nothing."""
        ...

    def observe(self, trajectory: Trajectory) -> None:
        """Learn from one episode."""
        ...

    def prefetch(self, contexts: Sequence[Any]) -> None:
        """A hint that `policy` will be called for these contexts, in this order. It never changes a result."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything learned to a file."""
        ...

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Restore what `save` wrote, in an agent built with the same arguments; returns the agent."""
        ...
