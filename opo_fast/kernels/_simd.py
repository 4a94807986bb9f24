"""Operations on vectors of eight lanes for kernels; their bits do not depend on the machine.

Each operation is one LLVM operation on ``<8 x double>`` (in two or four registers if those of the machine are narrower), so the order
of every sum is written in the source. Operations that begin with t work on a *tile*, a tuple of k vectors or of k numbers; the
compiler unrolls each into k operations. The tuple of positions from which a tile is read, made by `strided` or `clamped`, determines
k.

``_llvm`` and ``_tiles`` have the compiled operations. With ``NUMBA_DISABLE_JIT=1`` they are replaced by those of ``_plain``, in plain
NumPy, for coverage and bounds checks (a multiply-add then rounds twice).
"""

from __future__ import annotations

from ._constants import EXP_MIN as EXP_MIN
from ._constants import LANES as LANES
from ._jit import COMPILED

if COMPILED:
    from ._llvm import *  # noqa: F403
    from ._tiles import *  # noqa: F403
else:
    from ._plain import *  # noqa: F403
