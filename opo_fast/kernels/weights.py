"""Exploration bonus, exponential weights, and the check of policies. A row is an allowed state-action pair."""

from __future__ import annotations

import math

from ._jit import brief
from ._simd import sexp

__all__ = ["bonus", "check_policy", "count_saturated", "expand_rows", "exponential_weights"]


@brief
def bonus(visits, beta, out):
    """min{1, (beta/2) / (1 + visits)} (the paper's equation for b_beta)."""
    half = 0.5 * beta
    for i in range(visits.size):
        x = half / (1.0 + visits[i])
        out[i] = x if x < 1.0 else 1.0


@brief
def expand_rows(pairs, values):
    """Move the numbers of the rows, at the beginning of `values`, to their state-action pairs; all other pairs get 0."""
    end = values.size
    for r in range(pairs.size - 1, -1, -1):
        # The number of a pair is never below that of its row, so nothing is overwritten before it has moved.
        x = values[r]
        for i in range(pairs[r], end):
            values[i] = 0.0
        values[pairs[r]] = x
        end = pairs[r]
    for i in range(end):
        values[i] = 0.0


@brief
def count_saturated(visits, lane, lanes, layers, rows, half_loss, half_dynamics):
    """Number of rows of one lane at which both terms of the bonus are at their cap; a term with beta 0 is ignored."""
    count = 0
    for h in range(half_dynamics.size):
        first = half_loss if half_loss > 0.0 else half_dynamics[h]
        second = half_dynamics[h] if half_dynamics[h] > 0.0 else half_loss
        least = min(first, second)
        for r in range(rows[layers[h]], rows[layers[h + 1]]):
            if least >= 1.0 + visits[r * lanes + lane]:
                count += 1
    return count


@brief
def exponential_weights(policy, q, eta, out):
    """In each state, out proportional to policy * exp(-eta q); computed from logarithms, from which the maximum is subtracted.

    policy, q and out are (n_states, n_actions). An action of probability 0 stays at 0.
    """
    n_states, n_actions = policy.shape
    for s in range(n_states):
        least = math.inf
        for a in range(n_actions):
            if policy[s, a] > 0.0:
                least = min(least, q[s, a])
        top = -math.inf
        for a in range(n_actions):
            x = -math.inf
            if policy[s, a] > 0.0:
                # Halved, since the difference q - least may overflow even if eta times it does not.
                x = math.log(policy[s, a]) - 2.0 * (eta * (0.5 * q[s, a] - 0.5 * least))
            out[s, a] = x
            top = max(top, x)
        total = 0.0
        for a in range(n_actions):
            x = sexp(out[s, a] - top)
            out[s, a] = x
            total += x
        for a in range(n_actions):
            out[s, a] /= total


@brief
def check_policy(policy, allowed, tolerance):
    """First fault of an (n_states, n_actions) policy: its code plus 8 times the number of its state-action pair; 0 if there is none.

    Codes: 1 an entry is not finite, 2 an entry is negative, 3 a masked action has a probability above 0, 4 the sum of a state differs
    from 1 by more than `tolerance`. `allowed` is empty if every action is allowed.
    """
    n_states, n_actions = policy.shape
    masked = allowed.size > 0
    for s in range(n_states):
        total = 0.0
        least = 0.0
        stray = False
        for a in range(n_actions):
            total += policy[s, a]
            least = min(least, policy[s, a])
            if masked:
                stray = stray or (policy[s, a] > 0.0 and not allowed[s, a])
        # NaN and infinity fail this test too.
        if least >= 0.0 and abs(total - 1.0) <= tolerance and not stray:
            continue
        for a in range(n_actions):
            x = policy[s, a]
            pair = 8 * (s * n_actions + a)
            if not math.isfinite(x):
                return 1 + pair
            if x < 0.0:
                return 2 + pair
            if masked and x > 0.0 and not allowed[s, a]:
                return 3 + pair
        return 4 + 8 * s * n_actions
    return 0
