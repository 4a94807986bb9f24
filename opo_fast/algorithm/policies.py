"""Past policies of a chain within a byte budget, and sums of their occupancies, each of which is computed at most once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..model.layout import aligned

__all__ = ["PolicyStore", "VisitSum"]

Array = npt.NDArray[Any]

FIRST_LINES = 4
MOST_GROWTH = 1024
"""Maximum number of policies for which a store grows at a time, unless it doubles."""


def _lines(count: int, width: int) -> Array:
    return aligned(count * width).reshape(count, width)


class PolicyStore:
    """The policies of steps `first`, `first` + 1, ..., one in each line of the 2-D array `lines`.

    Parameters
    ----------
    start : ndarray, shape (width,)
        The policy of step 0.
    """

    def __init__(self, start: Array) -> None:
        self.start, self.width = start, start.size
        self.lines = _lines(FIRST_LINES, self.width)
        self.restart()

    def restart(self) -> None:
        """Forget all policies but that of step 0."""
        self.first = 0
        self.lines[0] = self.start

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lines.nbytes

    def line(self, step: int) -> int:
        """Index in `lines` of the policy of `step`."""
        return step - self.first

    def free(self, step: int) -> int:
        """Number of lines after the one of `step`."""
        return len(self.lines) - (self.line(step) + 1)

    def is_full(self, budget: int) -> bool:
        """Whether the store has all lines that it may have within `budget` bytes."""
        return len(self.lines) >= max(2, budget // (8 * self.width))

    def grow(self, step: int, ahead: int, budget: int) -> bool:
        """Make space for some of the `ahead` steps after `step`, within `budget` bytes; whether the store grew."""
        used = self.line(step) + 1
        most = max(2, budget // (8 * self.width))
        size = min(most, max(2 * len(self.lines), min(used + ahead, MOST_GROWTH)))
        if size <= len(self.lines):
            return False
        grown = _lines(size, self.width)
        grown[:used] = self.lines[:used]
        self.lines = grown
        return True

    def drop_before(self, step: int) -> None:
        """Forget all policies before that of `step`."""
        if step == self.first:
            return
        self.lines[0] = self.lines[self.line(step)]
        self.first = step

    def note_steps(self, step: int, count: int) -> None:
        """Note that a kernel wrote the policies of `count` steps from `step` on, and went back to line 0 whenever the store was full."""
        last = len(self.lines) - 1
        line = self.line(step) + count
        if line > last:
            line = (line - last - 1) % last + 1
        self.first = step + count - line

    def take_over(self, lines: Array, first: int) -> None:
        """Replace all policies by `lines`, those from step `first` on."""
        self.lines = _lines(max(FIRST_LINES, len(lines) + 1), self.width)
        self.lines[0] = self.start
        self.lines[: len(lines)] = lines
        self.first = first


@dataclass
class VisitSum:
    """N under one dynamics: the sum of the occupancies of the first `counted` policies."""

    counts: Array
    counted: int = 0

    @classmethod
    def empty(cls, width: int) -> VisitSum:
        """The sum over no policies."""
        return cls(aligned(width, zero=True))


VisitSums = dict[Hashable, VisitSum]
