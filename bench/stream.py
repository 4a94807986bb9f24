"""How fast the machine reads memory."""

from __future__ import annotations

from opo_fast.kernels._jit import kernel
from opo_fast.kernels._simd import vadd, vload, vset, vsum


@kernel
def read_sum(array, lo, hi):
    """Sum of array[lo:hi], eight streams of registers: bound by memory and by nothing else."""
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
