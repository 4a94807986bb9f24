"""Checks of transitions, once, when a model is built. The arrays are the model's own copies."""

from __future__ import annotations

import math

from ._jit import brief, kernel

__all__ = ["check_csr", "check_dense", "check_path", "check_unit", "ingest_dense", "pack_lane", "unordered_row"]


@kernel
def unordered_row(indptr, indices, n_next):
    """First row of CSR indices that do not increase strictly below `n_next`, or whose pointers fall or lead too far; -1: none."""
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
    """Position of the first entry that is not in [0, 1] (NaN included); -1 where there is none."""
    for i in range(values.size):
        if not 0.0 <= values[i] <= 1.0:
            place[0] = i
            return 1
    return 0


@brief
def check_path(states, actions, losses, layers, n_actions):
    """Whether each state is of its layer, the last the end state, each action one of `n_actions`, each loss in [0, 1]."""
    horizon = actions.size
    for h in range(horizon):
        if not (layers[h] <= states[h] < layers[h + 1] and 0 <= actions[h] < n_actions and 0.0 <= losses[h] <= 1.0):
            return False
    return states[horizon] == layers[horizon]


@brief
def check_dense(data, start, n_rows, n_next, tolerance, sums, place):
    """First fault of one dense block stored (next state, row).

    0 none; 1 an entry that is not finite or negative: `place` gets row and next state; 2 a row whose sum misses 1:
    `place` gets the row, `sums` holds the sums.
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
    """First fault of one CSR block; codes as in `check_dense`, `place[1]` being the position of the entry in `data`."""
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


@brief
def ingest_dense(flat, block, layers, n_actions, tolerance, data):
    """Lay out all layers, given as (row, next state), as (next state, row) in `data`; whether all rows are valid."""
    for h in range(block.size - 1):
        n_rows = (layers[h + 1] - layers[h]) * n_actions
        n_next = layers[h + 2] - layers[h + 1]
        for i in range(n_rows):
            total = 0.0
            for j in range(n_next):
                x = flat[block[h] + i * n_next + j]
                if not x >= 0.0:
                    return False
                total += x
                data[block[h] + j * n_rows + i] = x
            if not abs(total - 1.0) <= tolerance:
                return False
    return True


@brief
def pack_lane(kind, data, indptr, indices, block, layers, rows, packed_block, packed, lane):
    """Write a model into its lane of a pack, (row, next state, lane); entries that a CSR model lacks stay as they are."""
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
