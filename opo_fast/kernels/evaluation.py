"""Backward recursion: the expectation of the next layer's values, policy evaluation, planning."""

from __future__ import annotations

import numpy as np

from ._groups import AHEAD, group_sum, is_policy, share, worth_prefetching
from ._jit import inlined, kernel
from ._simd import fma, prefetch, vfma, vget, vload, vmul, vset, vstore
from ._sync import meet

__all__ = ["backward_sweep", "expectation"]


@inlined
def _four(data, o, n_rows, b0, b1, b2, b3, x):
    x = vfma(vload(data, o), b0, x)
    x = vfma(vload(data, o + n_rows), b1, x)
    x = vfma(vload(data, o + 2 * n_rows), b2, x)
    return vfma(vload(data, o + 3 * n_rows), b3, x)


@inlined
def _add_expectation_dense(data, start, n_rows, lo, hi, v, v0, n_next, q, q0, back):
    # The block is stored (next state, row): eight next states at a time are eight streams of reads. With `back` the eights
    # come in reverse: of a block that layers share, the part that was read last is still in the cache.
    full = lo + (hi - lo) // 8 * 8
    shift = q0 - lo
    eights = n_next // 8
    for eight in range(eights):
        j = 8 * (eights - 1 - eight) if back else 8 * eight
        o = start + j * n_rows
        b0 = vset(v[v0 + j])
        b1 = vset(v[v0 + j + 1])
        b2 = vset(v[v0 + j + 2])
        b3 = vset(v[v0 + j + 3])
        b4 = vset(v[v0 + j + 4])
        b5 = vset(v[v0 + j + 5])
        b6 = vset(v[v0 + j + 6])
        b7 = vset(v[v0 + j + 7])
        for i in range(lo, full, 8):
            x = _four(data, o + i, n_rows, b0, b1, b2, b3, vload(q, i + shift))
            vstore(q, i + shift, _four(data, o + 4 * n_rows + i, n_rows, b4, b5, b6, b7, x))
    j = 8 * eights
    if j + 4 <= n_next:
        o = start + j * n_rows
        b0 = vset(v[v0 + j])
        b1 = vset(v[v0 + j + 1])
        b2 = vset(v[v0 + j + 2])
        b3 = vset(v[v0 + j + 3])
        for i in range(lo, full, 8):
            vstore(q, i + shift, _four(data, o + i, n_rows, b0, b1, b2, b3, vload(q, i + shift)))
        j += 4
    while j < n_next:
        o = start + j * n_rows
        b0 = vset(v[v0 + j])
        for i in range(lo, full, 8):
            vstore(q, i + shift, vfma(vload(data, o + i), b0, vload(q, i + shift)))
        j += 1
    for i in range(full, hi):
        x = q[i + shift]
        for j in range(n_next):
            # The order of the vectors' sums.
            eight = j // 8
            at = 8 * (eights - 1 - eight) + j % 8 if back and eight < eights else j
            x = fma(data[start + at * n_rows + i], v[v0 + at], x)
        q[i + shift] = x


@inlined
def _add_expectation_csr(data, indptr, indices, start, n_rows, lo, hi, v, v0, init, i0, q, q0):
    # Four partial sums per row: one would wait for each multiply-add to finish. An unsigned position skips the test
    # for negative indices. (Written out: as a part of its own that gives back four sums it is slower.)
    base = np.uint64(v0)
    ask = worth_prefetching(indptr, start, n_rows)
    for i in range(lo, hi):
        p = np.uint64(indptr[start + i])
        end = np.uint64(indptr[start + i + 1])
        if ask:
            prefetch(data, p + AHEAD)
            prefetch(indices, p + AHEAD)
        eights = end - (end - p) % np.uint64(8)
        x0 = init[i - lo + i0]
        x1 = 0.0
        x2 = 0.0
        x3 = 0.0
        while p < eights:
            x0 = fma(data[p], v[base + indices[p]], x0)
            x1 = fma(data[p + np.uint64(1)], v[base + indices[p + np.uint64(1)]], x1)
            x2 = fma(data[p + np.uint64(2)], v[base + indices[p + np.uint64(2)]], x2)
            x3 = fma(data[p + np.uint64(3)], v[base + indices[p + np.uint64(3)]], x3)
            x0 = fma(data[p + np.uint64(4)], v[base + indices[p + np.uint64(4)]], x0)
            x1 = fma(data[p + np.uint64(5)], v[base + indices[p + np.uint64(5)]], x1)
            x2 = fma(data[p + np.uint64(6)], v[base + indices[p + np.uint64(6)]], x2)
            x3 = fma(data[p + np.uint64(7)], v[base + indices[p + np.uint64(7)]], x3)
            p += np.uint64(8)
        if end - p >= np.uint64(4):
            x0 = fma(data[p], v[base + indices[p]], x0)
            x1 = fma(data[p + np.uint64(1)], v[base + indices[p + np.uint64(1)]], x1)
            x2 = fma(data[p + np.uint64(2)], v[base + indices[p + np.uint64(2)]], x2)
            x3 = fma(data[p + np.uint64(3)], v[base + indices[p + np.uint64(3)]], x3)
            p += np.uint64(4)
        while p < end:
            x0 = fma(data[p], v[base + indices[p]], x0)
            p += np.uint64(1)
        q[i - lo + q0] = (x0 + x2) + (x1 + x3)


@inlined
def expectation(kind, data, indptr, indices, start, n_rows, lo, hi, v, v0, n_next, init, i0, q, q0, back):
    """q[q0 + k] = init[i0 + k] + E[v(s') | row lo + k] for rows lo..hi-1 of a layer with `n_rows` rows.

    `start` is the layer's block and v[v0 : v0 + n_next] the next layer's values; `init` may be `q` itself. (Offsets
    instead of slices, which count references.) `back`: see `_add_expectation_dense`.
    """
    if kind == 0:
        full = (hi - lo) // 8 * 8
        for k in range(0, full, 8):
            vstore(q, q0 + k, vload(init, i0 + k))
        for k in range(full, hi - lo):
            q[q0 + k] = init[i0 + k]
        _add_expectation_dense(data, start, n_rows, lo, hi, v, v0, n_next, q, q0, back)
    else:
        _add_expectation_csr(data, indptr, indices, start, n_rows, lo, hi, v, v0, init, i0, q, q0)


@inlined
def _backward(kind, data, indptr, indices, block, layers, rows, h, lo, hi, width, greedy, losses, policy, q, v):
    first = rows[layers[h]]
    r0 = rows[lo]
    r1 = rows[hi]
    if h < block.size - 1:
        expectation(
            kind, data, indptr, indices, block[h], rows[layers[h + 1]] - first, r0 - first, r1 - first,
            v, layers[h + 1], layers[h + 2] - layers[h + 1], losses, r0, q, r0, h % 2,
        )  # fmt: skip
    else:
        for r in range(r0, r1):
            q[r] = losses[r]
    r = r0
    if greedy:
        for s in range(lo, hi):
            end = rows[s + 1]
            best = r
            while r < end:
                policy[r] = 0.0
                if q[r] < q[best]:
                    best = r
                r += 1
            policy[best] = 1.0
            v[s] = q[best]
    else:
        s = lo
        if width > 0:
            while r + 8 <= r1:
                mean = group_sum(vmul(vload(policy, r), vload(q, r)), width)
                for lane in range(0, 8, width):
                    v[s] = vget(mean, lane)
                    s += 1
                r += 8
        while s < hi:
            end = rows[s + 1]
            x = 0.0
            while r < end:
                x = fma(policy[r], q[r], x)
                r += 1
            v[s] = x
            s += 1


@kernel
def backward_sweep(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, chunk, width, greedy, losses, policy, tolerance, q, v
):  # fmt: skip
    """Bellman backups of all layers, from the last to the first, `chunk` states at a time: what thread `me` of `n` does.

    With `greedy`, v is the minimum over the rows and the lowest minimiser is written to `policy`; otherwise v is the
    mean under `policy`. Returns 1 where that is no policy (see `is_policy`; a negative `tolerance`: not looked at).
    `width` is the number of actions where the rows of whole states fill a vector, else 0. All arrays hold all rows
    (q, losses, policy) or all states (v).
    """
    fault = 0
    for h in range(block.size - 1, -1, -1):
        size = layers[h + 1] - layers[h]
        lo = layers[h] + share(size, me, n)
        hi = layers[h] + share(size, me + 1, n)
        for s in range(lo, hi, chunk):
            end = min(s + chunk, hi)
            if tolerance >= 0.0 and not is_policy(policy, rows, s, end, width, tolerance):
                fault = 1
            _backward(kind, data, indptr, indices, block, layers, rows, h, s, end, width, greedy, losses, policy, q, v)
        meet(gate, me, n)
    return fault
