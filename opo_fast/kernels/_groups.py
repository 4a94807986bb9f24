"""Reductions over the actions of a state inside a vector, where 2, 4 or 8 actions make whole states of its lanes."""

from __future__ import annotations

from ._jit import inlined
from ._simd import vadd, vget, vmin, vset, vspread2, vspread4, vswap1, vswap2, vswap4

__all__ = ["group_each", "group_min", "group_sum", "share"]


@inlined
def group_sum(x, width):
    """In every lane, the sum over its group of `width` lanes, as a tree."""
    x = vadd(x, vswap1(x))
    if width > 2:
        x = vadd(x, vswap2(x))
    if width > 4:
        x = vadd(x, vswap4(x))
    return x


@inlined
def group_min(x, width):
    """In every lane, the least of its group of `width` lanes."""
    x = vmin(x, vswap1(x))
    if width > 2:
        x = vmin(x, vswap2(x))
    if width > 4:
        x = vmin(x, vswap4(x))
    return x


@inlined
def group_each(x, width):
    """The first lanes of `x`, one for each group of `width` lanes."""
    if width == 2:
        return vspread2(x)
    if width == 4:
        return vspread4(x)
    return vset(vget(x, 0))


@inlined
def share(size, me, n):
    """Where the share of thread `me` of `n` begins, in eights of states: which rows fill a vector does not depend on n."""
    return size if me == n else size // 8 * me // n * 8
