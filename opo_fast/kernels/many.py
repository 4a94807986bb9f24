"""Values and occupancies of many policies under one model, which is read once for several policies.

Each thread takes some of the policies and works alone. The bits are those of one policy after the other. A row is an allowed
state-action pair.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Batch, Model, Slices
from ._groups import AHEAD, is_policy
from ._jit import inlined, kernel
from ._simd import (
    clamped,
    fma,
    prefetch,
    strided,
    tfma,
    tload,
    tload_lines,
    touter,
    tstore,
    tzeros,
    vadd,
    vfma,
    vload,
    vset,
    vstore,
    vsum,
    vtranspose,
)
from .batch import lane_scatter, lane_weights
from .evaluation import mean
from .forward import fill_weights

__all__ = ["NARROW", "PANEL", "WIDE", "evaluate_csr", "evaluate_dense", "occupancy_csr", "occupancy_dense"]

NARROW = 6
"""Number of policies whose sums over eight rows of a dense layer, with their operands, fill sixteen registers of four numbers."""
WIDE = 16
"""Number of policies that one pass over a CSR model evaluates."""
PANEL = 12
"""Number of policies in one forward pass over a dense model; a multiple of three."""
BLOCK = 256
"""Number of rows in a forward pass that stay in the first-level cache."""


@inlined
def _next_state(k, n_next, h):
    """The k-th next state of layer h in the order of `evaluation.expectation`."""
    eights = n_next // 8
    eight = k // 8
    return 8 * (eights - 1 - eight) + k % 8 if h % 2 and eight < eights else k


@inlined
def _pack_rows(model, h, lo, hi, panel, at):
    """Copy rows lo..hi-1 of layer h to panel[at:], eight rows after another, each (next state, row); the last eight are padded with 0."""
    n_next = model.layers[h + 2] - model.layers[h + 1]
    first = model.rows[model.layers[h]]
    n_rows = model.rows[model.layers[h + 1]] - first
    start = model.block[h] - first
    full = lo + (hi - lo) // 8 * 8
    for k in range(n_next):
        x = start + _next_state(k, n_next, h) * n_rows
        p = at + 8 * k
        for i in range(lo, full, 8):
            vstore(panel, p, vload(model.data, x + i))
            p += 8 * n_next
        if full < hi:
            for r in range(8):
                panel[p + r] = model.data[x + full + r] if full + r < hi else 0.0


@inlined
def _prefetch(array, lo, hi):
    """Prefetch elements lo..hi-1, which may lie beyond the array; the policies are too far apart for automatic prefetching."""
    for i in range(lo, hi, 8):
        prefetch(array, i)


@inlined
def _back_panel(losses, lo, hi, n_next, panel, at, packed, k0, q, o, edge, e0):
    """Q of rows lo..hi-1, into q[o[m] + r], under six policies m, whose next values are packed[k0 + 6 k + m]."""
    for i in range(lo, hi, 8):
        p = at + (i - lo) * n_next
        if i + 8 <= hi:
            x = vload(losses, i)
        else:
            for r in range(8):
                edge[e0 + r] = losses[i + r] if i + r < hi else 0.0
            x = vload(edge, e0)
        sums = (x, x, x, x, x, x)
        for k in range(n_next):
            sums = touter(packed, strided(k0, 1, 6), 6 * k, (vload(panel, p + 8 * k),), sums)
        if i + 8 <= hi:
            tstore(q, o, i, sums)
        else:
            tstore(edge, strided(e0, 8, 6), 0, sums)
            for m in range(6):
                for r in range(i, hi):
                    q[o[m] + r] = edge[e0 + 8 * m + r - i]


@kernel
def evaluate_dense(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, chunk, width, stride, losses, policies, tolerance, q, v, panel,
    packed, edge,
):  # fmt: skip
    """Q and V of policies under a dense model, `chunk` states at a time (a multiple of 8): the work of thread `me` of `n`.

    `stride` is the length of a policy's line of q; 0 if Q is not kept, and q is a work array of `NARROW` times the rows of a chunk for
    each thread. Each thread has a part of `panel`, for the rows of a chunk and eight more, and 64 numbers of `edge`; `packed` has the
    next values for each group of `NARROW` policies. Returns 1 if a policy is invalid.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    count = policies.shape[0]
    groups = (count + NARROW - 1) // NARROW
    group_size = packed.size // groups
    at = me * (panel.size // n)
    fault = 0
    for h in range(block.size - 1, -1, -1):
        n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
        for lo in range(layers[h], layers[h + 1], chunk):
            hi = min(lo + chunk, layers[h + 1])
            if n_next > 0:
                _pack_rows(model, h, rows[lo], rows[hi], panel, at)
            for g in range(groups * me // n, groups * (me + 1) // n):
                first = NARROW * g
                last = min(first + NARROW, count) - 1
                line = stride
                base = first * stride
                if stride == 0:
                    line = q.size // n // NARROW
                    base = me * (q.size // n) - rows[lo]
                o = clamped(base, line, 0, last - first, 6)
                _back_panel(losses, rows[lo], rows[hi], n_next, panel, at, packed, g * group_size, q, o, edge, 64 * me)
                for b in range(first, last + 1):
                    if tolerance >= 0.0 and not is_policy(policies[b], rows, lo, hi, width, tolerance):
                        fault = 1
                    mean(rows, lo, hi, width, policies[b], q, -(base + (b - first) * line), v[b])
                    _prefetch(policies[b], rows[hi], 2 * rows[hi] - rows[lo])
        size = layers[h + 1] - layers[h]
        for g in range(groups * me // n, groups * (me + 1) // n):
            for m in range(NARROW):
                b = min(NARROW * g + m, count - 1)
                for k in range(size):
                    # In the order in which the previous layer reads them.
                    packed[g * group_size + NARROW * k + m] = v[b, layers[h] + _next_state(k, size, h + 1)]
    return fault


@inlined
def _row_csr(model, p, end, loss, now, near):
    """Q of one row under `WIDE` policies; its entries are p..end-1, and the values of next state j begin at near[now + 16 j]."""
    # The four partial sums of `evaluation.expectation`.
    data = model.data
    indices = model.indices
    zero = vset(0.0)
    x = vset(loss)
    full = p + (end - p) // 4 * 4
    x0 = (x, x)
    x1 = (zero, zero)
    x2 = (zero, zero)
    x3 = (zero, zero)
    for i in range(p, full, 4):
        x0 = tfma(near, strided(now + WIDE * np.int64(indices[i]), 8, 2), 0, vset(data[i]), x0)
        x1 = tfma(near, strided(now + WIDE * np.int64(indices[i + 1]), 8, 2), 0, vset(data[i + 1]), x1)
        x2 = tfma(near, strided(now + WIDE * np.int64(indices[i + 2]), 8, 2), 0, vset(data[i + 2]), x2)
        x3 = tfma(near, strided(now + WIDE * np.int64(indices[i + 3]), 8, 2), 0, vset(data[i + 3]), x3)
    for i in range(full, end):
        x0 = tfma(near, strided(now + WIDE * np.int64(indices[i]), 8, 2), 0, vset(data[i]), x0)
    return (vadd(vadd(x0[0], x2[0]), vadd(x1[0], x3[0])), vadd(vadd(x0[1], x2[1]), vadd(x1[1], x3[1])))


@inlined
def _back_rows_csr(model, h, lo, hi, losses, now, near, work, q, o8, o16):
    """Q of rows lo..hi-1 of layer h under `WIDE` policies, into q[o[m] + r]; `o8` has the first eight positions o, `o16` the others."""
    last = h == model.block.size - 1
    start = model.block[h] - model.rows[model.layers[h]]
    for i in range(lo, hi, 8):
        for r in range(i, min(i + 8, hi)):
            if last:
                x = (vset(losses[r]), vset(losses[r]))
            else:
                x = _row_csr(model, model.indptr[start + r], model.indptr[start + r + 1], losses[r], now, near)
            tstore(near, strided(work + WIDE * (r - i), 8, 2), 0, x)
        if i + 8 <= hi:
            tstore(q, o8, i, vtranspose(tload(near, strided(work, WIDE, 8), 0)))
            tstore(q, o16, i, vtranspose(tload(near, strided(work + 8, WIDE, 8), 0)))
        else:
            for m in range(8):
                for r in range(i, hi):
                    q[o8[m] + r] = near[work + WIDE * (r - i) + m]
                    q[o16[m] + r] = near[work + WIDE * (r - i) + 8 + m]


@inlined
def _interleave(v, first, last, lo, hi, near, to):
    """Copy the values of states lo..hi-1 under policies first..last to near[to:], state by state; the last policy is repeated."""
    for s in range(lo, hi, 8):
        for g in range(0, WIDE, 8):
            if s + 8 <= hi:
                tile = vtranspose(tload_lines(v, clamped(0, 1, first + g, last, 8), s))
                tstore(near, strided(to + WIDE * (s - lo) + g, WIDE, 8), 0, tile)
            else:
                for state in range(s, hi):
                    for m in range(g, g + 8):
                        near[to + WIDE * (state - lo) + m] = v[min(first + m, last), state]


@kernel
def evaluate_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, chunk, width, stride, losses, policies, tolerance, q, v, near
):  # fmt: skip
    """`evaluate_dense` for a CSR model. For each thread, `near` has `WIDE` numbers for each state of two layers, and for eight more."""
    model = Model(kind, data, indptr, indices, block, layers, rows)
    count = policies.shape[0]
    groups = (count + WIDE - 1) // WIDE
    per_thread = near.size // n
    half = (per_thread - 8 * WIDE) // 2
    fault = 0
    for g in range(groups * me // n, groups * (me + 1) // n):
        first = WIDE * g
        last = min(first + WIDE, count) - 1
        now = me * per_thread
        after = now + half
        for h in range(block.size - 1, -1, -1):
            for lo in range(layers[h], layers[h + 1], chunk):
                hi = min(lo + chunk, layers[h + 1])
                line = stride
                base = first * stride
                if stride == 0:
                    line = q.size // n // WIDE
                    base = me * (q.size // n) - rows[lo]
                o8 = clamped(base, line, 0, last - first, 8)
                o16 = clamped(base, line, 8, last - first, 8)
                _back_rows_csr(model, h, rows[lo], rows[hi], losses, now, near, me * per_thread + 2 * half, q, o8, o16)
                for b in range(first, last + 1):
                    if tolerance >= 0.0 and not is_policy(policies[b], rows, lo, hi, width, tolerance):
                        fault = 1
                    mean(rows, lo, hi, width, policies[b], q, -(base + (b - first) * line), v[b])
                    _prefetch(policies[b], rows[hi], 2 * rows[hi] - rows[lo])
                _interleave(v, first, last, lo, hi, near, after + WIDE * (lo - layers[h]))
            now, after = after, now
    return fault


# -- forward ---------------------------------------------------------------------------------------------------------------


@inlined
def _are_policies(policies, first, end, layers, rows, width, tolerance):
    """Whether policies first..end-1 are valid (see `is_policy`)."""
    valid = True
    for b in range(first, end):
        for h in range(layers.size - 1):
            valid = valid and is_policy(policies[b], rows, layers[h], layers[h + 1], width, tolerance)
    return valid


@inlined
def _products(data, start, n_rows, j, size, w, w0, line, lanes, sums, a0):
    """Partial sums for next states j..j+size-1, at most eight, under `lanes` policies; vectors at sums[a0 + 8 (PANEL state + lane)]."""
    full = n_rows // 8 * 8
    for begin in range(0, max(full, 1), BLOCK):
        end = min(begin + BLOCK, full)
        for lane in range(0, lanes, 3):
            o = clamped(w0, line, lane, lanes - 1, 3)
            for m in range(0, size, 2):
                p0 = start + (j + m) * n_rows
                p1 = start + (j + min(m + 1, size - 1)) * n_rows
                to0 = strided(a0 + 8 * (PANEL * m + lane), 8, 3)
                to1 = strided(a0 + 8 * (PANEL * (m + 1) + lane), 8, 3)
                x0 = tzeros(to0)
                x1 = tzeros(to1)
                if begin > 0:
                    x0 = tload(sums, to0, 0)
                    x1 = tload(sums, to1, 0)
                for i in range(begin, end, 8):
                    x0 = tfma(w, o, i, vload(data, p0 + i), x0)
                    x1 = tfma(w, o, i, vload(data, p1 + i), x1)
                tstore(sums, to0, 0, x0)
                tstore(sums, to1, 0, x1)


@inlined
def _reach(model, h, lanes, w, w0, line, sums, a0, d, d0):
    """Occupancies d[d0 + lane] of the states of layer h + 1, from the occupancies w[w0 + line * lane] of the rows of layer h."""
    s0 = model.layers[h + 1]
    n_next = model.layers[h + 2] - s0
    n_rows = model.rows[s0] - model.rows[model.layers[h]]
    start = model.block[h]
    for j in range(0, n_next, 8):
        size = min(8, n_next - j)
        _products(model.data, start, n_rows, j, size, w, w0, line, lanes, sums, a0)
        for m in range(size):
            for lane in range(lanes):
                x = vsum(vload(sums, a0 + 8 * (PANEL * m + lane)))
                for i in range(n_rows // 8 * 8, n_rows):
                    x = fma(model.data[start + (j + m) * n_rows + i], w[w0 + line * lane + i], x)
                d[d0 + lane, s0 + j + m] = x


@kernel
def occupancy_dense(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, width, policies, tolerance, d, w, sums, visits
):  # fmt: skip
    """The occupancy of each policy under a dense model, in its line of `visits`: the work of thread `me` of `n`.

    For each thread, `d` has `PANEL` lines for the states and eight more numbers, `w` has `PANEL` times the rows of a layer, and `sums`
    has 64 times `PANEL` numbers. Returns 1 if a policy is invalid.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    count = policies.shape[0]
    end = count * (me + 1) // n
    d0 = PANEL * me
    w0 = me * (w.size // n)
    line = w.size // n // PANEL
    fault = 0
    if tolerance >= 0.0 and not _are_policies(policies, count * me // n, end, layers, rows, width, tolerance):
        fault = 1
    for first in range(count * me // n, end, PANEL):
        lanes = min(PANEL, end - first)
        for lane in range(lanes):
            d[d0 + lane, 0] = 1.0
        for h in range(block.size):
            for lane in range(lanes):
                shift = w0 + line * lane - rows[layers[h]]
                fill_weights(rows, layers[h], layers[h + 1], width, policies[first + lane], d[d0 + lane], visits[first + lane], w, shift)
            if h < block.size - 1:
                _reach(model, h, lanes, w, w0, line, sums, 64 * PANEL * me, d, d0)
    return fault


@inlined
def _hand_out(w, w0, lo, hi, batch, stride, visits):
    """Write the occupancies of rows lo..hi-1 to the policies' lines of `visits`, of `stride` numbers each."""
    to = batch.k * stride
    for r in range(lo, hi, 8):
        if r + 8 <= hi and batch.count == 8:
            tstore(visits, strided(to + r, stride, 8), 0, vtranspose(tload(w, strided(w0 + 8 * (r - lo), 8, 8), 0)))
        else:
            for lane in range(batch.count):
                for i in range(r, min(r + 8, hi)):
                    visits[to + lane * stride + i] = w[w0 + 8 * (i - lo) + lane]


@inlined
def _line(slices, i, p0):
    """Where the sums of the state in lane i of all slices go."""
    return p0 + 8 * np.int64(slices.states[i])


@inlined
def _lane_gather(slices, slice0, n_next, w, w0, private, p0):
    """private[p0 + 8 j + lane] = the sum over the rows of a part, whose weights begin at w0, for its next states j."""
    weights, positions = slices.weights, slices.positions
    for j in range(0, n_next, 4):
        # Four states at a time: one sum would wait for each multiply-add to finish.
        i = slice0 + j // 8
        x = tzeros(4)
        for p in range(slices.starts[i] + j % 8, slices.starts[i + 1], 8):
            prefetch(weights, p + AHEAD)
            prefetch(positions, p + AHEAD)
            y0 = vfma(vset(weights[p]), vload(w, w0 + 8 * np.int64(positions[p])), x[0])
            y1 = vfma(vset(weights[p + 1]), vload(w, w0 + 8 * np.int64(positions[p + 1])), x[1])
            y2 = vfma(vset(weights[p + 2]), vload(w, w0 + 8 * np.int64(positions[p + 2])), x[2])
            y3 = vfma(vset(weights[p + 3]), vload(w, w0 + 8 * np.int64(positions[p + 3])), x[3])
            x = (y0, y1, y2, y3)
        i = 8 * slice0 + j
        vstore(private, _line(slices, i, p0), x[0])
        # Beyond the last state, lanes have none.
        if j + 1 < n_next:
            vstore(private, _line(slices, i + 1, p0), x[1])
        if j + 2 < n_next:
            vstore(private, _line(slices, i + 2, p0), x[2])
        if j + 3 < n_next:
            vstore(private, _line(slices, i + 3, p0), x[3])


@inlined
def _merge(private, p0, n_parts, size, d, d0):
    """d[d0 + j] = the sum over the parts' vectors from private[p0] on, in their order; `forward.merge` with an offset."""
    for j in range(size):
        x = private[p0 + j]
        for p in range(1, n_parts):
            x += private[p0 + p * size + j]
        d[d0 + j] = x


@kernel
def occupancy_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, starts, states, positions, weights, first, n_parts, width, stride,
    policies, tolerance, d, w, private, visits
):  # fmt: skip
    """`occupancy_dense` for a CSR model, eight policies at a time; `stride` is the length of a policy's line of `visits`.

    Without the transposed copy in slices (see `slices`) its arrays are empty. The bits are the same.

    For each thread and lane, `d` has the size of two layers of states, `w` of a layer of rows, and `private` of `n_parts` layers of
    states.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    slices = Slices(starts, states, positions, weights, first, layers, rows)
    count = policies.shape[0]
    groups = (count + 7) // 8
    half = d.size // n // 2
    w0 = me * (w.size // n)
    p0 = me * (private.size // n)
    fault = 0
    for g in range(groups * me // n, groups * (me + 1) // n):
        batch = Batch(policies, 8 * g, min(8, count - 8 * g), 8)
        if tolerance >= 0.0 and not _are_policies(policies, 8 * g, 8 * g + batch.count, layers, rows, width, tolerance):
            fault = 1
        now = 2 * half * me
        after = now + half
        for lane in range(8):
            d[now + lane] = 1.0 if lane < batch.count else 0.0
        for h in range(block.size):
            s0 = layers[h]
            size = layers[h + 1] - s0
            n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
            for p in range(n_parts):
                lo = s0 + size * p // n_parts
                hi = s0 + size * (p + 1) // n_parts
                lane_weights(rows, lo, hi, batch, d, now + 8 * (lo - s0), w, w0)
                _hand_out(w, w0, rows[lo], rows[hi], batch, stride, visits)
                mine = p0 + 8 * p * n_next
                if n_next > 0 and first.size > 0:
                    _lane_gather(slices, first[h] + p * ((n_next + 7) // 8), n_next, w, w0, private, mine)
                elif n_next > 0:
                    for j in range(mine, mine + 8 * n_next):
                        private[j] = 0.0
                    lane_scatter(model, h, rows[lo], rows[hi], w, w0, private, mine)
            if n_next > 0:
                _merge(private, p0, n_parts, 8 * n_next, d, after)
            now, after = after, now
    return fault
