"""Values and occupancies of many policies under one dense model, which is read once for several policies; `many_csr` for CSR models.

Each thread takes some of the policies and works alone. The bits are those of one policy after the other. A row is an allowed
state-action pair.
"""

from __future__ import annotations

from ._arguments import Model, Own, Panel
from ._groups import is_policy
from ._jit import inlined, kernel
from ._simd import (
    clamped,
    fma,
    prefetch,
    strided,
    tfma,
    tload,
    touter,
    tstore,
    tzeros,
    vload,
    vstore,
    vsum,
)
from .evaluation import mean
from .forward import fill_weights

__all__ = ["NARROW", "PANEL", "evaluate_dense", "occupancy_dense"]

NARROW = 6
"""Number of policies whose sums over eight rows of a dense layer, with their operands, fill sixteen registers of four numbers."""
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
def _back_panel(losses, lo, hi, n_next, panel, q, o):
    """Q of rows lo..hi-1, into q[o[m] + r], under six policies m, whose next values are panel.values[panel.values0 + 6 k + m]."""
    edge, e0 = panel.edge, panel.edge0
    for i in range(lo, hi, 8):
        p = panel.rows0 + (i - lo) * n_next
        if i + 8 <= hi:
            x = vload(losses, i)
        else:
            for r in range(8):
                edge[e0 + r] = losses[i + r] if i + r < hi else 0.0
            x = vload(edge, e0)
        sums = (x, x, x, x, x, x)
        for k in range(n_next):
            sums = touter(panel.values, strided(panel.values0, 1, 6), 6 * k, (vload(panel.rows, p + 8 * k),), sums)
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
                work = Panel(panel, at, packed, g * group_size, edge, 64 * me)
                _back_panel(losses, rows[lo], rows[hi], n_next, work, q, o)
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
def _products(data, start, n_rows, j, size, lanes, own, line):
    """Partial sums for next states j..j+size-1, at most eight, under `lanes` policies: vectors from own.sums[own.sums0] on."""
    w, sums, a0 = own.w, own.sums, own.sums0
    full = n_rows // 8 * 8
    for begin in range(0, max(full, 1), BLOCK):
        end = min(begin + BLOCK, full)
        for lane in range(0, lanes, 3):
            o = clamped(own.w0, line, lane, lanes - 1, 3)
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
def _reach(model, h, lanes, own, line, d, d0):
    """Occupancies d[d0 + lane] of the states of layer h + 1, from those of the rows of layer h, at own.w[own.w0 + line * lane]."""
    s0 = model.layers[h + 1]
    n_next = model.layers[h + 2] - s0
    n_rows = model.rows[s0] - model.rows[model.layers[h]]
    start = model.block[h]
    for j in range(0, n_next, 8):
        size = min(8, n_next - j)
        _products(model.data, start, n_rows, j, size, lanes, own, line)
        for m in range(size):
            for lane in range(lanes):
                x = vsum(vload(own.sums, own.sums0 + 8 * (PANEL * m + lane)))
                for i in range(n_rows // 8 * 8, n_rows):
                    x = fma(model.data[start + (j + m) * n_rows + i], own.w[own.w0 + line * lane + i], x)
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
    own = Own(w, w0, sums, 64 * PANEL * me)
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
                _reach(model, h, lanes, own, line, d, d0)
    return fault
