"""The policy chain at one context: visits of a past policy, optimistic backup, policy step, and runs of steps.

Visits N, losses f, the running sums of Q and the policies are per row; `store` holds one policy per line.
"""

from __future__ import annotations

import numpy as np

from ._groups import group_min, group_sum, share
from ._jit import inlined, kernel
from ._simd import fma, sexp, vadd, vdiv, vexp, vfma, vget, vload, vload_line, vmax, vmin, vmul, vset, vstore, vstore_line, vsub, vsum
from ._sync import meet
from .evaluation import expectation
from .occupancy import TINY, merge, visit

__all__ = ["LANES", "add_lanes", "chain_steps", "visit_batch"]

LANES = 8


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
    up `chunk` states at a time (a multiple of 8); `width` is the number of actions where whole states fill a vector, else
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
                meet(gate, n)
            else:
                visit(
                    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, store, step - 1, -1.0, d, w,
                    visits, private,
                )  # fmt: skip
                meet(gate, n)
        to = step if greedy else step + 1
        for h in range(horizon - 1, -1, -1):
            size = layers[h + 1] - layers[h]
            _backup(
                kind, data, indptr, indices, block, layers, rows, h, layers[h] + share(size, me, n),
                layers[h] + share(size, me + 1, n), chunk, width, greedy, losses, visits, store, step, to, sum_q, v,
                half_loss, half_dynamics[h], weight, eta, q, e,
            )  # fmt: skip
            meet(gate, n)


@inlined
def _merged(a0, a1, a2, a3, a4, a5, a6, a7):
    """Eight partial sums, merged as `vsum` merges its lanes."""
    return vadd(vadd(vadd(a0, a4), vadd(a2, a6)), vadd(vadd(a1, a5), vadd(a3, a7)))


@inlined
def _batch_dots(data, start, n_rows, w, w0, lo, hi, d, d0):
    # Eight partial sums per next state: the bits of `spread_dense`, for eight policies. Three next states at a time, which
    # fills the registers, since the weights come from the second-level cache; the last ones may be done twice.
    full = n_rows // 8 * 8
    j = lo
    while j < hi:
        o = start + j * n_rows
        p = start + min(j + 1, hi - 1) * n_rows
        u = start + min(j + 2, hi - 1) * n_rows
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = vset(0.0)
        b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = vset(0.0)
        c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = vset(0.0)
        for i in range(0, full, 8):
            x = vload(w, w0 + 8 * i)
            a0 = vfma(vset(data[o + i]), x, a0)
            b0 = vfma(vset(data[p + i]), x, b0)
            c0 = vfma(vset(data[u + i]), x, c0)
            x = vload(w, w0 + 8 * i + 8)
            a1 = vfma(vset(data[o + i + 1]), x, a1)
            b1 = vfma(vset(data[p + i + 1]), x, b1)
            c1 = vfma(vset(data[u + i + 1]), x, c1)
            x = vload(w, w0 + 8 * i + 16)
            a2 = vfma(vset(data[o + i + 2]), x, a2)
            b2 = vfma(vset(data[p + i + 2]), x, b2)
            c2 = vfma(vset(data[u + i + 2]), x, c2)
            x = vload(w, w0 + 8 * i + 24)
            a3 = vfma(vset(data[o + i + 3]), x, a3)
            b3 = vfma(vset(data[p + i + 3]), x, b3)
            c3 = vfma(vset(data[u + i + 3]), x, c3)
            x = vload(w, w0 + 8 * i + 32)
            a4 = vfma(vset(data[o + i + 4]), x, a4)
            b4 = vfma(vset(data[p + i + 4]), x, b4)
            c4 = vfma(vset(data[u + i + 4]), x, c4)
            x = vload(w, w0 + 8 * i + 40)
            a5 = vfma(vset(data[o + i + 5]), x, a5)
            b5 = vfma(vset(data[p + i + 5]), x, b5)
            c5 = vfma(vset(data[u + i + 5]), x, c5)
            x = vload(w, w0 + 8 * i + 48)
            a6 = vfma(vset(data[o + i + 6]), x, a6)
            b6 = vfma(vset(data[p + i + 6]), x, b6)
            c6 = vfma(vset(data[u + i + 6]), x, c6)
            x = vload(w, w0 + 8 * i + 56)
            a7 = vfma(vset(data[o + i + 7]), x, a7)
            b7 = vfma(vset(data[p + i + 7]), x, b7)
            c7 = vfma(vset(data[u + i + 7]), x, c7)
        x = _merged(a0, a1, a2, a3, a4, a5, a6, a7)
        y = _merged(b0, b1, b2, b3, b4, b5, b6, b7)
        z = _merged(c0, c1, c2, c3, c4, c5, c6, c7)
        for i in range(full, n_rows):
            x = vfma(vset(data[o + i]), vload(w, w0 + 8 * i), x)
            y = vfma(vset(data[p + i]), vload(w, w0 + 8 * i), y)
            z = vfma(vset(data[u + i]), vload(w, w0 + 8 * i), z)
        vstore(d, 8 * (d0 + j), x)
        vstore(d, 8 * (d0 + min(j + 1, hi - 1)), y)
        vstore(d, 8 * (d0 + min(j + 2, hi - 1)), z)
        j += 3


@inlined
def _batch_scatter(data, indptr, indices, start, lo, hi, w, w0, d, d0):
    for i in range(lo, hi):
        x = vload(w, w0 + 8 * i)
        if vsum(x) > 0.0:
            for p in range(indptr[start + i], indptr[start + i + 1]):
                j = 8 * (d0 + np.int64(indices[p]))
                vstore(d, j, vfma(vset(data[p]), x, vload(d, j)))


@kernel
def visit_batch(kind, data, indptr, indices, block, layers, rows, n_parts, store, k, count, d, w, private):
    """Occupancies of policies store[k..k+count-1] (at most 8), one lane each, to `w` (eight lanes per row).

    The bits are those of `visit_sweep`; the model is read once. `d` and `private` hold eight lanes per entry.
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
                for lane in range(LANES):
                    y = d[8 * s + lane] * store[k + lane, r] if lane < count else 0.0
                    w[8 * r + lane] = y if y > TINY else 0.0
        if h < horizon - 1:
            d0 = layers[h + 1]
            n_next = layers[h + 2] - d0
            if kind == 0:
                _batch_dots(data, block[h], n_rows, w, 8 * first, 0, n_next, d, d0)
            else:
                for p in range(n_parts):
                    for j in range(8 * p * n_next, 8 * (p + 1) * n_next):
                        private[j] = 0.0
                    lo = rows[s0 + size * p // n_parts] - first
                    hi = rows[s0 + size * (p + 1) // n_parts] - first
                    _batch_scatter(data, indptr, indices, block[h], lo, hi, w, 8 * first, private, p * n_next)
                merge(private, n_parts, 8 * n_next, 0, 8 * n_next, d, 8 * d0)


@kernel
def add_lanes(w, count, visits):
    """Add the first `count` lanes of `w` to `visits`, in their order."""
    for r in range(visits.size):
        total = visits[r]
        for lane in range(count):
            total += w[8 * r + lane]
        visits[r] = total
