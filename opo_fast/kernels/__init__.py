"""Compiled kernels: flat arrays in, `out` arrays filled, no validation, no raise, no random numbers.

The names listed here are public: njit functions to be called from users' njit code; docs/kernels.md has examples. Their first
argument is `arrays(mdp)`, a model as one named tuple. They run in the caller's thread and compute the same bits as the package's
functions of the same names. `opo_fast.kernels.checked` has the same functions with checks of their arguments. Everything else in this
package may change in any version.

The arithmetic is strict IEEE with explicit fused multiply-adds, so the source and not the compiler determines the bits of a result: a
number is the same whether it is computed in a whole sweep, in one part of a layer, or by any number of threads.

Every kernel that reads a model takes the same seven leading arguments, called the *model arguments*:

kind : 0 for dense, 1 for CSR; for backward passes also 2, with other meanings of the next four (see `row_slices`)
data : dense: blocks back to back, each stored (next state, row); CSR: the probabilities
indptr, indices : CSR row pointers (int64) and successor positions inside the next layer (uint32); empty when dense
block : where the block of layer h starts, in `data` (dense) or in `indptr` (CSR); layers may share a block
layers : first state of each layer, `horizon + 1` entries
rows : first row of each state, `n_states + 1` entries; a *row* is a state-action pair that the action mask allows

A kernel takes its arguments one by one, since passing a tuple from Python is slower, and first puts them into groups (see
`_arguments`), which its parts take. Parts are inlined into the kernels that call them (`_jit.inlined`; `_jit.copied` where this is
faster), or stay functions (`_jit.called`), or are kernels themselves where they do so much that the call costs nothing. Unrolled sums,
over several next states or policies at once, are operations of `_simd`.
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
