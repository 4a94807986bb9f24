"""Constants of both implementations of the vector operations, the compiled and the plain one."""

from __future__ import annotations

from llvmlite.binding import get_host_cpu_features

__all__ = ["AVX512", "EXP_MIN", "LANES"]

AVX512 = bool(get_host_cpu_features().get("avx512f", False))
"""Whether the processor has 32 registers of eight doubles; it chooses between loops that give the same bits."""

LANES = 8
"""Numbers in a vector."""

EXP_MIN = -690.0
"""Below this exponent `vexp` and `sexp` are exactly 0, so that results are not subnormal numbers, which are slow."""
