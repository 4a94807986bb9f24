"""Users' arrays are checked, and copied into the form of a model, once, when the model is built.

A row is an allowed state-action pair.
"""

from __future__ import annotations

import math

import numpy as np

from ._jit import brief, inlined, kernel
from ._simd import strided, tadd, tload, tstore, vadd, vfma, vget, vload, vmax, vmin, vset, vstore, vsub, vsum, vtranspose

__all__ = [
    "check_csr", "check_dense", "check_path", "check_unit", "ingest_dense", "pack_candidates", "pack_lane", "take_csr",
    "take_dense", "take_unit", "unordered_row",
]  # fmt: skip


@inlined
def _side_by_side(values, v0, stride, count, size, packed, p0):
    """packed[p0 + 8 e + c] = values[v0 + c stride + e] for contexts c < count and entries e < size."""
    # Eight entries of eight contexts at a time, transposed in registers.
    full = size // 8 * 8 if count == 8 else 0
    for e in range(0, full, 8):
        tile = vtranspose(tload(values, strided(v0 + e, stride, 8), 0))
        tstore(packed, strided(p0 + 8 * e, 8, 8), 0, tile)
    for c in range(count):
        for e in range(full, size):
            packed[p0 + 8 * e + c] = values[v0 + c * stride + e]


@inlined
def _are_rows(packed, p0, starts, size, count, tolerance):
    """Whether the rows that begin at `starts` are probabilities in each of the first `count` lanes."""
    zero = vset(0.0)
    one = vset(1.0)
    least = zero
    worst = zero
    strange = zero
    for row in range(starts.size):
        total = zero
        for e in range(starts[row], starts[row + 1] if row + 1 < starts.size else size):
            x = vload(packed, p0 + 8 * e)
            total = vadd(total, x)
            least = vmin(x, least)
        miss = vsub(total, one)
        worst = vmax(vmax(miss, vsub(zero, miss)), worst)
        # NaN as soon as one sum is not finite.
        strange = vfma(miss, zero, strange)
    good = True
    for c in range(count):
        good = good and vget(least, c) >= 0.0 and vget(worst, c) <= tolerance and vget(strange, c) == 0.0
    return good


@kernel
def pack_candidates(values, count, starts, size, tolerance, packed, valid):
    """Lay out candidates at `count` contexts side by side: entry e of candidate i at context c goes to packed[8 (i size + e) + c].

    `values` has the candidates of one context after another, with `size` entries each. `valid` tells of each candidate whether the rows,
    which begin at `starts`, are probabilities at all contexts.
    """
    n = valid.size
    for i in range(n):
        p0 = 8 * i * size
        _side_by_side(values, i * size, n * size, count, size, packed, p0)
        valid[i] = _are_rows(packed, p0, starts, size, count, tolerance)


@kernel
def unordered_row(indptr, indices, n_next):
    """First row with wrong pointers, or with indices that do not increase strictly or exceed `n_next - 1`; -1 if there is none."""
    for row in range(indptr.size - 1):
        lo, hi = indptr[row], indptr[row + 1]
        if hi < lo or hi > indices.size:
            return row
        for p in range(lo, hi):
            if indices[p] >= n_next or (p > lo and indices[p] <= indices[p - 1]):
                return row
    return -1


@brief
def check_unit(values, place):
    """1 if an entry is not in [0, 1] (or is NaN), and `place` gets the position of the first such entry; else 0."""
    for i in range(values.size):
        if not 0.0 <= values[i] <= 1.0:
            place[0] = i
            return 1
    return 0


@brief
def check_path(states, actions, losses, layers, n_actions):
    """Whether each state is in its layer, the last is the end state, actions are below `n_actions`, and losses are in [0, 1]."""
    horizon = actions.size
    for h in range(horizon):
        if not (layers[h] <= states[h] < layers[h + 1] and 0 <= actions[h] < n_actions and 0.0 <= losses[h] <= 1.0):
            return False
    return states[horizon] == layers[horizon]


@brief
def check_dense(data, start, n_rows, n_next, tolerance, sums, place):
    """Code of the first fault of a dense block, stored as (next state, row).

    0: none. 1: an entry is negative or not finite; `place` gets row and next state. 2: a row does not sum to 1; `place` gets the
    row. `sums` gets the sums of the rows.
    """
    for i in range(n_rows):
        sums[i] = 0.0
    for j in range(n_next):
        base = start + j * n_rows
        for i in range(n_rows):
            x = data[base + i]
            if not (math.isfinite(x) and x >= 0.0):
                place[0] = i
                place[1] = j
                return 1
            sums[i] += x
    for i in range(n_rows):
        if abs(sums[i] - 1.0) > tolerance:
            place[0] = i
            return 2
    return 0


@brief
def check_csr(data, indptr, start, n_rows, tolerance, sums, place):
    """Code of the first fault of a CSR block, as in `check_dense`; here `place[1]` is the position of the entry in `data`."""
    for i in range(n_rows):
        total = 0.0
        for p in range(indptr[start + i], indptr[start + i + 1]):
            x = data[p]
            if not (math.isfinite(x) and x >= 0.0):
                place[0] = i
                place[1] = p
                return 1
            total += x
        sums[i] = total
        if abs(total - 1.0) > tolerance:
            place[0] = i
            return 2
    return 0


@inlined
def _lay_out(source, s0, n_rows, n_next, sums, data, start):
    """Copy a block (row, next state) at source[s0] to (next state, row) at data[start]; the result is below 0 if an entry is."""
    # Eight rows by eight next states at a time, transposed in registers; `sums` gets the sums of the rows. Each entry is read once.
    zero = vset(0.0)
    least8 = zero
    least = 0.0
    full_rows = n_rows // 8 * 8
    full = n_next // 8 * 8
    for i in range(0, full_rows, 8):
        total = zero
        for j in range(0, full, 8):
            tile = vtranspose(tload(source, strided(s0 + i * n_next + j, n_next, 8), 0))
            tstore(data, strided(start + j * n_rows + i, n_rows, 8), 0, tile)
            total = tadd(total, tile)
            least8 = vmin(vmin(vmin(tile[0], tile[1]), vmin(tile[2], tile[3])), least8)
            least8 = vmin(vmin(vmin(tile[4], tile[5]), vmin(tile[6], tile[7])), least8)
        vstore(sums, i, total)
    for i in range(n_rows):
        total_of_row = sums[i] if i < full_rows else 0.0
        for j in range(full if i < full_rows else 0, n_next):
            x = source[s0 + i * n_next + j]
            least = min(least, x)
            data[start + j * n_rows + i] = x
            total_of_row += x
        sums[i] = total_of_row
    return min(least, vsum(least8))


@inlined
def _all_one(sums, n_rows, tolerance):
    """Whether all sums are 1 within `tolerance`; not if NaN or infinity was added."""
    faults = 0
    for i in range(n_rows):
        faults += not abs(sums[i] - 1.0) <= tolerance
    return faults == 0


@brief
def ingest_dense(flat, block, layers, n_actions, tolerance, sums, data):
    """Copy all layers, given as (row, next state), to (next state, row) in `data`; whether all rows are valid."""
    for h in range(block.size - 1):
        n_rows = (layers[h + 1] - layers[h]) * n_actions
        n_next = layers[h + 2] - layers[h + 1]
        if _lay_out(flat, block[h], n_rows, n_next, sums, data, block[h]) < 0.0 or not _all_one(sums, n_rows, tolerance):
            return False
    return True


@kernel
def take_dense(source, n_rows, n_next, tolerance, sums, data, start):
    """`ingest_dense` for one block, which begins at data[start]; `sums` gets the sums of the rows."""
    return not _lay_out(source, 0, n_rows, n_next, sums, data, start) < 0.0 and _all_one(sums, n_rows, tolerance)


@kernel
def take_csr(pointer, positions, wide, values, n_next, tolerance, start, begin, indptr, indices, data):
    """Copy a CSR block to indptr[start:], data[begin:] and indices[begin:]; whether it is valid, with increasing positions.

    `positions` are uint32, two for each position if `wide` is 1. The arguments, which other code may be changing, are read only once,
    so that what is kept is what was checked.
    """
    n_rows = pointer.size - 1
    size = values.size
    lo = pointer[0]
    faults = int(lo != 0)
    indptr[start] = begin
    for row in range(n_rows):
        hi = pointer[row + 1]
        if hi < lo or hi > size:
            return False
        total = 0.0
        low = np.int64(-1)
        for p in range(lo, hi):
            j = np.int64(positions[p << wide])
            if wide:
                faults += positions[2 * p + 1] != 0
            x = values[p]
            faults += not ((low < j) & (j < n_next) & (x >= 0.0))
            low = j
            total += x
            indices[begin + p] = j
            data[begin + p] = x
        faults += not abs(total - 1.0) <= tolerance
        indptr[start + row + 1] = begin + hi
        lo = hi
    return faults == 0 and lo == size


@brief
def take_unit(source, out):
    """Copy `source` to `out`; whether all numbers are in [0, 1] (NaN is not)."""
    faults = 0
    for i in range(out.size):
        x = source[i]
        out[i] = x
        faults += not ((x >= 0.0) & (x <= 1.0))
    return faults == 0


@brief
def pack_lane(kind, data, indptr, indices, block, layers, rows, packed_block, packed, lane):
    """Write a model into one lane of a pack (row, next state, lane). Entries that a CSR model does not store are left unchanged."""
    for h in range(block.size - 1):
        first = rows[layers[h]]
        n_rows = rows[layers[h + 1]] - first
        n_next = layers[h + 2] - layers[h + 1]
        for i in range(n_rows):
            base = packed_block[h] + i * n_next
            if kind == 0:
                for j in range(n_next):
                    packed[8 * (base + j) + lane] = data[block[h] + j * n_rows + i]
            else:
                for p in range(indptr[block[h] + i], indptr[block[h] + i + 1]):
                    packed[8 * (base + indices[p]) + lane] = data[p]
