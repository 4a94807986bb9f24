"""The policy chain at one context: visits of a past policy, optimistic backup, policy step, and runs of steps.

Visits N, losses f, the running sums of Q and the policies are per row; `store` holds one policy per line.
"""

from __future__ import annotations

import numpy as np

from ._jit import inlined, kernel
from ._simd import fma, sexp, vadd, vdiv, vexp, vfma, vload, vmax, vmin, vmul, vset, vstore, vsub, vsum
from .evaluation import add_expectation
from .occupancy import TINY, _dots, spread_csr

__all__ = ["LANES", "chain_steps", "merge", "optimistic_backup", "visit_batch", "visit_part", "visit_sweep"]

LANES = 8


@inlined
def _backup(
    kind, data, indptr, indices, block, layers, rows, h, lo, hi, chunk, greedy, losses, visits, policies, at, to, sum_q, v,
    half_loss, half_dynamics, weight, eta, q, e,
):  # fmt: skip
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
                v, layers[h + 1], layers[h + 2] - layers[h + 1], q, 0,
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
                y = fma(policies[at, r], q[r - r0], y)
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
            y = 1.0 / y
            for r in range(rows[s], rows[s + 1]):
                policies[to, r] = e[r - r0] * y


@kernel
def optimistic_backup(
    kind, data, indptr, indices, block, layers, rows, h, lo, hi, chunk, greedy, losses, visits, policies, at, to, sum_q, v,
    half_loss, half_dynamics, weight, eta, q, e,
):  # fmt: skip
    """Bonus, backup and policy step of states lo..hi-1 of layer h (Algorithm 1, one k), `chunk` states at a time.

    Q = max{0, f - b + P V} with b = min{1, half_loss/(1+N)} + weight min{1, half_dynamics/(1+N)}; v is the mean of Q
    under `policies[at]`, and `policies[to]` becomes the softmax of -eta sum_q. With `greedy`, v is the least Q and
    `policies[to]` plays it. `q` and `e` are scratch for the rows of one chunk.
    """
    _backup(
        kind, data, indptr, indices, block, layers, rows, h, lo, hi, chunk, greedy, losses, visits, policies, at, to, sum_q,
        v, half_loss, half_dynamics, weight, eta, q, e,
    )  # fmt: skip


@inlined
def _visit_part(
    kind, data, indptr, indices, block, layers, rows, h, n_parts, p0, p1, policies, at, d, w, visits, private
):  # fmt: skip
    s0 = layers[h]
    size = layers[h + 1] - s0
    first = rows[s0]
    for p in range(p0, p1):
        lo = s0 + size * p // n_parts
        hi = s0 + size * (p + 1) // n_parts
        for s in range(lo, hi):
            x = d[s]
            for r in range(rows[s], rows[s + 1]):
                y = x * policies[at, r]
                y = y if y > TINY else 0.0
                w[r - first] = y
                visits[r] += y
        if kind == 1 and h < block.size - 1:
            n_next = layers[h + 2] - layers[h + 1]
            d0 = p * n_next
            for j in range(d0, d0 + n_next):
                private[j] = 0.0
            spread_csr(data, indptr, indices, block[h], rows[lo] - first, rows[hi] - first, w, 0, private, d0)


@kernel
def visit_part(
    kind, data, indptr, indices, block, layers, rows, h, n_parts, p0, p1, policies, at, d, w, visits, private
):  # fmt: skip
    """Parts p0..p1-1 of `n_parts` equal parts of layer h: row weights to `w`, added to `visits`; CSR: sent on.

    Part p of a CSR layer sends to the p-th stretch of `private`, one for each part and as long as the next layer: the
    sums do not depend on which thread takes which part.
    """
    _visit_part(
        kind, data, indptr, indices, block, layers, rows, h, n_parts, p0, p1, policies, at, d, w, visits, private
    )  # fmt: skip


@inlined
def _merge(private, n_parts, n_next, lo, hi, d, d0):
    for j in range(lo, hi):
        d[d0 + j] = private[j]
    for p in range(1, n_parts):
        for j in range(lo, hi):
            d[d0 + j] += private[p * n_next + j]


@kernel
def merge(private, n_parts, n_next, lo, hi, d, d0):
    """d[d0 + j] = the sum over the stretches of `private`, in their order, for next states lo..hi-1."""
    _merge(private, n_parts, n_next, lo, hi, d, d0)


@inlined
def _visit_sweep(
    kind, data, indptr, indices, block, layers, rows, n_parts, policies, at, d, w, visits, private
):  # fmt: skip
    horizon = block.size
    d[0] = 1.0
    for h in range(horizon):
        _visit_part(
            kind, data, indptr, indices, block, layers, rows, h, n_parts, 0, n_parts, policies, at, d, w, visits, private
        )  # fmt: skip
        if h < horizon - 1:
            d0 = layers[h + 1]
            n_next = layers[h + 2] - d0
            if kind == 0:
                _dots(data, block[h], rows[d0] - rows[layers[h]], w, 0, 0, n_next, d, d0)
            else:
                _merge(private, n_parts, n_next, 0, n_next, d, d0)


@kernel
def visit_sweep(
    kind, data, indptr, indices, block, layers, rows, n_parts, policies, at, d, w, visits, private
):  # fmt: skip
    """Add the occupancy of `policies[at]` to `visits` (one thread)."""
    _visit_sweep(
        kind, data, indptr, indices, block, layers, rows, n_parts, policies, at, d, w, visits, private
    )  # fmt: skip


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
    for step in range(k, k + n_steps):
        if step > k:
            if count_actions:
                for r in range(visits.size):
                    visits[r] += store[step - 1, r]
            else:
                _visit_sweep(
                    kind, data, indptr, indices, block, layers, rows, n_parts, store, step - 1, d, w, visits, private
                )  # fmt: skip
        to = step if greedy else step + 1
        for h in range(horizon - 1, -1, -1):
            _backup(
                kind, data, indptr, indices, block, layers, rows, h, layers[h], layers[h + 1], chunk, greedy, losses,
                visits, store, step, to, sum_q, v, half_loss, half_dynamics[h], weight, eta, q, e,
            )  # fmt: skip


@inlined
def _batch_dots(data, start, n_rows, w, lo, hi, d, d0):
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
        vstore(d, 8 * (d0 + j), x)


@inlined
def _batch_scatter(data, indptr, indices, start, lo, hi, w, d, d0):
    for i in range(lo, hi):
        x = vload(w, 8 * i)
        if vsum(x) > 0.0:
            for p in range(indptr[start + i], indptr[start + i + 1]):
                j = 8 * (d0 + np.int64(indices[p]))
                vstore(d, j, vfma(vset(data[p]), x, vload(d, j)))


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
            d0 = layers[h + 1]
            n_next = layers[h + 2] - d0
            if kind == 0:
                _batch_dots(data, block[h], n_rows, w, 0, n_next, d, d0)
            else:
                for p in range(n_parts):
                    for j in range(8 * p * n_next, 8 * (p + 1) * n_next):
                        private[j] = 0.0
                    lo = rows[s0 + size * p // n_parts] - first
                    hi = rows[s0 + size * (p + 1) // n_parts] - first
                    _batch_scatter(data, indptr, indices, block[h], lo, hi, w, private, p * n_next)
                _merge(private, n_parts, 8 * n_next, 0, 8 * n_next, d, 8 * d0)
