"""Copies of CSR transitions in slices of eight: transposed, for repeated forward passes, and row by row, for repeated backward passes."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from .._support.memory import memory
from ..kernels._constants import AVX512
from ..kernels.row_slices import ROW_SLICES, row_slice_fill, row_slice_shape
from ..kernels.transposed_slices import slice_fill, slice_shape
from .blocks import CSR
from .layout import aligned

if TYPE_CHECKING:
    from .transitions import Transitions

__all__ = ["MOST_BYTES", "ROWS_WORTH", "TRANSPOSED_WORTH", "RowSlices", "TransposedSlices"]

Array = npt.NDArray[Any]

MOST_BYTES = 1 << 29
"""Larger transitions are not copied, nor those that take more than an eighth of the memory."""
TRANSPOSED_WORTH = 8
"""The transposed copy is made once passes have read each transition this many times, which costs about as much as the copy."""
ROWS_WORTH = 20
"""The same for the copy of the rows: it costs five passes, and later ones take .5 to 1 of their time."""
LEAST_ENTRIES = 1 << 12
"""The rows of a model with fewer transitions are not copied."""
MOST_PADDED = 1.25
"""The rows are not copied if padding would multiply their entries by more than this."""
ROWS_GAIN = AVX512
"""Whether passes over slices of rows are faster on this processor than over CSR rows."""


@cache
def _no_slices(dtype: np.dtype[Any]) -> tuple[Array, ...]:
    return tuple(np.empty(0, kind) for kind in (np.int64, np.uint32, np.uint32, dtype, np.int64))


class _Slices:
    """A copy, which is made when it is worth the time.

    Attributes
    ----------
    arguments : tuple, or None if there is no copy yet
        The leading arguments of the kernels that read the copy.
    declined : bool
        Whether there will be none, since it would be too large.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.declined = False
        self.arguments: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self.arguments is None else sum(array.nbytes for array in self._own_arrays(self.arguments))

    def note(self, t: Transitions, count: int = 1) -> bool:
        """Count `count` passes through `t`, after which there may be a copy; returns whether there is one."""
        if self.arguments is not None:
            return True
        if self.declined or t.kind != CSR or t.changing or t.nbytes > min(MOST_BYTES, memory() // 8) or not self._gains(t):
            return False
        if (self.passes + count - 1) * t.n_transitions >= self._worth() * t.data.size:
            try:
                self.make(t)
            except MemoryError:
                self.declined = True
        self.passes += count
        return self.arguments is not None

    def make(self, t: Transitions) -> None:
        """Make the copy."""
        raise NotImplementedError

    def _gains(self, t: Transitions) -> bool:
        raise NotImplementedError

    def _worth(self) -> int:
        raise NotImplementedError

    def _own_arrays(self, arguments: tuple[Any, ...]) -> tuple[Array, ...]:
        raise NotImplementedError


class TransposedSlices(_Slices):
    """The transposed copy; `arguments` are those of `kernels.transposed_slices.visit_slices`."""

    def _gains(self, t: Transitions) -> bool:
        return t.parts > 1

    def _worth(self) -> int:
        return TRANSPOSED_WORTH

    def _own_arrays(self, arguments: tuple[Any, ...]) -> tuple[Array, ...]:
        return arguments[:5]

    def arrays(self, t: Transitions, passes: int) -> tuple[Array, ...]:
        """The arrays of the copy, the first five of the arguments, for `passes` passes; they are empty if there is none."""
        found = self.arguments if passes > 0 and self.note(t, passes) else None
        return _no_slices(t.dtype) if found is None else found[:5]

    def make(self, t: Transitions, parts: int = 0) -> None:
        """Make the copy, with each layer split into `parts` parts; by default, those of `t`."""
        sizes, rows, parts = t.layout.layer_sizes, t.rows, parts or t.parts
        found: dict[tuple[int, int, int], int] = {}
        blocks: list[tuple[int, int, int, int]] = []
        first, total = np.zeros(t.layout.horizon, np.int64), 0
        for h, (size, n_next) in enumerate(itertools.pairwise(sizes)):
            begin = int(t.block[h])
            key = begin, size, n_next
            if key not in found:
                found[key] = total
                s0 = int(t.layout.offsets[h])
                ends = [int(rows[s0 + size * p // parts] - rows[s0]) for p in range(parts + 1)]
                for lo, hi in itertools.pairwise(ends):
                    blocks.append((begin + lo, begin + hi, n_next, total))
                    total += -(-n_next // 8)
            first[h] = found[key]
        starts, states = np.zeros(total + 1, np.int64), np.zeros(8 * total, np.uint32)
        count, lines = np.zeros(max(sizes), np.int64), np.array(blocks, np.int64).reshape(-1, 4)
        starts[-1] = slice_shape(t.indptr, t.indices, lines, count, starts, states)
        positions, weights = (aligned(int(starts[-1]), dtype, zero=True) for dtype in (np.uint32, t.dtype))
        slice_fill(t.data, t.indptr, t.indices, lines, count, starts, states, positions, weights)
        self.arguments = starts, states, positions, weights, first, t.layout.offsets, rows


class RowSlices(_Slices):
    """The copy of the rows; `arguments` are the seven model arguments of a backward sweep, in place of those of `Transitions`.

    Attributes
    ----------
    own_arguments : tuple, or None if there is no copy
        The same in place of the `own_arguments` of `Transitions`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own_arguments: Any = None

    def _gains(self, t: Transitions) -> bool:
        return ROWS_GAIN and not t.masked and t.data.size >= LEAST_ENTRIES

    def _worth(self) -> int:
        return ROWS_WORTH

    def _own_arrays(self, arguments: tuple[Any, ...]) -> tuple[Array, ...]:
        return arguments[1:4]

    def make(self, t: Transitions) -> None:
        """Make the copy, unless it would have too many entries."""
        found: dict[tuple[int, int], int] = {}
        blocks: list[tuple[int, int, int]] = []
        first, total = np.zeros(t.layout.horizon, np.int64), 0
        for h in range(t.layout.horizon - 1):
            key = int(t.block[h]), t.layout.layer_sizes[h] * t.layout.n_actions
            if key not in found:
                found[key] = total
                blocks.append((*key, total))
                total += -(-key[1] // 8)
            first[h] = found[key]
        lines, window = np.array(blocks, np.int64).reshape(-1, 3), 8 * t.layout.n_actions
        slices, order = np.empty(3 * total + 1, np.int64), np.empty(8 * total, np.int64)
        columns = row_slice_shape(t.indptr, t.indices, lines, window, np.empty(t.most_rows, np.int64), order, slices)
        if 8 * columns > MOST_PADDED * t.data.size:
            self.declined = True
            return
        halves, weights = (aligned(8 * columns, dtype, zero=True) for dtype in (np.uint16, t.dtype))
        row_slice_fill(t.data, t.indptr, t.indices, lines, order, slices, halves, weights)
        # The types of a CSR model's arguments, so that no kernel is compiled a second time.
        arrays = ROW_SLICES, frozen(weights), frozen(slices), frozen(halves.view(np.uint32))
        arguments = *arrays, frozen(first), *t.arguments[5:]
        d = t.distinct
        self.own_arguments = arguments if d is None else (*arrays, d.blocks(first), *t.own_arguments[5:])
        self.arguments = arguments
