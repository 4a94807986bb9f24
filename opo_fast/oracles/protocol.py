"""What an oracle is: three methods for losses, three for dynamics."""

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
    """A least-squares oracle (paper, section 2.3): any object with these three methods is one.

    `losses` may be asked from several threads at once, for different contexts, while no data are added.
    `opo_fast.oracles.check_oracle` checks an oracle of one's own. It may also have

    ``check(trajectory)``
        Raises what `observe` would raise and changes nothing; agents call it first, so that a bad trajectory is never
        half-added. Agents hand on only trajectories that are valid for their layout and mask.
    ``observe_many(trajectories)``
        Adds a log, all of it or none.
    ``error(fit, trajectory)``
        Sum of the squared errors (of -log P, for dynamics) of a fit along a trajectory. Without it agents compute the
        held-out error from the whole function.
    ``gain(fit)``
        By how much a fit on all data would lower the sum of errors on them, compared with `fit`; the refit schedule
        ("gain", threshold) needs it.
    ``state()`` and ``restore(state)``
        A dict of arrays and of values that JSON can hold, and its inverse in a fresh oracle, which then goes on with the
        same bits. Fits are then also values that JSON can hold (whole numbers, strings, tuples of them), and stay valid.
        Without them its agent cannot be saved, and a log that fails in the middle may be half-added.
    ``settings()``
        A mapping from names to numbers, texts, booleans or arrays: a saved state fits oracles of the same settings. Without it they are the
        oracle's attributes of these kinds when its agent is made.

    Self-tuning agents also ask for what the data leave possible, where an oracle can tell. It then has all of

    ``keep_plausible(delta)``
        From now on keep the plausible set: with probability at least 1 - delta the truth, if it is in the class, is in the
        set at all times at once. Called once, before any data. Without this call nothing is kept.
    ``plausible()``
        After all data so far, a pair (fit, version): the best member of the plausible set, as `losses` takes it, and what
        identifies the set. Equal versions are equal sets, and earlier versions stay valid. Where the class can be listed,
        sets are nested: what was excluded stays excluded. ``state()`` and ``restore(state)`` include what is kept.
    ``plausible_count(version)``
        Number of plausible candidates, as a float; nan where they cannot be listed.
    ``lower(version, context)``
        The least loss of each pair over the plausible set, shape (n_states, A), in [0, 1] and nowhere above the losses of the
        fit that came with the version. May be asked from several threads, as `losses` may.
    ``upper(version, context)``
        The greatest, likewise; optional. Pessimistic planning takes the mirror image of `lower` where it is missing.
    """

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to the data."""
        ...

    def fit(self) -> Hashable:
        """The fit on all data so far. Equal answers mean the same function; earlier fits stay valid."""
        ...

    def losses(self, fit: Hashable, context: Any) -> Array:
        """f_c of a fit: mean losses in [0, 1], shape (n_states, A). The same arguments give the same numbers."""
        ...


@runtime_checkable
class DynamicsOracle(Protocol):
    """A log-loss oracle (paper, section 2.3); see `LossOracle`.

    One that tells what is plausible has ``keep_plausible(delta)``, ``plausible()`` and ``plausible_count(version)`` as there,
    and one of

    ``candidates(version)``
        Where the class can be listed: the plausible candidates, a tuple of what `transitions` takes as a fit, in a fixed
        order; the fit that came with the version is one of them.
    ``radius(version, context)``
        Elsewhere: for each pair a bound, in [0, 1], on the total-variation distance (half the sum of absolute differences)
        of any plausible model's row from the row of the fit that came with the version, shape (n_states, A). Plausible rows
        are positive only at next states that the class allows.
    """

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to the data."""
        ...

    def fit(self) -> Hashable:
        """The fit on all data so far. Equal answers mean the same dynamics; earlier fits stay valid."""
        ...

    def transitions(self, fit: Hashable, context: Any) -> Any:
        """P_c of a fit, as `opo_fast.LayeredMDP` takes transitions, or a `Transitions` object."""
        ...


class FunctionClass(Protocol):
    """A class F or P: makes a fresh oracle for each agent."""

    size: float
    """Number of functions (of a cover, for a parametric class): |F| or |P| in the theory's parameters."""

    def oracle(self, layout: Layout, action_mask: Array | None) -> Any:
        """A new oracle without data."""
        ...
