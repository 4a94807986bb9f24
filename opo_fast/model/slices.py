"""Copies of CSR transitions in slices: transposed, for repeated forward passes, and of their rows, for repeated backward passes."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from ..kernels._jit import REGISTERS
from ..kernels.row_slices import SLICED, row_slice_fill, row_slice_shape
from ..kernels.slices import slice_fill, slice_shape
from .blocks import CSR
from .layout import aligned

if TYPE_CHECKING:
    from .transitions import Transitions

__all__ = ["MOST_BYTES", "ROWS_WORTH", "WORTH", "RowSlices", "SlicedCopy"]

Array = npt.NDArray[Any]

WORTH = 8
"""A copy is made once passes have read each transition so many times, which costs about as much as the copy."""
ROWS_WORTH = 20
"""The same for the copy of the rows. It costs five passes, and later ones take .5 to .9 of their time."""
MOST_BYTES = 1 << 29
"""Larger transitions are not copied."""
LEAST_ENTRIES = 1 << 12
"""Nor are the rows of a model with fewer transitions."""
MOST_PADDED = 1.25
"""Nor rows whose slices would have so many times as many entries."""
ROWS_GAIN = REGISTERS >= 32
"""Whether this processor sums faster over slices of rows than over CSR rows: those without AVX-512 take as long."""


@cache
def _nothing(dtype: np.dtype[Any]) -> tuple[Array, ...]:
    return tuple(np.empty(0, kind) for kind in (np.int64, np.uint32, np.uint32, dtype, np.int64))


class SlicedCopy:
    """The copy, which is made when it is worth the time.

    Attributes
    ----------
    arguments : tuple, or None if there is no copy yet
        The leading arguments of `kernels.slices.visit_slices`.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.declined = False
        self.arguments: tuple[Any, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self.arguments is None else sum(array.nbytes for array in self.arguments[:5])

    def arrays(self, t: Transitions, passes: int) -> tuple[Array, ...]:
        """The arrays of the copy, the first five of the arguments, for so many passes; they are empty if there is none."""
        found = self.note(t, passes) if t.kind == CSR and passes > 0 else None
        return _nothing(t.dtype) if found is None else found[:5]

    def note(self, t: Transitions, count: int = 1) -> tuple[Any, ...] | None:
        """Count `count` passes; returns the arguments of the copy, or None if there is none."""
        if self.arguments is None and not self.declined and t.parts > 1 and not t.changing and t.nbytes <= MOST_BYTES:
            if (self.passes + count - 1) * t.n_transitions >= WORTH * t.data.size:
                try:
                    self.make(t, t.parts)
                except MemoryError:
                    self.declined = True
            self.passes += count
        return self.arguments

    def make(self, t: Transitions, parts: int) -> None:
        """Make the copy, with each layer split into `parts` parts."""
        sizes, rows = t.layout.layer_sizes, t.rows
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


class RowSlices:
    """The copy of the rows, which is made when it is worth the time, if rows are about equally long and all pairs are allowed.

    Attributes
    ----------
    arguments, own_arguments : tuple, or None if there is no copy
        The seven model arguments of a backward sweep, in place of those of `Transitions`.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.declined = not ROWS_GAIN
        self.arguments: tuple[Any, ...] | None = None
        self.own_arguments: tuple[Any, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self.arguments is None else sum(array.nbytes for array in self.arguments[1:4])

    def note(self, t: Transitions, count: int = 1) -> RowSlices:
        """Count `count` passes, after which there may be a copy; returns this object."""
        if self.arguments is None and not self.declined:
            if self.passes == 0 and (t.masked or t.changing or t.nbytes > MOST_BYTES or t.data.size < LEAST_ENTRIES):
                self.declined = True
            elif (self.passes + count - 1) * t.n_transitions >= ROWS_WORTH * t.data.size:
                try:
                    self.make(t)
                except MemoryError:
                    self.declined = True
            self.passes += count
        return self

    def make(self, t: Transitions) -> None:
        """Make the copy, unless it would have too many entries."""
        found: dict[tuple[int, int], int] = {}
        blocks: list[tuple[int, int, int]] = []
        total = 0
        for h in range(t.layout.horizon - 1):
            key = int(t.block[h]), t.layout.layer_sizes[h] * t.layout.n_actions
            if key not in found:
                found[key] = total
                blocks.append((*key, total))
                total += -(-key[1] // 8)
        lines, window = np.array(blocks, np.int64).reshape(-1, 3), 8 * t.layout.n_actions
        slices, order = np.empty(3 * total + 1, np.int64), np.empty(8 * total, np.int64)
        eights = row_slice_shape(t.indptr, t.indices, lines, window, np.empty(t.most_rows, np.int64), order, slices)
        if 8 * eights > MOST_PADDED * t.data.size:
            self.declined = True
            return
        halves, weights = (aligned(8 * eights, dtype, zero=True) for dtype in (np.uint16, t.dtype))
        row_slice_fill(t.data, t.indptr, t.indices, lines, order, slices, halves, weights)
        arrays = SLICED, frozen(weights), frozen(slices), frozen(halves.view(np.uint32))
        self.arguments = *arrays, _first_slices(found, t.arguments), *t.arguments[5:]
        own = t.own_arguments
        self.own_arguments = self.arguments if own is t.arguments else (*arrays, _first_slices(found, own), *own[5:])


def _first_slices(found: dict[tuple[int, int], int], arguments: tuple[Any, ...]) -> Array:
    """The first slice of each layer's block; 0 for a layer that leads nowhere."""
    *_, block, layers, rows = arguments
    first = np.zeros(block.size, np.int64)
    for k in range(block.size):
        # Some places of distinct layers are between them, where no plan leads.
        if max(layers[k : k + 2]) < rows.size:
            first[k] = found.get((int(block[k]), int(rows[layers[k + 1]] - rows[layers[k]])), 0)
    return frozen(first)
