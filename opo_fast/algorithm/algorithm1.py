"""Algorithm 1 of the paper, OPO-CMDP, in plain NumPy: the reference that everything faster is compared with.

The comments give the lines of the paper's Algorithm 1; eq. (2) is its bonus. `opo_cmdp` is the outer loop over episodes,
`policy_chain` the inner loop over k at one context. Nothing is incremental: each step k computes the occupancy of every
past policy again, so that T episodes cost O(T^3) occupancies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.contextual import Trajectory
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.reference import bonus, expected_next, occupancy
from .rules import softmax

__all__ = ["opo_cmdp", "policy_chain"]

Array = npt.NDArray[Any]


def opo_cmdp(
    layout: Layout,
    contexts: Iterable[Any],
    play: Callable[[Any, Array], Trajectory],
    loss_oracle: Any,
    dynamics_oracle: Any,
    *,
    eta: float,
    beta_loss: float,
    beta_dynamics: float,
) -> list[Array]:
    """The policies that OPO-CMDP plays, one for each context (all actions are allowed in every state).

    Parameters
    ----------
    layout : Layout
    contexts : iterable
        c_1, ..., c_T.
    play : callable
        From c_t and pi^t to the trajectory of the episode.
    loss_oracle, dynamics_oracle
        See `opo_fast.oracles.LossOracle` and `DynamicsOracle`; without data.
    eta, beta_loss, beta_dynamics : float
        Line 1.
    """
    fits = [(loss_oracle.fit(), dynamics_oracle.fit())]  # line 2: f^1, P^1 on the empty data set
    played: list[Array] = []
    for c in contexts:  # lines 3, 4 and 6
        models = [LayeredMDP(layout, loss_oracle.losses(f, c), dynamics_oracle.transitions(P, c)) for f, P in fits[: len(played)]]
        policy = np.full(layout.shape, 1 / layout.n_actions)  # line 2: pi^1
        if models:
            policy = policy_chain(models, eta=eta, beta_loss=beta_loss, beta_dynamics=beta_dynamics)
        trajectory = play(c, policy)  # line 5
        for oracle in (loss_oracle, dynamics_oracle):  # line 7
            oracle.observe(trajectory)
        fits.append((loss_oracle.fit(), dynamics_oracle.fit()))
        played.append(policy)
    return played


def policy_chain(history: Sequence[LayeredMDP], *, eta: float, beta_loss: float, beta_dynamics: float) -> Array:
    """pi^{t+1} at one context from the models f^k, P^k of k = 1..t at it (lines 8 to 14).

    Parameters
    ----------
    history : sequence of LayeredMDP
    eta, beta_loss, beta_dynamics : float

    Returns
    -------
    ndarray, shape (n_states, A)
    """
    layout = history[0].layout
    H = layout.horizon
    policies = [history[0].uniform_policy()]  # line 2: pi^1
    sum_q = np.where(policies[0] > 0, 0.0, np.inf)
    for model in history:  # line 8
        P, pi = model.transitions.arrays(), policies[-1]
        N = sum((occupancy(model, past) for past in policies[:-1]), np.zeros(layout.shape))  # eq. (2)
        b = bonus(N, beta_loss) + 2 * H * bonus(N, beta_dynamics)  # line 9
        Q, V = model.losses - b, np.zeros(layout.n_states)  # lines 9 and 10
        for h in reversed(range(H)):  # line 11
            S_h = layout.layer(h)
            if h < H - 1:
                Q[S_h] += expected_next(P[h], V[layout.layer(h + 1)], Q[S_h].shape)  # line 12
            Q[S_h] = np.maximum(0.0, Q[S_h])
            V[S_h] = (pi[S_h] * Q[S_h]).sum(axis=1)
        # Line 14 multiplies pi by exp(-eta Q). The sum of Q in the exponent is the same, without underflow.
        sum_q += Q
        policies.append(softmax(sum_q, eta))
    return policies[-1]
