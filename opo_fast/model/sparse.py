"""SciPy's sparse arrays in one canonical form."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._support.checks import read_only
from ..errors import OpoError, Place
from ..kernels.ingest import unordered_row

__all__ = ["as_csr"]


def as_csr(array: Any, name: str | Place) -> Any:
    """A canonical CSR form of `array` (duplicates add up); the caller's arrays are never written to."""
    if array.dtype.kind not in "fiub":
        raise OpoError(f"{name} has dtype {array.dtype}: real numbers are needed")
    if array.ndim != 2:
        raise OpoError(f"{name} has shape {array.shape}: two axes are needed")
    if array.format == "coo":
        # Positions are checked before SciPy follows them: it does not.
        for axis, coordinates in enumerate((array.row, array.col)):
            bad = np.flatnonzero((coordinates < 0) | (coordinates >= array.shape[axis]))
            if bad.size:
                which = ("row", "next state")[axis]
                raise OpoError(
                    f"{name}: entry {int(bad[0])} names {which} {int(coordinates[bad[0]])}; 0 to {array.shape[axis] - 1} is needed"
                )
    elif array.format in ("csc", "bsr"):
        try:
            array.check_format(full_check=True)
        except ValueError as error:
            raise OpoError(f"{name} is not a valid sparse array: {error}") from None
    source = array.tocsr()
    indptr, indices, data = source.indptr, source.indices, source.data
    n_rows, n_next = source.shape
    bad_pointer = indptr.size != n_rows + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] > min(indices.size, data.size)
    if bad_pointer:
        raise OpoError(f"{name}: the row pointers are not those of {n_rows} rows in {indices.size} stored entries")
    indices, data = indices[: indptr[-1]], data[: indptr[-1]]
    if indices.size and (indices.min() < 0 or indices.max() >= n_next):
        p = int(np.flatnonzero((indices < 0) | (indices >= n_next))[0])
        row = int(np.searchsorted(indptr, p, side="right")) - 1
        raise OpoError(f"{name}: row {row} names next state {int(indices[p])}; 0 to {n_next - 1} is needed")
    if data.dtype not in (np.float64, np.float32):
        data = data.astype(np.float64)
    result = sp.csr_array((data, indices, indptr), shape=source.shape, copy=False)
    result.has_canonical_format = False
    if not _is_canonical(result):
        result = result.copy()
        result.sum_duplicates()
    return result


def _is_canonical(matrix: Any) -> bool:
    """Whether indices increase strictly within each row, decided from the arrays and not from a flag."""
    # Positions are within range by now, so that both of SciPy's types can be read as the kernels' own.
    indices = np.ascontiguousarray(matrix.indices)
    indices = indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32)
    indptr = np.ascontiguousarray(matrix.indptr, np.int64)
    return bool(unordered_row(read_only(indptr), read_only(indices), matrix.shape[1]) < 0)
