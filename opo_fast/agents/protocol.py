"""What an agent is."""

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
    """A learner that `simulate` can run; `BaseAgent` has all of it but the policy.

    `simulate` itself needs ``policy`` and ``observe`` alone. An agent may also have

    * ``saturation(context)``, the share of bonuses at their cap, and ``fits``, a pair of the current fits of losses and
      dynamics, which `simulate` records;
    * ``lookahead``, how many coming contexts a call of ``prefetch`` usefully takes;
    * ``planning_calls``, the number of backward inductions so far, which `compare` reports;
    * ``value(context)``, its estimate of V(s_1) behind the coming policy;
    * ``state()`` and ``restore(state)``, what is saved as arrays and plain values, for checkpoints; and ``chains()`` and
      ``restore_chains(chains)``, caches that take long to build again.
    """

    layout: Layout

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) of the coming episode at `context`. A pure query: asking changes nothing."""
        ...

    def observe(self, trajectory: Trajectory) -> None:
        """Learn from one episode."""
        ...

    def prefetch(self, contexts: Sequence[Any]) -> None:
        """A hint: these contexts are about to be asked for, in this order. It never changes a result."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that was learned to a file."""
        ...

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Go on from what `save` wrote, in an agent built with the same arguments; returns the agent."""
        ...
