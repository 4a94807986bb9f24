"""Backward recursion: the expectation of the next layer's values, policy evaluation, planning."""

from __future__ import annotations

from ._jit import kernel
from ._simd import fma, vfma, vload, vset, vstore

__all__ = ["add_expectation", "backward", "backward_sweep"]


@kernel
def _add_expectation_dense(data, start, n_rows, lo, hi, v_next, q):
    # The block is stored (next state, row): four next states at a time are four streams of reads.
    n_next = v_next.size
    full = lo + (hi - lo) // 8 * 8
    j = 0
    while j + 4 <= n_next:
        o0 = start + j * n_rows
        o1 = o0 + n_rows
        o2 = o1 + n_rows
        o3 = o2 + n_rows
        b0 = vset(v_next[j])
        b1 = vset(v_next[j + 1])
        b2 = vset(v_next[j + 2])
        b3 = vset(v_next[j + 3])
        for i in range(lo, full, 8):
            x = vload(q, i - lo)
            x = vfma(vload(data, o0 + i), b0, x)
            x = vfma(vload(data, o1 + i), b1, x)
            x = vfma(vload(data, o2 + i), b2, x)
            x = vfma(vload(data, o3 + i), b3, x)
            vstore(q, i - lo, x)
        for i in range(full, hi):
            x1 = fma(data[o0 + i], v_next[j], q[i - lo])
            x1 = fma(data[o1 + i], v_next[j + 1], x1)
            x1 = fma(data[o2 + i], v_next[j + 2], x1)
            q[i - lo] = fma(data[o3 + i], v_next[j + 3], x1)
        j += 4
    while j < n_next:
        o0 = start + j * n_rows
        b0 = vset(v_next[j])
        for i in range(lo, full, 8):
            vstore(q, i - lo, vfma(vload(data, o0 + i), b0, vload(q, i - lo)))
        for i in range(full, hi):
            q[i - lo] = fma(data[o0 + i], v_next[j], q[i - lo])
        j += 1


@kernel
def _add_expectation_csr(data, indptr, indices, start, lo, hi, v_next, q):
    # Four partial sums per row: one would wait for each multiply-add to finish.
    for i in range(lo, hi):
        p = indptr[start + i]
        end = indptr[start + i + 1]
        x0 = q[i - lo]
        x1 = 0.0
        x2 = 0.0
        x3 = 0.0
        while p + 4 <= end:
            x0 = fma(data[p], v_next[indices[p]], x0)
            x1 = fma(data[p + 1], v_next[indices[p + 1]], x1)
            x2 = fma(data[p + 2], v_next[indices[p + 2]], x2)
            x3 = fma(data[p + 3], v_next[indices[p + 3]], x3)
            p += 4
        while p < end:
            x0 = fma(data[p], v_next[indices[p]], x0)
            p += 1
        q[i - lo] = (x0 + x2) + (x1 + x3)


@kernel
def add_expectation(kind, data, indptr, indices, start, n_rows, lo, hi, v_next, q):
    """Add E[v_next(s') | row i] to q[i - lo] for rows lo..hi-1 of a layer with `n_rows` rows; `start` is its block."""
    if kind == 0:
        _add_expectation_dense(data, start, n_rows, lo, hi, v_next, q)
    else:
        _add_expectation_csr(data, indptr, indices, start, lo, hi, v_next, q)


@kernel
def backward(kind, data, indptr, indices, block, layers, rows, h, lo, hi, greedy, losses, policy, q, v):
    """Bellman backup of states lo..hi-1 of layer h; `q` and `v` of layer h+1 are filled already.

    With `greedy`, v is the minimum over the rows and the lowest minimiser is written to `policy`; otherwise v is the
    mean under `policy`. All arrays hold all rows (q, losses, policy) or all states (v).
    """
    first = rows[layers[h]]
    r0 = rows[lo]
    r1 = rows[hi]
    q[r0:r1] = losses[r0:r1]
    if h < block.size - 1:
        add_expectation(
            kind, data, indptr, indices, block[h], rows[layers[h + 1]] - first, r0 - first, r1 - first,
            v[layers[h + 1] : layers[h + 2]], q[r0:r1],
        )  # fmt: skip
    for s in range(lo, hi):
        if greedy:
            best = rows[s]
            for r in range(rows[s], rows[s + 1]):
                policy[r] = 0.0
                if q[r] < q[best]:
                    best = r
            policy[best] = 1.0
            v[s] = q[best]
        else:
            x = 0.0
            for r in range(rows[s], rows[s + 1]):
                x = fma(policy[r], q[r], x)
            v[s] = x


@kernel
def backward_sweep(kind, data, indptr, indices, block, layers, rows, greedy, losses, policy, q, v):
    """`backward` over all layers, from the last to the first."""
    for h in range(block.size - 1, -1, -1):
        backward(
            kind, data, indptr, indices, block, layers, rows, h, layers[h], layers[h + 1], greedy, losses, policy, q, v
        )  # fmt: skip
