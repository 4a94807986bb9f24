"""Simple baselines that a learner has to beat, and the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number, having
from .._support.lru import LRU
from ..model.contextual import context_key
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.operations import Backend, check_backend, solve
from .base import BaseAgent
from .opo import OPO
from .oracle_agent import PLANS, OracleAgent

__all__ = ["BonusFreeOPO", "EpsilonGreedy", "Greedy", "Optimum", "Uniform"]

Array = npt.NDArray[Any]


class Uniform(BaseAgent):
    """Plays all allowed actions with equal probability, and learns nothing."""

    name = "uniform"

    def policy(self, context: Any) -> Array:
        """The uniform policy."""
        return self.uniform()


class Greedy(OracleAgent):
    """Plays the optimum of the newest fits as if they were the truth: no exploration.

    Parameters
    ----------
    layout, loss_class, dynamics_class, action_mask, backend
        See `OracleAgent`.
    """

    name = "greedy"

    def policy(self, context: Any) -> Array:
        """The optimum of the newest fits at `context`."""
        return self.plan(context).policy.copy()

    def policy_under(self, model: LayeredMDP, episode: int) -> Array:
        """The policy of an episode, counted from 0, if its fits give `model`."""
        return solve(model, backend=self.backend).policy

    def value(self, context: Any) -> float:
        """V(s_1) of the newest fits' optimum."""
        return float(self.plan(context).v[0])


class EpsilonGreedy(Greedy):
    """Greedy, but in each step it plays a random action with probability epsilon_t = min{1, scale t^(-1/3)} in episode t.

    The exponent is that of explore-then-commit, whose rate is T^(2/3).

    Parameters
    ----------
    layout, loss_class, dynamics_class, action_mask, backend
        See `OracleAgent`.
    scale : float
        At least 0.
    epsilon : float, optional
        A constant probability in [0, 1] instead; its regret is linear.
    """

    name = "epsilon-greedy"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        scale: float = 1.0,
        epsilon: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
    ) -> None:
        self.scale = as_number(scale, "scale")
        self.constant = None if epsilon is None else as_number(epsilon, "epsilon", most=1.0)
        super().__init__(layout, loss_class, dynamics_class, action_mask=action_mask, backend=backend)

    @property
    def epsilon(self) -> float:
        """Probability of a random action in each step of the next episode."""
        return self._epsilon(self.episode)

    def _epsilon(self, episode: int) -> float:
        return min(1.0, self.scale * (episode + 1) ** (-1 / 3)) if self.constant is None else self.constant

    def policy(self, context: Any) -> Array:
        """The mixture of the greedy and the uniform policy."""
        return self._mixture(self.plan(context).policy, self.episode)

    def policy_under(self, model: LayeredMDP, episode: int) -> Array:
        """See `Greedy.policy_under`."""
        return self._mixture(super().policy_under(model, episode), episode)

    def _mixture(self, greedy: Array, episode: int) -> Array:
        epsilon = self._epsilon(episode)
        return (1 - epsilon) * greedy + epsilon * self.uniform()

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "scale": self.scale, "epsilon": self.constant}


class BonusFreeOPO(OPO):
    """OPO-CMDP without its bonus: the policy step of the paper, without optimism.

    Parameters
    ----------
    layout, loss_class, dynamics_class
        See `OPO`.
    **options
        Those of `OPO` except the betas.
    """

    name = "OPO without bonus"

    def __init__(self, layout: Layout, loss_class: Any, dynamics_class: Any, **options: Any) -> None:
        super().__init__(layout, loss_class, dynamics_class, beta_loss=0.0, beta_dynamics=0.0, **options)


class Optimum(BaseAgent):
    """Knows the true models and plays their optimum: its regret is 0.

    Parameters
    ----------
    cmdp : ContextualMDP
        The environment, whose true models it reads; no other agent does.
    backend : {"numba", "numpy"}
    """

    name = "optimum"

    def __init__(self, cmdp: Any, *, action_mask: npt.ArrayLike | None = None, backend: Backend = "numba") -> None:
        having(cmdp, "cmdp", ("mdp", "layout"), "a ContextualMDP")
        check_backend(backend)
        super().__init__(cmdp.layout, action_mask=action_mask)
        self.cmdp, self.backend = cmdp, backend
        self._plans: LRU[Array] = LRU(PLANS)

    def policy(self, context: Any) -> Array:
        """The optimal policy of the true model."""
        key = context_key(context)
        found = self._plans.get(key)
        if found is None:
            found = solve(self.cmdp.mdp(context), backend=self.backend).policy
            self.planning_calls += 1
            self._plans.put(key, found, found.nbytes)
        return np.array(found)
