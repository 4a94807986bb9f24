"""The operations on one model in plain NumPy, which follow the paper's equations; the kernels are tested against them.

Signatures are those of the package's functions, which call these if ``backend="numpy"``. Inputs are not checked here; the public
functions of `opo_fast` check them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .layered import LayeredMDP
from .updatable import UpdatableMDP

__all__ = [
    "Evaluation",
    "Solution",
    "bonus",
    "draw",
    "evaluate",
    "exponential_weights",
    "expected_next",
    "occupancy",
    "rollout",
    "solve",
    "solve_layer",
]

Array = npt.NDArray[Any]


class Evaluation(NamedTuple):
    """Value of a policy: `q` of shape (n_states, A), 0 at masked pairs, and `v` of shape (n_states,)."""

    q: Array
    v: Array


class Solution(NamedTuple):
    """The optimum: `q` (n_states, A), 0 at masked pairs; `v` (n_states,); `policy` (n_states, A), deterministic."""

    q: Array
    v: Array
    policy: Array


def expected_next(array: Any, v_next: Array, shape: tuple[int, int]) -> Array:
    """sum_{s'} P(s'|s,a) v_next(s') for all pairs of a layer, dense or sparse."""
    return np.asarray(array @ v_next).reshape(shape)


def _allowed(mdp: LayeredMDP | UpdatableMDP) -> Array:
    return np.ones(mdp.layout.shape, bool) if mdp.action_mask is None else mdp.action_mask


def occupancy(mdp: LayeredMDP | UpdatableMDP, policy: Array) -> Array:
    """q(s, a | pi, P): the probability of reaching s and playing a (paper, section 2.1)."""
    layout, arrays = mdp.layout, mdp.transitions.arrays()
    q = np.zeros(layout.shape)
    reach = np.ones(1)
    for h in range(layout.horizon):
        q[layout.layer(h)] = reach[:, None] * policy[layout.layer(h)]
        if h < layout.horizon - 1:
            pairs = q[layout.layer(h)].reshape(-1)
            array = arrays[h]
            reach = np.asarray(array.T @ pairs) if array.ndim == 2 else pairs @ array.reshape(pairs.size, -1)
    return q


def evaluate(mdp: LayeredMDP | UpdatableMDP, policy: Array) -> Evaluation:
    """Q and V of `policy` by the Bellman equations (paper, eq. of section 2.1)."""
    layout, arrays, allowed = mdp.layout, mdp.transitions.arrays(), _allowed(mdp)
    q, v = np.zeros(layout.shape), np.zeros(layout.n_states)
    for h in reversed(range(layout.horizon)):
        layer = layout.layer(h)
        q[layer] = mdp.losses[layer]
        if h < layout.horizon - 1:
            q[layer] += expected_next(arrays[h], v[layout.layer(h + 1)], q[layer].shape)
        q[layer] = np.where(allowed[layer], q[layer], 0.0)
        v[layer] = (policy[layer] * q[layer]).sum(axis=1)
    return Evaluation(q, v)


def solve(mdp: LayeredMDP | UpdatableMDP) -> Solution:
    """Backward induction; among equal actions the lowest index is taken."""
    layout = mdp.layout
    q, v, policy = np.zeros(layout.shape), np.zeros(layout.n_states), np.zeros(layout.shape)
    for h in reversed(range(layout.horizon)):
        layer, following = layout.layer(h), v[layout.offsets[h + 1] : layout.offsets[min(h + 2, layout.horizon)]]
        q[layer], v[layer], policy[layer] = solve_layer(mdp, h, following)
    return Solution(q, v, policy)


def solve_layer(mdp: LayeredMDP | UpdatableMDP, stage: int, v: Array) -> Solution:
    """The optimum of one layer from the values `v` of the next layer, which are empty for the last."""
    layer = mdp.layout.layer(stage)
    q, allowed = mdp.losses[layer].copy(), _allowed(mdp)[layer]
    if stage < mdp.layout.horizon - 1:
        q += expected_next(mdp.transitions.arrays()[stage], v, q.shape)
    best = np.where(allowed, q, np.inf).argmin(axis=1)
    q = np.where(allowed, q, 0.0)
    policy, states = np.zeros(q.shape), np.arange(best.size)
    policy[states, best] = 1.0
    return Solution(q, q[states, best], policy)


def bonus(visits: Array, beta: float | Array) -> Array:
    """min{1, (beta/2) / (1 + visits)} (paper, eq. (2))."""
    return np.minimum(1.0, (beta / 2) / (1.0 + visits))


def exponential_weights(policy: Array, q: Array, eta: float) -> Array:
    """The policy proportional to policy(a|s) exp(-eta q(s,a)) (Algorithm 1, policy improvement)."""
    least = np.where(policy > 0, q, np.inf).min(axis=1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # Halved, since the difference q - least may overflow even if eta times it does not.
        log_weights = np.where(policy > 0, np.log(policy) - 2 * (eta * (q / 2 - least / 2)), -np.inf)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def rollout(mdp: LayeredMDP | UpdatableMDP, policy: Array, u_action: Array, u_next: Array) -> tuple[Array, Array]:
    """States (H+1) and actions (H) of one episode by inverse-CDF sampling from the given uniforms (H each)."""
    layout, arrays = mdp.layout, mdp.transitions.arrays()
    states, actions = np.zeros(layout.horizon + 1, np.int64), np.zeros(layout.horizon, np.int64)
    states[-1] = layout.n_states
    for h in range(layout.horizon):
        s = states[h]
        actions[h] = draw(policy[s], u_action[h])
        if h < layout.horizon - 1:
            local = s - layout.offsets[h]
            if arrays[h].ndim == 2:
                row = np.asarray(arrays[h][[local * layout.n_actions + actions[h]]].todense()).ravel()
            else:
                row = arrays[h][local, actions[h]]
            states[h + 1] = layout.offsets[h + 1] + draw(row, u_next[h])
    return states, actions


def draw(probabilities: Array, u: float) -> int:
    """The index at which the cumulative sum of the probabilities first exceeds the uniform `u`."""
    support = np.flatnonzero(probabilities > 0)
    # Summed in double precision like in the kernel, also if the model stores float32.
    position = int(np.searchsorted(np.cumsum(probabilities[support], dtype=np.float64), u, side="right"))
    return int(support[min(position, support.size - 1)])
