"""A small vocabulary of eight-lane vectors for kernels, with bits that do not depend on the machine.

Each word is one LLVM operation on ``<8 x double>`` (two or four registers where the machine's are narrower), so the
order of every sum is written in the source. The words that begin with t take a *tile*, a tuple of k vectors or of k
numbers, and stand for k operations each, which are written out while the kernel is compiled. How large k is, `strided`
or `clamped` say: the tuple of positions that a tile is read from.

``_llvm`` has the words as compiled code. With ``NUMBA_DISABLE_JIT=1`` the same words are those of ``_plain``, plain
NumPy, for coverage and bounds checks (there a multiply-add rounds twice).
"""

from __future__ import annotations

from ._constants import EXP_MIN as EXP_MIN
from ._constants import LANES as LANES
from ._jit import COMPILED

if COMPILED:  # pragma: no cover - the compiled words do not run where coverage is measured
    from ._llvm import *  # noqa: F403
else:
    from ._plain import *  # noqa: F403
