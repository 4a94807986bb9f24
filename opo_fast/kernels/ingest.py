"""Checks of transitions, once, when a model is built. The arrays are the model's own copies."""

from __future__ import annotations

import math

from ._jit import kernel

__all__ = ["check_csr", "check_dense", "check_unit"]


@kernel
def check_unit(values, place):
    """Position of the first entry that is not in [0, 1] (NaN included); -1 where there is none."""
    for i in range(values.size):
        if not 0.0 <= values[i] <= 1.0:
            place[0] = i
            return 1
    return 0


@kernel
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


@kernel
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
