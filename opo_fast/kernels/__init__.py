"""Compiled kernels: flat arrays in, `out` arrays filled, no validation, no raise, no random numbers.

The names listed here are public: njit functions to be called from other people's njit code, described with examples in
docs/kernels.md. `arrays(mdp)` gives a model as one named tuple, which is their first argument; each runs in the caller's
thread and gives the bits of the package's function of the same name. `opo_fast.kernels.checked` has the same functions with
the sizes of their arguments checked. All else in this package may change with any version.

The arithmetic is strict IEEE with explicit fused multiply-adds, so that the bits of a result are fixed by the source
and not by the compiler: a number is the same in a whole sweep, in one part of a layer, and in any number of threads.

Every kernel that reads a model takes the same seven leading arguments, called the *model arguments*:

kind : 0 for dense, 1 for CSR
data : dense: blocks back to back, each stored (next state, row); CSR: the probabilities
indptr, indices : CSR row pointers (int64) and successor positions inside the next layer (uint32); empty when dense
block : where the block of layer h starts, in `data` (dense) or in `indptr` (CSR); layers may share a block
layers : first state of each layer, `horizon + 1` entries
rows : first row of each state, `n_states + 1` entries; a *row* is a pair that the action mask allows

A kernel takes its arguments one by one, since Python hands over a tuple more slowly, and groups them first (see
`_arguments`); its parts take these groups. A part is written into the kernel that calls it (`_jit.inlined`). Sums that
are unrolled, over several next states or policies at once, are words of `_simd`.
"""

from .public import VERSION, ModelArrays, arrays, chain_step, evaluate, occupancy, solve, work_size
from .weights import bonus, exponential_weights

__all__ = [
    "VERSION",
    "ModelArrays",
    "arrays",
    "bonus",
    "chain_step",
    "evaluate",
    "exponential_weights",
    "occupancy",
    "solve",
    "work_size",
]
