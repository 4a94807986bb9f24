"""NumPy twins of the kernels: whole layers at a time, dense, float64, one number per row."""

from __future__ import annotations

import itertools

import numpy as np

TINY = 1e-280


class Rows:
    """A model whose arrays hold one number per allowed pair: its transitions (rows, next states), one array per layer."""

    def __init__(self, mdp):
        self.mdp, layout = mdp, mdp.layout
        mask = np.ones(layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
        self.horizon, self.n_states = layout.horizon, layout.n_states
        self.counts = mask.sum(axis=1)
        self.state = np.repeat(np.arange(self.n_states), self.counts)
        self.pairs = np.flatnonzero(mask)
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        self.losses = mdp.losses[mask]
        self.P = []
        for h, array in enumerate(mdp.transitions.arrays()):
            dense = np.asarray(array.todense() if array.ndim == 2 else array.reshape(-1, array.shape[-1]), np.float64)
            self.P.append(dense[mask[layout.layer(h)].ravel()])

    def states(self, h):
        return self.mdp.layout.layer(h)

    def rows(self, h):
        layer = self.states(h)
        return slice(self.first[layer.start], self.first[layer.stop])

    def sums(self, values):
        """Sums over the rows of each state."""
        return np.bincount(self.state, values, self.n_states)

    def least(self, values):
        """The least entry of each state, and the first row that has it."""
        best = np.array([r0 + np.argmin(values[r0:r1]) for r0, r1 in itertools.pairwise(self.first)])
        return values[best], best


def occupancy(m, policy):
    reach, weights = np.zeros(m.n_states), np.zeros(m.state.size)
    reach[0] = 1.0
    for h in range(m.horizon):
        r = m.rows(h)
        weights[r] = reach[m.state[r]] * policy[r]
        weights[r][weights[r] <= TINY] = 0.0
        if h < m.horizon - 1:
            reach[m.states(h + 1)] = weights[r] @ m.P[h]
    return weights


def backward(m, losses, value):
    """Q and V of all layers from the last on; `value(q)` gives the values of all states from the Q of all rows."""
    q, v = np.array(losses, np.float64), np.zeros(m.n_states)
    for h in reversed(range(m.horizon)):
        if h < m.horizon - 1:
            q[m.rows(h)] += m.P[h] @ v[m.states(h + 1)]
        v[m.states(h)] = value(q)[m.states(h)]
    return q, v


def evaluate(m, losses, policy):
    return backward(m, losses, lambda q: m.sums(policy * q))


def deterministic(m, best):
    policy = np.zeros(m.state.size)
    policy[best] = 1.0
    return policy


def solve(m, losses):
    q, v = backward(m, losses, lambda q: m.least(q)[0])
    return q, v, deterministic(m, m.least(q)[1])


def softmax(m, exponents):
    weights = np.exp(exponents + m.least(-exponents)[0][m.state])
    return weights / m.sums(weights)[m.state]


def bonus(visits, half):
    return np.minimum(1.0, half / (1.0 + visits))


def bonuses(m, visits, half_loss, half_dynamics, weight):
    """The bonus of all rows; `half_dynamics` has one number per layer."""
    half = np.concatenate([np.full(m.rows(h).stop - m.rows(h).start, half_dynamics[h]) for h in range(m.horizon)])
    return bonus(visits, half_loss) + weight * bonus(visits, half)


def chain(m, losses, start, visits, sum_q, *, steps, bonus_numbers, eta, greedy, count_actions):
    """Steps of the chain from the policy `start` on: all policies including `start`, then visits, sums of Q and the last values."""
    policies, visits, sum_q, v = [start], np.array(visits), np.array(sum_q), None
    for step in range(steps):
        if step > 0:
            past = policies[-1] if greedy else policies[-2]
            visits += past if count_actions else occupancy(m, past)
        optimistic, newest = losses - bonuses(m, visits, *bonus_numbers), policies[-1]
        if greedy:
            q, v = backward(m, optimistic, lambda q: np.maximum(0.0, m.least(q)[0]))
            policies.append(deterministic(m, m.least(q)[1]))
        else:
            q, v = backward(m, optimistic, lambda q, newest=newest: m.sums(newest * np.maximum(0.0, q)))
            sum_q += np.maximum(0.0, q)
            policies.append(softmax(m, -eta * sum_q))
    return policies, visits, sum_q, v
