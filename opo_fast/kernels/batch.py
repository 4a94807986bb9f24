"""Many policies under one dynamics: a lane per policy, so that the model is read once for all of them.

The bits are those of `occupancy.visit`, one policy after the other: the same partial sums in the same order.
"""

from __future__ import annotations

import numpy as np

from ._jit import inlined, kernel
from ._simd import LANES, prefetch, vabove, vadd, vfma, vload, vload_line, vmul, vset, vstore, vsum, vtranspose
from ._sync import meet
from .occupancy import TINY, merge

__all__ = ["BATCH", "visit_batch_csr", "visit_batch_dense"]

BATCH = 32
"""Policies of a large batch of a dense dynamics."""
ROWS_AHEAD = 64
"""How many rows before their use memory is asked for past policies, eight streams at a time."""
BLOCK = 512
"""Rows of a large batch whose weights are used for several next states in a row."""


@inlined
def _merged(a0, a1, a2, a3, a4, a5, a6, a7):
    """Eight partial sums, merged as `vsum` merges its lanes."""
    return vadd(vadd(vadd(a0, a4), vadd(a2, a6)), vadd(vadd(a1, a5), vadd(a3, a7)))


@inlined
def _dots(data, start, n_rows, w, w0, lo, hi, d, d0):
    # Eight policies. Three next states at a time, which fills the registers; the last ones may be done twice.
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
        vstore(d, d0 + 8 * j, x)
        vstore(d, d0 + 8 * min(j + 1, hi - 1), y)
        vstore(d, d0 + 8 * min(j + 2, hi - 1), z)
        j += 3


@inlined
def _many_dots(data, start, n_rows, w, w0, lo, hi, d, d0, sums, me):
    # Thirty-two policies. A vector unit multiplies as fast as it loads, so that each number that is loaded should be used
    # more than once: four next states times four vectors of policies, for one of the eight partial sums at a time, whose
    # rows are every eighth. `sums` keeps the partial sums of the four next states, block by block of rows.
    full = n_rows // 8 * 8
    base = me * (8 * 128)
    for j in range(lo, hi, 4):
        o0 = start + j * n_rows
        o1 = start + min(j + 1, hi - 1) * n_rows
        o2 = start + min(j + 2, hi - 1) * n_rows
        o3 = start + min(j + 3, hi - 1) * n_rows
        for x in range(base, base + 8 * 128):
            sums[x] = 0.0
        for first in range(0, full, BLOCK):
            for part in range(8):
                to = base + 128 * part
                a0 = vload(sums, to)
                a1 = vload(sums, to + 8)
                a2 = vload(sums, to + 16)
                a3 = vload(sums, to + 24)
                b0 = vload(sums, to + 32)
                b1 = vload(sums, to + 40)
                b2 = vload(sums, to + 48)
                b3 = vload(sums, to + 56)
                c0 = vload(sums, to + 64)
                c1 = vload(sums, to + 72)
                c2 = vload(sums, to + 80)
                c3 = vload(sums, to + 88)
                e0 = vload(sums, to + 96)
                e1 = vload(sums, to + 104)
                e2 = vload(sums, to + 112)
                e3 = vload(sums, to + 120)
                for i in range(first + part, min(first + BLOCK, full), 8):
                    x0 = vload(w, w0 + 32 * i)
                    x1 = vload(w, w0 + 32 * i + 8)
                    x2 = vload(w, w0 + 32 * i + 16)
                    x3 = vload(w, w0 + 32 * i + 24)
                    y = vset(data[o0 + i])
                    a0 = vfma(y, x0, a0)
                    a1 = vfma(y, x1, a1)
                    a2 = vfma(y, x2, a2)
                    a3 = vfma(y, x3, a3)
                    y = vset(data[o1 + i])
                    b0 = vfma(y, x0, b0)
                    b1 = vfma(y, x1, b1)
                    b2 = vfma(y, x2, b2)
                    b3 = vfma(y, x3, b3)
                    y = vset(data[o2 + i])
                    c0 = vfma(y, x0, c0)
                    c1 = vfma(y, x1, c1)
                    c2 = vfma(y, x2, c2)
                    c3 = vfma(y, x3, c3)
                    y = vset(data[o3 + i])
                    e0 = vfma(y, x0, e0)
                    e1 = vfma(y, x1, e1)
                    e2 = vfma(y, x2, e2)
                    e3 = vfma(y, x3, e3)
                vstore(sums, to, a0)
                vstore(sums, to + 8, a1)
                vstore(sums, to + 16, a2)
                vstore(sums, to + 24, a3)
                vstore(sums, to + 32, b0)
                vstore(sums, to + 40, b1)
                vstore(sums, to + 48, b2)
                vstore(sums, to + 56, b3)
                vstore(sums, to + 64, c0)
                vstore(sums, to + 72, c1)
                vstore(sums, to + 80, c2)
                vstore(sums, to + 88, c3)
                vstore(sums, to + 96, e0)
                vstore(sums, to + 104, e1)
                vstore(sums, to + 112, e2)
                vstore(sums, to + 120, e3)
        for m in range(4):
            next_state = min(j + m, hi - 1)
            o = start + next_state * n_rows
            for g in range(0, 32, 8):
                at = base + 32 * m + g
                x = _merged(
                    vload(sums, at), vload(sums, at + 128), vload(sums, at + 256), vload(sums, at + 384), vload(sums, at + 512),
                    vload(sums, at + 640), vload(sums, at + 768), vload(sums, at + 896),
                )  # fmt: skip
                for i in range(full, n_rows):
                    x = vfma(vset(data[o + i]), vload(w, w0 + 32 * i + g), x)
                vstore(d, d0 + 32 * next_state + g, x)


@inlined
def _scatter(data, indptr, indices, start, lo, hi, w, w0, d, d0):
    base = np.uint64(d0)
    for i in range(lo, hi):
        x = vload(w, w0 + 8 * (i - lo))
        if vsum(x) > 0.0:
            p = np.uint64(indptr[start + i])
            end = np.uint64(indptr[start + i + 1])
            while p < end:
                j = np.int64(base + np.uint64(8) * indices[p])
                vstore(d, j, vfma(vset(data[p]), x, vload(d, j)))
                p += np.uint64(1)


@inlined
def _weigh(policies, rows, r, s, d, base, lanes, tiny, w, to):
    # Row r of eight policies; returns its state, which is `s` or a later one.
    while rows[s + 1] <= r:
        s += 1
    vstore(w, to, vabove(vmul(vload(d, base + lanes * s), policies), tiny))
    return s


@inlined
def _weights(rows, lo, hi, d, d0, store, k, count, lanes, w, w0):
    # The weights of the rows of states lo..hi-1: eight rows of eight policies at a time, which are stored policy by policy.
    tiny = vset(TINY)
    r0 = rows[lo]
    end = rows[hi]
    for g in range(0, lanes, 8):
        r = r0
        s = lo
        # A policy beyond the last has occupancy 0 everywhere, whatever is read for it.
        line = k + min(g, count - 1)
        last = k + count - 1
        while r + 8 <= end:
            for x in range(line, min(line + 8, last + 1)):
                prefetch(store[x], r + ROWS_AHEAD)
            c0, c1, c2, c3, c4, c5, c6, c7 = vtranspose(
                vload_line(store, line, r), vload_line(store, min(line + 1, last), r), vload_line(store, min(line + 2, last), r),
                vload_line(store, min(line + 3, last), r), vload_line(store, min(line + 4, last), r),
                vload_line(store, min(line + 5, last), r), vload_line(store, min(line + 6, last), r),
                vload_line(store, min(line + 7, last), r),
            )  # fmt: skip
            to = w0 + lanes * (r - r0) + g
            base = d0 - lanes * lo + g
            s = _weigh(c0, rows, r, s, d, base, lanes, tiny, w, to)
            s = _weigh(c1, rows, r + 1, s, d, base, lanes, tiny, w, to + lanes)
            s = _weigh(c2, rows, r + 2, s, d, base, lanes, tiny, w, to + 2 * lanes)
            s = _weigh(c3, rows, r + 3, s, d, base, lanes, tiny, w, to + 3 * lanes)
            s = _weigh(c4, rows, r + 4, s, d, base, lanes, tiny, w, to + 4 * lanes)
            s = _weigh(c5, rows, r + 5, s, d, base, lanes, tiny, w, to + 5 * lanes)
            s = _weigh(c6, rows, r + 6, s, d, base, lanes, tiny, w, to + 6 * lanes)
            s = _weigh(c7, rows, r + 7, s, d, base, lanes, tiny, w, to + 7 * lanes)
            r += 8
        while r < end:
            while rows[s + 1] <= r:
                s += 1
            for lane in range(g, g + 8):
                y = d[d0 + lanes * (s - lo) + lane] * store[k + lane, r] if lane < count else 0.0
                w[w0 + lanes * (r - r0) + lane] = y if y > TINY else 0.0
            r += 1


@inlined
def _add(w, w0, lo, hi, lanes, count, visits):
    # The policies of each of rows lo..hi-1 in their order, for eight rows at a time. (Adding the 0 of a policy beyond the
    # last is no change.)
    r = lo
    while r + 8 <= hi:
        total = vload(visits, r)
        for g in range(0, count, 8):
            x = w0 + lanes * (r - lo) + g
            a0, a1, a2, a3, a4, a5, a6, a7 = vtranspose(
                vload(w, x), vload(w, x + lanes), vload(w, x + 2 * lanes), vload(w, x + 3 * lanes), vload(w, x + 4 * lanes),
                vload(w, x + 5 * lanes), vload(w, x + 6 * lanes), vload(w, x + 7 * lanes),
            )  # fmt: skip
            total = vadd(vadd(vadd(vadd(total, a0), a1), a2), a3)
            total = vadd(vadd(vadd(vadd(total, a4), a5), a6), a7)
        vstore(visits, r, total)
        r += 8
    while r < hi:
        total_of_row = visits[r]
        for lane in range(count):
            total_of_row += w[w0 + lanes * (r - lo) + lane]
        visits[r] = total_of_row
        r += 1


@kernel
def visit_batch_dense(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, shared, lanes, store, k, count, d, w, visits, sums
):  # fmt: skip
    """Add the occupancies of policies store[k..k+count-1] to `visits`, in this order: what thread `me` of `n` does.

    Each thread takes `lanes` policies at a time, `LANES` or `BATCH`, and shares nothing but the turns in which they add. With
    `shared`, for at most `lanes` policies in all, each takes some of the next states of each layer instead. For each thread
    and lane, `d` has room for two layers of states and `w` for a layer of rows; `sums` has 1,024 numbers per thread (for
    `BATCH`).
    """
    horizon = block.size
    half = d.size // n // 2
    mine = me * (w.size // n)
    first_lane = 0 if shared else lanes * me
    for begin in range(first_lane, count + first_lane, lanes * n):
        line = k + begin
        some = min(lanes, count - begin)
        now = 0 if shared else 2 * half * me
        after = now + half
        if me == 0 or not shared:
            for lane in range(lanes):
                d[now + lane] = 1.0 if lane < some else 0.0
        if shared:
            meet(gate, me, n)
        for h in range(horizon):
            first = rows[layers[h]]
            end = rows[layers[h + 1]]
            if some > 0:
                _weights(rows, layers[h], layers[h + 1], d, now, store, line, some, lanes, w, mine)
            for turn in range(1 if shared else n):
                if turn == me:
                    _add(w, mine, first, end, lanes, some, visits)
                meet(gate, me, n)
            if h < horizon - 1 and some > 0:
                n_next = layers[h + 2] - layers[h + 1]
                lo = n_next * me // n if shared else 0
                hi = n_next * (me + 1) // n if shared else n_next
                if lanes == LANES:
                    _dots(data, block[h], end - first, w, mine, lo, hi, d, after)
                else:
                    _many_dots(data, block[h], end - first, w, mine, lo, hi, d, after, sums, me)
                if shared:
                    meet(gate, me, n)
            now, after = after, now


@kernel
def visit_batch_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, store, k, count, d, w, visits, private
):  # fmt: skip
    """The same of at most `LANES` policies for a CSR dynamics, whose layers the threads share, part by part.

    Per lane, `d` has room for two layers of states, `w` for a layer of rows and `private` for `n_parts` layers of states.
    """
    horizon = block.size
    now = 0
    after = d.size // 2
    if me == 0:
        for lane in range(LANES):
            d[lane] = 1.0 if lane < count else 0.0
    meet(gate, me, n)
    for h in range(horizon):
        s0 = layers[h]
        size = layers[h + 1] - s0
        first = rows[s0]
        n_next = layers[h + 2] - layers[h + 1] if h < horizon - 1 else 0
        for p in range(n_parts * me // n, n_parts * (me + 1) // n):
            lo = s0 + size * p // n_parts
            hi = s0 + size * (p + 1) // n_parts
            i0 = rows[lo] - first
            _weights(rows, lo, hi, d, now + LANES * (lo - s0), store, k, count, LANES, w, LANES * i0)
            _add(w, LANES * i0, rows[lo], rows[hi], LANES, count, visits)
            if n_next > 0:
                for j in range(LANES * p * n_next, LANES * (p + 1) * n_next):
                    private[j] = 0.0
                _scatter(data, indptr, indices, block[h], i0, rows[hi] - first, w, LANES * i0, private, LANES * p * n_next)
        meet(gate, me, n)
        if n_next > 0:
            lo = n_next * me // n
            hi = n_next * (me + 1) // n
            merge(private, n_parts, LANES * n_next, LANES * lo, LANES * hi, d, after)
            meet(gate, me, n)
        now, after = after, now
