"""Occupancies of many policies under one dynamics: each lane is a policy, so the model is read once for all of them.

The bits are those of `forward.visit_sweep` for one policy after the other: the same partial sums in the same order. A row is an allowed
state-action pair, its weight is its occupancy.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Batch, Model, Own, Pass, Team
from ._jit import inlined, kernel
from ._simd import (
    LANES,
    clamped,
    prefetch,
    strided,
    tadd,
    tload,
    tload_lines,
    tmerge,
    touter,
    tstore,
    tzeros,
    vabove,
    vfma,
    vload,
    vmul,
    vset,
    vstore,
    vsum,
    vtranspose,
)
from ._sync import barrier
from .forward import TINY, merge

__all__ = ["BATCH", "SUMS", "lane_scatter", "lane_weights", "visit_batch_csr", "visit_batch_dense"]

BATCH = 32
"""Number of policies in a large batch under a dense dynamics."""
SUMS = 8 * 6
"""Partial sums of one policy that are computed together under a dense dynamics: eight for each of six next states."""
ROWS_AHEAD = 64
"""Past policies are prefetched so many rows ahead of their use."""
BLOCK = 512
"""Number of rows whose weights are used for several next states while they are in the cache."""


@inlined
def _block_sums(data, o, first, end, own, lanes):
    """Add rows first..end-1 to the partial sums of six next states under `lanes` policies."""
    # One of the eight partial sums, over every eighth row, for six next states times one vector of policies: with their operands they
    # fill sixteen registers of four numbers. With more, sums would be stored and loaded for each row.
    for part in range(8):
        for g in range(0, lanes, 8):
            p = strided(own.sums0 + 6 * lanes * part + g, lanes, 6)
            a = tzeros(6)
            if first > 0:
                a = tload(own.sums, p, 0)
            for i in range(first + part, end, 8):
                a = touter(data, o, i, (vload(own.w, own.w0 + lanes * i + g),), a)
            tstore(own.sums, p, 0, a)


@inlined
def _dots(model, h, own, lanes, lo, hi, d, d0):
    """Occupancy of next states lo..hi-1 of layer h under `lanes` policies: d[d0 + lanes j] = sum_i P(j | row i) w[w0 + lanes i]."""
    # A vector unit multiplies as fast as it loads, so that each vector that is loaded should be used more than once.
    n_rows = model.rows[model.layers[h + 1]] - model.rows[model.layers[h]]
    full = n_rows // 8 * 8
    for j in range(lo, hi, 6):
        # Places after the last state are filled with it; these copies are not stored.
        o = clamped(model.block[h], n_rows, j, hi - 1, 6)
        # Once even if no rows fill a vector, which sets the sums to 0.
        for first in range(0, max(full, 1), BLOCK):
            _block_sums(model.data, o, first, min(first + BLOCK, full), own, lanes)
        for m in range(min(6, hi - j)):
            s = j + m
            for g in range(0, lanes, 8):
                x = tmerge(tload(own.sums, strided(own.sums0 + lanes * m + g, 6 * lanes, 8), 0))[0]
                for i in range(full, n_rows):
                    x = vfma(vset(model.data[model.block[h] + s * n_rows + i]), vload(own.w, own.w0 + lanes * i + g), x)
                vstore(d, d0 + lanes * s + g, x)


@inlined
def lane_scatter(model, h, lo, hi, w, w0, d, d0):
    """Add the share of rows lo..hi-1 of layer h in the occupancies of the next states under eight policies; row lo is at w[w0]."""
    base = np.uint64(d0)
    start = model.block[h] - model.rows[model.layers[h]]
    for r in range(lo, hi):
        x = vload(w, w0 + LANES * (r - lo))
        if vsum(x) > 0.0:
            p = np.uint64(model.indptr[start + r])
            end = np.uint64(model.indptr[start + r + 1])
            while p < end:
                j = np.int64(base + np.uint64(LANES) * model.indices[p])
                vstore(d, j, vfma(vset(model.data[p]), x, vload(d, j)))
                p += np.uint64(1)


@inlined
def _policies(batch, g, r, to, w):
    """Copy rows r..r+7 of policies g..g+7 of the batch to w[to + lanes * (0..7)], row by row."""
    # Lanes beyond the last policy have occupancy 0 everywhere, so it does not matter what is read for them.
    line = batch.k + min(g, batch.count - 1)
    last = batch.k + batch.count - 1
    for x in range(line, min(line + 8, last + 1)):
        prefetch(batch.store[x], r + ROWS_AHEAD)
    tile = vtranspose(tload_lines(batch.store, clamped(0, 1, line, last, 8), r))
    tstore(w, strided(to, batch.lanes, 8), 0, tile)


@inlined
def lane_weights(rows, lo, hi, batch, d, d0, w, w0):
    """Weights of the rows of states lo..hi-1 for all lanes, from w[w0] on; state lo is at d[d0]."""
    tiny = vset(TINY)
    lanes = batch.lanes
    r0 = rows[lo]
    full = r0 + (rows[hi] - r0) // 8 * 8
    for g in range(0, lanes, 8):
        s = lo
        for r in range(r0, full, 8):
            _policies(batch, g, r, w0 + lanes * (r - r0) + g, w)
            for row in range(r, r + 8):
                while rows[s + 1] <= row:
                    s += 1
                to = w0 + lanes * (row - r0) + g
                vstore(w, to, vabove(vmul(vload(d, d0 + lanes * (s - lo) + g), vload(w, to)), tiny))
        for r in range(full, rows[hi]):
            while rows[s + 1] <= r:
                s += 1
            for lane in range(g, g + 8):
                y = d[d0 + lanes * (s - lo) + lane] * batch.store[batch.k + lane, r] if lane < batch.count else 0.0
                w[w0 + lanes * (r - r0) + lane] = y if y > TINY else 0.0


@inlined
def _add(w, w0, lo, hi, batch, visits):
    """Add the weights of rows lo..hi-1 to `visits`; for each row, in the order of the policies."""
    # Eight rows at a time. Lanes beyond the last policy add 0.
    full = lo + (hi - lo) // 8 * 8
    for r in range(lo, full, 8):
        total = vload(visits, r)
        for g in range(0, batch.count, 8):
            rows = strided(w0 + batch.lanes * (r - lo) + g, batch.lanes, 8)
            total = tadd(total, vtranspose(tload(w, rows, 0)))
        vstore(visits, r, total)
    for r in range(full, hi):
        total_of_row = visits[r]
        for lane in range(batch.count):
            total_of_row += w[w0 + batch.lanes * (r - lo) + lane]
        visits[r] = total_of_row


@kernel
def visit_batch_dense(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, shared, lanes, store, k, count, d, w, visits, sums
):  # fmt: skip
    """Add the occupancies of policies store[k..k+count-1] to `visits`, in this order: the work of thread `me` of `n`.

    Each thread takes `lanes` policies at a time, `LANES` or `BATCH`; the threads synchronise only to add to `visits` in turn. With
    `shared`, for at most `lanes` policies in all, each thread takes a part of the next states of each layer instead. For each thread
    and lane, `d` has the size of two layers of states, `w` of a layer of rows, and `sums` has `SUMS` numbers.
    """
    horizon = block.size
    model = Model(kind, data, indptr, indices, block, layers, rows)
    half = d.size // n // 2
    mine = me * (w.size // n)
    own = Own(w, mine, sums, SUMS * lanes * me)
    first_lane = 0 if shared else lanes * me
    for begin in range(first_lane, count + first_lane, lanes * n):
        batch = Batch(store, k + begin, min(lanes, count - begin), lanes)
        now = 0 if shared else 2 * half * me
        after = now + half
        if me == 0 or not shared:
            for lane in range(lanes):
                d[now + lane] = 1.0 if lane < batch.count else 0.0
        if shared:
            barrier(gate, me, n)
        for h in range(horizon):
            first = rows[layers[h]]
            end = rows[layers[h + 1]]
            if batch.count > 0:
                lane_weights(rows, layers[h], layers[h + 1], batch, d, now, w, mine)
            for turn in range(1 if shared else n):
                if turn == me:
                    _add(w, mine, first, end, batch, visits)
                barrier(gate, me, n)
            if h < horizon - 1 and batch.count > 0:
                n_next = layers[h + 2] - layers[h + 1]
                lo = n_next * me // n if shared else 0
                hi = n_next * (me + 1) // n if shared else n_next
                _dots(model, h, own, lanes, lo, hi, d, after)
                if shared:
                    barrier(gate, me, n)
            now, after = after, now


@inlined
def _send_layer(model, team, h, batch, work, d, now, visits):
    """Weights of this thread's parts of CSR layer h, and the parts' sums for the next states; the states of the layer are at d[now]."""
    s0 = model.layers[h]
    size = model.layers[h + 1] - s0
    n_next = model.layers[h + 2] - model.layers[h + 1] if h < model.block.size - 1 else 0
    for p in range(work.parts * team.me // team.n, work.parts * (team.me + 1) // team.n):
        lo = s0 + size * p // work.parts
        hi = s0 + size * (p + 1) // work.parts
        r0 = model.rows[lo]
        r1 = model.rows[hi]
        w0 = LANES * (r0 - model.rows[s0])
        lane_weights(model.rows, lo, hi, batch, d, now + LANES * (lo - s0), work.w, w0)
        _add(work.w, w0, r0, r1, batch, visits)
        if n_next > 0:
            for j in range(LANES * p * n_next, LANES * (p + 1) * n_next):
                work.private[j] = 0.0
            lane_scatter(model, h, r0, r1, work.w, w0, work.private, LANES * p * n_next)


@kernel
def visit_batch_csr(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, store, k, count, d, w, visits, private
):  # fmt: skip
    """The same for at most `LANES` policies under a CSR dynamics; the threads share the parts of each layer.

    For each lane, `d` has the size of two layers of states, `w` of a layer of rows, and `private` of `n_parts` layers of states.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    team = Team(me, n, gate)
    batch = Batch(store, k, count, LANES)
    work = Pass(n_parts, 0, d, w, private)
    now = 0
    after = d.size // 2
    if me == 0:
        for lane in range(LANES):
            d[lane] = 1.0 if lane < count else 0.0
    barrier(gate, me, n)
    for h in range(block.size):
        n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
        _send_layer(model, team, h, batch, work, d, now, visits)
        barrier(gate, me, n)
        if n_next > 0:
            lo = n_next * me // n
            hi = n_next * (me + 1) // n
            merge(private, n_parts, LANES * n_next, LANES * lo, LANES * hi, d, after)
            barrier(gate, me, n)
        now, after = after, now
