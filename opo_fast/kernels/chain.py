"""The policy chain at one context: visits of the newest policy, optimistic backup, policy step, and runs of steps.

Visits N, losses f, sums of Q and policies have one number per row (allowed state-action pair); `store` has one policy per line.
"""

from __future__ import annotations

from ._arguments import Lines, Model, Optimism, Pass, Rule, Step, Team
from ._groups import group_min, group_sum, share
from ._jit import inlined, kernel
from ._simd import fma, sexp, vadd, vdiv, vexp, vfma, vget, vload, vmax, vmin, vmul, vset, vstore, vsub
from ._sync import barrier
from .evaluation import expectation
from .transposed_slices import add_occupancy

__all__ = ["backup", "chain_steps", "optimistic_losses", "policy_step"]


@inlined
def optimistic_losses(lo, hi, losses, visits, rule, h, q):
    """q[r - lo] = loss minus bonus, for rows lo..hi-1 of layer h."""
    one = vset(1.0)
    half_dynamics = rule.half_dynamics[h]
    half_loss8 = vset(rule.half_loss)
    half_dynamics8 = vset(half_dynamics)
    weight8 = vset(rule.weight)
    n = hi - lo
    full = n // 8 * 8
    for i in range(0, full, 8):
        x = vdiv(one, vadd(one, vload(visits, lo + i)))
        b = vfma(weight8, vmin(one, vmul(half_dynamics8, x)), vmin(one, vmul(half_loss8, x)))
        vstore(q, i, vsub(vload(losses, lo + i), b))
    for i in range(full, n):
        y = 1.0 / (1.0 + visits[lo + i])
        q[i] = losses[lo + i] - fma(rule.weight, min(1.0, half_dynamics * y), min(1.0, rule.half_loss * y))


@inlined
def _greedy_step(rows, lo, hi, q, policy, v):
    """v(s) = max{0, min Q} for states lo..hi-1; `policy` is 1 at the first row with the least Q, else 0.

    If Q were raised to 0 before the minimum is taken, all unexplored rows would tie.
    """
    r0 = rows[lo]
    for s in range(lo, hi):
        best = rows[s]
        for r in range(rows[s], rows[s + 1]):
            policy[r] = 0.0
            if q[r - r0] < q[best - r0]:
                best = r
        policy[best] = 1.0
        v[s] = max(0.0, q[best - r0])


@inlined
def _step_vectors(rows, lo, full, width, eta, step, q):
    """Values and policy step for `full` rows from state lo on, which fill whole vectors; intermediate results stay in registers."""
    r0 = rows[lo]
    zero = vset(0.0)
    one = vset(1.0)
    eta8 = vset(eta)
    s = lo
    for i in range(0, full, 8):
        x = vmax(zero, vload(q, i))
        total = vadd(vload(step.sum_q, r0 + i), x)
        vstore(step.sum_q, r0 + i, total)
        mean = group_sum(vmul(vload(step.policy, r0 + i), x), width)
        for lane in range(0, 8, width):
            step.v[s] = vget(mean, lane)
            s += 1
        x = vexp(vmul(eta8, vsub(group_min(total, width), total)))
        vstore(step.following, r0 + i, vmul(x, vdiv(one, group_sum(x, width))))


@inlined
def _clip_and_add(r0, begin, n, q, sum_q):
    """q = max{0, q}, which is added to the sums of Q, for rows r0 + begin..r0 + n - 1."""
    zero = vset(0.0)
    full = n // 8 * 8
    for i in range(begin, full, 8):
        x = vmax(zero, vload(q, i))
        vstore(q, i, x)
        vstore(sum_q, r0 + i, vadd(vload(sum_q, r0 + i), x))
    for i in range(full, n):
        q[i] = max(0.0, q[i])
        sum_q[r0 + i] += q[i]


@inlined
def _exponents(rows, r0, lo, hi, eta, step, q, e):
    """Values of states lo..hi-1, and the exponents of their next policies; q and e begin with row r0."""
    i = rows[lo] - r0
    for s in range(lo, hi):
        end = rows[s + 1] - r0
        j = i
        y = 0.0
        least = step.sum_q[r0 + i]
        while j < end:
            y = fma(step.policy[r0 + j], q[j], y)
            least = min(least, step.sum_q[r0 + j])
            j += 1
        step.v[s] = y
        while i < end:
            e[i] = eta * (least - step.sum_q[r0 + i])
            i += 1


@inlined
def _normalize(rows, r0, lo, hi, e, following):
    """The next policy of states lo..hi-1 from its weights."""
    i = rows[lo] - r0
    for s in range(lo, hi):
        end = rows[s + 1] - r0
        y = 0.0
        for j in range(i, end):
            y += e[j]
        y = 1.0 / y
        while i < end:
            following[r0 + i] = e[i] * y
            i += 1


@inlined
def policy_step(rows, lo, hi, width, eta, step, q, e):
    """Values of states lo..hi-1 under their policies, sums of Q, and the policies after the step."""
    r0 = rows[lo]
    n = rows[hi] - r0
    full = n // 8 * 8
    # Which rows fill vectors of whole states depends on the shape alone.
    begin = full if width > 0 else 0
    s = lo
    if width > 0:
        _step_vectors(rows, lo, full, width, eta, step, q)
        s += full // width
    _clip_and_add(r0, begin, n, q, step.sum_q)
    _exponents(rows, r0, s, hi, eta, step, q, e)
    for i in range(begin, full, 8):
        vstore(e, i, vexp(vload(e, i)))
    for i in range(full, n):
        e[i] = sexp(e[i])
    _normalize(rows, r0, s, hi, e, step.following)


@kernel
def backup(model, team, optimism, greedy, step, lines):
    """One optimistic backup of all layers, with the policy step in each state: the work of one thread of a team."""
    layers = model.layers
    rows = model.rows
    rule = optimism.rule
    for h in range(model.block.size - 1, -1, -1):
        size = layers[h + 1] - layers[h]
        end = layers[h] + share(size, team.me + 1, team.n)
        for lo in range(layers[h] + share(size, team.me, team.n), end, lines.chunk):
            hi = min(lo + lines.chunk, end)
            optimistic_losses(rows[lo], rows[hi], optimism.losses, optimism.visits, rule, h, lines.q)
            if h < model.block.size - 1:
                expectation(model, h, rows[lo], rows[hi], step.v, lines.q, rows[lo], lines.q, rows[lo])
            if greedy:
                _greedy_step(rows, lo, hi, lines.q, step.policy, step.v)
            else:
                policy_step(rows, lo, hi, lines.width, rule.eta, step, lines.q, lines.e)
        barrier(team.gate, team.me, team.n)


@kernel
def chain_steps(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, n_steps, k, chunk, width, greedy, count_actions, losses,
    visits, store, sum_q, v, slices, d, w, private, bonus, eta, scratch,
):  # fmt: skip
    """`n_steps` steps of the chain under one dynamics and one loss, from policy `store[k]` on: the work of thread `me` of `n`.

    On entry, `visits` counts all policies before `store[k]`; on return, all before the policy of the last step. Without `greedy`, a
    step reads `store[k]` and writes `store[k + 1]`; with it, it writes `store[k]`. A step at the last line copies that line to line 0
    and continues there, which drops the earlier policies. Layers are backed up `chunk` states at a time (a multiple of 8, or all);
    `width` is the number of actions if the rows of whole states fill a vector, else 0; `scratch` has two lines per thread for the rows
    of a chunk. `slices` are the first five arguments of `transposed_slices.add_slices`, of which the first is empty if there is no such
    copy of the model; otherwise `w` has a number for each row of a layer. With a model in slices of rows they must not be empty if any
    step adds an occupancy. `bonus` is (half_loss, half_dynamics, weight).
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    team = Team(me, n, gate)
    work = Pass(n_parts, width, d, w, private)
    rule = Rule(bonus[0], bonus[1], bonus[2], eta)
    optimism = Optimism(losses, visits, rule)
    lines = Lines(chunk, width, scratch[2 * me], scratch[2 * me + 1])
    line = k
    for step in range(n_steps):
        first_row = visits.size * me // n
        end_row = visits.size * (me + 1) // n
        if step > 0:
            if count_actions:
                for r in range(first_row, end_row):
                    visits[r] += store[line - 1, r]
            else:
                add_occupancy(model, slices, team, work, store, line - 1, visits)
            barrier(team.gate, team.me, team.n)
        if line + 1 == store.shape[0]:
            for r in range(first_row, end_row):
                store[0, r] = store[line, r]
            line = 0
            barrier(team.gate, team.me, team.n)
        now = Step(store[line], store[line if greedy else line + 1], sum_q, v)
        backup(model, team, optimism, greedy, now, lines)
        line += 1
