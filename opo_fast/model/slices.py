"""The transposed copy of CSR transitions, from which repeated forward passes gather."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..kernels.slices import slice_fill, slice_shape
from .blocks import CSR
from .layout import aligned

if TYPE_CHECKING:
    from .transitions import Transitions

__all__ = ["MOST_BYTES", "WORTH", "SlicedCopy"]

Array = npt.NDArray[Any]

WORTH = 8
"""A copy is made once passes have read each transition so many times, which costs about as much as the copy."""
MOST_BYTES = 1 << 29
"""Larger transitions are not copied."""


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
        if self.arguments is None and t.parts > 1 and not t.changing and t.nbytes <= MOST_BYTES:
            if (self.passes + count - 1) * t.n_transitions >= WORTH * t.data.size:
                self.make(t, t.parts)
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
