"""Reductions over the actions of a state within a vector, whose eight lanes hold whole states if there are 2, 4 or 8 actions.

A row is an allowed state-action pair; `width` is the number of actions if the rows of whole states fill a vector, else 0.
"""

from __future__ import annotations

import numpy as np

from ._jit import inlined
from ._simd import (
    strided,
    tread,
    vabove,
    vadd,
    vfma,
    vget,
    vload,
    vmax,
    vmin,
    vmul,
    vset,
    vspread2,
    vspread4,
    vsub,
    vsum,
    vswap1,
    vswap2,
    vswap4,
)

__all__ = [
    "AHEAD", "MANY", "NEAR", "SCATTERED", "SOON", "SORTED", "four_alike", "group_each", "group_min", "group_sum", "is_policy",
    "leads_far", "share", "sort_by_count", "worth_prefetching",
]  # fmt: skip

AHEAD = 256
"""Transitions are prefetched so many entries ahead of their use where the numbers that they multiply come from memory, too."""
SOON = 64
"""And so many where these numbers are in a cache: sums over 10,000 states a layer take 5 to 10% less time than with `AHEAD`."""
NEAR = 64
"""The values that transitions multiply are prefetched so many entries ahead: what a distant cache takes for eight rows."""
MANY = 1 << 18
"""So many numbers do not fit into a second-level cache, nor into a third-level one through which the transitions pass."""
SCATTERED = 1 << 13
"""If neighbouring rows lead to states so far apart, they share no cache lines."""
SORTED = 64
"""At most this many states or rows are sorted together before they are put into slices of eight."""
_FROM_MEMORY = 1 << 20
"""Transitions of a block from which they come from memory, not from a cache."""


@inlined
def worth_prefetching(indptr, start, n_rows):
    """Whether a CSR block of `n_rows` rows is so large that the processor's automatic prefetching is not enough."""
    return indptr[start + n_rows] - indptr[start] >= _FROM_MEMORY


@inlined
def leads_far(model, h, lo, hi):
    """Whether rows lo..hi-1 of a CSR layer lead to so many and so scattered next states that no cache holds their numbers."""
    layers, indptr, indices = model.layers, model.indptr, model.indices
    far = 0
    if layers[h + 2] - layers[h + 1] >= MANY:
        first, end = model.rows[layers[h]], model.rows[layers[h + 1]]
        start = model.block[h] - first
        # Compare with the same action in the next state, which leads to a close state if the matrix is banded.
        step = (end - first) // (layers[h + 1] - layers[h])
        for r in range(lo, min(lo + 8, hi - step)):
            here = np.int64(indices[(indptr[start + r] + indptr[start + r + 1]) // 2])
            there = np.int64(indices[(indptr[start + r + step] + indptr[start + r + step + 1]) // 2])
            if abs(here - there) >= SCATTERED:
                far += 1
    return far > 4


@inlined
def group_sum(x, width):
    """In every lane, the sum over its group of `width` lanes, added pairwise."""
    x = vadd(x, vswap1(x))
    if width > 2:
        x = vadd(x, vswap2(x))
    if width > 4:
        x = vadd(x, vswap4(x))
    return x


@inlined
def group_min(x, width):
    """In every lane, the minimum over its group of `width` lanes."""
    x = vmin(x, vswap1(x))
    if width > 2:
        x = vmin(x, vswap2(x))
    if width > 4:
        x = vmin(x, vswap4(x))
    return x


@inlined
def group_each(x, width):
    """The first lanes of `x`, each repeated `width` times."""
    if width == 2:
        return vspread2(x)
    if width == 4:
        return vspread4(x)
    return vset(vget(x, 0))


@inlined
def four_alike(rows, s):
    """Whether states s..s+3 have equally many rows."""
    n = rows[s + 1] - rows[s]
    return rows[s + 2] - rows[s + 1] == n and rows[s + 3] - rows[s + 2] == n and rows[s + 4] - rows[s + 3] == n


@inlined
def is_policy(policy, rows, lo, hi, width, tolerance):
    """Whether `policy` has probabilities that sum to 1 within `tolerance` in each of the states lo..hi-1."""
    r = rows[lo]
    s = lo
    fault = 0.0
    if width > 0:
        one = vset(1.0)
        zero = vset(0.0)
        worst = zero
        least = zero
        strange = zero
        while r + 8 <= rows[hi]:
            p = vload(policy, r)
            miss = vsub(group_sum(p, width), one)
            worst = vmax(vmul(miss, miss), worst)
            least = vmin(p, least)
            # NaN as soon as one entry is not finite.
            strange = vfma(miss, zero, strange)
            r += 8
            s += 8 // width
        faults = vadd(vabove(worst, vset(tolerance * tolerance)), vabove(vsub(zero, least), zero))
        fault = vsum(vadd(faults, strange))
    # Four states with equally many actions at a time, since the additions of a single sum wait for one another.
    while s + 4 <= hi and four_alike(rows, s):
        n = rows[s + 1] - r
        x = (0.0, 0.0, 0.0, 0.0)
        least0 = 0.0
        least1 = 0.0
        for i in range(r, r + n):
            p = tread(policy, strided(i, n, 4), 0)
            x = (x[0] + p[0], x[1] + p[1], x[2] + p[2], x[3] + p[3])
            least0 = min(least0, min(p[0], p[1]))
            least1 = min(least1, min(p[2], p[3]))
        for total in x:
            if not abs(total - 1.0) <= tolerance:
                fault += 1.0
        if least0 < 0.0 or least1 < 0.0:
            fault += 1.0
        r += 4 * n
        s += 4
    while s < hi:
        end = rows[s + 1]
        total = 0.0
        least = 0.0
        while r < end:
            total += policy[r]
            least = min(least, policy[r])
            r += 1
        if not (least >= 0.0 and abs(total - 1.0) <= tolerance):
            fault += 1.0
        s += 1
    return fault == 0.0


@inlined
def share(size, me, n):
    """First state of the share of thread `me` of `n`: a multiple of 8, so that which rows fill a vector does not depend on n."""
    return size if me == n else size // 8 * me // n * 8


@inlined
def sort_by_count(count, lo, hi, items, at):
    """Write lo..hi-1 to items[at:], sorted by their counts, the largest first; a stable sort."""
    for j in range(lo, hi):
        i = at + j - lo
        while i > at and count[items[i - 1]] < count[j]:
            items[i] = items[i - 1]
            i -= 1
        items[i] = j
