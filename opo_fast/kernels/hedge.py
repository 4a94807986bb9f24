"""AdaHedge in many states at once: the policy step of the self-tuning chain.

A row is an allowed state-action pair.
"""

from __future__ import annotations

from ._groups import group_each, group_min, group_sum
from ._jit import inlined
from ._simd import sexp, slog, vadd, vdiv, vexp, vget, vload, vlog, vmax, vmul, vset, vstore, vsub

__all__ = ["hedge_step"]


@inlined
def _hedge_vectors(lo, rows, full, width, hedge, q, e):
    """The step for `full` rows from state lo on, which fill whole vectors.

    Each part for all rows, then the next one: the parts of one vector wait for one another.
    """
    r0 = rows[lo]
    zero = vset(0.0)
    s = lo
    for i in range(0, full, 8):
        x = vmax(zero, vload(q, i))
        mean = group_sum(vmul(vload(hedge.policy, r0 + i), x), width)
        regret = vadd(vload(hedge.regret, r0 + i), x)
        least = group_min(regret, width)
        regret = vsub(regret, least)
        vstore(hedge.regret, r0 + i, regret)
        vstore(q, i, vsub(mean, least))
        # Arrays of states are padded, so that vectors can be read at the last state.
        eta = vdiv(group_each(vload(hedge.log_actions, s), width), group_each(vload(hedge.gap, s), width))
        before = group_each(vload(hedge.total, s), width)
        after = group_sum(vexp(vmul(eta, vsub(zero, regret))), width)
        vstore(e, i, vdiv(before, after))
        for lane in range(0, 8, width):
            hedge.v[s] = vget(mean, lane)
            s += 1
    s = lo
    for i in range(0, full, 8):
        rate = group_each(vload(hedge.log_actions, s), width)
        gap = group_each(vload(hedge.gap, s), width)
        mixed = vmul(vdiv(gap, rate), vlog(vload(e, i)))
        gap = vadd(gap, vmax(zero, vsub(vload(q, i), mixed)))
        vstore(q, i, vdiv(rate, gap))
        for lane in range(0, 8, width):
            hedge.gap[s] = vget(gap, lane)
            s += 1
    s = lo
    for i in range(0, full, 8):
        x = vexp(vmul(vload(q, i), vsub(zero, vload(hedge.regret, r0 + i))))
        total = group_sum(x, width)
        vstore(hedge.following, r0 + i, vdiv(x, total))
        for lane in range(0, 8, width):
            hedge.total[s] = vget(total, lane)
            s += 1


@inlined
def _clip(begin, n, q):
    """q = max(0, q)."""
    zero = vset(0.0)
    full = n // 8 * 8
    for i in range(begin, full, 8):
        vstore(q, i, vmax(zero, vload(q, i)))
    for i in range(full, n):
        q[i] = max(0.0, q[i])


@inlined
def _exp(begin, n, e):
    """e = exp(e)."""
    full = n // 8 * 8
    for i in range(begin, full, 8):
        vstore(e, i, vexp(vload(e, i)))
    for i in range(full, n):
        e[i] = sexp(e[i])


@inlined
def _add_losses(rows, r0, lo, hi, hedge, q, e):
    """Values and regrets of states lo..hi-1, and the exponents of their weights at the old learning rate."""
    for s in range(lo, hi):
        mean = 0.0
        least = hedge.regret[rows[s]] + q[rows[s] - r0]
        for r in range(rows[s], rows[s + 1]):
            mean += hedge.policy[r] * q[r - r0]
            least = min(least, hedge.regret[r] + q[r - r0])
        hedge.v[s] = mean
        hedge.excess[s] = mean - least
        eta = hedge.log_actions[s] / hedge.gap[s]
        for r in range(rows[s], rows[s + 1]):
            regret = (hedge.regret[r] + q[r - r0]) - least
            hedge.regret[r] = regret
            e[r - r0] = -eta * regret


@inlined
def _add_gaps(rows, r0, lo, hi, hedge, e):
    """Mixability gaps of states lo..hi-1, and the exponents of their weights at the new learning rate."""
    for s in range(lo, hi):
        after = 0.0
        for r in range(rows[s], rows[s + 1]):
            after += e[r - r0]
        gap = hedge.gap[s]
        mixed = gap / hedge.log_actions[s] * slog(hedge.total[s] / after)
        gap += max(0.0, hedge.excess[s] - mixed)
        hedge.gap[s] = gap
        eta = hedge.log_actions[s] / gap
        for r in range(rows[s], rows[s + 1]):
            e[r - r0] = -eta * hedge.regret[r]


@inlined
def _normalize(rows, r0, lo, hi, hedge, e):
    """The policy after the step in states lo..hi-1 from its weights."""
    for s in range(lo, hi):
        total = 0.0
        for r in range(rows[s], rows[s + 1]):
            total += e[r - r0]
        hedge.total[s] = total
        for r in range(rows[s], rows[s + 1]):
            hedge.following[r] = e[r - r0] / total


@inlined
def hedge_step(rows, lo, hi, width, hedge, q, e):
    """Values of states lo..hi-1 under max{0, q}, whose row `rows[lo]` is q[0], and the step of AdaHedge.

    `width` is the number of actions if the rows of whole states fill a vector, else 0; `e` is a work array for the rows.
    """
    r0 = rows[lo]
    n = rows[hi] - r0
    # Which rows fill vectors of whole states depends on the shape alone.
    begin = 0
    s = lo
    if width > 0:
        begin = n // 8 * 8
        _hedge_vectors(lo, rows, begin, width, hedge, q, e)
        s += begin // width
    _clip(begin, n, q)
    _add_losses(rows, r0, s, hi, hedge, q, e)
    _exp(begin, n, e)
    _add_gaps(rows, r0, s, hi, hedge, e)
    _exp(begin, n, e)
    _normalize(rows, r0, s, hi, hedge, e)
