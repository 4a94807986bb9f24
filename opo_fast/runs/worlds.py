"""The two kinds of environments that a run plays in: those whose models are known, and those that give samples alone."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, having
from .._support.lru import LRU
from .._support.numbers import log_loss, log_losses
from ..errors import OpoError
from ..model.contextual import ContextualMDP, Trajectory, check_trajectory, context_key
from ..model.layered import LayeredMDP
from ..model.layout import as_mask
from ..model.operations import Backend, as_policy, check_policy, evaluate, play_in, solve
from ..model.reference import draw
from ..model.streams import Streams

__all__ = ["ModelWorld", "SampledWorld", "world_of"]

Array = npt.NDArray[Any]
Columns = dict[str, Array]

BLOCK = 32
"""Episodes whose policies are valued together, as far as their models are small."""
BLOCK_BYTES = 1 << 18


@dataclass
class _Episode:
    """What an episode leaves to be computed later."""

    key: Hashable
    mdp: LayeredMDP
    policy: Array
    losses: Array | None = None
    means: Array | None = None
    along: Array | None = None


def _alike(mdp: Any, other: Any) -> bool:
    """Whether two models can be swept together, now or later: an `UpdatableMDP` may have other numbers then."""
    if type(mdp) is not LayeredMDP or type(other) is not LayeredMDP:
        return False
    mask, theirs = mdp.action_mask, other.action_mask
    same = mask is theirs or (mask is not None and theirs is not None and np.array_equal(mask, theirs))
    return same and (mdp.layout is other.layout or mdp.layout == other.layout)


class ModelWorld:
    """An environment with ``mdp(context)``: episodes are drawn from its models, and values are exact."""

    exact = True

    def __init__(self, cmdp: ContextualMDP, streams: Streams, backend: Backend) -> None:
        self.cmdp, self.streams, self.backend = cmdp, streams, backend
        self._values: LRU[tuple[float, float]] = LRU(1 << 24)
        self._mdp: LayeredMDP | None = None
        self._held: dict[int, _Episode] = {}
        self._like: Any = None
        self._nbytes = 0

    def enter(self, context: Any, mdp: LayeredMDP | None = None) -> None:
        """Take the model of the coming episode, which may have been asked for already."""
        self._mdp = self.cmdp.mdp(context) if mdp is None else mdp

    @property
    def mdp(self) -> LayeredMDP:
        """The model of the episode under way."""
        assert self._mdp is not None
        return self._mdp

    @property
    def action_mask(self) -> Array | None:
        """Allowed pairs of the episode under way."""
        return self.mdp.action_mask

    def check(self, policy: Any) -> Array:
        """`policy` as a valid array of this model."""
        return check_policy(self.mdp, policy)

    def play(self, t: int, context: Any, policy: Array) -> Trajectory:
        """Episode t."""
        u_action, u_next, u_loss = (self.streams.uniforms(name, t) for name in ("actions", "transitions", "losses"))
        return play_in(self.cmdp, self.mdp, policy, (u_action, u_next, u_loss), context, self.backend)

    def hold(self, t: int, context: Any, policy: Array, columns: Columns) -> None:
        """Take the policy of episode t; what it is worth is computed later, for several episodes together."""
        mdp = self.mdp
        if self._held and not (len(self._held) < BLOCK and self._nbytes < BLOCK_BYTES and _alike(mdp, self._like)):
            self.fill(columns)
        self._like = mdp
        # The agent may write its next policy into the same array.
        self._held[t] = _Episode(context_key(context), mdp, policy.copy())
        self._nbytes += mdp.transitions.nbytes
        if type(mdp) is not LayeredMDP:
            self.fill(columns)

    def played(self, t: int, trajectory: Trajectory, columns: Columns) -> None:
        """Take what happened in episode t, for the errors of the truth along it."""
        means = self.mdp.losses[trajectory.states[:-1], trajectory.actions]
        along = self.mdp.transitions.along(trajectory.states, trajectory.actions)
        episode = self._held.get(t)
        if episode is not None:
            episode.losses, episode.means, episode.along = trajectory.losses, means, along
            return
        columns["true_squared_error"][t] = np.square(means - trajectory.losses).sum()
        columns["true_log_loss"][t] = log_loss(along)

    def fill(self, columns: Columns) -> None:
        """Write V(s_1) of the policies, of the optimum and of the uniform policy, and the errors of the truth, of the episodes held."""
        held = self._held
        if not held:
            return
        at, episodes = list(held), list(held.values())
        self._know(episodes)
        policies = np.array([one.policy for one in episodes])
        columns["value"][at] = evaluate([one.mdp for one in episodes], policies, returns="start", backend=self.backend)
        known = [self._values.get(one.key) for one in episodes]
        columns["optimal_value"][at], columns["uniform_value"][at] = zip(*known, strict=True)
        with_errors = [t for t, one in held.items() if one.means is not None]
        if with_errors:
            means, losses, along = (np.array([getattr(held[t], name) for t in with_errors]) for name in ("means", "losses", "along"))
            columns["true_squared_error"][with_errors] = np.square(means - losses).sum(axis=1)
            columns["true_log_loss"][with_errors] = log_losses(along)
        self._held, self._nbytes = {}, 0

    def _know(self, episodes: list[_Episode]) -> None:
        """Compute the values of the optimum and of the uniform policy, once per context."""
        new = {one.key: one.mdp for one in reversed(episodes) if self._values.get(one.key) is None}
        if not new:
            return
        mdps = list(new.values())
        best = solve(mdps, returns="start", backend=self.backend)
        uniform = evaluate(mdps, mdps[0].uniform_policy(), returns="start", backend=self.backend)
        for key, *found in zip(new, best.tolist(), uniform.tolist(), strict=True):
            self._values.put(key, (found[0], found[1]), 256)


class SampledWorld:
    """An environment with ``reset(context, rng)`` and ``step(action)`` and without a model: no value is exact.

    ``reset`` begins an episode; all that it draws comes from the generator, so that the seed decides the run. ``step`` returns
    ``(state, loss)``: the next state as its number inside the next layer, counted from 0, and the loss of the step in [0, 1].
    The state after the last step is not looked at.
    """

    exact = False

    def __init__(self, cmdp: Any, streams: Streams) -> None:
        self.cmdp, self.streams, self.layout = cmdp, streams, cmdp.layout
        self.action_mask = as_mask(self.layout, getattr(cmdp, "action_mask", None))

    def enter(self, context: Any, mdp: LayeredMDP | None = None) -> None:
        """Nothing is known of a context."""

    def check(self, policy: Any) -> Array:
        """`policy` as a valid array of this layout and mask."""
        return as_policy(self.layout, self.action_mask, policy)

    def play(self, t: int, context: Any, policy: Array) -> Trajectory:
        """Episode t, step by step."""
        layout = self.layout
        u_action = self.streams.uniforms("actions", t)
        self.cmdp.reset(context, self.streams.generator("transitions", t))
        states, actions = np.empty(layout.horizon + 1, np.int64), np.empty(layout.horizon, np.int64)
        losses, local = np.empty(layout.horizon), 0
        for h in range(layout.horizon):
            states[h] = layout.state(h, local)
            actions[h] = draw(policy[states[h]], u_action[h])
            answer = as_items(self.cmdp.step(int(actions[h])), f"step {h}", "a state and a loss")
            if len(answer) != 2:
                raise OpoError(f"step {h} returned {len(answer)} values: (state, loss) is needed")
            losses[h] = as_number(answer[1], f"loss of step {h}", most=1.0)
            if h + 1 < layout.horizon:
                local = as_integer(answer[0], f"state after step {h}", least=0, most=layout.layer_sizes[h + 1] - 1)
        states[-1] = layout.n_states
        return check_trajectory(layout, self.action_mask, Trajectory(context, states, actions, losses))

    def hold(self, t: int, context: Any, policy: Array, columns: Columns) -> None:
        """Nothing is known of its value."""

    def played(self, t: int, trajectory: Trajectory, columns: Columns) -> None:
        """Nothing is known of the truth."""

    def fill(self, columns: Columns) -> None:
        """Nothing is known: the columns stay NaN."""


def world_of(cmdp: Any, streams: Streams, backend: Backend) -> ModelWorld | SampledWorld:
    """How episodes of an environment are played; one that has a model is played from it."""
    if hasattr(cmdp, "mdp"):
        return ModelWorld(cmdp, streams, backend)
    having(cmdp, "cmdp", ("reset", "step"), "a ContextualMDP, or an environment with reset(context, rng) and step(action),")
    return SampledWorld(cmdp, streams)
