"""A lower bound on the time of sums over CSR rows on this machine: reading numbers at random places of arrays of several sizes.

python bench/gathers.py
"""

from __future__ import annotations

import time

import numpy as np

from opo_fast.kernels._jit import kernel
from opo_fast.kernels._simd import vadd, vgather, vset, vsum

ENTRIES = 1 << 19


@kernel
def gather_sum(v, positions, times):
    """Sum of v[positions], repeated `times` times, in four registers of eight numbers."""
    a0 = a1 = a2 = a3 = vset(0.0)
    for _ in range(times):
        for p in range(0, positions.size - 31, 32):
            a0 = vadd(a0, vgather(v, 0, positions, p))
            a1 = vadd(a1, vgather(v, 0, positions, p + 8))
            a2 = vadd(a2, vgather(v, 0, positions, p + 16))
            a3 = vadd(a3, vgather(v, 0, positions, p + 24))
    return vsum(vadd(vadd(a0, a1), vadd(a2, a3)))


def main() -> None:
    """Print nanoseconds per number, the best of several runs."""
    generator = np.random.default_rng(0)
    for kilobytes in (8, 32, 160, 256, 900, 4000):
        v = np.ones(kilobytes * 125)
        # Few positions, so that they stay in the cache nearest to the processor.
        positions = generator.integers(0, v.size, 1 << 12 if kilobytes < 64 else ENTRIES).astype(np.uint32)
        times = ENTRIES // positions.size
        best = np.inf
        for _ in range(30):
            began = time.perf_counter()
            gather_sum(v, positions, times)
            best = min(best, time.perf_counter() - began)
        print(f"{kilobytes:6d} KB: {best / ENTRIES * 1e9:.2f} ns")


if __name__ == "__main__":
    main()
