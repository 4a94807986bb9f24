"""The policy chain at one context: visits of the newest policy, optimistic backup, policy step, and runs of steps.

Visits N, losses f, the running sums of Q and the policies are per row; `store` holds one policy per line.
"""

from __future__ import annotations

from ._groups import group_min, group_sum, share
from ._jit import inlined, kernel
from ._simd import fma, sexp, vadd, vdiv, vexp, vfma, vget, vload, vload_line, vmax, vmin, vmul, vset, vstore, vstore_line, vsub
from ._sync import meet
from .evaluation import expectation
from .occupancy import visit

__all__ = ["chain_steps"]


@inlined
def _backup(
    kind, data, indptr, indices, block, layers, rows, h, lo, hi, chunk, width, greedy, losses, visits, policies, at, to, sum_q, v,
    half_loss, half_dynamics, weight, eta, q, e,
):  # fmt: skip
    first = rows[layers[h]]
    one = vset(1.0)
    zero = vset(0.0)
    half_loss8 = vset(half_loss)
    half_dynamics8 = vset(half_dynamics)
    weight8 = vset(weight)
    eta8 = vset(eta)
    for s0 in range(lo, hi, chunk):
        s1 = min(s0 + chunk, hi)
        r0 = rows[s0]
        n = rows[s1] - r0
        full = n // 8 * 8
        for i in range(0, full, 8):
            x = vdiv(one, vadd(one, vload(visits, r0 + i)))
            b = vfma(weight8, vmin(one, vmul(half_dynamics8, x)), vmin(one, vmul(half_loss8, x)))
            vstore(q, i, vsub(vload(losses, r0 + i), b))
        for i in range(full, n):
            y = 1.0 / (1.0 + visits[r0 + i])
            q[i] = losses[r0 + i] - fma(weight, min(1.0, half_dynamics * y), min(1.0, half_loss * y))
        if h < block.size - 1:
            expectation(
                kind, data, indptr, indices, block[h], rows[layers[h + 1]] - first, r0 - first, r0 - first + n,
                v, layers[h + 1], layers[h + 2] - layers[h + 1], q, 0, q, 0, h % 2,
            )  # fmt: skip
        if greedy:
            for s in range(s0, s1):
                best = rows[s]
                least = max(0.0, q[best - r0])
                policies[to, best] = 0.0
                for r in range(rows[s] + 1, rows[s + 1]):
                    policies[to, r] = 0.0
                    y = max(0.0, q[r - r0])
                    if y < least:
                        best = r
                        least = y
                policies[to, best] = 1.0
                v[s] = least
            continue
        # Whole vectors of whole states: all that remains in registers. Which rows these are is a matter of shape.
        whole = full if width > 0 else 0
        s = s0
        for i in range(0, whole, 8):
            x = vmax(zero, vload(q, i))
            total = vadd(vload(sum_q, r0 + i), x)
            vstore(sum_q, r0 + i, total)
            mean = group_sum(vmul(vload_line(policies, at, r0 + i), x), width)
            for lane in range(0, 8, width):
                v[s] = vget(mean, lane)
                s += 1
            x = vexp(vmul(eta8, vsub(group_min(total, width), total)))
            vstore_line(policies, to, r0 + i, vmul(x, vdiv(one, group_sum(x, width))))
        for i in range(whole, full, 8):
            x = vmax(zero, vload(q, i))
            vstore(q, i, x)
            vstore(sum_q, r0 + i, vadd(vload(sum_q, r0 + i), x))
        for i in range(full, n):
            q[i] = max(0.0, q[i])
            sum_q[r0 + i] += q[i]
        first_state = s
        i = whole
        for s in range(first_state, s1):
            end = rows[s + 1] - r0
            j = i
            y = 0.0
            least = sum_q[r0 + i]
            while j < end:
                y = fma(policies[at, r0 + j], q[j], y)
                least = min(least, sum_q[r0 + j])
                j += 1
            v[s] = y
            while i < end:
                e[i] = eta * (least - sum_q[r0 + i])
                i += 1
        for i in range(whole, full, 8):
            vstore(e, i, vexp(vload(e, i)))
        for i in range(full, n):
            e[i] = sexp(e[i])
        i = whole
        for s in range(first_state, s1):
            end = rows[s + 1] - r0
            y = 0.0
            for j in range(i, end):
                y += e[j]
            y = 1.0 / y
            while i < end:
                policies[to, r0 + i] = e[i] * y
                i += 1


@kernel
def chain_steps(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, n_steps, k, chunk, width, greedy, count_actions, losses,
    visits, store, sum_q, v, d, w, private, half_loss, half_dynamics, weight, eta, scratch,
):  # fmt: skip
    """`n_steps` steps of the chain under one dynamics and one loss, from policy `store[k]` on: what thread `me` of `n` does.

    `visits` counts all policies before `store[k]` when it comes in, and all before the last step's when it goes out.
    Without `greedy` a step reads `store[k]` and writes `store[k + 1]`; with it, it writes `store[k]`. Layers are backed
    up `chunk` states at a time (a multiple of 8, or all); `width` is the number of actions where whole states fill a vector, else
    0; `scratch` has two lines per thread for the rows of a chunk.
    """
    horizon = block.size
    q = scratch[2 * me]
    e = scratch[2 * me + 1]
    for step in range(k, k + n_steps):
        if step > k:
            if count_actions:
                for r in range(visits.size * me // n, visits.size * (me + 1) // n):
                    visits[r] += store[step - 1, r]
                meet(gate, me, n)
            else:
                visit(
                    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, store, step - 1, -1.0, d, w,
                    visits, private,
                )  # fmt: skip
                meet(gate, me, n)
        to = step if greedy else step + 1
        for h in range(horizon - 1, -1, -1):
            size = layers[h + 1] - layers[h]
            _backup(
                kind, data, indptr, indices, block, layers, rows, h, layers[h] + share(size, me, n),
                layers[h] + share(size, me + 1, n), chunk, width, greedy, losses, visits, store, step, to, sum_q, v,
                half_loss, half_dynamics[h], weight, eta, q, e,
            )  # fmt: skip
            meet(gate, me, n)
