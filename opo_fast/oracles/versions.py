"""Arrays that remember their past: the values of a parametric oracle at each of its fits."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.fields import Fields

__all__ = ["Versions", "distinct"]

Array = npt.NDArray[Any]


class Versions:
    """An array and all its past versions, identified by the number of the fit that wrote them.

    A fit usually changes few entries, so only the changes are stored, and a copy of the whole array whenever the changes since
    the last copy add up to one. This takes at most twice the memory of the changes, and reading costs at most twice the array.

    Parameters
    ----------
    initial : ndarray
        The array before the first write. Entries are addressed along the first axis.
    """

    def __init__(self, initial: Array) -> None:
        self.initial, self.current = initial.copy(), initial.copy()
        self.numbers: list[int] = []
        self.changes: list[tuple[Array, Array]] = []
        self._copies = [self.initial]
        self._at = [0]
        self._since = 0

    def write(self, number: int, cells: Array, values: Array) -> None:
        """Record the entries that fit `number` changes; the number must be above all earlier ones."""
        self.current[cells] = values
        self.numbers.append(number)
        self.changes.append((cells, values))
        self._since += cells.size
        if self._since >= len(self.current):
            self._copies.append(self.current.copy())
            self._at.append(len(self.changes))
            self._since = 0

    def read(self, number: int) -> Array:
        """The array as it was at fit `number`; do not write to it."""
        position = bisect_right(self.numbers, number)
        if position == len(self.numbers):
            return self.current
        copy = bisect_right(self._at, position) - 1
        array = self._copies[copy].copy()
        for cells, values in self.changes[self._at[copy] : position]:
            array[cells] = values
        return array

    def state(self, prefix: str) -> dict[str, Array]:
        """Arrays from which `restored` makes the same versions."""
        empty = self.initial[:0]
        return {
            f"{prefix}numbers": np.array(self.numbers, np.int64),
            f"{prefix}lengths": np.array([cells.size for cells, _ in self.changes], np.int64),
            f"{prefix}cells": np.concatenate([cells for cells, _ in self.changes] or [np.empty(0, np.int64)]),
            f"{prefix}values": np.concatenate([values for _, values in self.changes] or [empty]),
        }

    @classmethod
    def restored(
        cls, initial: Array, fields: Fields, prefix: str, number: int, *, least: float = -np.inf, most: float = np.inf
    ) -> Versions:
        """Undo `state`, for an oracle whose last fit has this number; values must be within [least, most]."""
        result = cls(initial)
        lengths = fields.positions(f"{prefix}lengths", (None,), most=len(initial))
        numbers = fields.positions(f"{prefix}numbers", (lengths.size,), least=1, most=number)
        fields.check(f"{prefix}numbers", bool((np.diff(numbers) > 0).all()), "does not rise")
        total = int(lengths.sum())
        cells = fields.positions(f"{prefix}cells", (total,), most=len(initial) - 1)
        values = fields.numbers(f"{prefix}values", (total, *initial.shape[1:]), least=least, most=most)
        ends = np.cumsum(lengths)
        for number, length, end in zip(numbers.tolist(), lengths.tolist(), ends.tolist(), strict=True):
            result.write(number, cells[end - length : end], values[end - length : end])
        return result


def distinct(parts: list[Array]) -> Array:
    """The entries of some arrays of int64, ascending, each once."""
    return np.unique(np.concatenate([*parts, np.empty(0, np.int64)])).astype(np.int64)
