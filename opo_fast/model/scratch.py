"""Work arrays of passes through one dynamics, which later calls reuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from ..kernels.forward import STATES
from .layout import aligned
from .transitions import Transitions

__all__ = ["Scratch", "borrowed", "chunk_of"]

Array = npt.NDArray[Any]

_ROWS = 1 << 12
"""Number of rows whose Q and policy, 64 KB, leave room for the values in the second-level cache."""


def chunk_of(t: Transitions, *, kept: bool = False) -> int:
    """Number of states that are backed up at a time. Dense layers are not split: a block stores all rows of one next state together.

    Where Q is `kept`, it needs no work array, so that a chunk may have as many rows as the second-level cache easily holds.
    """
    if not t.kind:
        return t.layout.n_states
    return max(STATES, _ROWS // t.layout.n_actions // 8 * 8) if kept else STATES


class Scratch:
    """Work arrays for the pass of one policy through one dynamics."""

    def __init__(self, t: Transitions) -> None:
        # `t` itself is not kept: it keeps this object, and the cycle would not be freed at once.
        self._n_states, self._n_rows, self._most_rows = t.layout.n_states, t.n_rows if t.masked else 0, t.most_rows
        self.w = aligned(t.threads * STATES * t.layout.n_actions if t.kind else t.most_rows, worth=4096)
        self.private = np.empty(t.parts * max(t.layout.layer_sizes)) if t.kind else self.w

    @cached_property
    def d(self) -> Array:
        """One number per state, and eight more, so that a vector can be read at the last state."""
        return np.empty(self._n_states + 8)

    @cached_property
    def layer(self) -> Array:
        """One number per row of a layer."""
        return aligned(self._most_rows)

    @cached_property
    def rows(self) -> Array | None:
        """One number per row (allowed state-action pair) if any pair is masked, else None."""
        return np.empty(self._n_rows) if self._n_rows else None


class borrowed:
    """Work arrays that no other call uses at the same time: ``with borrowed(t) as scratch``."""

    # A generator under contextlib.contextmanager costs three microseconds, a tenth of a small sweep.
    __slots__ = ("scratch", "t")

    def __init__(self, t: Transitions) -> None:
        self.t = t

    def __enter__(self) -> Scratch:
        try:
            scratch: Scratch = self.t.scratch.pop()
        except IndexError:
            scratch = Scratch(self.t)
        self.scratch = scratch
        return scratch

    def __exit__(self, *raised: object) -> None:
        self.t.scratch.append(self.scratch)
