"""Constants of both implementations of the vector operations, the compiled and the plain one."""

from __future__ import annotations

__all__ = ["EXP_MIN", "LANES"]

LANES = 8
"""Numbers in a vector."""

EXP_MIN = -690.0
"""Below this exponent `vexp` and `sexp` are exactly 0, so that results are not subnormal numbers, which are slow."""
