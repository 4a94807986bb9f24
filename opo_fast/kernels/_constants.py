"""Numbers that the words of both kinds, compiled and plain, share."""

from __future__ import annotations

__all__ = ["EXP_MIN", "LANES"]

LANES = 8
"""Numbers of a vector."""

EXP_MIN = -690.0
"""Below this exponent `vexp` and `sexp` are exactly 0: the results stay clear of the slow subnormal numbers."""
