"""Forward recursion: from the occupancies of one layer's rows to those of the next layer's states.

A row is an allowed state-action pair. Its *weight* is its occupancy, with values below `TINY` replaced by 0.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Model, Pass, Team
from ._constants import AVX512
from ._groups import AHEAD, NEAR, group_each, is_policy, leads_far, share, worth_prefetching
from ._jit import copied, inlined, kernel
from ._simd import fma, prefetch, strided, tfma, tput, tsum, tzeros, vabove, vadd, vload, vmul, vset, vstore
from ._sync import barrier

__all__ = ["STATES", "TINY", "fill_weights", "merge", "spread_csr", "spread_dense", "visit_sweep", "weigh"]

TINY = 1e-280
"""Occupancies below this count as 0: otherwise, long horizons would lead to subnormal numbers, which are a hundred times slower."""

STATES = 256
"""Number of states of a CSR layer that are processed at a time: their rows stay in the first-level cache."""

STREAMS = 8 if AVX512 else 4
"""Number of next states whose sums over the rows of a dense layer are computed at a time, in registers."""


@inlined
def _dots(data, o, n_rows, w, d, j):
    """The dot products with `w` of the vectors of `data` that begin at the positions `o`, into d[j], d[j + 1], ..."""
    # Eight partial sums each, added by `tsum`, then the rows that do not fill a vector.
    full = n_rows // 8 * 8
    a = tzeros(o)
    for i in range(0, full, 8):
        a = tfma(data, o, i, vload(w, i), a)
    x = tsum(a)
    for i in range(full, n_rows):
        x = tfma(data, o, i, w[i], x)
    tput(d, j, x)


@inlined
def spread_dense(model, h, w, lo, hi, d):
    """Occupancy of states lo..hi-1 of layer h + 1: d[s] = sum_i P(s | row i) w[i]."""
    first = model.layers[h + 1]
    n_rows = model.rows[first] - model.rows[model.layers[h]]
    start = model.block[h] - first * n_rows
    eights = (hi - lo) // 8
    for eight in range(eights):
        # If layers share a block, the part read last is still in the cache, so every other layer goes backwards.
        s = lo + 8 * (eights - 1 - eight if h % 2 else eight)
        for j in range(s, s + 8, STREAMS):
            _dots(model.data, strided(start + j * n_rows, n_rows, STREAMS), n_rows, w, d, j)
    s = lo + 8 * eights
    if s + 4 <= hi:
        _dots(model.data, strided(start + s * n_rows, n_rows, 4), n_rows, w, d, s)
        s += 4
    while s < hi:
        _dots(model.data, strided(start + s * n_rows, n_rows, 1), n_rows, w, d, s)
        s += 1


@copied
def spread_csr(model, h, lo, hi, w, shift, d, d0):
    """Add the share of rows lo..hi-1 of layer h in the occupancies of the next states: d[d0 + j] += P(j | row r) w[r + shift]."""
    first = model.rows[model.layers[h]]
    base = np.uint64(d0)
    start = model.block[h] - first
    far = leads_far(model, h, lo, hi)
    ask = worth_prefetching(model.indptr, model.block[h], model.rows[model.layers[h + 1]] - first)
    for r in range(lo, hi):
        x = w[r + shift]
        if x != 0.0:
            p = np.uint64(model.indptr[start + r])
            end = np.uint64(model.indptr[start + r + 1])
            if ask:
                prefetch(model.data, p + np.uint64(AHEAD))
                prefetch(model.indices, p + np.uint64(AHEAD))
            near = min(NEAR, model.indices.size - np.int64(end))
            while p < end:
                if far:
                    prefetch(d, d0 + np.int64(model.indices[p + np.uint64(near)]))
                j = base + model.indices[p]
                d[j] = fma(model.data[p], x, d[j])
                p += np.uint64(1)


@inlined
def merge(private, n_parts, n_next, lo, hi, d, d0):
    """d[d0 + j] = the sum over the parts' vectors in `private`, in their order, for next states lo..hi-1."""
    for j in range(lo, hi):
        d[d0 + j] = private[j]
    for p in range(1, n_parts):
        for j in range(lo, hi):
            d[d0 + j] += private[p * n_next + j]


@inlined
def fill_weights(rows, lo, hi, width, policy, d, visits, w, shift):
    """`weigh` that fills `visits`."""
    weigh(rows, lo, hi, width, policy, d, visits, w, shift, 0)


@inlined
def weigh(rows, lo, hi, width, policy, d, visits, w, shift, add):
    """Weights of the rows of states lo..hi-1: w[r + shift] = d(s) policy(r), 0 below `TINY`; `visits` get them added, or filled in."""
    tiny = vset(TINY)
    r = rows[lo]
    s = lo
    if width > 0:
        # `d` is padded, so that a vector can be read at its last state.
        while r + 8 <= rows[hi]:
            y8 = vabove(vmul(group_each(vload(d, s), width), vload(policy, r)), tiny)
            vstore(w, r + shift, y8)
            vstore(visits, r, vadd(vload(visits, r), y8) if add else y8)
            r += 8
            s += 8 // width
    while s < hi:
        x = d[s]
        end = rows[s + 1]
        while r < end:
            y = x * policy[r]
            y = y if y > TINY else 0.0
            w[r + shift] = y
            visits[r] = visits[r] + y if add else y
            r += 1
        s += 1


@inlined
def _weigh_layer(model, team, h, work, policy, tolerance, visits):
    """Weights of this thread's parts of layer h, and for CSR the parts' sums for the next states; whether the policy is valid."""
    s0 = model.layers[h]
    size = model.layers[h + 1] - s0
    n_next = model.layers[h + 2] - model.layers[h + 1] if h < model.block.size - 1 else 0
    sparse = model.kind == 1
    parts = work.parts if sparse else team.n
    valid = True
    for p in range(parts * team.me // team.n, parts * (team.me + 1) // team.n):
        # Shares of dense layers are multiples of eight states, so the number of threads cannot change whether a policy is accepted.
        lo = s0 + (size * p // parts if sparse else share(size, p, parts))
        hi = s0 + (size * (p + 1) // parts if sparse else share(size, p + 1, parts))
        if sparse:
            for j in range(p * n_next, (p + 1) * n_next):
                work.private[j] = 0.0
        step = STATES if sparse else max(1, hi - lo)
        for c0 in range(lo, hi, step):
            c1 = min(c0 + step, hi)
            if tolerance >= 0.0 and not is_policy(policy, model.rows, c0, c1, work.width, tolerance):
                valid = False
            shift = team.me * (work.w.size // team.n) - model.rows[c0] if sparse else -model.rows[s0]
            weigh(model.rows, c0, c1, work.width, policy, work.d, visits, work.w, shift, 1)
            if sparse and n_next > 0:
                spread_csr(model, h, model.rows[c0], model.rows[c1], work.w, shift, work.private, p * n_next)
    return valid


@kernel
def visit_sweep(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, width, policies, at, tolerance, d, w, visits, private
):  # fmt: skip
    """Add the occupancy of `policies[at]` to `visits`: the work of thread `me` of `n`. Returns 1 if the policy is invalid, else 0.

    In dense layers, one thread computes the whole sum for each next state. CSR layers have a fixed number of parts with separate sums,
    so that the sums do not depend on which thread computes which part. With a negative `tolerance`, the policy is not checked.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    team = Team(me, n, gate)
    work = Pass(n_parts, width, d, w, private)
    policy = policies[at]
    fault = 0
    if team.me == 0:
        work.d[0] = 1.0
    barrier(team.gate, team.me, team.n)
    for h in range(model.block.size):
        if not _weigh_layer(model, team, h, work, policy, tolerance, visits):
            fault = 1
        if h < model.block.size - 1:
            barrier(team.gate, team.me, team.n)
            d0 = model.layers[h + 1]
            n_next = model.layers[h + 2] - d0
            lo = n_next * team.me // team.n
            hi = n_next * (team.me + 1) // team.n
            if model.kind == 0:
                spread_dense(model, h, work.w, d0 + lo, d0 + hi, work.d)
            else:
                merge(work.private, work.parts, n_next, lo, hi, work.d, d0)
            barrier(team.gate, team.me, team.n)
    return fault
