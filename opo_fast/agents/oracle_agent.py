"""Common parts of agents that learn through regression oracles: data, fits, and the models of the fits."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, frozen
from .._support.lru import LRU
from .._support.numbers import log_loss
from ..errors import OpoError, Place
from ..model.contextual import Trajectory, context_key
from ..model.conversion import as_transitions
from ..model.layered import LayeredMDP
from ..model.layout import Layout, as_losses, as_mask
from ..model.operations import Backend, check_backend, solve
from ..model.reference import Solution
from ..model.transitions import Transitions
from ..oracles.foreign import check_free, foreign_settings, take
from ..oracles.log import TrajectoryLog
from ..oracles.schedule import ScheduledOracle, add_all
from .base import BaseAgent, State, oracle_state, restore_oracle

__all__ = ["OracleAgent", "dynamics_oracle", "loss_oracle", "make_oracle"]

Array = npt.NDArray[Any]
PLANS = 1 << 26
"""Bytes of plans that an agent caches for contexts that occur again under the same fits."""


class OracleAgent(BaseAgent):
    """An agent with a loss oracle and a dynamics oracle, which fit again after every episode.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        A function class (any object with ``oracle(layout, action_mask)``), or an oracle that then belongs to this agent.
    action_mask : array_like of bool (n_states, A), optional
    backend : {"numba", "numpy"}

    Attributes
    ----------
    fits : tuple
        The fits of losses and dynamics on all data so far.
    first_fits : tuple
        The fits before the first episode.
    held_out : tuple of float
        Sum of squared errors and of -log P along the last observed trajectory, under the fits before it.
    """

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
    ) -> None:
        super().__init__(layout, action_mask=action_mask)
        check_backend(backend)
        self.backend = backend
        self.loss_oracle = loss_oracle(loss_class, layout, self.action_mask)
        self.dynamics_oracle = dynamics_oracle(dynamics_class, layout, self.action_mask)
        given = {name: foreign_settings(oracle) for name, oracle in self._oracles()}
        self._foreign = {name: settings for name, settings in given.items() if settings is not None}
        self._mark = object()
        _ = self.cached_bytes  # so that a wrong one is refused at once, whatever the memory
        self.fits: tuple[Hashable, Hashable] = (None, None)
        self._refit()
        self.first_fits: tuple[Hashable, Hashable] = self.fits
        self.held_out = (float("nan"), float("nan"))
        self._plans: LRU[Solution] = LRU(PLANS)

    def _oracles(self) -> list[tuple[str, Any]]:
        return [("loss_oracle", self.loss_oracle), ("dynamics_oracle", self.dynamics_oracle)]

    def own_oracles(self) -> None:
        """Claim the oracles for this agent; one with which another agent has learned is refused."""
        for name, oracle in self._oracles():
            take(oracle, name, self._mark)

    def warm_start(self, trajectories: Any, *, progress: bool | None = None) -> None:
        """Let the oracles learn from logged trajectories before the first episode, from all of them or none.

        The first models (f^1, P^1) are then the fits on the log; the number of observed episodes stays 0.

        Parameters
        ----------
        trajectories : TrajectoryLog or sequence of Trajectory
        progress : bool, optional
            Whether to show a progress bar. Default: on a terminal and in a notebook, after two seconds.

        Raises
        ------
        OpoError
            On an empty log, a bad trajectory, or an agent that has observed an episode.
        """
        if self.episode:
            raise OpoError(f"warm_start was called after {self.episode} episodes: call it before the first one")
        log = TrajectoryLog.of(self.layout, trajectories, self.action_mask)
        self.own_oracles()
        oracles = (self.loss_oracle, self.dynamics_oracle)
        before = [oracle.state() if hasattr(oracle, "state") else None for oracle in oracles]
        for oracle, state in zip(oracles, before, strict=True):
            if state is None and hasattr(oracle, "check"):
                for trajectory in log:
                    oracle.check(trajectory)
        try:
            for oracle in oracles:
                for part in log.parts(f"{type(oracle).__name__} reads the log", progress=progress):
                    add_all(oracle, part)
        except BaseException:
            for oracle, state in zip(oracles, before, strict=True):
                if state is not None:
                    oracle.restore(state)
            raise
        self.note(log.contexts)
        self._refit()
        self.first_fits = self.fits

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to both oracles and fit again; a bad trajectory changes nothing."""
        super().observe(trajectory)
        self._refit()

    def _refit(self) -> None:
        """Set the fits to those on all data so far."""
        self.fits = self.loss_oracle.fit(), self.dynamics_oracle.fit()

    def _learn(self, trajectory: Trajectory) -> None:
        self.own_oracles()
        for oracle in (self.loss_oracle, self.dynamics_oracle):
            if hasattr(oracle, "check"):
                oracle.check(trajectory)
        self.held_out = self._errors(trajectory)
        self.loss_oracle.observe(trajectory)
        self.dynamics_oracle.observe(trajectory)

    def _errors(self, trajectory: Trajectory) -> tuple[float, float]:
        """Squared error and log loss of the fits along a trajectory that they have not seen."""
        loss_fit, fit = self.fits
        if hasattr(self.loss_oracle, "error"):
            squared = self.loss_oracle.error(loss_fit, trajectory)
        else:
            where = Place("losses of fit {!r} at context {!r}", loss_fit, trajectory.context)
            fitted = as_losses(self.layout, self.loss_oracle.losses(loss_fit, trajectory.context), where)
            f = fitted[trajectory.states[:-1], trajectory.actions]
            squared = float(np.square(f - trajectory.losses).sum())
        if hasattr(self.dynamics_oracle, "error"):
            return squared, self.dynamics_oracle.error(fit, trajectory)
        return squared, log_loss(self.transitions(fit, trajectory.context).along(trajectory.states, trajectory.actions))

    def model(self, fits: tuple[Hashable, Hashable], context: Any) -> LayeredMDP:
        """The model of a pair of fits at a context."""
        return LayeredMDP(self.layout, self.loss_oracle.losses(fits[0], context), self.transitions(fits[1], context))

    def plan(self, context: Any) -> Solution:
        """The optimum of the newest fits at a context; computed once per context and pair of fits."""
        key = (self.fits, context_key(context))
        found = self._plans.get(key)
        if found is None:
            found = solve(self.model(self.fits, context), backend=self.backend)
            self.planning_calls += 1
            self._plans.put(key, found, sum(array.nbytes for array in found))
        return found

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of a fit at a context, one number per allowed pair."""
        return self._rows(self.loss_oracle.losses(fit, context), Place("losses of fit {!r} at context {!r}", fit, context))

    def lower(self, version: Hashable, context: Any) -> Array:
        """Least plausible losses at a context, one number per allowed pair."""
        return self._rows(self.loss_oracle.lower(version, context), Place("lower losses of version {!r} at context {!r}", version, context))

    @property
    def cached_bytes(self) -> int:
        """Bytes that the oracles hold only to save time."""
        return sum(as_integer(getattr(oracle, "cached_bytes", 0), f"{name}.cached_bytes", least=0) for name, oracle in self._oracles())

    def candidates_at(self, context: Any) -> tuple[Array, Array] | None:
        """All loss candidates (n, n_states, A) and all dynamics candidates (m, transitions) at a context, each dynamics flat; None
        unless both classes are finite and their candidates are dense and few."""
        asked = []
        for oracle in (self.loss_oracle, self.dynamics_oracle):
            candidates = oracle.candidates_at(context) if hasattr(oracle, "candidates_at") else None
            if candidates is None:
                return None
            asked.append(candidates)
        return asked[0], asked[1]

    def loss_candidates(self, version: Hashable) -> Array:
        """Indices of the plausible losses of a version, for a finite class."""
        return np.array(self.loss_oracle.candidates(version))

    def candidates(self, version: Hashable) -> tuple[Hashable, ...] | None:
        """The plausible dynamics of a version, or None unless the class is finite."""
        return tuple(self.dynamics_oracle.candidates(version)) if hasattr(self.dynamics_oracle, "candidates") else None

    def radius(self, version: Hashable, context: Any) -> Array:
        """Bound on the total variation between plausible dynamics and the fit at a context, one number per allowed pair."""
        return self._rows(self.dynamics_oracle.radius(version, context), Place("radius of version {!r} at context {!r}", version, context))

    def _rows(self, values: Any, where: Place) -> Array:
        array = as_losses(self.layout, values, where)
        return frozen(array.reshape(-1) if self.action_mask is None else array[self.action_mask])

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        """Validated transitions of a fit at a context."""
        return as_transitions(
            self.layout,
            self.dynamics_oracle.transitions(fit, context),
            self.action_mask,
            where=Place("transitions of fit {!r} at context {!r}", fit, context),
            own_mask=True,
        )

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`; includes the settings of oracles from outside the package."""
        return {**super().settings(), **self._foreign}

    def restore(self, state: State) -> None:
        """See `BaseAgent.restore`."""
        self.own_oracles()
        super().restore(state)

    def _state(self) -> State:
        return {**oracle_state(self.loss_oracle, "loss oracle"), **oracle_state(self.dynamics_oracle, "dynamics oracle")}

    def _restore(self, state: State) -> None:
        restore_oracle(self.loss_oracle, "loss oracle", state)
        restore_oracle(self.dynamics_oracle, "dynamics oracle", state)
        for prefix, oracle in (("loss oracle", self.loss_oracle), ("dynamics oracle", self.dynamics_oracle)):
            if getattr(oracle, "episodes", state["episode"]) < state["episode"]:
                raise OpoError(f"state['episode'] is {state['episode']}, but the {prefix} has seen only {oracle.episodes} episodes")
        self._refit()
        # Plans are cached by the numbers of fits, which now belong to other data.
        self._plans = LRU(PLANS)


def loss_oracle(source: Any, layout: Layout, action_mask: npt.ArrayLike | None) -> Any:
    """A new oracle of a loss class, or the given oracle."""
    return make_oracle(source, layout, as_mask(layout, action_mask), "loss_class", ("observe", "fit", "losses"))


def dynamics_oracle(source: Any, layout: Layout, action_mask: npt.ArrayLike | None) -> Any:
    """A new oracle of a dynamics class, or the given oracle."""
    return make_oracle(source, layout, as_mask(layout, action_mask), "dynamics_class", ("observe", "fit", "transitions"))


def make_oracle(source: Any, layout: Layout, action_mask: Array | None, name: str, methods: Sequence[str]) -> Any:
    """A new oracle of a function class, or the given oracle; anything else is refused."""
    if isinstance(source, type) and not isinstance(inspect.getattr_static(source, "oracle", None), (classmethod, staticmethod)):
        raise OpoError(f"{name} is the class {source.__name__} itself: an object of it, {source.__name__}(...), is needed")
    # A scheduled oracle has an attribute `oracle` too: its inner oracle.
    makes = callable(getattr(source, "oracle", None)) and not isinstance(source, ScheduledOracle)
    oracle = source.oracle(layout, action_mask) if makes else source
    missing = [method for method in methods if not callable(getattr(oracle, method, None))]
    if missing:
        raise OpoError(
            f"{name} is a {type(source).__name__}: a function class with oracle(...), or an oracle with {', '.join(methods)}, "
            f"is needed (missing: {', '.join(missing)})"
        )
    check_free(oracle, name)
    return oracle
