"""Past policies of a chain within a byte budget, and the sums of their visits, each computed at most once."""

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
"""Most policies by which a store grows at a time, unless it doubles."""


def _lines(count: int, width: int) -> Array:
    return aligned(count * width).reshape(count, width)


class PolicyStore:
    """The policies of steps `first`, `first` + 1, ..., one per line of `lines`.

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
        """Hold the policy of step 0 alone."""
        self.first = 0
        self.lines[0] = self.start

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lines.nbytes

    def line(self, step: int) -> int:
        """The line of the policy of `step`."""
        return step - self.first

    def free(self, step: int) -> int:
        """Number of lines after that of `step`."""
        return len(self.lines) - (self.line(step) + 1)

    def grow(self, step: int, ahead: int, budget: int) -> bool:
        """Make space after the policy of `step` for some of the `ahead` steps to come, within `budget` bytes."""
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
        """A kernel wrote the policies of the `count` steps from `step` on, going on at line 0 whenever it came to the last line."""
        last = len(self.lines) - 1
        line = self.line(step) + count
        if line > last:
            line = (line - last - 1) % last + 1
        self.first = step + count - line

    def take_over(self, lines: Array, first: int) -> None:
        """Hold `lines`, the policies from step `first` on."""
        self.lines = _lines(max(FIRST_LINES, len(lines) + 1), self.width)
        self.lines[0] = self.start
        self.lines[: len(lines)] = lines
        self.first = first


@dataclass
class VisitSum:
    """N of one dynamics: the sum of the occupancies of the first `counted` policies."""

    counts: Array
    counted: int = 0

    @classmethod
    def empty(cls, width: int) -> VisitSum:
        """The sum over no policy."""
        return cls(aligned(width, zero=True))


VisitSums = dict[Hashable, VisitSum]
