"""Forward recursion: from the weights of one layer's rows to the occupancy of the next layer's states."""

from __future__ import annotations

import numpy as np

from ._jit import inlined, kernel
from ._simd import fma, vfma, vload, vset, vsum

__all__ = ["TINY", "forward_sweep", "spread_csr", "spread_dense"]

TINY = 1e-280
"""Weights below this count as 0: long horizons would otherwise end in subnormal numbers, a hundred times slower."""


@inlined
def _dots(data, start, n_rows, w, w0, lo, hi, d, d0):
    # Four next states at a time; eight partial sums each, merged by `vsum`, then the rows that do not fill a vector.
    full = n_rows // 8 * 8
    j = lo
    while j + 4 <= hi:
        o0 = start + j * n_rows
        o1 = o0 + n_rows
        o2 = o1 + n_rows
        o3 = o2 + n_rows
        a0 = vset(0.0)
        a1 = vset(0.0)
        a2 = vset(0.0)
        a3 = vset(0.0)
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
            a0 = vfma(vload(data, o0 + i), vload(w, w0 + i), a0)
        x0 = vsum(a0)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[w0 + i], x0)
        d[d0 + j] = x0
        j += 1


@kernel
def spread_dense(data, start, n_rows, w, w0, lo, hi, d, d0):
    """Occupancy of next states lo..hi-1, d[d0 + j] = sum_i P(j | row i) w[w0 + i], each a sum over all rows."""
    _dots(data, start, n_rows, w, w0, lo, hi, d, d0)


@inlined
def spread_csr(data, indptr, indices, start, lo, hi, w, w0, d, d0):
    """Add what rows lo..hi-1 send to the next states: d[d0 + j] += P(j | row i) w[w0 + i]."""
    base = np.uint64(d0)
    for i in range(lo, hi):
        x = w[w0 + i]
        if x != 0.0:
            p = np.uint64(indptr[start + i])
            end = np.uint64(indptr[start + i + 1])
            while p < end:
                j = base + indices[p]
                d[j] = fma(data[p], x, d[j])
                p += np.uint64(1)


@kernel
def forward_sweep(kind, data, indptr, indices, block, layers, rows, policy, d, w):
    """Occupancy of all states (`d`) and rows (`w`), one thread."""
    horizon = block.size
    d[0] = 1.0
    for h in range(horizon):
        first = rows[layers[h]]
        for s in range(layers[h], layers[h + 1]):
            x = d[s]
            for r in range(rows[s], rows[s + 1]):
                y = x * policy[r]
                w[r] = y if y > TINY else 0.0
        if h < horizon - 1:
            n_rows = rows[layers[h + 1]] - first
            d0 = layers[h + 1]
            n_next = layers[h + 2] - d0
            if kind == 0:
                _dots(data, block[h], n_rows, w, first, 0, n_next, d, d0)
            else:
                for s in range(d0, d0 + n_next):
                    d[s] = 0.0
                spread_csr(data, indptr, indices, block[h], 0, n_rows, w, first, d, d0)
