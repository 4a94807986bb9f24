"""Algorithm 1 of the paper, OPO-CMDP, in plain NumPy: the reference for all faster code.

The comments give the lines of the paper's Algorithm 1. `opo_cmdp` is its loop over episodes (lines 1 to 7), `policy_chain` its
loop over k at one context (lines 8 to 14). Each step k computes the occupancies of all past policies again, so T episodes cost
O(T^3) occupancies. Line 12 mixes c_t and c_{t+1}; here both are one context. Steps k of the chain are not the steps of an episode,
which are the layers h, counted from 0 here. `rules.reference_chain` implements the chain a second time, for all rules; the tests
compare the two.
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
    """The policies pi^1, ..., pi^T that OPO-CMDP plays if every action is allowed in every state.

    T is the number of contexts. As in the paper, the models are fit after the last episode too, although no policy uses them.

    Parameters
    ----------
    layout : Layout
    contexts : iterable
        c_1, ..., c_T. Each is drawn from the iterable only after line 7 of the episode before has fit its models.
    play : callable
        Takes c_t and pi^t and returns the trajectory of the episode, which includes c_t.
    loss_oracle, dynamics_oracle
        Oracles without data; they observe the episodes. The fit of losses minimises sum_i sum_h (f_{c_i}(s_h, a_h) - l_h)^2, that
        of dynamics maximises sum_i sum_h log P_{c_i}(s_{h+1} | s_h, a_h). A fit must not change when its oracle observes more
        episodes.
    eta, beta_loss, beta_dynamics : float
        Learning rate and parameters of the bonus.
    """
    fits = [(loss_oracle.fit(), dynamics_oracle.fit())]  # line 2: f^1, P^1, the fits on no data
    policies: list[Array] = []
    for c in contexts:  # lines 3, 4 and 6
        # As in the algorithm box, pi^t depends on the models of steps 1 to t - 1 (section 3 writes pi^t with P^t), so the newest fit
        # is first used in the policy of the next episode.
        models = [LayeredMDP(layout, loss_oracle.losses(f, c), dynamics_oracle.transitions(P, c)) for f, P in fits[:-1]]
        if models:
            policy = policy_chain(models, eta=eta, beta_loss=beta_loss, beta_dynamics=beta_dynamics)  # lines 8 to 14
        else:
            policy = np.full(layout.shape, 1 / layout.n_actions)  # line 2: pi^1
        trajectory = play(c, policy)  # line 5
        for oracle in (loss_oracle, dynamics_oracle):  # line 7
            oracle.observe(trajectory)
        fits.append((loss_oracle.fit(), dynamics_oracle.fit()))
        policies.append(policy)
    return policies


def policy_chain(history: Sequence[LayeredMDP], *, eta: float, beta_loss: float, beta_dynamics: float) -> Array:
    """pi^{t+1} at one context from the models f^k, P^k of steps k = 1..t at it (lines 8 to 14).

    Parameters
    ----------
    history : sequence of LayeredMDP
        Its losses are f^k, its transitions P^k; some actions may be masked.
    eta, beta_loss, beta_dynamics : float
        Learning rate and parameters of the bonus.

    Returns
    -------
    ndarray, shape (n_states, A)
    """
    layout = history[0].layout
    H = layout.horizon
    policies = [history[0].uniform_policy()]  # line 2: pi^1
    sum_q = np.where(policies[0] > 0, 0.0, np.inf)  # infinite where an action is masked
    for model in history:  # line 8
        P, pi = model.transitions.arrays(), policies[-1]
        # Eq. (2): min{1, (beta/2) / (1 + N)}, where N sums the occupancies of the policies before pi^k under P^k.
        N = sum((occupancy(model, past) for past in policies[:-1]), np.zeros(layout.shape))
        b = bonus(N, beta_loss) + 2 * H * bonus(N, beta_dynamics)  # line 9
        Q, V = model.losses - b, np.zeros(layout.n_states)  # line 9
        for h in reversed(range(H)):  # line 11
            S_h = layout.layer(h)
            if h < H - 1:  # line 10: the value after the last layer is 0
                Q[S_h] += expected_next(P[h], V[layout.layer(h + 1)], Q[S_h].shape)  # line 12
            Q[S_h] = np.maximum(0.0, Q[S_h])  # line 12
            V[S_h] = (pi[S_h] * Q[S_h]).sum(axis=1)  # line 12
        # Line 14 multiplies pi by exp(-eta Q) at each step. Since pi^1 is uniform, the result is the softmax of -eta times the sum of
        # all Q. Computed so, an action whose weight underflows can regain weight in a later step.
        sum_q += Q
        policies.append(softmax(sum_q, eta))  # line 14
    return policies[-1]
