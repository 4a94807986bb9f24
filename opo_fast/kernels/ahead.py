"""Steps of a pack that record the policies of single contexts on the way, and steps under a sequence of fits.

`steps` is the tuple of arguments of `packed_steps` or `packed_self_tuning_steps`; its fourth and fifth entries are the number of steps
and the line of the first step's policy. Line j of the results is the state of context lanes[j] after at[j] steps. `at` is ascending.
"""

from __future__ import annotations

from ._jit import kernel
from .packed import packed_steps, packed_visits
from .packed_self_tuning import packed_self_tuning_steps
from .weights import count_saturated

__all__ = ["packed_ahead", "packed_first_runs", "packed_fit_runs", "packed_self_tuning_ahead"]


@kernel
def packed_ahead(steps, at, lanes, policies, saturated):
    """Record results of `packed_steps`; `saturated` receives the number of rows whose bonus was at its cap in the preceding step."""
    (
        block, layers, rows, _, k, greedy, count_actions, data, losses, visits, store, sum_q, v, d, w, half_loss, half_dynamics, weight,
        eta,
    ) = steps  # fmt: skip
    for j in range(at.size):
        for i in range(at[j - 1] if j > 0 else 0, at[j]):
            packed_visits(block, layers, rows, data, store, k + i - 1, 1, d, w, visits)
            packed_steps(
                block, layers, rows, 1, k + i, greedy, count_actions, data, losses, visits, store, sum_q, v, d, w, half_loss, half_dynamics,
                weight, eta,
            )  # fmt: skip
        line = store[k + at[j] - greedy]
        for r in range(policies.shape[1]):
            policies[j, r] = line[8 * r + lanes[j]]
        saturated[j] = count_saturated(visits, lanes[j], 8, layers, rows, half_loss, half_dynamics)


@kernel
def packed_self_tuning_ahead(steps, at, lanes, policies, gaps, saturated):
    """Record results of `packed_self_tuning_steps`; `gaps` receives each state's Delta. Without bonuses, `saturated` is not written."""
    (
        block, layers, rows, _, k, keep, with_bonus, data, losses, visits, half_loss, half_dynamics, weight, lower, table, radius, order,
        store, regret, v, gap, total, log_actions, moved, last_q, d, w,
    ) = steps  # fmt: skip
    for j in range(at.size):
        for i in range(at[j - 1] if j > 0 else 0, at[j]):
            if with_bonus:
                packed_visits(block, layers, rows, data, store, k + i - 1, 1, d, w, visits)
            packed_self_tuning_steps(
                block, layers, rows, 1, k + i if keep else k, keep, with_bonus, data, losses, visits, half_loss, half_dynamics, weight,
                lower, table, radius, order, store, regret, v, gap, total, log_actions, moved, last_q, d, w,
            )  # fmt: skip
        line = store[k + at[j] if keep else k]
        for r in range(policies.shape[1]):
            policies[j, r] = line[8 * r + lanes[j]]
        for s in range(gaps.shape[1]):
            gaps[j, s] = gap[8 * s + lanes[j]]
        if with_bonus:
            saturated[j] = count_saturated(visits, lanes[j], 8, layers, rows, half_loss, half_dynamics)


@kernel
def packed_fit_runs(
    block, layers, rows, n, ends, fits, members, listed, losses, dynamics, base, half_loss, half_dynamics, weight, lower, table, order,
    store, regret, v, gap, total, log_actions, moved, none, d, w,
):  # fmt: skip
    """Run the first `n` steps of `packed_self_tuning_steps` under a sequence of fits, without bonuses.

    Steps ends[r - 1] to ends[r] - 1 use the loss fits[r, 0] and the dynamics fits[r, 1]; members[r] and listed[r] flag the plausible
    losses and dynamics among the candidates. `losses` and `dynamics` have one line per candidate, and `base` is the address of
    `dynamics`. `lower`, `table` and `order` are work space.
    """
    begin = 0
    for r in range(ends.size):
        end = min(n, ends[r])
        if end <= begin:
            break
        first = True
        for i in range(losses.shape[0]):
            if members[r, i]:
                for x in range(lower.size):
                    lower[x] = losses[i, x] if first else min(lower[x], losses[i, x])
                first = False
        count = 0
        for i in range(dynamics.shape[0]):
            if listed[r, i]:
                table[count, 0] = base + 8 * dynamics.shape[1] * i
                table[count, 1] = dynamics.shape[1]
                count += 1
        packed_self_tuning_steps(
            block, layers, rows, end - begin, 0, 0, 0, dynamics[fits[r, 1]], losses[fits[r, 0]], none, half_loss, half_dynamics, weight,
            lower, table[:count], none, order, store, regret, v, gap, total, log_actions, moved, none, d, w,
        )  # fmt: skip
        begin = end


@kernel
def packed_first_runs(
    block, layers, rows, ends, fits, slots, losses, dynamics, visits, counted, store, sum_q, v, d, w, half_loss, half_dynamics, weight, eta
):  # fmt: skip
    """The steps of `packed_steps` under one fit after another, from the first step on.

    Steps before ends[r] that come after those of r - 1 have the loss fits[r, 0] and the dynamics fits[r, 1], lines of `losses` and
    `dynamics`. Line slots[r] of `visits` counts the first counted[slots[r]] policies under these dynamics; it is brought up to date first.
    `store` has a line for the policy of each step and for that after the last.
    """
    begin = 0
    for r in range(ends.size):
        data = dynamics[fits[r, 1]]
        at = slots[r]
        packed_visits(block, layers, rows, data, store, counted[at], begin - counted[at], d, w, visits[at])
        packed_steps(
            block, layers, rows, ends[r] - begin, begin, 0, 0, data, losses[fits[r, 0]], visits[at], store, sum_q, v, d, w, half_loss,
            half_dynamics, weight, eta,
        )  # fmt: skip
        counted[at] = ends[r] - 1
        begin = ends[r]
