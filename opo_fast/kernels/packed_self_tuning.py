"""Steps of the self-tuning policy chains of a pack: up to eight contexts of one small layout, one per lane.

A row is an allowed state-action pair.
"""

from __future__ import annotations

import math

from ._arguments import Hedge, Pack
from ._jit import inlined, kernel
from ._simd import vadd, vdiv, vexp, view, vload, vlog, vmax, vmin, vmul, vset, vstore, vsub
from .packed import add_visits, bonus_of, expectation

__all__ = ["packed_self_tuning_steps"]


@inlined
def _fall(v, v0, n, order):
    """In each lane, order[8 * t + lane] = the position of the t-th largest of the n values of v from v0 on."""
    for lane in range(8):
        for j in range(n):
            t = j
            x = v[8 * (v0 + j) + lane]
            while t > 0 and v[8 * (v0 + order[8 * (t - 1) + lane]) + lane] < x:
                order[8 * t + lane] = order[8 * (t - 1) + lane]
                t -= 1
            order[8 * t + lane] = j


@inlined
def _moved(data, p, n_next, v, v0, order, left):
    """By how much an expectation falls if mass `left` of a row of one lane moves from the largest values to the least one."""
    least = v[v0 + 8 * order[8 * (n_next - 1)]]
    moved = 0.0
    t = 0
    while t < n_next and left > 0.0:
        j = order[8 * t]
        some = min(data[p + 8 * j], left)
        moved += some * (v[v0 + 8 * j] - least)
        left -= some
        t += 1
    return moved


@inlined
def _least_q(p, n_next, v, v0, q, plausible):
    """`q`, the lower losses of a row, plus the least expectation of v over the plausible dynamics (see `plausible.least_q`)."""
    like, table, radius, r, order, moved = plausible
    least = vset(1e300)
    for i in range(table.shape[0]):
        least = vmin(expectation(view(table[i, 0], table[i, 1], like), p, n_next, v, v0, q), least)
    if radius.size > 0 and n_next > 0:
        data = view(table[0, 0], table[0, 1], like)
        for lane in range(8):
            left = radius[8 * r + lane]
            moved[lane] = _moved(data, 8 * p + lane, n_next, v, 8 * v0 + lane, order[lane:], math.inf if left >= 1.0 else left)
        least = vsub(least, vload(moved, 0))
    return least


@inlined
def _hedge(rows, n_states, hedge):
    """The step of AdaHedge in all states of all lanes, from the regrets, whose minimum is 0, and `excess`, the mean minus the minimum.

    Each part for all states, then the next one: the parts of one state wait for one another.
    """
    zero = vset(0.0)
    for s in range(n_states):
        eta = vdiv(vset(hedge.log_actions[s]), vload(hedge.gap, 8 * s))
        after = zero
        for r in range(rows[s], rows[s + 1]):
            after = vadd(after, vexp(vmul(eta, vsub(zero, vload(hedge.regret, 8 * r)))))
        vstore(hedge.total, 8 * s, vdiv(vload(hedge.total, 8 * s), after))
    for s in range(n_states):
        gap = vload(hedge.gap, 8 * s)
        mixed = vmul(vdiv(gap, vset(hedge.log_actions[s])), vlog(vload(hedge.total, 8 * s)))
        vstore(hedge.gap, 8 * s, vadd(gap, vmax(zero, vsub(vload(hedge.excess, 8 * s), mixed))))
    for s in range(n_states):
        eta = vdiv(vset(hedge.log_actions[s]), vload(hedge.gap, 8 * s))
        total = zero
        for r in range(rows[s], rows[s + 1]):
            x = vexp(vmul(eta, vsub(zero, vload(hedge.regret, 8 * r))))
            total = vadd(total, x)
            vstore(hedge.following, 8 * r, x)
        vstore(hedge.total, 8 * s, total)
        for r in range(rows[s], rows[s + 1]):
            vstore(hedge.following, 8 * r, vdiv(vload(hedge.following, 8 * r), total))


@kernel
def packed_self_tuning_steps(
    block, layers, rows, n_steps, k, keep, with_bonus, data, losses, visits, half_loss, half_dynamics, weight, lower, table, radius, order,
    store, regret, v, gap, total, log_actions, moved, last_q, d, w,
):  # fmt: skip
    """`n_steps` steps of the chains of one pack; see `self_tuning.self_tuning_steps`.

    Each line of `table` has the address and size of a plausible dynamics' transitions; `order` is a work array for the states of a layer.
    """
    zero = vset(0.0)
    for step in range(n_steps):
        at = k + step if keep else k
        if step > 0 and with_bonus:
            add_visits(Pack(block, layers, rows, data), store[at - 1], d, w, visits)
        hedge = Hedge(store[at], store[at + 1 if keep else at], regret, v, gap, total, log_actions, moved)
        for h in range(block.size - 1, -1, -1):
            v0 = layers[h + 1]
            n_next = layers[h + 2] - v0 if h < block.size - 1 else 0
            if radius.size > 0:
                _fall(v, v0, n_next, order)
            for s in range(layers[h], layers[h + 1]):
                mean = zero
                least = vset(1e300)
                p = block[h] + (rows[s] - rows[layers[h]]) * n_next
                for r in range(rows[s], rows[s + 1]):
                    q = vset(-1e300)
                    if with_bonus:
                        b = bonus_of(visits, r, vset(half_loss), vset(half_dynamics[h]), vset(weight))
                        q = expectation(data, p, n_next, v, v0, vsub(vload(losses, 8 * r), b))
                    if table.shape[0] > 0:
                        plausible = (data, table, radius, r, order, moved)
                        q = vmax(_least_q(p, n_next, v, v0, vload(lower, 8 * r), plausible), q)
                    if last_q.size > 0 and step == n_steps - 1:
                        vstore(last_q, 8 * r, q)
                    q = vmax(zero, q)
                    mean = vadd(vmul(vload(hedge.policy, 8 * r), q), mean)
                    q = vadd(vload(regret, 8 * r), q)
                    vstore(regret, 8 * r, q)
                    least = vmin(q, least)
                    p += n_next
                vstore(v, 8 * s, mean)
                for r in range(rows[s], rows[s + 1]):
                    vstore(regret, 8 * r, vsub(vload(regret, 8 * r), least))
                vstore(moved, 8 * s, vsub(mean, least))
        _hedge(rows, layers[block.size], hedge)
