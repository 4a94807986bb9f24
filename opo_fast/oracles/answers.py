"""The candidates of a finite class of dynamics at one context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from ..model.layout import Layout

__all__ = ["DynamicsAnswer", "Lines"]

Array = npt.NDArray[Any]


class DynamicsAnswer(NamedTuple):
    """The transitions of all candidates at a context, and whether each is a list of float64 arrays."""

    models: Sequence[Any]
    all_plain: bool
    stacks: list[Array] | None = None
    """The arrays of all candidates, layer by layer, if one function returns them all."""
    lines: Array | None = None
    """The entries of all candidates, one row for each, if they are few."""


class Lines(Sequence[Any]):
    """Candidates stored as the rows of one array; each is returned as a list of arrays (S_h, A, S_{h+1})."""

    def __init__(self, lines: Array, layout: Layout) -> None:
        self._lines, self._layout = lines, layout

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, i: Any) -> Any:
        line, block = self._lines[i], self._layout.dense_block
        return [line[block[h] : block[h + 1]].reshape(shape) for h, shape in enumerate(self._layout.dense_shapes)]
