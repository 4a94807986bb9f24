"""What an agent is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ..cmdp import Trajectory
from ..layers import Layout

__all__ = ["Agent"]

Array = npt.NDArray[Any]


@runtime_checkable
class Agent(Protocol):
    """A learner that `simulate` can run.

    It may also have ``saturation(context)``, the share of bonuses at their cap, and ``fits``, a pair of the current
    fits of losses and dynamics; `simulate` records them where they are.
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
