"""What every agent shares: counting episodes, and a state that can be saved and restored.

A new agent is one class, in one file of one's own. It has ``policy(context)``; what it learns comes through oracles
(`OracleAgent`), policy chains (`ChainAgent`), or ``_learn(trajectory)``. It is then simulated, saved and compared like
the others::

    from opo_fast import compare, envs
    from opo_fast.agents import OracleAgent


    class ExploreThenCommit(OracleAgent):
        # All actions alike in the first episodes, then the optimum of the fitted model.

        name = "explore, then commit"

        def __init__(self, layout, loss_class, dynamics_class, *, first=100, **options):
            super().__init__(layout, loss_class, dynamics_class, **options)
            self.first = first

        def policy(self, context):
            if self.episode < self.first:
                return self.uniform()
            return self.plan(context).policy

        def settings(self):
            return {**super().settings(), "first": self.first}  # a saved state fits agents of the same settings


    env = envs.make("random-finite", seed=1)
    mine = {"commit": lambda seed: ExploreThenCommit(env.layout, env.loss_class, env.dynamics_class)}
    found = compare(env, {**mine, "opo": "opo", "uniform": "uniform"}, episodes=400, seeds=3)
    for line in found.summary():
        print(f"{line.agent:8s} regret {line.regret.mean:6.1f} [{line.regret.low:.1f}, {line.regret.high:.1f}]")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, as_real, instance, shown
from .._support.fields import Fields, agrees, as_fit
from .._support.state import read_state, write_state
from ..errors import OpoError
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.layout import Layout, as_mask, uniform_policy
from ..model.names import Names, unseen

__all__ = ["BaseAgent", "Recommendation", "checked_fit", "oracle_state", "restore_oracle"]

Array = npt.NDArray[Any]
State = dict[str, Any]
Self = TypeVar("Self", bound="BaseAgent")
SOURCE = "what an agent's state() gave"
SEEN = 1000
"""Distinct contexts that an agent remembers, to say when it is asked for another one."""

LATER = ("loss_oracle", "dynamics_oracle")
"""Settings that states of older versions do not have."""


class Recommendation(NamedTuple):
    """What `BaseAgent.recommend` says: the likeliest action, its name, its probability, and the probabilities (A,) of all."""

    action: int
    name: str
    probability: float
    probabilities: Array


class BaseAgent:
    """An agent without a policy: a subclass has ``policy(context)`` and, where it learns, ``_learn(trajectory)``.

    Parameters
    ----------
    layout : Layout
    action_mask : array_like of bool (n_states, A), optional

    Attributes
    ----------
    episode : int
        Number of episodes observed.
    planning_calls : int
        Backward inductions at one context so far (steps of a policy chain are such).
    """

    planning_calls = 0
    _names: Names | None = None
    planned: int | None = None
    """Number of episodes that the theory's parameters are for, where they were asked for."""

    def __init__(self, layout: Layout, *, action_mask: npt.ArrayLike | None = None) -> None:
        check_layout(layout)
        self.layout = layout
        self.action_mask = as_mask(layout, action_mask)
        self.episode = 0
        self._seen: dict[Any, Any] | None = {}

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) of the coming episode at `context`. A pure query."""
        raise NotImplementedError

    @property
    def names(self) -> Names | None:
        """What states and actions are called; `agents.make` takes them from the environment, and they may be set."""
        return self._names

    @names.setter
    def names(self, names: Names | None) -> None:
        if names is not None:
            instance(names, "names", Names, needed="an opo_fast.Names, or None,")
            names.check(self.layout)
        self._names = names

    def recommend(self, context: Any, stage: int, state: int | str) -> Recommendation:
        """What the coming policy does in one state.

        Parameters
        ----------
        context : hashable or ndarray
        stage : int
            Layer of the state, counted from 0.
        state : int or str
            The number of the state inside its layer, counted from 0, or its name where the agent's `names` have it.

        Returns
        -------
        Recommendation
            The likeliest action (of equals the lowest), its name, and the probabilities of all.

        Raises
        ------
        OpoError
            No such state, or a context that is none of those that the agent's `names` list; see `check_context`.
        """
        names = self.names or Names()
        self.check_context(context)
        number = self.layout.state(stage, names.find(self.layout, stage, state))
        row = np.array(self.policy(context)[number])
        action = int(row.argmax())
        return Recommendation(action, names.action(action), float(row[action]), row)

    @property
    def seen(self) -> list[Any] | None:
        """The contexts that were observed, in order of first appearance; None where they are not texts or whole numbers, or too many."""
        return None if self._seen is None else list(self._seen.values())

    def check_context(self, context: Any) -> None:
        """Raise where the agent's `names` list the contexts and `context` is none of them; warn where it was never observed."""
        if self.names is not None:
            self.names.check_context(context)
        if self._seen and context_key(context) not in self._seen:
            warnings.warn(unseen(context, list(self._seen.values())), stacklevel=3)

    def note(self, contexts: Iterable[Any]) -> None:
        """Remember contexts that were observed."""
        for context in contexts:
            if self._seen is None:
                return
            key = context_key(context)
            if key in self._seen:
                continue
            self._seen[key] = context.item() if isinstance(context, np.generic) else context
            if len(self._seen) > SEEN or not _discrete(self._seen[key]):
                self._seen = None

    def record(self, context: Any, states: Sequence[int | str], actions: Sequence[int | str], losses: npt.ArrayLike) -> None:
        """Observe one episode, told in the terms of `recommend`.

        Parameters
        ----------
        context : hashable or ndarray
        states : sequence of H numbers or names
            The number of each state inside its layer, or its name.
        actions : sequence of H numbers or names
        losses : array_like, shape (H,)
            In [0, 1].
        """
        names, layout = self.names or Names(), self.layout
        states, actions = as_items(states, "states", "states"), as_items(actions, "actions", "actions")
        for name, listed in (("states", states), ("actions", actions)):
            if len(listed) != layout.horizon:
                raise OpoError(f"{name} has {len(listed)} entries: one for each of the {layout.horizon} layers is needed")
        numbers = [layout.state(h, names.find(layout, h, state)) for h, state in enumerate(states)]
        played = [names.find_action(layout, action) for action in actions]
        losses = as_real(losses, "losses")
        self.observe(Trajectory(context, np.array([*numbers, layout.n_states]), np.array(played, np.int64), losses))

    def uniform(self) -> Array:
        """The policy that is uniform over the allowed actions."""
        return uniform_policy(self.layout, self.action_mask)

    def observe(self, trajectory: Trajectory) -> None:
        """Learn from one episode; a bad trajectory changes nothing."""
        trajectory = check_trajectory(self.layout, self.action_mask, trajectory)
        self._learn(trajectory)
        self.note([trajectory.context])
        if self.episode == self.planned:
            warnings.warn(
                f"{getattr(self, 'name', type(self).__name__)} plays more than the {self.planned} episodes that its theory's "
                "parameters are for",
                stacklevel=2,
            )
        self.episode += 1

    def _parameters(
        self, episodes: int | None, given: Mapping[str, float | None], theory: Callable[[int], Iterable[float]]
    ) -> tuple[float, ...]:
        """The parameters that are `given` by hand, and what the theory says for `episodes` in the place of those that are None."""
        values: Iterable[float | None] = given.values()
        if any(value is None for value in values):
            if episodes is None:
                raise OpoError(f"episodes is missing: the theory's parameters need it (or give {' and '.join(given)})")
            self.planned = as_integer(episodes, "episodes", least=1, most=10**100)
            values = [told if value is None else value for value, told in zip(values, theory(self.planned), strict=True)]
        return tuple(as_number(value, name) for name, value in zip(given, values, strict=True))

    def _learn(self, trajectory: Trajectory) -> None:
        """Take in a checked trajectory, or raise and change nothing."""

    def prefetch(self, contexts: Sequence[Any]) -> None:
        """A hint that never changes a result; most agents have no use for it."""

    # -- saving ------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What must agree between the agent that wrote a state and the one that restores it (JSON can hold it)."""
        mask = None if self.action_mask is None else np.packbits(self.action_mask).tolist()
        return {
            "agent": type(self).__name__,
            "layer_sizes": list(self.layout.layer_sizes),
            "n_actions": self.layout.n_actions,
            "action_mask": mask,
        }

    def state(self) -> State:
        """All that was learned: arrays, and values that JSON can hold.

        Another agent built with the same arguments that restores it goes on with the same bits. Chains and other caches
        are not in it: they are computed again when they are asked for.
        """
        counts = {"episode": self.episode, "planning_calls": self.planning_calls}
        return {"settings": self.settings(), **counts, "observed_contexts": self.seen, **self._state()}

    def restore(self, state: State) -> None:
        """Take over a `state`; one that does not fit raises and changes nothing."""
        fields = Fields(state, SOURCE)
        theirs = fields.inner("settings").state
        for key, value in self.settings().items():
            if key in LATER and key not in theirs:
                continue
            place, found, wanted = difference(key, theirs.get(key), value)
            if place:
                raise OpoError(f"state belongs to an agent whose {place} is {shown(found)}: {shown(wanted)} is needed, as this agent has")
        episode, planning_calls = fields.integer("episode"), fields.integer("planning_calls")
        seen = None if state.get("observed_contexts") is None else fields.listed("observed_contexts")
        if seen is not None:
            known = len(seen) <= SEEN and all(map(_discrete, seen))
            fields.check("observed_contexts", known, "holds something else than texts and whole numbers")
        before = self.state()
        try:
            self._restore(state)
        except BaseException as error:
            self._restore(before)
            if isinstance(error, KeyError):
                raise OpoError(f"state has no {error}: {SOURCE} is needed") from None
            if isinstance(error, (TypeError, IndexError, AttributeError, OverflowError)) or type(error) is ValueError:
                raise OpoError(f"state is not {SOURCE} ({error})") from error
            raise
        self.episode, self.planning_calls = episode, planning_calls
        self._seen = None if seen is None else {context_key(context): context for context in seen}

    def _state(self) -> State:
        return {}

    def _restore(self, state: State) -> None:
        """Take over what `_state` gave; raise on anything that this agent could not have come to."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state` to `path` as npz (no pickle), whole or not at all."""
        write_state(path, self.state())

    def load(self: Self, path: str | os.PathLike[str]) -> Self:
        """Restore what `save` wrote, into an agent built with the same arguments; returns the agent."""
        self.restore(read_state(path))
        return self


def _discrete(context: Any) -> bool:
    """Whether a context is a text, a whole number, or a tuple of such."""
    return isinstance(context, (str, int)) or (isinstance(context, tuple) and all(map(_discrete, context)))


def difference(place: str, found: Any, wanted: Any) -> tuple[str, Any, Any]:
    """Where a stored setting differs from this agent's, and both values; no place where they agree."""
    if agrees(found, wanted):
        return "", None, None
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in wanted:
            inner = difference(f"{place}.{key}", found.get(key), wanted[key])
            if inner[0]:
                return inner
    return place, found, wanted


def check_layout(layout: Any) -> None:
    """Refuse anything but a `Layout`."""
    instance(layout, "layout", Layout)


def sizes_of(loss_class: Any, dynamics_class: Any) -> dict[str, float]:
    """|F| and |P| as the theory's parameters take them; 1 where a class does not tell its size."""
    return {"loss_class_size": getattr(loss_class, "size", 1.0), "dynamics_class_size": getattr(dynamics_class, "size", 1.0)}


def oracle_state(oracle: Any, prefix: str) -> State:
    """State of an oracle, its keys prefixed."""
    if not hasattr(oracle, "state"):
        raise OpoError(f"the {prefix} is a {type(oracle).__name__} without state() and restore(state): it cannot be saved")
    return {f"{prefix}.{key}": value for key, value in oracle.state().items()}


def restore_oracle(oracle: Any, prefix: str, state: State) -> None:
    """Undo `oracle_state`."""
    oracle.restore({key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")})


def checked_fit(oracle: Any, value: Any, place: str) -> Hashable:
    """A fit of a state, which its oracle must know."""
    try:
        fit: Hashable = as_fit(value)
        if hasattr(oracle, "check_fit"):
            oracle.check_fit(fit)
    except OpoError as error:
        raise OpoError(f"{place} holds a fit that the oracle cannot have given ({error})") from None
    return fit
