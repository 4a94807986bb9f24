"""The transposed copy of CSR transitions that repeated forward passes gather from."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.slices import slice_fill, slice_shape
from .layout import aligned

if TYPE_CHECKING:
    from .transitions import Transitions

__all__ = ["MOST_BYTES", "WORTH", "SlicedCopy"]

WORTH = 8
"""Times that passes have read each transition before a copy is made: making it costs about as much."""
MOST_BYTES = 1 << 29
"""Transitions that take more are not copied."""


class SlicedCopy:
    """The copy, once it is worth its making.

    Attributes
    ----------
    arguments : tuple, or None where there is no copy
        The leading arguments of `kernels.slices.visit_slices`.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.arguments: tuple[Any, ...] | None = None

    @staticmethod
    def none(t: Transitions) -> tuple[Any, ...]:
        """The arguments of no copy."""
        return *(np.empty(0, dtype) for dtype in (np.int64, np.uint32, np.uint32, t.dtype, np.int64)), t.layout.offsets, t.rows

    def note(self, t: Transitions, count: int = 1) -> tuple[Any, ...] | None:
        """Count `count` passes; the copy's arguments, or None where they must do without."""
        if self.arguments is None and t.parts > 1 and not t.changing and t.nbytes <= MOST_BYTES:
            if (self.passes + count - 1) * t.n_transitions >= WORTH * t.data.size:
                self.make(t, t.parts)
            self.passes += count
        return self.arguments

    def make(self, t: Transitions, parts: int) -> None:
        """Make the copy, for layers in so many parts."""
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
