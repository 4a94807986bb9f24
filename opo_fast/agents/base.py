"""Common parts of all agents: counting episodes, and a state that can be saved and restored.

A new agent is one class. It has ``policy(context)``; it learns through oracles (`OracleAgent`), through policy chains
(`ChainAgent`), or by its own ``_learn(trajectory)``. It can then be simulated, saved and compared like
the others::

    from opo_fast import compare, envs
    from opo_fast.agents import OracleAgent


    class ExploreThenCommit(OracleAgent):
        # Plays the uniform policy in the first episodes, then the optimal policy of the fitted model.

        name = "explore, then commit"

        def __init__(self, layout, loss_class, dynamics_class, *, first=100, **options):
            super().__init__(layout, loss_class, dynamics_class, **options)
            self.first = first

        def policy(self, context):
            if self.episode < self.first:
                return self.uniform()
            return self.plan(context).policy

        def settings(self):
            return {**super().settings(), "first": self.first}  # a saved state can be loaded by agents of the same settings


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
SOURCE = "the result of an agent's state()"
SEEN = 1000
"""Number of distinct contexts that an agent remembers, in order to warn about a context that it has never observed."""

LATER = ("loss_oracle", "dynamics_oracle")
"""Settings that are missing in states of older versions."""


class Recommendation(NamedTuple):
    """The result of `BaseAgent.recommend`: the most probable action, its name, its probability, and the probabilities (A,) of all."""

    action: int
    name: str
    probability: float
    probabilities: Array


class BaseAgent:
    """An agent without a policy: a subclass has ``policy(context)`` and, if it learns, ``_learn(trajectory)``.

    Parameters
    ----------
    layout : Layout
    action_mask : array_like of bool (n_states, A), optional

    Attributes
    ----------
    episode : int
        Number of episodes observed.
    planning_calls : int
        Backward inductions at one context so far (each step of a policy chain is one).
    """

    planning_calls = 0
    _names: Names | None = None
    planned: int | None = None
    """Number of episodes for which the theory's parameters were computed, if they were."""

    def __init__(self, layout: Layout, *, action_mask: npt.ArrayLike | None = None) -> None:
        check_layout(layout)
        self.layout = layout
        self.action_mask = as_mask(layout, action_mask)
        self.episode = 0
        self._seen: dict[Any, Any] | None = {}

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) of the next episode at `context`. A pure query."""
        raise NotImplementedError

    @property
    def names(self) -> Names | None:
        """Names of states and actions; `agents.make` takes them from the environment, and they can be assigned."""
        return self._names

    @names.setter
    def names(self, names: Names | None) -> None:
        if names is not None:
            instance(names, "names", Names, needed="an opo_fast.Names, or None,")
            names.check(self.layout)
        self._names = names

    def recommend(self, context: Any, stage: int, state: int | str) -> Recommendation:
        """The action of the next policy in one state.

        Parameters
        ----------
        context : hashable or ndarray
        stage : int
            Layer of the state, counted from 0.
        state : int or str
            The number of the state inside its layer, counted from 0, or its name if the agent has `names`.

        Returns
        -------
        Recommendation
            The most probable action (the lowest in a tie), its name, and the probabilities of all.

        Raises
        ------
        OpoError
            If there is no such state, or the agent's `names` list the contexts without this one; see `check_context`.
        """
        names = self.names or Names()
        self.check_context(context)
        number = self.layout.state(stage, names.find(self.layout, stage, state))
        row = np.array(self.policy(context)[number])
        action = int(row.argmax())
        return Recommendation(action, names.action(action), float(row[action]), row)

    @property
    def seen(self) -> list[Any] | None:
        """The observed contexts, in order of first appearance; None if they are not strings or integers, or too many."""
        return None if self._seen is None else list(self._seen.values())

    def check_context(self, context: Any) -> None:
        """Raise if the agent's `names` list the contexts without `context`; warn if it was never observed."""
        if self.names is not None:
            self.names.check_context(context)
        if self._seen and context_key(context) not in self._seen:
            warnings.warn(unseen(context, list(self._seen.values())), stacklevel=3)

    def note(self, contexts: Iterable[Any]) -> None:
        """Remember observed contexts."""
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
        """Observe one episode, with states and actions given as in `recommend`.

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
                f"{getattr(self, 'name', type(self).__name__)} plays more episodes than the {self.planned} for which its parameters "
                "were computed",
                stacklevel=2,
            )
        self.episode += 1

    def _parameters(
        self, episodes: int | None, given: Mapping[str, float | None], theory: Callable[[int], Iterable[float]]
    ) -> tuple[float, ...]:
        """Parameters: those `given` by hand and, for those that are None, the theory's values for `episodes`."""
        values: Iterable[float | None] = given.values()
        if any(value is None for value in values):
            if episodes is None:
                raise OpoError(f"episodes is missing: the theory's parameters need it (or give {' and '.join(given)})")
            self.planned = as_integer(episodes, "episodes", least=1, most=10**100)
            values = [default if value is None else value for value, default in zip(values, theory(self.planned), strict=True)]
        return tuple(as_number(value, name) for name, value in zip(given, values, strict=True))

    def _learn(self, trajectory: Trajectory) -> None:
        """Learn from a checked trajectory, or raise and change nothing."""

    def prefetch(self, contexts: Sequence[Any]) -> None:
        """A hint that never changes a result; most agents ignore it."""

    # -- saving ------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Settings that must agree between the agent that wrote a state and the one that restores it (JSON values)."""
        mask = None if self.action_mask is None else np.packbits(self.action_mask).tolist()
        return {
            "agent": type(self).__name__,
            "layer_sizes": list(self.layout.layer_sizes),
            "n_actions": self.layout.n_actions,
            "action_mask": mask,
        }

    def state(self) -> State:
        """Everything learned, as arrays and JSON values.

        Another agent built with the same arguments that restores it continues with the same bits. Chains and other caches
        are not included: they are computed again when needed.
        """
        counts = {"episode": self.episode, "planning_calls": self.planning_calls}
        return {"settings": self.settings(), **counts, "observed_contexts": self.seen, **self._state()}

    def restore(self, state: State) -> None:
        """Restore a `state`; an invalid one raises and changes nothing."""
        fields = Fields(state, SOURCE)
        if "columns" in state:
            raise OpoError("state is that of a result or a run: one that `state` or `save` of an agent gave is needed")
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
            fields.check("observed_contexts", known, "holds contexts that are not strings or integers")
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
        """Restore the result of `_state`; raise if this agent could not have that state."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state` to `path` as npz (no pickle), completely or not at all."""
        write_state(path, self.state())

    def load(self: Self, path: str | os.PathLike[str]) -> Self:
        """Restore what `save` wrote, into an agent built with the same arguments; returns the agent."""
        self.restore(read_state(path))
        return self


def _discrete(context: Any) -> bool:
    """Whether a context is a string, an integer, or a tuple of these."""
    return isinstance(context, (str, int)) or (isinstance(context, tuple) and all(map(_discrete, context)))


def difference(place: str, found: Any, wanted: Any) -> tuple[str, Any, Any]:
    """Where a stored setting differs from this agent's, and both values; an empty place if they agree."""
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
    """|F| and |P| as the theory's parameters take them; 1 for a class without a size."""
    return {"loss_class_size": getattr(loss_class, "size", 1.0), "dynamics_class_size": getattr(dynamics_class, "size", 1.0)}


def oracle_state(oracle: Any, prefix: str) -> State:
    """State of an oracle, with prefixed keys."""
    if not hasattr(oracle, "state"):
        raise OpoError(f"the {prefix} is a {type(oracle).__name__} without state() and restore(state): it cannot be saved")
    return {f"{prefix}.{key}": value for key, value in oracle.state().items()}


def restore_oracle(oracle: Any, prefix: str, state: State) -> None:
    """Undo `oracle_state`."""
    oracle.restore({key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")})


def checked_fit(oracle: Any, value: Any, place: str) -> Hashable:
    """A fit from a state, which its oracle must know."""
    try:
        fit: Hashable = as_fit(value)
        if hasattr(oracle, "check_fit"):
            oracle.check_fit(fit)
    except OpoError as error:
        raise OpoError(f"{place} holds a fit that the oracle cannot have returned ({error})") from None
    return fit
