"""Values and occupancies of many policies under one CSR model: `many` for sparse models.

A lane is a policy, and each stored transition is read once for all lanes. Policies are turned to lanes as they are read, a few states at
a time, so that sums over the actions of a state are sums of vectors. The bits are those of one policy after the other. A row is an
allowed state-action pair.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Batch, Chunk, Model, Slices, Visits
from ._groups import SOON
from ._jit import inlined, kernel
from ._simd import (
    clamped,
    prefetch,
    strided,
    tfma,
    tload,
    tload_lines,
    tstore,
    vabove,
    vadd,
    vfma,
    vload,
    vmax,
    vmin,
    vmul,
    vset,
    vstore,
    vsub,
    vsum,
    vtranspose,
)
from .batch import lane_scatter
from .forward import TINY

__all__ = ["LANES", "WIDE", "evaluate_csr", "occupancy_csr"]

WIDE = 16
"""Number of policies that one backward pass evaluates."""
LANES = 8
"""Number of policies in one forward pass."""
STATES = 16
"""Number of states that a forward pass weighs at a time."""
ROWS_AHEAD = 64
"""Policies are prefetched so many rows ahead: they are too far apart for automatic prefetching."""


@inlined
def _lines(x, x0, lanes, g, lo, hi, to, o):
    """The opposite of `_lanes`, for eight lanes from `g` on: copy the columns lo..hi-1 at x[x0:] to the lines that begin at to[o[m]]."""
    for i in range(lo, hi, 8):
        at = x0 + lanes * (i - lo) + g
        if i + 8 <= hi:
            tstore(to, o, i, vtranspose(tload(x, strided(at, lanes, 8), 0)))
        else:
            for m in range(8):
                for column in range(i, hi):
                    to[o[m] + column] = x[at + lanes * (column - i) + m]


@inlined
def _in_pairs(rows, lo, hi, width):
    """The first state after those whose sums over actions are added in pairs: those whose rows fill vectors (see `_groups`)."""
    return lo + (rows[hi] - rows[lo]) // 8 * (8 // width) if width > 0 else lo


@inlined
def _nothing():
    """The initial value of `seen`."""
    return (vset(0.0), vset(0.0), vset(0.0))


@inlined
def _note(total, seen):
    """Record a state's sum of probabilities in `seen`, in eight lanes.

    `seen` is the largest squared error of a sum, the least probability, and NaN if any was not finite.
    """
    miss = vsub(total, vset(1.0))
    return (vmax(vmul(miss, miss), seen[0]), seen[1], vfma(miss, vset(0.0), seen[2]))


@inlined
def _watch(p, at, step, n, seen):
    """Record the `n` probabilities of a state in `seen`; row i is at p[at + step * i]."""
    total = vset(0.0)
    least = seen[1]
    for i in range(at, at + step * n, step):
        x = vload(p, i)
        total = vadd(total, x)
        least = vmin(x, least)
    return _note(total, (seen[0], least, seen[2]))


@inlined
def _watch_tile(tile, width, seen):
    """Record the probabilities of eight rows in `seen`: those of whole states, with `width` actions each."""
    least = seen[1]
    for x in tile:
        least = vmin(x, least)
    seen = (seen[0], least, seen[2])
    x = (vadd(tile[0], tile[1]), vadd(tile[2], tile[3]), vadd(tile[4], tile[5]), vadd(tile[6], tile[7]))
    if width == 2:
        return _note(x[0], _note(x[1], _note(x[2], _note(x[3], seen))))
    if width == 4:
        return _note(vadd(x[0], x[1]), _note(vadd(x[2], x[3]), seen))
    return _note(vadd(vadd(x[0], x[1]), vadd(x[2], x[3])), seen)


@inlined
def _lanes(batch, lo, hi, to, t0, width, seen):
    """Copy rows lo..hi-1 of the policies of `batch` to to[t0:], a number per lane for each row; the last policy is repeated.

    If `width` is not 0, every eight rows are whole states with `width` actions each; their sums are recorded in `seen`.
    """
    policies, first, lanes = batch.store, batch.k, batch.lanes
    last = first + batch.count - 1
    for r in range(lo, hi, 8):
        for g in range(0, lanes, 8):
            if r + 8 <= hi:
                tile = vtranspose(tload_lines(policies, clamped(0, 1, first + g, last, 8), r))
                tstore(to, strided(t0 + lanes * (r - lo) + g, lanes, 8), 0, tile)
                if width > 0:
                    seen = _watch_tile(tile, width, seen)
            else:
                for row in range(r, hi):
                    for m in range(g, g + 8):
                        to[t0 + lanes * (row - lo) + m] = policies[min(first + m, last), row]
    return seen


@inlined
def _accepted(seen, tolerance):
    """Whether all policies that were watched have probabilities that sum to 1 within `tolerance` in each state."""
    faults = vadd(vabove(seen[0], vset(tolerance * tolerance)), vabove(vsub(vset(0.0), seen[1]), vset(0.0)))
    return vsum(vadd(faults, seen[2])) == 0.0


@inlined
def _four(x, i):
    """Elements i..i+3; unsigned positions skip the test for negative ones, which would take a sixth of the time of a pass."""
    i0 = np.uint64(i)
    return (x[i0], x[i0 + np.uint64(1)], x[i0 + np.uint64(2)], x[i0 + np.uint64(3)])


# -- backward --------------------------------------------------------------------------------------------------------------


@inlined
def _row_csr(model, p, end, loss, now, near):
    """Q of one row under `WIDE` policies; its entries are p..end-1, and the values of next state j begin at near[now + 16 j]."""
    # The four partial sums of `evaluation.expectation`.
    data, indices = model.data, model.indices
    zero = vset(0.0)
    x = vset(loss)
    full = p + (end - p) // 4 * 4
    x0 = (x, x)
    x1 = (zero, zero)
    x2 = (zero, zero)
    x3 = (zero, zero)
    for i in range(p, full, 4):
        j = _four(indices, i)
        y = _four(data, i)
        x0 = tfma(near, strided(now + WIDE * np.int64(j[0]), 8, 2), 0, vset(y[0]), x0)
        x1 = tfma(near, strided(now + WIDE * np.int64(j[1]), 8, 2), 0, vset(y[1]), x1)
        x2 = tfma(near, strided(now + WIDE * np.int64(j[2]), 8, 2), 0, vset(y[2]), x2)
        x3 = tfma(near, strided(now + WIDE * np.int64(j[3]), 8, 2), 0, vset(y[3]), x3)
    for i in range(full, end):
        x0 = tfma(near, strided(now + WIDE * np.int64(indices[np.uint64(i)]), 8, 2), 0, vset(data[np.uint64(i)]), x0)
    return (vadd(vadd(x0[0], x2[0]), vadd(x1[0], x3[0])), vadd(vadd(x0[1], x2[1]), vadd(x1[1], x3[1])))


@inlined
def _back_rows(model, h, lo, hi, losses, batch, now, work):
    """Q of rows lo..hi-1 of layer h under the policies of `batch`, row by row; the next layer's values begin at work.near[now]."""
    start = model.block[h] - model.rows[model.layers[h]]
    end_of_all = h == model.block.size - 1
    for i in range(lo, hi, 8):
        # A line of each policy while eight rows are computed, so that memory is never idle.
        for b in range(batch.k, batch.k + batch.count):
            prefetch(batch.store[b], i + ROWS_AHEAD)
        for r in range(i, min(i + 8, hi)):
            if end_of_all:
                x = (vset(losses[r]), vset(losses[r]))
            else:
                x = _row_csr(model, model.indptr[start + r], model.indptr[start + r + 1], losses[r], now, work.near)
            tstore(work.near, strided(work.q0 + WIDE * (r - lo), 8, 2), 0, x)


@inlined
def _pair(near, p, q):
    """The terms of two rows in a mean, added: their probabilities begin at near[p], their Q at near[q]."""
    return vadd(vmul(vload(near, p), vload(near, q)), vmul(vload(near, p + WIDE), vload(near, q + WIDE)))


@inlined
def _mean(near, p, q, n, pairs):
    """The mean of Q over the `n` rows of a state in eight lanes, in the order of `evaluation.mean`."""
    x = vset(0.0)
    if pairs:
        x = _pair(near, p, q)
        if n > 2:
            x = vadd(x, _pair(near, p + 2 * WIDE, q + 2 * WIDE))
        if n > 4:
            x = vadd(x, vadd(_pair(near, p + 4 * WIDE, q + 4 * WIDE), _pair(near, p + 6 * WIDE, q + 6 * WIDE)))
    else:
        for i in range(0, WIDE * n, WIDE):
            x = vfma(vload(near, p + i), vload(near, q + i), x)
    return x


@inlined
def _means(rows, lo, hi, middle, work, to, check, seen):
    """Values of states lo..hi-1 under `WIDE` policies, into work.near[to:], from probabilities and Q of their rows.

    The states before `middle` are those of `_in_pairs`; with `check`, the sums of the others are recorded in `seen`.
    """
    near, p0, q0 = work.near, work.p0, work.q0
    for s in range(lo, hi):
        at = WIDE * (rows[s] - rows[lo])
        n = rows[s + 1] - rows[s]
        for g in range(0, WIDE, 8):
            vstore(near, to + WIDE * (s - lo) + g, _mean(near, p0 + at + g, q0 + at + g, n, s < middle))
            if check and s >= middle:
                seen = _watch(near, p0 + at + g, WIDE, n, seen)
    return seen


@kernel
def evaluate_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, most, chunk, width, stride, losses, policies, tolerance, q, v, near
):  # fmt: skip
    """Q and V of policies under a CSR model, `chunk` states at a time: the work of thread `me` of `n`.

    `stride` is the length of a policy's line of q; 0 if Q is not kept. `most` is the number of states of the largest layer. For each
    thread, `near` has `WIDE` numbers for each of `most` states, twice, and for each row of a chunk, twice. Returns 1 if a policy is
    invalid.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    count = policies.shape[0]
    groups = (count + WIDE - 1) // WIDE
    n_states = layers[block.size]
    fault = 0
    p0 = me * (near.size // n) + 2 * WIDE * most
    q0 = p0 + (near.size // n - 2 * WIDE * most) // 2
    work = Chunk(near, p0, q0)
    check = tolerance >= 0.0
    for g in range(groups * me // n, groups * (me + 1) // n):
        first = WIDE * g
        last = min(first + WIDE, count) - 1
        batch = Batch(policies, first, last - first + 1, WIDE)
        now = me * (near.size // n)
        after = now + WIDE * most
        seen = _nothing()
        for h in range(block.size - 1, -1, -1):
            for lo in range(layers[h], layers[h + 1], chunk):
                hi = min(lo + chunk, layers[h + 1])
                middle = _in_pairs(rows, lo, hi, width)
                seen = _lanes(batch, rows[lo], rows[hi], near, p0, width if check else 0, seen)
                _back_rows(model, h, rows[lo], rows[hi], losses, batch, now, work)
                seen = _means(rows, lo, hi, middle, work, after + WIDE * (lo - layers[h]), check, seen)
                if stride > 0:
                    for half in range(0, WIDE, 8):
                        o = clamped(first * stride, stride, half, last - first, 8)
                        _lines(near, q0, WIDE, half, rows[lo], rows[hi], q, o)
            for half in range(0, WIDE, 8):
                # Whole layers: writing a few states of each policy at a time is several times slower.
                o = clamped(first * n_states, n_states, half, last - first, 8)
                _lines(near, after, WIDE, half, layers[h], layers[h + 1], v, o)
            now, after = after, now
        if check and not _accepted(seen, tolerance):
            fault = 1
    return fault


# -- forward ---------------------------------------------------------------------------------------------------------------


@inlined
def _weigh_tiles(lo, hi, width, tolerance, batch, work, d0, w0):
    """Weights of rows lo..hi-1, whole states of `width` actions that fill vectors, at work.w[w0:] and in the policies' lines.

    The first state is at work.d[d0]. Returns whether the policies are valid there; they are not checked if `tolerance` is negative.
    """
    d, visits, stride = work.d, work.lines, work.stride
    tiny = vset(TINY)
    seen = _nothing()
    last = batch.count - 1
    for r in range(lo, hi, 8):
        for b in range(batch.k, batch.k + batch.count):
            prefetch(batch.store[b], r + ROWS_AHEAD)
            prefetch(visits, b * stride + r + ROWS_AHEAD)
        p = vtranspose(tload_lines(batch.store, clamped(batch.k, 1, 0, last, 8), r))
        if tolerance >= 0.0:
            seen = _watch_tile(p, width, seen)
        # The states of the eight rows.
        s = d0 + LANES * ((r - lo) // width)
        x0 = vload(d, s)
        x2 = vload(d, s + LANES) if width == 2 else x0
        x4 = x0 if width == 8 else vload(d, s + LANES * (4 // width))
        x6 = vload(d, s + 3 * LANES) if width == 2 else x4
        y0, y1 = vabove(vmul(x0, p[0]), tiny), vabove(vmul(x0, p[1]), tiny)
        y2, y3 = vabove(vmul(x2, p[2]), tiny), vabove(vmul(x2, p[3]), tiny)
        y4, y5 = vabove(vmul(x4, p[4]), tiny), vabove(vmul(x4, p[5]), tiny)
        y6, y7 = vabove(vmul(x6, p[6]), tiny), vabove(vmul(x6, p[7]), tiny)
        y = (y0, y1, y2, y3, y4, y5, y6, y7)
        tstore(work.w, strided(w0 + LANES * (r - lo), LANES, 8), 0, y)
        tstore(visits, clamped(batch.k * stride, stride, 0, last, 8), r, vtranspose(y))
    return _accepted(seen, tolerance)


@inlined
def _weigh(rows, lo, hi, tolerance, batch, work, d0, w0):
    """The same for the rows of states lo..hi-1, whatever their numbers."""
    w = work.w
    tiny = vset(TINY)
    seen = _nothing()
    last = batch.count - 1
    for c0 in range(lo, hi, STATES):
        c1 = min(c0 + STATES, hi)
        at = w0 + LANES * (rows[c0] - rows[lo])
        seen = _lanes(batch, rows[c0], rows[c1], w, at, 0, seen)
        for s in range(c0, c1):
            n = rows[s + 1] - rows[s]
            i = w0 + LANES * (rows[s] - rows[lo])
            if tolerance >= 0.0:
                seen = _watch(w, i, LANES, n, seen)
            x = vload(work.d, d0 + LANES * (s - lo))
            for row in range(i, i + LANES * n, LANES):
                vstore(w, row, vabove(vmul(x, vload(w, row)), tiny))
        _lines(w, at, LANES, 0, rows[c0], rows[c1], work.lines, clamped(batch.k * work.stride, work.stride, 0, last, 8))
    return _accepted(seen, tolerance)


@inlined
def _line(slices, i, d0):
    """Where the sum of the state in lane i of all slices goes."""
    return d0 + LANES * np.int64(slices.states[i])


@inlined
def _put(d, at, x, add):
    vstore(d, at, vadd(vload(d, at), x) if add else x)


@inlined
def _gather(slices, slice0, n_next, w, w0, d, d0, add):
    """The sums over the rows of a part, whose weights begin at w[w0], for its next states j: at d[d0 + 8 j], or added to it."""
    weights, positions = slices.weights, slices.positions
    for j in range(0, n_next, 4):
        # Four states at a time: one sum would wait for each multiply-add to finish.
        i = slice0 + j // 8
        x0 = vset(0.0)
        x1 = x0
        x2 = x0
        x3 = x0
        for p in range(slices.starts[i] + j % 8, slices.starts[i + 1], 8):
            prefetch(weights, p + SOON)
            prefetch(positions, p + SOON)
            y = _four(weights, p)
            r = _four(positions, p)
            x0 = vfma(vset(y[0]), vload(w, w0 + LANES * np.int64(r[0])), x0)
            x1 = vfma(vset(y[1]), vload(w, w0 + LANES * np.int64(r[1])), x1)
            x2 = vfma(vset(y[2]), vload(w, w0 + LANES * np.int64(r[2])), x2)
            x3 = vfma(vset(y[3]), vload(w, w0 + LANES * np.int64(r[3])), x3)
        i = 8 * slice0 + j
        _put(d, _line(slices, i, d0), x0, add)
        # Lanes beyond the last state belong to no state.
        if j + 1 < n_next:
            _put(d, _line(slices, i + 1, d0), x1, add)
        if j + 2 < n_next:
            _put(d, _line(slices, i + 2, d0), x2, add)
        if j + 3 < n_next:
            _put(d, _line(slices, i + 3, d0), x3, add)


@inlined
def _spread(model, h, lo, hi, work, w0, d0, add):
    """`_gather` without a copy in slices, for rows lo..hi-1 of layer h; with `add`, the sums are first computed in work.private."""
    d, private, p0 = work.d, work.private, work.private0
    to = private if add else d
    t0 = p0 if add else d0
    n = LANES * (model.layers[h + 2] - model.layers[h + 1])
    for j in range(t0, t0 + n):
        to[j] = 0.0
    lane_scatter(model, h, lo, hi, work.w, w0, to, t0)
    if add:
        for j in range(n):
            d[d0 + j] += private[p0 + j]


@kernel
def occupancy_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, starts, states, positions, weights, first, n_parts, width, stride,
    policies, tolerance, d, w, private, visits
):  # fmt: skip
    """The occupancy of each policy under a CSR model, in its line of `visits`, of `stride` numbers: the work of thread `me` of `n`.

    Without the transposed copy in slices (see `transposed_slices`) its arrays are empty. The bits are the same.

    For each thread and lane, `d` has the size of two layers of states, `w` of a layer of rows, and `private` of a layer of states.
    Returns 1 if a policy is invalid.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    slices = Slices(starts, states, positions, weights, first, layers, rows)
    count = policies.shape[0]
    groups = (count + LANES - 1) // LANES
    half = d.size // n // 2
    w0 = me * (w.size // n)
    work = Visits(d, w, private, me * (private.size // n), visits, stride)
    fault = 0
    for g in range(groups * me // n, groups * (me + 1) // n):
        batch = Batch(policies, LANES * g, min(LANES, count - LANES * g), LANES)
        now = 2 * half * me
        after = now + half
        vstore(d, now, vset(1.0))
        for h in range(block.size):
            s0 = layers[h]
            size = layers[h + 1] - s0
            n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
            for p in range(n_parts):
                lo = s0 + size * p // n_parts
                hi = s0 + size * (p + 1) // n_parts
                middle = _in_pairs(rows, lo, hi, width)
                at = w0 + LANES * (rows[middle] - rows[lo])
                d0 = now + LANES * (lo - s0)
                valid = True
                if middle > lo:
                    valid = _weigh_tiles(rows[lo], rows[middle], width, tolerance, batch, work, d0, w0)
                if middle < hi:
                    d0 += LANES * (middle - lo)
                    valid = _weigh(rows, middle, hi, tolerance, batch, work, d0, at) and valid
                if tolerance >= 0.0 and not valid:
                    fault = 1
                if n_next > 0 and first.size > 0:
                    _gather(slices, first[h] + p * ((n_next + 7) // 8), n_next, w, w0, d, after, p > 0)
                elif n_next > 0:
                    _spread(model, h, rows[lo], rows[hi], work, w0, after, p > 0)
            now, after = after, now
    return fault
