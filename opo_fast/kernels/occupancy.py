"""Forward recursion: from the weights of one layer's rows to the occupancy of the next layer's states."""

from __future__ import annotations

from ._jit import kernel
from ._simd import fma, vfma, vload, vset, vsum

__all__ = ["TINY", "forward_rows", "forward_states", "forward_sweep", "spread"]

TINY = 1e-280
"""Weights below this count as 0: long horizons would otherwise end in subnormal numbers, a hundred times slower."""


@kernel
def _dots(data, start, n_rows, w, lo, hi, d_next):
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
            x = vload(w, i)
            a0 = vfma(vload(data, o0 + i), x, a0)
            a1 = vfma(vload(data, o1 + i), x, a1)
            a2 = vfma(vload(data, o2 + i), x, a2)
            a3 = vfma(vload(data, o3 + i), x, a3)
        x0 = vsum(a0)
        x1 = vsum(a1)
        x2 = vsum(a2)
        x3 = vsum(a3)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[i], x0)
            x1 = fma(data[o1 + i], w[i], x1)
            x2 = fma(data[o2 + i], w[i], x2)
            x3 = fma(data[o3 + i], w[i], x3)
        d_next[j] = x0
        d_next[j + 1] = x1
        d_next[j + 2] = x2
        d_next[j + 3] = x3
        j += 4
    while j < hi:
        o0 = start + j * n_rows
        a0 = vset(0.0)
        for i in range(0, full, 8):
            a0 = vfma(vload(data, o0 + i), vload(w, i), a0)
        x0 = vsum(a0)
        for i in range(full, n_rows):
            x0 = fma(data[o0 + i], w[i], x0)
        d_next[j] = x0
        j += 1


@kernel
def _scatter(data, indptr, indices, start, lo, hi, w, d_next):
    for i in range(lo, hi):
        x = w[i]
        if x != 0.0:
            for p in range(indptr[start + i], indptr[start + i + 1]):
                j = indices[p]
                d_next[j] = fma(data[p], x, d_next[j])


@kernel
def spread(kind, data, indptr, indices, start, n_rows, lo, hi, w, d_next):
    """Occupancy of the next layer's states from the weights `w` of one layer's rows.

    Dense: fills next states lo..hi-1, each a sum over all rows. CSR: adds what rows lo..hi-1 send; `d_next` holds 0 or
    the sum of earlier rows.
    """
    if kind == 0:
        _dots(data, start, n_rows, w, lo, hi, d_next)
    else:
        _scatter(data, indptr, indices, start, lo, hi, w, d_next)


@kernel
def forward_rows(rows, lo, hi, d, policy, w):
    """Weight of each row of states lo..hi-1: d(s) policy(a|s), written to `w` from `rows[lo]` on."""
    for s in range(lo, hi):
        x = d[s]
        for r in range(rows[s], rows[s + 1]):
            y = x * policy[r]
            w[r] = y if y > TINY else 0.0


@kernel
def forward_states(kind, data, indptr, indices, block, layers, rows, h, w, d):
    """Occupancy of the states of layer h+1 from the row weights of layer h (the whole layer, one thread)."""
    r0 = rows[layers[h]]
    n_rows = rows[layers[h + 1]] - r0
    d_next = d[layers[h + 1] : layers[h + 2]]
    if kind == 0:
        spread(kind, data, indptr, indices, block[h], n_rows, 0, d_next.size, w[r0 : r0 + n_rows], d_next)
    else:
        d_next[:] = 0.0
        spread(kind, data, indptr, indices, block[h], n_rows, 0, n_rows, w[r0 : r0 + n_rows], d_next)


@kernel
def forward_sweep(kind, data, indptr, indices, block, layers, rows, policy, d, w):
    """Occupancy of all states (`d`) and rows (`w`)."""
    horizon = block.size
    d[0] = 1.0
    for h in range(horizon):
        forward_rows(rows, layers[h], layers[h + 1], d, policy, w)
        if h < horizon - 1:
            forward_states(kind, data, indptr, indices, block, layers, rows, h, w, d)
