"""Alternatives for the benchmarks: straightforward single-threaded code in Numba and in NumPy/SciPy."""

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(cache=True)
def plain_chain(n_steps, layers, n_actions, blocks, starts, losses, eta, half_loss, half_dynamics, policy, sum_q, visits, q, v, d):
    """`n_steps` steps of Algorithm 1 at one context under one dynamics, with running sums of occupancies.

    Rows are state * n_actions + action; block h (row, next state) begins at `starts[h]`.
    """
    horizon = len(layers) - 1
    for _ in range(n_steps):
        for h in range(horizon - 1, -1, -1):
            n_next = layers[h + 2] - layers[h + 1] if h < horizon - 1 else 0
            for s in range(layers[h], layers[h + 1]):
                value = 0.0
                for a in range(n_actions):
                    r = s * n_actions + a
                    b = min(1.0, half_loss / (1.0 + visits[r])) + 2 * horizon * min(1.0, half_dynamics / (1.0 + visits[r]))
                    x = losses[r] - b
                    base = starts[h] + (r - layers[h] * n_actions) * n_next
                    for j in range(n_next):
                        x += blocks[base + j] * v[layers[h + 1] + j]
                    q[r] = max(0.0, x)
                    value += policy[r] * q[r]
                v[s] = value
        d[:] = 0.0
        d[0] = 1.0
        for h in range(horizon):
            n_next = layers[h + 2] - layers[h + 1] if h < horizon - 1 else 0
            for s in range(layers[h], layers[h + 1]):
                for a in range(n_actions):
                    r = s * n_actions + a
                    w = d[s] * policy[r]
                    visits[r] += w
                    base = starts[h] + (r - layers[h] * n_actions) * n_next
                    for j in range(n_next):
                        d[layers[h + 1] + j] += w * blocks[base + j]
        for s in range(layers[horizon]):
            least = math.inf
            for a in range(n_actions):
                r = s * n_actions + a
                sum_q[r] += q[r]
                least = min(least, sum_q[r])
            total = 0.0
            for a in range(n_actions):
                r = s * n_actions + a
                policy[r] = math.exp(-eta * (sum_q[r] - least))
                total += policy[r]
            for a in range(n_actions):
                policy[s * n_actions + a] /= total


class PlainChain:
    """`plain_chain` with its arrays, for one model."""

    def __init__(self, layout, arrays, losses, rule):
        self.layout, self.rule = layout, rule
        self.blocks = np.concatenate([a.ravel() for a in arrays]) if arrays else np.empty(0)
        self.starts = np.concatenate([[0], np.cumsum([a.size for a in arrays])]).astype(np.int64)
        self.losses = np.ascontiguousarray(losses).ravel()
        n = layout.n_states * layout.n_actions
        self.policy, self.sum_q, self.visits = np.full(n, 1 / layout.n_actions), np.zeros(n), np.zeros(n)
        self.q, self.v, self.d = np.empty(n), np.zeros(layout.n_states), np.zeros(layout.n_states)

    def advance(self, n_steps):
        r = self.rule
        plain_chain(
            n_steps, self.layout.offsets, self.layout.n_actions, self.blocks, self.starts, self.losses, r.eta, r.beta_loss / 2,
            float(r.beta_dynamics[0]) / 2, self.policy, self.sum_q, self.visits, self.q, self.v, self.d,
        )  # fmt: skip
        return self.policy


def numpy_evaluate(layout, arrays, losses, policy):
    """Policy evaluation by one matrix product per layer, dense (S, A, S') or SciPy sparse (S A, S')."""
    v = np.zeros(layout.layer_sizes[-1])
    for h in range(layout.horizon - 1, -1, -1):
        layer = layout.layer(h)
        q = losses[layer]
        if h < layout.horizon - 1:
            array = arrays[h]
            q = q + (array @ v).reshape(q.shape)
        v = np.einsum("sa,sa->s", policy[layer], q)
    return v


def numpy_occupancy(layout, arrays, policy):
    """Occupancy by one matrix product per layer."""
    out = np.empty(layout.shape)
    reach = np.ones(1)
    for h in range(layout.horizon):
        layer = layout.layer(h)
        np.multiply(reach[:, None], policy[layer], out=out[layer])
        if h < layout.horizon - 1:
            w = out[layer].ravel()
            array = arrays[h]
            reach = array.T @ w if array.ndim == 2 else w @ array.reshape(w.size, -1)
    return out
