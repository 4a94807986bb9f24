"""The backward recursion of a CSR model from slices of eight rows (SELL-C-sigma, C = 8): a copy of the model, of kind `ROW_SLICES`.

M. Kreutzer, G. Hager, G. Wellein, H. Fehske, A. R. Bishop: A unified sparse matrix data format for efficient general sparse
matrix-vector multiplication on modern processors with wide SIMD units. SIAM J. Sci. Comput. 36(5), 2014.

A row is a state-action pair; no pair is masked. A lane sums over one row, in the order of `evaluation`'s sums over CSR rows, so the bits
are theirs (if values are finite): four partial sums, then the transitions that are left over by fours. Shorter rows are padded with
probabilities of 0. A *column* is eight entries, one for each row of the slice.

The model arguments have these meanings; `layers` and `rows` are those of any model:

- `data`: the probabilities, column after column, slice after slice
- `indices`: the next states, less the least one of their slice, in 16 bits, two to an entry
- `indptr`: three numbers for each slice, and at the end the number of all columns. Those of a slice are its first column; its least next
  state, as a position in the next layer; and the order of its rows
- `block`: the first slice of each layer

The order is 0 if lane k holds the k-th of eight rows that follow one another. Otherwise byte k is the row in lane k, less the row at which
the slice would begin if it were in order, plus `_BEFORE`. A last slice of fewer than eight rows repeats its last row.

Next states that are too far apart for 16 bits are stored in 32: the least one is then `_WIDE`, and the slice takes the place of twice as
many columns. So the few rows of a first layer that lead to all states of a large model do not keep it from being copied.
"""

from __future__ import annotations

import numpy as np

from ._groups import AHEAD, SORTED, sort_by_count
from ._jit import called, inlined, kernel
from ._simd import prefetch, vadd, vfma, vgather, vgather_bytes, vgather_half, vload, vscatter_bytes, vset, vstore

__all__ = ["ROW_SLICES", "expectation_row_slices", "row_slice_fill", "row_slice_shape"]

ROW_SLICES = 2
"""The kind of a model in slices of rows, beside 0 (dense) and 1 (CSR)."""

_BEFORE = SORTED
"""A row lies fewer than this many rows before the one at which its slice would begin."""
_SPAN = 1 << 16
"""Next states of a slice that is not wide are closer to one another."""
_WIDE = -1


@inlined
def _columns(count, order, begin, end):
    """Number of columns of one slice, of the rows order[begin:end]: fours, and what is left over."""
    fours = 0
    rest = 0
    for i in range(begin, end):
        fours = max(fours, count[order[i]] // 4)
        rest = max(rest, count[order[i]] % 4)
    return 4 * fours + rest


@inlined
def _all_columns(count, order, begin, end):
    total = 0
    for i in range(begin, end, 8):
        total += _columns(count, order, i, min(i + 8, end))
    return total


@inlined
def _packed(order, begin, end, place):
    """The order of the slice of rows order[begin:end] as it is stored; in order, it would begin with row `place`."""
    ordered = end == begin + 8
    rows = np.int64(0)
    for lane in range(8):
        row = order[min(begin + lane, end - 1)]
        ordered = ordered and row == place + lane
        rows |= (row - place + _BEFORE) << 8 * lane
    return 0 if ordered else rows


@inlined
def _arrange(count, lo, hi, order, at):
    """Write rows lo..hi-1 to order[at:], sorted by their lengths if that saves more than one column for each slice."""
    for r in range(lo, hi):
        order[at + r - lo] = r
    plain = _all_columns(count, order, at, at + hi - lo)
    sort_by_count(count, lo, hi, order, at)
    if _all_columns(count, order, at, at + hi - lo) + (hi - lo + 7) // 8 > plain:
        for r in range(lo, hi):
            order[at + r - lo] = r


@kernel
def row_slice_shape(indptr, indices, blocks, window, count, order, slices):
    """Fill `order`, the rows of all slices, and `slices`, the `indptr` of the copy; returns the number of columns.

    Each line of `blocks` is one block: its first position in the model's `indptr`, its number of rows, and its first slice. Sweeps may
    begin and end at each multiple of `window` rows. `count` is a work array with a number for each row of a layer.
    """
    total = 0
    for b in range(blocks.shape[0]):
        first, n_rows, slice0 = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        for r in range(n_rows):
            count[r] = indptr[first + r + 1] - indptr[first + r]
        for begin in range(0, n_rows, window):
            end = min(begin + window, n_rows)
            for lo in range(begin, end, SORTED):
                _arrange(count, lo, min(lo + SORTED, end), order, 8 * slice0 + lo)
        for r in range(0, n_rows, 8):
            i = slice0 + r // 8
            begin = 8 * i
            end = begin + min(8, n_rows - r)
            least = np.int64(indices[indptr[first + order[begin]]])
            most = least
            for k in range(begin, end):
                for p in range(indptr[first + order[k]], indptr[first + order[k] + 1]):
                    least = min(least, np.int64(indices[p]))
                    most = max(most, np.int64(indices[p]))
            wide = most - least >= _SPAN
            slices[3 * i] = total
            slices[3 * i + 1] = _WIDE if wide else least
            slices[3 * i + 2] = _packed(order, begin, end, r)
            total += _columns(count, order, begin, end) * (2 if wide else 1)
    slices[slices.size - 1] = total
    return total


@kernel
def row_slice_fill(data, indptr, indices, blocks, order, slices, halves, weights):
    """Write the transitions of `blocks` to their slices; `halves`, the `indices` in 16 bits, and `weights` must be 0 before."""
    for b in range(blocks.shape[0]):
        first, n_rows, slice0 = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        for r in range(0, n_rows, 8):
            i = slice0 + r // 8
            least = slices[3 * i + 1]
            wide = least == _WIDE
            fours = (slices[3 * i + 3] - slices[3 * i]) // (8 if wide else 4) * 4
            start = 8 * slices[3 * i]
            for lane in range(8):
                row = first + order[8 * i + min(lane, n_rows - r - 1)]
                begin = indptr[row]
                length = indptr[row + 1] - begin
                for k in range(length):
                    column = k if k < length // 4 * 4 else fours + k % 4
                    at = 8 * column + lane
                    weights[start + at] = data[begin + k]
                    j = np.int64(indices[begin + k])
                    if wide:
                        halves[start + 2 * at] = j & 0xFFFF
                        halves[start + 2 * at + 1] = j >> 16
                    else:
                        halves[start + at] = j - least


@inlined
def _values(v, v0, words, start, p, wide):
    """The values of the next states of entries p..p+7 of the slice that begins with entry `start`."""
    if wide:
        return vgather(v, v0, words, (start >> 1) + p)
    return vgather_half(v, v0, words, start + p)


@inlined
def _sums(data, words, start, end, v, v0, x, wide):
    """The sums over the rows of the slice with entries start..end-1, which begin with `x`; `wide` is a constant in the source."""
    x1 = vset(0.0)
    x2 = vset(0.0)
    x3 = vset(0.0)
    n = (end - start) >> 1 if wide else end - start
    p = 0
    while p + 32 <= n:
        for line in range(0, 32, 8):
            prefetch(data, start + p + AHEAD + line)
        prefetch(words, (start + p + AHEAD) >> 1)
        x = vfma(vload(data, start + p), _values(v, v0, words, start, p, wide), x)
        x1 = vfma(vload(data, start + p + 8), _values(v, v0, words, start, p + 8, wide), x1)
        x2 = vfma(vload(data, start + p + 16), _values(v, v0, words, start, p + 16, wide), x2)
        x3 = vfma(vload(data, start + p + 24), _values(v, v0, words, start, p + 24, wide), x3)
        p += 32
    while p < n:
        prefetch(data, start + p + AHEAD)
        x = vfma(vload(data, start + p), _values(v, v0, words, start, p, wide), x)
        p += 8
    return vadd(vadd(x, x2), vadd(x1, x3))


@inlined
def _slice_sums(model, i, v, v0, x):
    """The sums over the rows of the slice whose numbers in `indptr` begin at `i`, which begin with `x`."""
    start = model.indptr[i] << 3
    end = model.indptr[i + 3] << 3
    least = model.indptr[i + 1]
    if least == _WIDE:
        return _sums(model.data, model.indices, start, end, v, v0, x, True)
    return _sums(model.data, model.indices, start, end, v, v0 + least, x, False)


@called
def expectation_row_slices(model, h, lo, hi, v, init, begin, q, shift):
    """q[r - shift] = init[r - begin] + E[v(s') | row r] for rows lo..hi-1 of layer h."""
    v0 = model.layers[h + 1]
    i = 3 * (model.block[h] + (lo - model.rows[model.layers[h]]) // 8)
    for r in range(lo, hi, 8):
        order = model.indptr[i + 2]
        ordered = order == 0
        x = vload(init, r - begin) if ordered else vgather_bytes(init, r - begin - _BEFORE, order)
        x = _slice_sums(model, i, v, v0, x)
        if ordered:
            vstore(q, r - shift, x)
        else:
            vscatter_bytes(q, r - shift - _BEFORE, order, x)
        i += 3
