"""The steps of a policy chain in OPO-CMDP, E-UC3RL and RM-UCDD, side by side, and the chain of each of them in NumPy.

The three share the loop of Algorithm 1. All are written with losses here (the other two papers write rewards). They differ as follows:

====================  =======================  ==========================  ============================
                      OPO-CMDP                 E-UC3RL                     RM-UCDD
====================  =======================  ==========================  ============================
N sums, over i < k    q(s, a | pi^i, P^k)      q(s, a | pi^i, P^i)         pi^i(a | s)
policy step           exponential weights      the optimum of this step    the optimum of this step
pi^t is built from    fits 1 to t - 1          fits 1 to t                 fits |A| + 1 to t
first episodes        like later ones          like later ones             each action once, in |A| episodes
dynamics are fit by   log loss                 log loss                    least squares
scale of the bonus    beta / 2, 2 H            beta / 2, 2 H               kappa / p_min, sqrt|S_{h+1}|, H
bonus, last layer     as in other layers       as in other layers          of the loss alone
====================  =======================  ==========================  ============================

The first two and the last two lines of the table are the steps themselves. `ChainRule.steps` is the number of steps before an
episode. The agents play each action once and choose the oracles (`agents.chain_agent`, `agents.rmucdd`). The algorithm boxes of
E-UC3RL and RM-UCDD were not available; the docstrings of the agents say what is our interpretation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.reference import bonus, expected_next, occupancy

__all__ = ["Bonus", "ChainRule", "euc3rl_rule", "opo_rule", "reference_chain", "rmucdd_rule", "softmax"]

Array = npt.NDArray[Any]


class Bonus(NamedTuple):
    """The parameters of the bonus from one step on.

    Attributes
    ----------
    beta_loss : float
    beta_dynamics : ndarray, shape (H,)
    end : int
        The first step whose parameters may differ from these.
    needed : bool
        False if even the least bonus of a step exceeds all losses to go; the visits then need not be computed.
    """

    beta_loss: float
    beta_dynamics: Array
    end: int = sys.maxsize
    needed: bool = True


@dataclass(frozen=True)
class ChainRule:
    """The rule of a policy chain: its bonus and its policy step.

    Attributes
    ----------
    beta_loss : float
        Of the bonus min{1, (beta_loss / 2) / (1 + N)} (paper, eq. (2)).
    beta_dynamics : ndarray, shape (H,)
        The same for the dynamics, per layer.
    weight : float
        Weight of the dynamics' bonus.
    visits : {"latest", "contemporaneous", "actions"}
        What N sums over the past policies i < k: their occupancies under this step's dynamics P^k, under the dynamics P^i of
        their own step, or their probabilities of the action.
    greedy : bool
        Policy step: the action of least Q, or exponential weights of learning rate `eta`.
    eta : float
    newest : bool
        Whether the newest fit enters the policy of the coming episode, or only that of the episode after it.
    forced : int
        Number of episodes at the beginning that play each action in turn; the chain begins after them.
    """

    beta_loss: float
    beta_dynamics: Array
    weight: float
    visits: Literal["latest", "contemporaneous", "actions"]
    greedy: bool
    eta: float = 0.0
    newest: bool = False
    forced: int = 0
    hedged: ClassVar[bool] = False
    """Whether this is the rule of `self_tuning`, which is not part of the paper."""

    def steps(self, observed: int) -> int:
        """Number of steps before the policy of the next episode, after `observed` episodes."""
        return max(0, observed - self.forced) + int(self.newest)

    def bonus(self, step: int) -> Bonus:
        """The bonus of a step, counted from 0."""
        return Bonus(self.beta_loss, self.beta_dynamics)


def opo_rule(layout: Layout, eta: float, beta_loss: float, beta_dynamics: float) -> ChainRule:
    """OPO-CMDP (paper, Algorithm 1)."""
    return ChainRule(
        beta_loss=as_number(beta_loss, "beta_loss"),
        beta_dynamics=np.full(layout.horizon, as_number(beta_dynamics, "beta_dynamics")),
        weight=2.0 * layout.horizon,
        visits="latest",
        greedy=False,
        eta=as_number(eta, "eta"),
    )


def euc3rl_rule(layout: Layout, beta_loss: float, beta_dynamics: float) -> ChainRule:
    """E-UC3RL (Levy, Cassel, Cohen and Mansour, ICML 2024; our interpretation)."""
    return ChainRule(
        beta_loss=beta_loss,
        beta_dynamics=np.full(layout.horizon, beta_dynamics),
        weight=2.0 * layout.horizon,
        visits="contemporaneous",
        greedy=True,
        newest=True,
    )


def rmucdd_rule(layout: Layout, kappa_loss: float, kappa_dynamics: float, p_min: float) -> ChainRule:
    """RM-UCDD (Levy and Mansour, AAAI 2023; our interpretation).

    With n = 1 + N, where the 1 is the forced episode that played the action, its bonus is

        min{1, kappa_loss / (2 p_min n)} + H min{2, sqrt|S_{h+1}| kappa_dynamics / (2 p_min n)},

    without the second term in the last layer, which always leads to the end state.
    """
    following = np.array([*layout.layer_sizes[1:], 0], np.float64)
    return ChainRule(
        beta_loss=kappa_loss / p_min,
        beta_dynamics=np.sqrt(following) * kappa_dynamics / (2 * p_min),
        weight=2.0 * layout.horizon,
        visits="actions",
        greedy=True,
        newest=True,
        forced=layout.n_actions,
    )


def reference_chain(history: Sequence[LayeredMDP], rule: ChainRule) -> Array:
    """The policy after the steps of `history` under any rule; under `opo_rule` it is `algorithm1.policy_chain`.

    `history` has the models of steps 1 to `rule.steps(observed)`. A greedy rule computes pi^k from model k; exponential weights
    compute pi^{k+1} from pi^k and model k.
    """
    uniform = history[0].uniform_policy()
    past: list[Array] = []
    policy, sum_q = uniform, np.where(uniform > 0, 0.0, np.inf)
    for k, model in enumerate(history):
        visits = _visits(history, k, past, rule)
        q = _optimistic_q(model, visits, policy, rule, rule.bonus(k))
        if rule.greedy:
            policy = _least(np.where(uniform > 0, q, np.inf))
            past.append(policy)
        else:
            past.append(policy)
            sum_q += q
            policy = softmax(sum_q, rule.eta)
    return policy


def softmax(sum_q: Array, eta: float) -> Array:
    """The policy proportional to exp(-eta sum_q); infinite entries of `sum_q` are masked actions.

    Only differences from the least entry of a state enter the exponent, so `sum_q` may grow without bound.
    """
    allowed = np.isfinite(sum_q)
    gaps = np.where(allowed, sum_q - sum_q.min(axis=1, keepdims=True), 0.0)
    weights = np.where(allowed, np.exp(-eta * gaps), 0.0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _least(q: Array) -> Array:
    """The policy that plays the action with the least q; ties go to the lowest index."""
    return np.asarray(np.arange(q.shape[1]) == q.argmin(axis=1)[:, None], np.float64)


def _visits(history: Sequence[LayeredMDP], k: int, past: Sequence[Array], rule: ChainRule) -> Array:
    """N of step k, from the policies of the steps before it."""
    if rule.visits == "latest":
        terms = [occupancy(history[k], policy) for policy in past]
    elif rule.visits == "contemporaneous":
        terms = [occupancy(model, policy) for model, policy in zip(history, past, strict=False)]
    else:
        terms = list(past)
    return sum(terms, np.zeros(history[k].layout.shape))


def _optimistic_q(model: LayeredMDP, visits: Array, policy: Array, rule: ChainRule, betas: Bonus) -> Array:
    """Q of one step, from the last layer to the first.

    A greedy rule takes the action with the least Q and truncates only V at 0: if Q were truncated, all unexplored actions would tie.
    """
    layout, arrays = model.layout, model.transitions.arrays()
    allowed = np.ones(layout.shape, bool) if model.action_mask is None else model.action_mask
    q, v = np.zeros(layout.shape), np.zeros(layout.n_states)
    for h in reversed(range(layout.horizon)):
        layer = layout.layer(h)
        N = visits[layer]
        q[layer] = model.losses[layer] - (bonus(N, betas.beta_loss) + rule.weight * bonus(N, betas.beta_dynamics[h]))
        if h < layout.horizon - 1:
            q[layer] += expected_next(arrays[h], v[layout.layer(h + 1)], q[layer].shape)
        if rule.greedy:
            v[layer] = np.maximum(0.0, np.where(allowed[layer], q[layer], np.inf).min(axis=1))
        else:
            q[layer] = np.maximum(0.0, q[layer])
            v[layer] = (policy[layer] * q[layer]).sum(axis=1)
    return q
