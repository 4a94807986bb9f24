"""Conversion between stored blocks of transitions and the arrays of users and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import FLOAT64, as_list, tolerance_of
from ..errors import OpoError, Place
from ..kernels.ingest import ingest_dense
from .layout import Layout, aligned
from .rows import Rows

__all__ = ["CSR", "DENSE", "csr_array", "dense_array", "fault_of_row", "is_plain", "is_small", "layer_list", "small_dense", "stored_arrays"]

Array = npt.NDArray[Any]

DENSE, CSR = 0, 1


def dense_array(layout: Layout, h: int, block: Array, allowed: Array | None) -> Array:
    """One stored dense block (next state, row) as (S_h, A, S_{h+1}); rows of masked pairs are zero."""
    n_next = layout.layer_sizes[h + 1]
    full = np.zeros((layout.layer_sizes[h] * layout.n_actions, n_next), block.dtype)
    full[slice(None) if allowed is None else allowed] = block.reshape(n_next, -1).T
    return full.reshape(layout.layer_sizes[h], layout.n_actions, n_next)


def csr_array(layout: Layout, h: int, data: Array, indices: Array, pointer: Array, allowed: Array | None) -> Any:
    """One stored CSR block as (S_h * A, S_{h+1}), with empty rows for masked pairs; `pointer` need not start at 0."""
    n_pairs = layout.layer_sizes[h] * layout.n_actions
    lengths = np.zeros(n_pairs, np.int64)
    lengths[slice(None) if allowed is None else allowed] = np.diff(pointer)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((data, indices.astype(np.int64), indptr), shape=(n_pairs, layout.layer_sizes[h + 1]))


def stored_arrays(rows: Rows, kind: int, stored: dict[str, Array]) -> list[Any]:
    """The transitions in a file, one array per layer; every position in another array is checked."""
    layout = rows.layout
    data, indptr, indices, block = (stored[name] for name in ("data", "indptr", "indices", "block"))
    for name, array, kinds in (("data", data, "f"), ("indptr", indptr, "iu"), ("indices", indices, "iu"), ("block", block, "iu")):
        if array.ndim != 1 or array.dtype.kind not in kinds:
            raise OpoError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if kind not in (DENSE, CSR) or block.size != layout.horizon:
        raise OpoError(f"kind is {kind}, and there are {block.size} blocks for {layout.horizon} layers")
    built: dict[Any, Any] = {}
    arrays = []
    for h in range(layout.horizon - 1):
        allowed = rows.allowed(h)
        n_rows = layout.layer_sizes[h] * layout.n_actions if allowed is None else int(allowed.sum())
        start, n_next = int(block[h]), layout.layer_sizes[h + 1]
        size, source = (n_rows * n_next, data) if kind == DENSE else (n_rows + 1, indptr)
        if start < 0 or start + size > source.size:
            raise OpoError(f"block[{h}] is {start}: {size} entries from there are more than the {source.size} in the file")
        key = (start, layout.layer_sizes[h : h + 2], None if allowed is None else allowed.tobytes())
        if key not in built:
            part = source[start : start + size]
            if kind == DENSE:
                built[key] = dense_array(layout, h, part, allowed)
            else:
                lo, hi = int(part[0]), int(part[-1])
                if not 0 <= lo <= hi <= min(data.size, indices.size) or (np.diff(part.astype(np.int64)) < 0).any():
                    raise OpoError(f"indptr: the row pointers of layer {h} run from {lo} to {hi} in {data.size} stored entries")
                built[key] = csr_array(layout, h, data[lo:hi], indices[lo:hi], part.astype(np.int64), allowed)
        arrays.append(built[key])
    return arrays


def layer_list(arrays: Any, layout: Layout, where: str | Place) -> list[Any]:
    """`arrays` as a list, with one entry for each layer but the last."""
    result = None if sp.issparse(arrays) else as_list(arrays)
    if result is None:
        raise OpoError(
            f"{where} is a {type(arrays).__name__}: a sequence of {layout.horizon - 1} arrays, one per layer but the last, is needed"
        )
    if len(result) != layout.horizon - 1:
        raise OpoError(f"{where} has {len(result)} arrays: H - 1 = {layout.horizon - 1} are needed (the last layer leads to the end state)")
    return result


def fault_of_row(layout: Layout, h: int, pair: int, where: str | Place, entry: tuple[int, float] | None, total: float) -> OpoError:
    """The error about the probabilities of a state-action pair: about an entry (position, value), or else about their sum."""
    state, action = divmod(pair, layout.n_actions)
    place = f"{where}[{h}]: layer {h}, state {state} (position {state - int(layout.offsets[h])}), action {action}"
    if entry is not None:
        position, value = entry
        return OpoError(f"{place}: the probability of next state {position} is {value!r}; a finite number of at least 0 is needed")
    if total == 0.0:
        return OpoError(
            f"{place}: the row is all zero; mask the action if it is not available, or give a terminal state a row "
            "that leads to an absorbing state"
        )
    return OpoError(f"{place}: the row sums to {total!r}; 1 is needed (rows are not renormalised)")


def is_plain(arrays: Any, layout: Layout, n: int | None = None) -> bool:
    """Whether these are the common case: a nonempty list of float64 ndarrays of the right shapes; with `n`, of so many models each."""
    shapes = layout.dense_shapes
    if type(arrays) is not list or len(arrays) != len(shapes) or not shapes:
        return False
    for array, shape in zip(arrays, shapes, strict=True):
        # NumPy's native float64 is a single object, so comparing is fast.
        if type(array) is not np.ndarray or array.dtype != FLOAT64 or array.shape != (shape if n is None else (n, *shape)):
            return False
    return True


_SMALL = 1 << 17
"""Up to so many transitions, the arrays of a dense model are concatenated, so that one kernel call can check all layers."""
_WORTH_ALIGNING = 1 << 11


def is_small(layout: Layout, arrays: Any) -> bool:
    """Whether these are the arrays of a small ordinary dense model, one for each layer."""
    return layout.dense_sizes[0] <= _SMALL and is_plain(arrays, layout) and len(set(map(id, arrays))) == len(arrays)


def small_dense(layout: Layout, arrays: Any, data: Array | None = None) -> Array | None:
    """The blocks of arrays for which `is_small` holds, laid out in one kernel call, in `data` if it is given; None if a number is wrong."""
    total, most_rows = layout.dense_sizes
    if data is None:
        data = aligned(total, worth=_WORTH_ALIGNING)
    flat, sums = np.concatenate(arrays, axis=None), np.empty(most_rows)
    valid = ingest_dense(flat, layout.dense_block, layout.offsets, layout.n_actions, tolerance_of(FLOAT64), sums, data)
    return data if valid else None
