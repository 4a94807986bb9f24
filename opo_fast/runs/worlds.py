"""The two kinds of environments that a run plays in: those whose models are known, and those that give samples alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, having
from .._support.lru import LRU
from .._support.numbers import log_loss
from ..errors import OpoError
from ..model.contextual import ContextualMDP, Trajectory, check_trajectory, context_key
from ..model.layered import LayeredMDP
from ..model.layout import as_mask
from ..model.operations import Backend, as_policy, check_policy, evaluate, play_in, solve
from ..model.reference import draw
from ..model.streams import Streams

__all__ = ["ModelWorld", "SampledWorld", "world_of"]

Array = npt.NDArray[Any]
UNKNOWN = (float("nan"), float("nan"), float("nan"))


class ModelWorld:
    """An environment with ``mdp(context)``: episodes are drawn from its models, and values are exact."""

    exact = True

    def __init__(self, cmdp: ContextualMDP, streams: Streams, backend: Backend) -> None:
        self.cmdp, self.streams, self.backend = cmdp, streams, backend
        self._values: LRU[tuple[float, float]] = LRU(1 << 24)
        self._mdp: LayeredMDP | None = None

    def enter(self, context: Any) -> None:
        """Take the model of the coming episode."""
        self._mdp = self.cmdp.mdp(context)

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

    def values(self, context: Any, policy: Array) -> tuple[float, float, float]:
        """V(s_1) of the policy, of the optimum and of the uniform policy; the last two computed once per context."""
        value = float(evaluate(self.mdp, policy, backend=self.backend).v[0])
        key = context_key(context)
        found = self._values.get(key)
        if found is None:
            best = float(solve(self.mdp, backend=self.backend).v[0])
            uniform = float(evaluate(self.mdp, self.mdp.uniform_policy(), backend=self.backend).v[0])
            found = (best, uniform)
            self._values.put(key, found, 256)
        return value, *found

    def errors(self, trajectory: Trajectory) -> tuple[float, float]:
        """Squared error and log loss of the truth along a trajectory."""
        means = self.mdp.losses[trajectory.states[:-1], trajectory.actions]
        along = self.mdp.transitions.along(trajectory.states, trajectory.actions)
        return float(np.square(means - trajectory.losses).sum()), log_loss(along)


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

    def enter(self, context: Any) -> None:
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

    def values(self, context: Any, policy: Array) -> tuple[float, float, float]:
        """Nothing is known."""
        return UNKNOWN

    def errors(self, trajectory: Trajectory) -> tuple[float, float]:
        """Nothing is known."""
        return UNKNOWN[:2]


def world_of(cmdp: Any, streams: Streams, backend: Backend) -> ModelWorld | SampledWorld:
    """How episodes of an environment are played; one that has a model is played from it."""
    if hasattr(cmdp, "mdp"):
        return ModelWorld(cmdp, streams, backend)
    having(cmdp, "cmdp", ("reset", "step"), "a ContextualMDP, or an environment with reset(context, rng) and step(action),")
    return SampledWorld(cmdp, streams)
