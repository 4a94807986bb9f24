"""Conversion of SciPy's sparse arrays to canonical CSR."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._support.checks import as_array, read_only
from ..errors import OpoError, Place
from ..kernels.ingest import unordered_row

__all__ = ["as_block", "as_csr", "plain_csr", "rows_of_state"]


def as_block(array: Any, shape: tuple[int, int], allowed: Any, name: str | Place) -> Any:
    """The allowed rows of `array` as CSR with real numbers; its entries are checked later."""
    if array.shape != shape:
        raise OpoError(f"{name} has shape {array.shape}: (S_h * A, S_h+1) = {shape} is needed")
    if _is_plain(array) and (allowed is None or allowed.all()):
        return array
    part = as_csr(array, name)
    return part if allowed is None or allowed.all() else part[np.flatnonzero(allowed)]


def _is_plain(array: Any) -> bool:
    """Whether this is CSR in the form that SciPy builds; the numbers in its arrays are not checked."""
    if array.format != "csr" or array.ndim != 2:
        return False
    parts = array.indptr, array.indices, array.data
    if any(type(part) is not np.ndarray or part.ndim != 1 or not part.flags.c_contiguous for part in parts):
        return False
    kinds = array.indptr.dtype in _POSITIONS and array.indices.dtype in _POSITIONS and array.data.dtype in (np.float64, np.float32)
    sizes = array.indptr.size == array.shape[0] + 1 and array.indices.size == array.data.size == array.indptr[-1]
    return bool(kinds and sizes and array.shape[1] < 2**31)


_POSITIONS = (np.dtype(np.int32), np.dtype(np.int64))


def rows_of_state(array: Any, state: int, n_actions: int, name: str | Place) -> tuple[Any, Any]:
    """`array` as CSR, and the rows of one state in it; entries are checked later."""
    rows = slice(state * n_actions, (state + 1) * n_actions)
    if not _is_plain(array) or not _pointers_fit(array.indptr[rows.start : rows.stop + 1], array.indices.size):
        array = as_csr(array, name)
    return array, array[rows]


def _pointers_fit(pointers: Any, size: int) -> bool:
    return bool(pointers[0] >= 0 and pointers[-1] <= size and (np.diff(pointers) >= 0).all())


def plain_csr(part: Any) -> tuple[Any, Any, int, Any]:
    """Row pointers; next states as uint32; 1 if each next state takes two of these (int64), else 0; and probabilities."""
    indices = np.ascontiguousarray(part.indices)
    if indices.dtype not in _POSITIONS:
        indices = indices.astype(np.int64)
    pointer = np.array(part.indptr, np.int64)
    data = np.ascontiguousarray(part.data, np.float64)
    # The kernel reads the low half of an int64 first, which is right on little-endian machines only.
    if indices.dtype == np.int64 and sys.byteorder == "big":
        indices = np.where((indices >= 0) & (indices < 2**31), indices, 2**31 - 1).astype(np.int32)
    return read_only(pointer), read_only(indices.view(np.uint32)), int(indices.dtype == np.int64), read_only(data)


def as_csr(array: Any, name: str | Place) -> Any:
    """`array` as canonical CSR, with duplicate entries summed; the caller's arrays are never written to."""
    if array.dtype.kind not in "fiub":
        raise OpoError(f"{name} has dtype {array.dtype}: real numbers are needed")
    if array.ndim != 2:
        raise OpoError(f"{name} has shape {array.shape}: two axes are needed")
    source = array if array.format == "csr" else _converted(array, name)
    indptr, indices, data = (as_array(part, name) for part in (source.indptr, source.indices, source.data))
    for what, part in (("row pointers", indptr), ("next states", indices)):
        if part.dtype.kind not in "iu" or part.ndim != 1:
            raise OpoError(f"{name}: the {what} have dtype {part.dtype} and shape {part.shape}: vectors of whole numbers are needed")
    if data.ndim != 1:
        raise OpoError(f"{name}: the stored entries have shape {data.shape}: a vector is needed")
    n_rows, n_next = source.shape
    bad_pointer = indptr.size != n_rows + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] > min(indices.size, data.size)
    if bad_pointer:
        raise OpoError(f"{name}: the row pointers are not those of {n_rows} rows in {indices.size} stored entries")
    indices, data = indices[: indptr[-1]], data[: indptr[-1]]
    if indices.size and (indices.min() < 0 or indices.max() >= n_next):
        p = int(np.flatnonzero((indices < 0) | (indices >= n_next))[0])
        row = int(np.searchsorted(indptr, p, side="right")) - 1
        raise OpoError(f"{name}: row {row} has next state {int(indices[p])}; next states are 0 to {n_next - 1}")
    if data.dtype not in (np.float64, np.float32):
        data = data.astype(np.float64)
    result = sp.csr_array((data, indices, indptr), shape=source.shape, copy=False)
    result.has_canonical_format = False
    if not _is_canonical(result):
        result = result.copy()
        result.sum_duplicates()
    return result


def _converted(array: Any, name: str | Place) -> Any:
    """Other sparse formats as CSR of floats, so that sums of duplicates cannot overflow. Checks the positions, which SciPy does not."""
    if array.format == "lil":
        lengths = [len(row) for row in array.rows], [len(row) for row in array.data]
        unequal = [row for row, (n, m) in enumerate(zip(*lengths, strict=True)) if n != m]
        if unequal:
            row = unequal[0]
            raise OpoError(f"{name}: row {row} has {lengths[0][row]} positions, but {lengths[1][row]} values")
        column, data = (np.array([x for entries in lists for x in entries]) for lists in (array.rows, array.data))
        rows: Any = np.repeat(np.arange(array.shape[0]), lengths[0])
    elif array.format in ("csc", "bsr"):
        if as_array(array.indptr, name).dtype.kind not in "iu" or as_array(array.indices, name).dtype.kind not in "iu":
            raise OpoError(f"{name}: positions have dtype {array.indptr.dtype} and {array.indices.dtype}: whole numbers are needed")
        try:
            array.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise OpoError(f"{name} is not a valid sparse array: {error}") from None
        return array.astype(np.result_type(array.dtype, np.float32)).tocsr()
    else:
        try:
            triples = array if array.format == "coo" else array.tocoo()
            rows, column, data = triples.row, triples.col, triples.data
        except (ValueError, TypeError, IndexError) as error:
            raise OpoError(f"{name} is not a valid sparse array: {error}") from None
    if not rows.size == column.size == data.size:
        raise OpoError(f"{name} has {rows.size} rows, {column.size} columns and {data.size} values: the numbers must be equal")
    for which, axis, positions in (("row", 0, rows), ("next state", 1, column)):
        if positions.size and positions.dtype.kind not in "iu":
            raise OpoError(f"{name}: positions have dtype {positions.dtype}: whole numbers are needed")
        bad = np.flatnonzero((positions < 0) | (positions >= array.shape[axis])).tolist()
        if bad:
            raise OpoError(f"{name}: entry {bad[0]} has {which} {int(positions[bad[0]])}; {which}s are 0 to {array.shape[axis] - 1}")
    if data.size and data.dtype.kind not in "fiub":
        raise OpoError(f"{name} has dtype {data.dtype}: real numbers are needed")
    kind = np.result_type(data.dtype if data.size else np.float64, np.float32)
    positions = rows.astype(np.int64), column.astype(np.int64)
    return sp.csr_array(sp.coo_array((data.astype(kind), positions), shape=array.shape))


def _is_canonical(matrix: Any) -> bool:
    """Whether indices increase strictly within each row; SciPy's flag may be wrong, so the arrays are read."""
    # Positions have been checked to be in range, so both int32 and int64 can be read as uint32.
    indices = np.ascontiguousarray(matrix.indices)
    indices = indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32)
    indptr = np.ascontiguousarray(matrix.indptr, np.int64)
    return bool(unordered_row(read_only(indptr), read_only(indices), matrix.shape[1]) < 0)
