"""The policy chain at one context: visits of a past policy, optimistic backup, policy step, and runs of steps.

Visits N, losses f, the running sums of Q and the policies are per row; `store` holds one policy per line.
"""

from __future__ import annotations

import numpy as np

from ._jit import kernel
from ._simd import fma, sexp, vadd, vdiv, vexp, vfma, vload, vmax, vmin, vmul, vset, vstore, vsub, vsum
from .evaluation import add_expectation
from .occupancy import TINY, spread

__all__ = ["LANES", "chain_steps", "merge", "optimistic_backup", "visit_batch", "visit_part", "visit_sweep"]

LANES = 8


@kernel
def optimistic_backup(
    kind, data, indptr, indices, block, layers, rows, h, lo, hi, chunk, greedy, losses, visits, policy, out, sum_q, v,
    half_loss, half_dynamics, weight, eta, q, e,
):  # fmt: skip
    """Bonus, backup and policy step of states lo..hi-1 of layer h (Algorithm 1, one k), `chunk` states at a time.

    Q = max{0, f - b + P V} with b = min{1, half_loss/(1+N)} + weight min{1, half_dynamics/(1+N)}; v is the mean of Q
    under `policy`, and `out` the softmax of -eta sum_q. With `greedy`, v is the least Q and `out` plays it.
    `q` and `e` are scratch for the rows of one chunk.
    """
    first = rows[layers[h]]
    one = vset(1.0)
    zero = vset(0.0)
    half_loss8 = vset(half_loss)
    half_dynamics8 = vset(half_dynamics)
    weight8 = vset(weight)
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
            add_expectation(
                kind, data, indptr, indices, block[h], rows[layers[h + 1]] - first, r0 - first, r0 - first + n,
                v[layers[h + 1] : layers[h + 2]], q[0:n],
            )  # fmt: skip
        if greedy:
            for s in range(s0, s1):
                best = rows[s]
                least = max(0.0, q[best - r0])
                out[best] = 0.0
                for r in range(rows[s] + 1, rows[s + 1]):
                    out[r] = 0.0
                    y = max(0.0, q[r - r0])
                    if y < least:
                        best = r
                        least = y
                out[best] = 1.0
                v[s] = least
            continue
        for i in range(0, full, 8):
            x = vmax(zero, vload(q, i))
            vstore(q, i, x)
            vstore(sum_q, r0 + i, vadd(vload(sum_q, r0 + i), x))
        for i in range(full, n):
            q[i] = max(0.0, q[i])
            sum_q[r0 + i] += q[i]
        for s in range(s0, s1):
            y = 0.0
            least = sum_q[rows[s]]
            for r in range(rows[s], rows[s + 1]):
                y = fma(policy[r], q[r - r0], y)
                least = min(least, sum_q[r])
            v[s] = y
            for r in range(rows[s], rows[s + 1]):
                e[r - r0] = eta * (least - sum_q[r])
        for i in range(0, full, 8):
            vstore(e, i, vexp(vload(e, i)))
        for i in range(full, n):
            e[i] = sexp(e[i])
        for s in range(s0, s1):
            y = 0.0
            for r in range(rows[s], rows[s + 1]):
                y += e[r - r0]
            for r in range(rows[s], rows[s + 1]):
                out[r] = e[r - r0] / y


@kernel
def visit_part(
    kind, data, indptr, indices, block, layers, rows, h, n_parts, p0, p1, policy, d, w, visits, private
):  # fmt: skip
    """Parts p0..p1-1 of `n_parts` equal parts of layer h: row weights to `w`, added to `visits`; CSR: sent on.

    Part p of a CSR layer sends to `private[p]`, one vector of the next layer's states for each part: the sums do not
    depend on which thread takes which part.
    """
    s0 = layers[h]
    size = layers[h + 1] - s0
    first = rows[s0]
    for p in range(p0, p1):
        lo = s0 + size * p // n_parts
        hi = s0 + size * (p + 1) // n_parts
        for s in range(lo, hi):
            x = d[s]
            for r in range(rows[s], rows[s + 1]):
                y = x * policy[r]
                y = y if y > TINY else 0.0
                w[r - first] = y
                visits[r] += y
        if kind == 1 and h < block.size - 1:
            n_next = layers[h + 2] - layers[h + 1]
            out = private[p, 0:n_next]
            out[:] = 0.0
            spread(
                kind, data, indptr, indices, block[h], rows[layers[h + 1]] - first, rows[lo] - first, rows[hi] - first,
                w, out,
            )  # fmt: skip


@kernel
def merge(private, n_parts, lo, hi, out):
    """out[j] = private[0, j] + private[1, j] + ... for next states lo..hi-1, in this order."""
    for j in range(lo, hi):
        out[j] = private[0, j]
    for p in range(1, n_parts):
        for j in range(lo, hi):
            out[j] += private[p, j]


@kernel
def visit_sweep(
    kind, data, indptr, indices, block, layers, rows, n_parts, policy, d, w, visits, private
):  # fmt: skip
    """Add the occupancy of `policy` to `visits` (one thread)."""
    horizon = block.size
    d[0] = 1.0
    for h in range(horizon):
        visit_part(
            kind, data, indptr, indices, block, layers, rows, h, n_parts, 0, n_parts, policy, d, w, visits, private
        )  # fmt: skip
        if h < horizon - 1:
            n_next = layers[h + 2] - layers[h + 1]
            d_next = d[layers[h + 1] : layers[h + 2]]
            if kind == 0:
                n_rows = rows[layers[h + 1]] - rows[layers[h]]
                spread(kind, data, indptr, indices, block[h], n_rows, 0, n_next, w, d_next)
            else:
                merge(private, n_parts, 0, n_next, d_next)


@kernel
def chain_steps(
    kind, data, indptr, indices, block, layers, rows, n_parts, n_steps, k, chunk, greedy, count_actions, losses, visits,
    store, sum_q, v, d, w, private, half_loss, half_dynamics, weight, eta, q, e,
):  # fmt: skip
    """`n_steps` steps of the chain under one dynamics and one loss, from policy `store[k]` on (one thread).

    `visits` counts all policies before `store[k]` when it comes in, and all before the last step's when it goes out.
    Without `greedy` a step reads `store[k]` and writes `store[k + 1]`; with it, it writes `store[k]`.
    """
    horizon = block.size
    for step in range(n_steps):
        if step > 0:
            past = store[k + step - 1]
            if count_actions:
                for r in range(past.size):
                    visits[r] += past[r]
            else:
                visit_sweep(
                    kind, data, indptr, indices, block, layers, rows, n_parts, past, d, w, visits, private
                )  # fmt: skip
        policy = store[k + step]
        out = policy if greedy else store[k + step + 1]
        for h in range(horizon - 1, -1, -1):
            optimistic_backup(
                kind, data, indptr, indices, block, layers, rows, h, layers[h], layers[h + 1], chunk, greedy, losses,
                visits, policy, out, sum_q, v, half_loss, half_dynamics[h], weight, eta, q, e,
            )  # fmt: skip


@kernel
def _batch_dots(data, start, n_rows, w, lo, hi, d_next):
    # Eight partial sums per next state, merged as `vsum` merges its lanes: the bits of `_dots`, for eight policies.
    full = n_rows // 8 * 8
    for j in range(lo, hi):
        o = start + j * n_rows
        a0 = vset(0.0)
        a1 = vset(0.0)
        a2 = vset(0.0)
        a3 = vset(0.0)
        a4 = vset(0.0)
        a5 = vset(0.0)
        a6 = vset(0.0)
        a7 = vset(0.0)
        for i in range(0, full, 8):
            a0 = vfma(vset(data[o + i]), vload(w, 8 * i), a0)
            a1 = vfma(vset(data[o + i + 1]), vload(w, 8 * i + 8), a1)
            a2 = vfma(vset(data[o + i + 2]), vload(w, 8 * i + 16), a2)
            a3 = vfma(vset(data[o + i + 3]), vload(w, 8 * i + 24), a3)
            a4 = vfma(vset(data[o + i + 4]), vload(w, 8 * i + 32), a4)
            a5 = vfma(vset(data[o + i + 5]), vload(w, 8 * i + 40), a5)
            a6 = vfma(vset(data[o + i + 6]), vload(w, 8 * i + 48), a6)
            a7 = vfma(vset(data[o + i + 7]), vload(w, 8 * i + 56), a7)
        x = vadd(vadd(vadd(a0, a4), vadd(a2, a6)), vadd(vadd(a1, a5), vadd(a3, a7)))
        for i in range(full, n_rows):
            x = vfma(vset(data[o + i]), vload(w, 8 * i), x)
        vstore(d_next, 8 * j, x)


@kernel
def _batch_scatter(data, indptr, indices, start, lo, hi, w, d_next):
    for i in range(lo, hi):
        x = vload(w, 8 * i)
        if vsum(x) > 0.0:
            for p in range(indptr[start + i], indptr[start + i + 1]):
                j = 8 * np.int64(indices[p])
                vstore(d_next, j, vfma(vset(data[p]), x, vload(d_next, j)))


@kernel
def visit_batch(
    kind, data, indptr, indices, block, layers, rows, n_parts, store, k, count, d, w, visits, private
):  # fmt: skip
    """Add the occupancies of policies store[k..k+count-1] (at most 8) to `visits`, in this order.

    The bits are those of `visit_sweep`, one policy after the other; the model is read once. `d`, `w` and `private` hold
    eight lanes per entry.
    """
    horizon = block.size
    for lane in range(LANES):
        d[lane] = 1.0 if lane < count else 0.0
    for h in range(horizon):
        s0 = layers[h]
        size = layers[h + 1] - s0
        first = rows[s0]
        n_rows = rows[layers[h + 1]] - first
        for s in range(s0, layers[h + 1]):
            for r in range(rows[s], rows[s + 1]):
                total = visits[r]
                for lane in range(LANES):
                    y = 0.0
                    if lane < count:
                        y = d[8 * s + lane] * store[k + lane, r]
                        y = y if y > TINY else 0.0
                        total += y
                    w[8 * (r - first) + lane] = y
                visits[r] = total
        if h < horizon - 1:
            n_next = layers[h + 2] - layers[h + 1]
            d_next = d[8 * layers[h + 1] : 8 * layers[h + 2]]
            if kind == 0:
                _batch_dots(data, block[h], n_rows, w, 0, n_next, d_next)
            else:
                for p in range(n_parts):
                    out = private[p, 0 : 8 * n_next]
                    out[:] = 0.0
                    lo = rows[s0 + size * p // n_parts] - first
                    hi = rows[s0 + size * (p + 1) // n_parts] - first
                    _batch_scatter(data, indptr, indices, block[h], lo, hi, w, out)
                merge(private, n_parts, 0, 8 * n_next, d_next)
