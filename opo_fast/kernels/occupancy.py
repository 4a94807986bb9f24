"""Forward recursion: from the weights of one layer's rows to the occupancy of the next layer's states."""

from __future__ import annotations

import numpy as np

from ._groups import AHEAD, group_each, is_policy, share, worth_prefetching
from ._jit import inlined, kernel
from ._simd import fma, prefetch, vabove, vadd, vfma, vload, vmul, vset, vstore, vsum
from ._sync import meet

__all__ = ["STATES", "TINY", "merge", "spread_csr", "spread_dense", "visit", "visit_sweep"]

TINY = 1e-280
"""Weights below this count as 0: long horizons would otherwise end in subnormal numbers, a hundred times slower."""

STATES = 256
"""States of a CSR layer that are worked on at a time: their rows stay in the first-level cache."""


@inlined
def spread_dense(data, start, n_rows, w, w0, lo, hi, d, d0, back):
    """Occupancy of next states lo..hi-1: d[d0 + j] = sum_i P(j | row i) w[w0 + i]."""
    # Eight next states at a time; eight partial sums each, merged by `vsum`, then the rows that do not fill a vector.
    full = n_rows // 8 * 8
    eights = (hi - lo) // 8
    for eight in range(eights):
        j = lo + 8 * (eights - 1 - eight if back else eight)
        o0 = start + j * n_rows
        o1 = o0 + n_rows
        o2 = o1 + n_rows
        o3 = o2 + n_rows
        o4 = o3 + n_rows
        o5 = o4 + n_rows
        o6 = o5 + n_rows
        o7 = o6 + n_rows
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = vset(0.0)
        for i in range(0, full, 8):
            x = vload(w, w0 + i)
            a0 = vfma(vload(data, o0 + i), x, a0)
            a1 = vfma(vload(data, o1 + i), x, a1)
            a2 = vfma(vload(data, o2 + i), x, a2)
            a3 = vfma(vload(data, o3 + i), x, a3)
            a4 = vfma(vload(data, o4 + i), x, a4)
            a5 = vfma(vload(data, o5 + i), x, a5)
            a6 = vfma(vload(data, o6 + i), x, a6)
            a7 = vfma(vload(data, o7 + i), x, a7)
        x0 = vsum(a0)
        x1 = vsum(a1)
        x2 = vsum(a2)
        x3 = vsum(a3)
        x4 = vsum(a4)
        x5 = vsum(a5)
        x6 = vsum(a6)
        x7 = vsum(a7)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[w0 + i], x0)
            x1 = fma(data[o1 + i], w[w0 + i], x1)
            x2 = fma(data[o2 + i], w[w0 + i], x2)
            x3 = fma(data[o3 + i], w[w0 + i], x3)
            x4 = fma(data[o4 + i], w[w0 + i], x4)
            x5 = fma(data[o5 + i], w[w0 + i], x5)
            x6 = fma(data[o6 + i], w[w0 + i], x6)
            x7 = fma(data[o7 + i], w[w0 + i], x7)
        d[d0 + j] = x0
        d[d0 + j + 1] = x1
        d[d0 + j + 2] = x2
        d[d0 + j + 3] = x3
        d[d0 + j + 4] = x4
        d[d0 + j + 5] = x5
        d[d0 + j + 6] = x6
        d[d0 + j + 7] = x7
    j = lo + 8 * eights
    if j + 4 <= hi:
        o0 = start + j * n_rows
        o1 = o0 + n_rows
        o2 = o1 + n_rows
        o3 = o2 + n_rows
        a0 = a1 = a2 = a3 = vset(0.0)
        for i in range(0, full, 8):
            x = vload(w, w0 + i)
            a0 = vfma(vload(data, o0 + i), x, a0)
            a1 = vfma(vload(data, o1 + i), x, a1)
            a2 = vfma(vload(data, o2 + i), x, a2)
            a3 = vfma(vload(data, o3 + i), x, a3)
        x0 = vsum(a0)
        x1 = vsum(a1)
        x2 = vsum(a2)
        x3 = vsum(a3)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[w0 + i], x0)
            x1 = fma(data[o1 + i], w[w0 + i], x1)
            x2 = fma(data[o2 + i], w[w0 + i], x2)
            x3 = fma(data[o3 + i], w[w0 + i], x3)
        d[d0 + j] = x0
        d[d0 + j + 1] = x1
        d[d0 + j + 2] = x2
        d[d0 + j + 3] = x3
        j += 4
    while j < hi:
        o0 = start + j * n_rows
        a0 = vset(0.0)
        for i in range(0, full, 8):
            x = vload(w, w0 + i)
            a0 = vfma(vload(data, o0 + i), x, a0)
        x0 = vsum(a0)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[w0 + i], x0)
        d[d0 + j] = x0
        j += 1


@inlined
def spread_csr(data, indptr, indices, start, n_rows, lo, hi, w, w0, d, d0):
    """Add what rows lo..hi-1 send to the next states: d[d0 + j] += P(j | row i) w[w0 + i - lo]."""
    base = np.uint64(d0)
    ask = worth_prefetching(indptr, start, n_rows)
    for i in range(lo, hi):
        x = w[w0 + i - lo]
        if x != 0.0:
            p = np.uint64(indptr[start + i])
            end = np.uint64(indptr[start + i + 1])
            if ask:
                prefetch(data, p + AHEAD)
                prefetch(indices, p + AHEAD)
            while p < end:
                j = base + indices[p]
                d[j] = fma(data[p], x, d[j])
                p += np.uint64(1)


@inlined
def merge(private, n_parts, n_next, lo, hi, d, d0):
    """d[d0 + j] = the sum over the parts' vectors in `private`, in their order, for next states lo..hi-1."""
    for j in range(lo, hi):
        d[d0 + j] = private[j]
    for p in range(1, n_parts):
        for j in range(lo, hi):
            d[d0 + j] += private[p * n_next + j]


@inlined
def visit(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, policies, at, tolerance, d, w, visits, private
):  # fmt: skip
    """Add the occupancy of `policies[at]` to `visits`: what thread `me` of `n` does.

    `d` gets the occupancy of states. Dense layers: `w` gets the weights of all rows of the layer, and each next state is
    a sum over them in one thread. CSR layers are sent on in `n_parts` fixed parts, each with a vector of its own in
    `private`, so that sums do not depend on which thread takes which part; `w` has room for `STATES` states per thread.
    Returns 1 where the policy is none (see `is_policy`; a negative `tolerance`: not looked at).
    """
    policy = policies[at]
    fault = 0
    horizon = block.size
    tiny = vset(TINY)
    if me == 0:
        d[0] = 1.0
    meet(gate, me, n)
    parts = n_parts if kind == 1 else n
    for h in range(horizon):
        s0 = layers[h]
        size = layers[h + 1] - s0
        first = rows[s0]
        d0 = layers[h + 1]
        n_next = layers[h + 2] - d0 if h < horizon - 1 else 0
        for p in range(parts * me // n, parts * (me + 1) // n):
            # Whether a policy's last bit is within the tolerance depends on which rows fill a vector, so not on n.
            lo = s0 + (size * p // parts if kind == 1 else share(size, p, parts))
            hi = s0 + (size * (p + 1) // parts if kind == 1 else share(size, p + 1, parts))
            if kind == 1:
                for j in range(p * n_next, (p + 1) * n_next):
                    private[j] = 0.0
            step = STATES if kind == 1 else max(1, hi - lo)
            for c0 in range(lo, hi, step):
                c1 = min(c0 + step, hi)
                if tolerance >= 0.0 and not is_policy(policy, rows, c0, c1, width, tolerance):
                    fault = 1
                r = rows[c0]
                shift = me * (w.size // n) - r if kind == 1 else -first
                s = c0
                if width > 0:
                    # `d` has room for a vector beyond its last state.
                    while r + 8 <= rows[c1]:
                        y8 = vabove(vmul(group_each(vload(d, s), width), vload(policy, r)), tiny)
                        vstore(w, r + shift, y8)
                        vstore(visits, r, vadd(vload(visits, r), y8))
                        r += 8
                        s += 8 // width
                while s < c1:
                    x = d[s]
                    end = rows[s + 1]
                    while r < end:
                        y = x * policy[r]
                        y = y if y > TINY else 0.0
                        w[r + shift] = y
                        visits[r] += y
                        r += 1
                    s += 1
                if kind == 1 and n_next > 0:
                    spread_csr(
                        data, indptr, indices, block[h], rows[layers[h + 1]] - first, rows[c0] - first, rows[c1] - first, w,
                        me * (w.size // n), private, p * n_next,
                    )  # fmt: skip
        if h < horizon - 1:
            meet(gate, me, n)
            lo = n_next * me // n
            hi = n_next * (me + 1) // n
            if kind == 0:
                spread_dense(data, block[h], rows[d0] - first, w, 0, lo, hi, d, d0, h % 2)
            else:
                merge(private, n_parts, n_next, lo, hi, d, d0)
            meet(gate, me, n)
    return fault


@kernel
def visit_sweep(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, policies, at, tolerance, d, w, visits, private
):  # fmt: skip
    """`visit` for one policy, entered by `n` threads with the same arrays and a number `me` each."""
    return visit(
        kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, policies, at, tolerance, d, w, visits, private
    )  # fmt: skip
