"""Rows, the pairs that a mask allows: of all layers, and of those that are not copies of others."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from .distinct import Distinct
from .layout import Immutable, Layout, row_starts

__all__ = ["Rows"]

Array = npt.NDArray[Any]


class Rows(Immutable):
    """The rows of a layout and mask.

    Where layers are copies of others, `distinct` holds what is not, and `action_mask`, `rows` and `pairs` of all layers are made
    when they are asked for. Own states are those of `distinct`; without it they are all states.
    """

    layout: Layout
    distinct: Distinct | None = None

    @classmethod
    def of(cls, layout: Layout, mask: Array | None, distinct: Distinct | None = None) -> Rows:
        """Those of a valid mask, or of distinct layers with theirs."""
        result = Rows.__new__(Rows)
        result.layout, result.distinct = layout, distinct
        if distinct is None:
            result._lay_out_rows(mask)
        return result

    def _lay_out_rows(self, mask: Array | None) -> None:
        """Rows of the pairs that are allowed, no layer being a copy."""
        rows, pairs = self.layout.rows, None
        if mask is not None:
            rows = frozen(row_starts(mask.sum(axis=1)))
            pairs = frozen(np.flatnonzero(mask))
        vars(self).update(action_mask=mask, rows=rows, pairs=pairs)

    @cached_property
    def action_mask(self) -> Array | None:
        """Allowed pairs (n_states, A), or None where all are."""
        d = self.distinct
        return None if d is None or d.mask is None else frozen(d.unroll(d.mask))

    @cached_property
    def rows(self) -> Array:
        """First row of each state, `n_states + 1` entries."""
        return self.layout.rows if self.distinct is None or not self.masked else self.distinct.unroll_rows()

    @cached_property
    def pairs(self) -> Array | None:
        """The pair of each row; None where all are allowed."""
        return None if self.action_mask is None else frozen(np.flatnonzero(self.action_mask))

    @property
    def masked(self) -> bool:
        """Whether a pair is not allowed."""
        return (self.action_mask if self.distinct is None else self.distinct.mask) is not None

    @property
    def own_rows(self) -> Array:
        """First row of each own state."""
        return self.rows if self.distinct is None else self.distinct.rows

    @property
    def own_pairs(self) -> Array | None:
        """The pair of each row of the own states; None where all are allowed."""
        return self.pairs if self.distinct is None else self.distinct.pairs

    def own(self, h: int) -> slice:
        """Own states of layer `h`."""
        return self.layout.layer(h) if self.distinct is None else self.distinct.own(h)

    def _n_rows(self, h: int) -> int:
        own = self.own(h)
        return int(self.own_rows[own.stop] - self.own_rows[own.start])

    def allowed(self, h: int) -> Array | None:
        """Which pairs of layer `h` are allowed, shape (S_h * A,); None where all are."""
        mask = self.action_mask if self.distinct is None else self.distinct.mask
        return None if mask is None else mask[self.own(h)].ravel()

    @cached_property
    def layer_rows(self) -> list[int]:
        """Number of rows of each layer."""
        return [self._n_rows(h) for h in range(self.layout.horizon)]

    @cached_property
    def n_rows(self) -> int:
        """Number of allowed pairs, in all layers."""
        return sum(self.layer_rows)

    @cached_property
    def most_rows(self) -> int:
        """Number of rows of the largest layer."""
        return max(self.layer_rows)

    def gather(self, values: Array) -> Array:
        """Entries of the allowed pairs of an (n_states, A) array, flat, one per row."""
        flat = values.reshape(-1)
        return flat if self.pairs is None else flat[self.pairs]

    def scatter(self, values: Array) -> Array:
        """The (n_states, A) array of one number per row; 0 at masked pairs."""
        if self.pairs is None:
            return values.reshape(self.layout.shape)
        full = np.zeros(self.layout.n_states * self.layout.n_actions)
        full[self.pairs] = values
        return full.reshape(self.layout.shape)
