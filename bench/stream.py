"""The machine's memory bandwidth."""

from __future__ import annotations

from opo_fast.kernels._jit import kernel
from opo_fast.kernels._simd import vadd, vload, vset, vsum
from opo_fast.kernels._sync import barrier


@kernel
def read_sum(array, lo, hi):
    """Sum of array[lo:hi] in eight registers, which is limited by memory bandwidth only."""
    a0 = vset(0.0)
    a1 = vset(0.0)
    a2 = vset(0.0)
    a3 = vset(0.0)
    for i in range(lo, hi - 31, 32):
        a0 = vadd(a0, vload(array, i))
        a1 = vadd(a1, vload(array, i + 8))
        a2 = vadd(a2, vload(array, i + 16))
        a3 = vadd(a3, vload(array, i + 24))
    return vsum(vadd(vadd(a0, a1), vadd(a2, a3)))


@kernel
def read_again(me, n, gate, array, times):
    """The reads of a recursion over `times` layers that share the block `array`, in alternating directions, with a barrier after each."""
    lo = array.size // 64 * me // n * 64
    hi = array.size // 64 * (me + 1) // n * 64
    total = 0.0
    for k in range(times):
        a0 = vset(0.0)
        a1 = vset(0.0)
        a2 = vset(0.0)
        a3 = vset(0.0)
        for x in range(lo, hi, 32):
            i = lo + hi - 32 - x if k % 2 else x
            a0 = vadd(a0, vload(array, i))
            a1 = vadd(a1, vload(array, i + 8))
            a2 = vadd(a2, vload(array, i + 16))
            a3 = vadd(a3, vload(array, i + 24))
        total += vsum(vadd(vadd(a0, a1), vadd(a2, a3)))
        barrier(gate, me, n)
    return total
