"""The least expectation of the next layer's values over plausible dynamics, for each row (allowed state-action pair)."""

from __future__ import annotations

import math

from ._arguments import Model
from ._jit import inlined, kernel
from ._simd import vfma, view, vload, vmin, vset, vstore, vsub
from .evaluation import expectation

__all__ = ["TABLE", "expected", "fall", "least_q"]

TABLE = 8
"""Columns of a table of candidates: kind; address and size of data, row pointers and positions; address of the blocks."""


@inlined
def _candidate(model, table, i):
    """The model of candidate i, which has the layout, mask and dtype of `model`."""
    return Model(
        table[i, 0],
        view(table[i, 1], table[i, 2], model.data),
        view(table[i, 3], table[i, 4], model.indptr),
        view(table[i, 5], table[i, 6], model.indices),
        view(table[i, 7], model.block.size, model.block),
        model.layers,
        model.rows,
    )


@kernel
def expected(model, h, lo, hi, v, q):
    """q[r - lo] += E[v(s') | row r] for rows lo..hi-1 of layer h. Not inlined, which would take long to compile."""
    expectation(model, h, lo, hi, v, q, lo, q, lo)


@inlined
def _copy(x, r0, n, y):
    """y[:n] = x[r0 : r0 + n]."""
    full = n // 8 * 8
    for i in range(0, full, 8):
        vstore(y, i, vload(x, r0 + i))
    for i in range(full, n):
        y[i] = x[r0 + i]


@inlined
def _lower(x, n, y):
    """y = min(x, y)."""
    full = n // 8 * 8
    for i in range(0, full, 8):
        vstore(y, i, vmin(vload(x, i), vload(y, i)))
    for i in range(full, n):
        y[i] = min(x[i], y[i])


@inlined
def _sift(order, first, end, v, v0):
    """Sift order[first] down in the heap order[:end], whose root is the position of the least value."""
    root = first
    while 2 * root + 1 < end:
        child = 2 * root + 1
        if child + 1 < end and v[v0 + order[child + 1]] < v[v0 + order[child]]:
            child += 1
        if v[v0 + order[root]] <= v[v0 + order[child]]:
            break
        order[root], order[child] = order[child], order[root]
        root = child


@inlined
def fall(v, v0, n, order):
    """order[:n] = the positions 0..n-1 of v[v0:], sorted from the largest value to the least (heap sort)."""
    for j in range(n):
        order[j] = j
    for step in range(2 * n - 1):
        # First build the heap; then repeatedly move its root, the least value, to the end.
        building = step < n
        end = n if building else 2 * n - 1 - step
        if not building:
            order[0], order[end] = order[end], order[0]
        _sift(order, n - 1 - step if building else 0, end, v, v0)


@inlined
def _move_dense(model, h, lo, hi, v, order, radius, q):
    """See `_move`."""
    v0 = model.layers[h + 1]
    n_next = model.layers[h + 2] - v0
    n_rows = model.rows[v0] - model.rows[model.layers[h]]
    start = model.block[h] - model.rows[model.layers[h]]
    least = v[v0 + order[n_next - 1]]
    full = lo + (hi - lo) // 8 * 8
    zero = vset(0.0)
    for r in range(lo, full, 8):
        left = vload(radius, r)
        moved = zero
        for j in range(n_next):
            mass = vmin(vload(model.data, start + order[j] * n_rows + r), left)
            moved = vfma(mass, vset(v[v0 + order[j]] - least), moved)
            left = vsub(left, mass)
        vstore(q, r - lo, vsub(vload(q, r - lo), moved))
    for r in range(full, hi):
        rest = radius[r]
        sum_moved = 0.0
        for j in range(n_next):
            some = min(model.data[start + order[j] * n_rows + r], rest)
            sum_moved += some * (v[v0 + order[j]] - least)
            rest -= some
        q[r - lo] -= sum_moved


@inlined
def _move_csr(model, h, lo, hi, v, least, radius, q):
    """See `_move`. A row has few next states, so the largest remaining value is searched for each time instead of sorting."""
    v0 = model.layers[h + 1]
    start = model.block[h] - model.rows[model.layers[h]]
    for r in range(lo, hi):
        left = radius[r]
        moved = 0.0
        ceiling = math.inf
        if left >= 1.0:
            ceiling = -math.inf
            for p in range(model.indptr[start + r], model.indptr[start + r + 1]):
                moved += model.data[p] * (v[v0 + model.indices[p]] - least)
        while left > 0.0 and ceiling > least:
            top = least
            mass = 0.0
            for p in range(model.indptr[start + r], model.indptr[start + r + 1]):
                x = v[v0 + model.indices[p]]
                if x < ceiling:
                    if x > top:
                        top = x
                        mass = 0.0
                    if x == top:
                        mass += model.data[p]
            some = min(mass, left)
            moved += some * (top - least)
            left -= some
            ceiling = top
        q[r - lo] -= moved


@kernel
def _move(model, h, lo, hi, v, order, radius, q):
    """Lower q[r - lo], an expectation of v, to that after mass `radius[r]` moves from the largest values to the least one."""
    v0 = model.layers[h + 1]
    n_next = model.layers[h + 2] - v0
    if model.kind == 0:
        fall(v, v0, n_next, order)
        _move_dense(model, h, lo, hi, v, order, radius, q)
    else:
        least = v[v0]
        for j in range(n_next):
            least = min(least, v[v0 + j])
        _move_csr(model, h, lo, hi, v, least, radius, q)


@inlined
def least_q(model, h, lo, hi, v, plausible, q, e):
    """q[r - lo] = lower(r) + min_P E_P[v(s') | row r] for rows lo..hi-1 of layer h, over the plausible P.

    The plausible P are the candidates of `table`; or, if `radius` is not empty, all distributions within this total variation distance
    of the row of the single candidate. `e` is a work array, like `q`.
    """
    lower, table, radius, order = plausible
    _copy(lower, lo, hi - lo, q)
    if h < model.block.size - 1:
        for i in range(table.shape[0]):
            x = e if i > 0 else q
            if i > 0:
                _copy(lower, lo, hi - lo, e)
            expected(_candidate(model, table, i), h, lo, hi, v, x)
            if i > 0:
                _lower(e, hi - lo, q)
        if radius.size > 0:
            _move(_candidate(model, table, 0), h, lo, hi, v, order, radius, q)
