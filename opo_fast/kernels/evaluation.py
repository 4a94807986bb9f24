"""Backward recursion: the expectation of the next layer's values, policy evaluation, planning.

A row is an allowed state-action pair.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Model, Team
from ._groups import AHEAD, NEAR, SOON, four_alike, group_sum, is_policy, leads_far, share
from ._jit import called, copied, inlined, kernel
from ._simd import fma, prefetch, qask, qdot, qfirst, qset, qsum, strided, tdot, tfma, tput, tread, tset, vget, vload, vmul, vstore
from ._sync import barrier
from .row_slices import ROW_SLICES, expectation_row_slices

__all__ = ["PLAN", "backward_sweep", "expectation", "mean"]

PLAN = 5
"""Number of entries for each layer in the plan of a sweep."""


_IN_CACHE = 1 << 18
"""Size of a dense model up to which nothing is prefetched: in smaller models prefetching costs up to a fifth of a sweep."""
_SMALL_BLOCK = 1 << 13


@inlined
def _add_streams(data, o, v, lo, hi, q, shift):
    """q[i - shift] += sum_m data[o[m] + i] v[m] for the whole vectors of rows lo..hi-1."""
    x = tset(v)
    for i in range(lo, lo + (hi - lo) // 8 * 8, 8):
        vstore(q, i - shift, tdot(data, o, i, x, vload(q, i - shift)))


@inlined
def _add_streams_ahead(data, o, v, lo, hi, q, shift, ahead):
    """The same, and prefetches `ahead` entries on. (Choosing inside one loop would cost `_add_streams` registers.)"""
    x = tset(v)
    for i in range(lo, lo + (hi - lo) // 8 * 8, 8):
        for begin in o:
            prefetch(data, begin + i + ahead)
        vstore(q, i - shift, tdot(data, o, i, x, vload(q, i - shift)))


@inlined
def _add_expectation_dense(model, h, lo, hi, v, q, shift):
    """q[r - shift] += E[v(s') | row r] for rows lo..hi-1 of layer h."""
    # Blocks are stored as (next state, row); eight next states are read at a time.
    v0 = model.layers[h + 1]
    n_next = model.layers[h + 2] - v0
    n_rows = model.rows[v0] - model.rows[model.layers[h]]
    start = model.block[h] - model.rows[model.layers[h]]
    eights = n_next // 8
    # Small blocks end before the processor's own prefetching has begun: the block of the layer before, which comes next.
    ahead = 0
    if h > 1 and model.data.size > _IN_CACHE and n_rows * n_next < _SMALL_BLOCK:
        ahead = model.block[h - 1] - model.block[h]
    for eight in range(eights):
        # Of a block that layers share, the part that was read last is still in the cache: every other layer goes backwards.
        j = 8 * (eights - 1 - eight if h % 2 else eight)
        o = strided(start + j * n_rows, n_rows, 8)
        x8 = tread(v, strided(v0, 1, 8), j)
        if ahead == 0:
            _add_streams(model.data, o, x8, lo, hi, q, shift)
        else:
            _add_streams_ahead(model.data, o, x8, lo, hi, q, shift, ahead)
    j = 8 * eights
    if j + 4 <= n_next:
        _add_streams(model.data, strided(start + j * n_rows, n_rows, 4), tread(v, strided(v0, 1, 4), j), lo, hi, q, shift)
        j += 4
    while j < n_next:
        _add_streams(model.data, strided(start + j * n_rows, n_rows, 1), tread(v, strided(v0, 1, 1), j), lo, hi, q, shift)
        j += 1
    for i in range(lo + (hi - lo) // 8 * 8, hi):
        x = q[i - shift]
        for j in range(n_next):
            # In the same order as the vectors.
            eight = j // 8
            at = 8 * (eights - 1 - eight) + j % 8 if h % 2 and eight < eights else j
            x = fma(model.data[start + at * n_rows + i], v[v0 + at], x)
        q[i - shift] = x


@inlined
def _sums_csr(model, h, lo, hi, v, init, begin, q, shift, far):
    """`_expectation_csr`; with `far`, a constant in the source, next values are prefetched."""
    # Four partial sums per row: one would wait for each multiply-add to finish.
    data, indices, v0 = model.data, model.indices, model.layers[h + 1]
    start = model.block[h] - model.rows[model.layers[h]]
    p = model.indptr[start + lo]
    for r in range(lo, hi):
        end = model.indptr[start + r + 1]
        prefetch(data, p + (AHEAD if far else SOON))
        prefetch(indices, p + (AHEAD if far else SOON))
        near = min(NEAR, indices.size - end) if far else 0
        x = qset(init[r - begin])
        while p + 8 <= end:
            if far:
                qask(v, v0, indices, p + near)
                qask(v, v0, indices, p + near + 4)
            x = qdot(data, indices, p, v, v0, x)
            x = qdot(data, indices, p + 4, v, v0, x)
            p += 8
        if p + 4 <= end:
            if far:
                qask(v, v0, indices, p + near)
            x = qdot(data, indices, p, v, v0, x)
            p += 4
        x0 = qfirst(x)
        while p < end:
            if far:
                prefetch(v, v0 + np.int64(indices[np.uint64(p + near)]))
            # An unsigned position skips the test for negative indices.
            x0 = fma(data[np.uint64(p)], v[np.uint64(v0) + indices[np.uint64(p)]], x0)
            p += 1
        q[r - shift] = qsum(x, x0)


@called
def _expectation_csr(model, h, lo, hi, v, init, begin, q, shift):
    """q[r - shift] = init[r - begin] + E[v(s') | row r] for rows lo..hi-1 of layer h."""
    if leads_far(model, h, lo, hi):
        _sums_csr(model, h, lo, hi, v, init, begin, q, shift, True)
    else:
        _sums_csr(model, h, lo, hi, v, init, begin, q, shift, False)


@copied
def expectation(model, h, lo, hi, v, init, begin, q, shift):
    """q[r - shift] = init[r - begin] + E[v(s') | row r] for rows lo..hi-1 of layer h, which must not be the last.

    `v` has the values of all states; `init` may be `q` itself. Offsets are faster than views of arrays.
    """
    if model.kind == 0:
        full = lo + (hi - lo) // 8 * 8
        for r in range(lo, full, 8):
            vstore(q, r - shift, vload(init, r - begin))
        for r in range(full, hi):
            q[r - shift] = init[r - begin]
        _add_expectation_dense(model, h, lo, hi, v, q, shift)
    elif model.kind == ROW_SLICES:
        expectation_row_slices(model, h, lo, hi, v, init, begin, q, shift)
    else:
        _expectation_csr(model, h, lo, hi, v, init, begin, q, shift)


@inlined
def _minimum(rows, lo, hi, q, policy, v):
    """v(s) = min q over the rows of states lo..hi-1; `policy` is 1 at the first row with the minimum, else 0."""
    # Selections instead of branches, since the processor could not predict the row of the minimum.
    r = rows[lo]
    for s in range(lo, hi):
        end = rows[s + 1]
        best = r
        x = q[r]
        while r < end:
            policy[r] = 0.0
            y = q[r]
            less = y < x
            best = r if less else best
            x = y if less else x
            r += 1
        policy[best] = 1.0
        v[s] = x


@inlined
def _least(rows, lo, hi, q, shift, v):
    """v(s) = min q over the rows of states lo..hi-1."""
    r = rows[lo]
    for s in range(lo, hi):
        end = rows[s + 1]
        x = q[r - shift]
        while r < end:
            x = min(q[r - shift], x)
            r += 1
        v[s] = x


@copied
def mean(rows, lo, hi, width, policy, q, shift, v):
    """v(s) = <policy, q> for states lo..hi-1; row r is at q[r - shift]."""
    r = rows[lo]
    s = lo
    if width > 0:
        while r + 8 <= rows[hi]:
            means = group_sum(vmul(vload(policy, r), vload(q, r - shift)), width)
            for lane in range(0, 8, width):
                v[s] = vget(means, lane)
                s += 1
            r += 8
    # Four states with equally many actions at a time, since the multiply-adds of a single sum wait for one another.
    while s + 4 <= hi and four_alike(rows, s):
        n = rows[s + 1] - r
        means4 = (0.0, 0.0, 0.0, 0.0)
        for i in range(r, r + n):
            means4 = tfma(q, strided(i - shift, n, 4), 0, tread(policy, strided(i, n, 4), 0), means4)
        tput(v, s, means4)
        r += 4 * n
        s += 4
    while s < hi:
        end = rows[s + 1]
        x = 0.0
        while r < end:
            x = fma(policy[r], q[r - shift], x)
            r += 1
        v[s] = x
        s += 1


@kernel
def backward_sweep(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, plan, chunk, width, keep, greedy, losses, policy, tolerance, q, v
):  # fmt: skip
    """Bellman backups of all layers, from the last to the first, `chunk` states at a time: the work of thread `me` of `n`.

    With `greedy`, v is the minimum over the rows, and the first minimiser is written to `policy`; otherwise v is the mean under
    `policy`. Returns 1 if `policy` is invalid (see `is_policy`; it is not checked if `tolerance` is negative). `width` is the number of
    actions if the rows of whole states fill a vector, else 0. Arrays have numbers for all rows (q, losses, policy) or all states (v).
    Without `keep`, `q` is a work array for the rows of a layer (dense), or of a chunk for each thread (CSR), and `policy` is not written.

    If layers are copies of others, `plan` has `PLAN` numbers for each: the layer of the model of which it is a copy; by how much its
    losses, its rows in `policy` and `q`, and its values are shifted from there; and the same for the values of the next layer (-1 if
    there is none). With an empty plan, each layer is that of the model.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    team = Team(me, n, gate)
    fault = 0
    horizon = plan.size // PLAN if plan.size > 0 else block.size
    f, p, x, y, following = losses, policy, v, q, v
    for i in range(horizon - 1, -1, -1):
        h = i
        last = i == horizon - 1
        if plan.size > 0:
            at = PLAN * i
            h = plan[at]
            last = plan[at + 4] < 0
            f, p, x = losses[plan[at + 1] :], policy[plan[at + 2] :], v[plan[at + 3] :]
            y = q[plan[at + 2] if keep else 0 :]
            following = v[max(0, plan[at + 4]) :]
        size = layers[h + 1] - layers[h]
        end = layers[h] + share(size, me + 1, n)
        for lo in range(layers[h] + share(size, me, n), end, chunk):
            hi = min(lo + chunk, end)
            if tolerance >= 0.0 and not is_policy(p, rows, lo, hi, width, tolerance):
                fault = 1
            shift = 0
            if not keep:
                shift = rows[lo] - me * (q.size // n) if kind > 0 else rows[layers[h]]
            if last:
                for r in range(rows[lo], rows[hi]):
                    y[r - shift] = f[r]
            else:
                expectation(model, h, rows[lo], rows[hi], following, f, 0, y, shift)
            if not greedy:
                mean(rows, lo, hi, width, p, y, shift, x)
            elif keep:
                _minimum(rows, lo, hi, y, p, x)
            else:
                _least(rows, lo, hi, y, shift, x)
        barrier(team.gate, team.me, team.n)
    return fault
