"""The protocol of oracles: three methods for losses, three for dynamics."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ..model.contextual import Trajectory
from ..model.layout import Layout

__all__ = ["DynamicsOracle", "FunctionClass", "LossOracle"]

Array = npt.NDArray[Any]


@runtime_checkable
class LossOracle(Protocol):
    """A least-squares oracle (paper, section 2.3): any object with these three methods.

    `losses` may be called from several threads at once, for different contexts, while no data are added.
    `opo_fast.oracles.check_oracle` tests an oracle against this protocol. Optional methods:

    ``check(trajectory)``
        Raises what `observe` would raise and changes nothing; agents call it first, so that a bad trajectory is never
        half-added. Agents only pass trajectories that are valid for their layout and mask.
    ``observe_many(trajectories)``
        Adds a log, completely or not at all.
    ``error(fit, trajectory)``
        Sum of the squared errors (for dynamics, of -log P) of a fit along a trajectory. Without it agents compute the
        held-out error from the whole function.
    ``gain(fit)``
        How much lower the sum of errors on all data would be after a new fit than with `fit`; the refit schedule
        ("gain", threshold) needs it.
    ``state()`` and ``restore(state)``
        A dict of arrays and JSON values, and its inverse, which makes a new oracle continue with the same bits. Fits must
        then be JSON values too (integers, strings, tuples of them), and stay valid. Without these methods the agent cannot
        be saved, and a log with an error in the middle may be half-added.
    ``cached_bytes``
        An attribute: the bytes of what the oracle keeps only to save time, which count for its agent's `memory`.
    ``settings()``
        A dict of numbers, strings, booleans or arrays: a saved state fits oracles with equal settings. Without this method
        they are the oracle's attributes of these kinds at the time when its agent is made.

    An oracle with plausible sets, which self-tuning agents use, also has all of these:

    ``keep_plausible(delta)``
        From now on keep the plausible set: with probability at least 1 - delta, if the truth is in the class, it is in the
        set at all times. Called once, before any data. Without this call the oracle keeps no sets.
    ``plausible()``
        A pair (fit, version) for all data so far: the best member of the plausible set, as `losses` takes it, and an
        identifier of the set. Equal versions mean equal sets, and earlier versions stay valid. If the class is finite,
        the sets are nested: excluded candidates stay excluded. ``state()`` and ``restore(state)`` include the sets.
    ``plausible_count(version)``
        Number of plausible candidates, as a float; nan if they cannot be counted.
    ``lower(version, context)``
        The least loss of each state-action pair over the plausible set, shape (n_states, A), in [0, 1] and nowhere above the
        losses of the fit that came with the version. May be called from several threads, like `losses`.
    ``upper(version, context)``
        The greatest loss, likewise; optional. Without it, pessimistic planning uses the mirror image of `lower`.
    """

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to the data."""
        ...

    def fit(self) -> Hashable:
        """The fit on all data so far. Equal return values mean the same function; earlier fits stay valid."""
        ...

    def losses(self, fit: Hashable, context: Any) -> Array:
        """f_c of a fit: mean losses in [0, 1], shape (n_states, A). Equal arguments give equal numbers."""
        ...


@runtime_checkable
class DynamicsOracle(Protocol):
    """A log-loss oracle (paper, section 2.3); see `LossOracle`.

    An oracle with plausible sets has ``keep_plausible(delta)``, ``plausible()`` and ``plausible_count(version)`` as described
    there, and one of

    ``candidates(version)``
        For a finite class: the plausible candidates, a tuple of fits as `transitions` takes them, in a fixed order; it
        contains the fit that came with the version.
    ``radius(version, context)``
        Otherwise: for each state-action pair a bound, in [0, 1], on the total-variation distance (half the sum of absolute
        differences) between any plausible model's row and the row of the fit that came with the version, shape (n_states, A).
        Plausible rows are positive only at next states that the class allows.
    """

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to the data."""
        ...

    def fit(self) -> Hashable:
        """The fit on all data so far. Equal return values mean the same dynamics; earlier fits stay valid."""
        ...

    def transitions(self, fit: Hashable, context: Any) -> Any:
        """P_c of a fit, as `opo_fast.LayeredMDP` takes transitions, or a `Transitions` object."""
        ...


class FunctionClass(Protocol):
    """A class F or P: makes a new oracle for each agent."""

    size: float
    """Number of functions (of a cover, for a parametric class): |F| or |P| in the theory's parameters."""

    def oracle(self, layout: Layout, action_mask: Array | None) -> Any:
        """A new oracle without data."""
        ...
