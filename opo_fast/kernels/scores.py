"""Kernels of the oracles: least squares by triangular factors, and the probabilities along a path."""

from __future__ import annotations

import math

from ._jit import kernel
from ._simd import fma

__all__ = ["add_rows", "path_probabilities"]


@kernel
def add_rows(factors, width, which, rows):
    """Rotate rows (features, target), in their order, into upper triangular factors R with R'R = sum of row' row.

    `factors` has blocks of width * width, stored row by row; row i of `rows` (overwritten) goes into block ``which[i]``. Unlike sums of
    products, Givens rotations do not square the condition number. They take one row at a time, so the bits do not depend on how the
    rows are split into batches. Rows of this problem are not state-action pairs.
    """
    for i in range(which.size):
        base = which[i] * width * width
        at = i * width
        for k in range(width):
            x = rows[at + k]
            if x == 0.0:
                continue
            line = base + k * width
            r = factors[line + k]
            large, small = abs(r), abs(x)
            if small > large:
                large, small = small, large
            ratio = small / large
            norm = large * math.sqrt(fma(ratio, ratio, 1.0))
            c, s = r / norm, x / norm
            factors[line + k] = norm
            for j in range(k + 1, width):
                a, b = factors[line + j], rows[at + j]
                factors[line + j] = fma(c, a, s * b)
                rows[at + j] = fma(c, b, -s * a)


@kernel
def path_probabilities(kind, data, indptr, indices, block, layers, rows, chosen, states, out):
    """out = P(s_{h+1} | s_h, a_h), h = 1..H-1, for the chosen rows (allowed state-action pairs); `states` has H + 1 entries."""
    for h in range(block.size - 1):
        first = rows[layers[h]]
        i = chosen[h] - first
        j = states[h + 1] - layers[h + 1]
        x = 0.0
        if kind == 0:
            x = data[block[h] + j * (rows[layers[h + 1]] - first) + i]
        else:
            for p in range(indptr[block[h] + i], indptr[block[h] + i + 1]):
                if indices[p] == j:
                    x = data[p]
        out[h] = x
