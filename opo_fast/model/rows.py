"""Rows: the state-action pairs that a mask allows, numbered state by state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from .._support.checks import frozen
from .distinct import Distinct
from .layout import Immutable, Layout, row_starts

__all__ = ["Rows"]

Array = npt.NDArray[Any]


class Rows(Immutable):
    """The rows of a layout and mask.

    A *row* is a state-action pair that the mask allows. If layers are copies of others, `distinct` holds the layers that are not,
    and `action_mask`, `rows` and `pairs` of all layers are computed on first use. The *own states* are the states of these distinct
    layers; without `distinct`, they are all states.
    """

    layout: Layout
    distinct: Distinct | None = None

    @classmethod
    def of(cls, layout: Layout, mask: Array | None, distinct: Distinct | None = None) -> Rows:
        """The rows of a valid mask, or of `distinct`, which has its mask."""
        result = Rows.__new__(Rows)
        result.layout, result.distinct = layout, distinct
        if distinct is None:
            result._lay_out_rows(mask)
        return result

    def _lay_out_rows(self, mask: Array | None) -> None:
        """Number the rows of a model in which no layer is a copy."""
        rows, pairs = self.layout.rows, None
        if mask is not None:
            rows = frozen(row_starts(mask.sum(axis=1)))
            pairs = frozen(np.flatnonzero(mask))
        vars(self).update(action_mask=mask, rows=rows, pairs=pairs)

    @cached_property
    def action_mask(self) -> Array | None:
        """Allowed state-action pairs (n_states, A), or None if all are."""
        d = self.distinct
        return None if d is None or d.mask is None else frozen(d.unroll(d.mask))

    @cached_property
    def rows(self) -> Array:
        """First row of each state, `n_states + 1` entries."""
        return self.layout.rows if self.distinct is None or not self.masked else self.distinct.unroll_rows()

    @cached_property
    def pairs(self) -> Array | None:
        """The state-action pair of each row; None if all are allowed."""
        return None if self.action_mask is None else frozen(np.flatnonzero(self.action_mask))

    @property
    def masked(self) -> bool:
        """Whether the mask forbids any pair."""
        return (self.action_mask if self.distinct is None else self.distinct.mask) is not None

    @property
    def own_rows(self) -> Array:
        """First row of each own state."""
        return self.rows if self.distinct is None else self.distinct.rows

    @property
    def own_pairs(self) -> Array | None:
        """The state-action pair of each row of the own states; None if all are allowed."""
        return self.pairs if self.distinct is None else self.distinct.pairs

    def own(self, h: int) -> slice:
        """Own states of layer `h`."""
        return self.layout.layer(h) if self.distinct is None else self.distinct.own(h)

    def _n_rows(self, h: int) -> int:
        own = self.own(h)
        return int(self.own_rows[own.stop] - self.own_rows[own.start])

    def allowed(self, h: int) -> Array | None:
        """Which state-action pairs of layer `h` are allowed, shape (S_h * A,); None if all are."""
        mask = self.action_mask if self.distinct is None else self.distinct.mask
        return None if mask is None else mask[self.own(h)].ravel()

    @cached_property
    def layer_rows(self) -> list[int]:
        """Number of rows of each layer."""
        return [self._n_rows(h) for h in range(self.layout.horizon)]

    @cached_property
    def n_rows(self) -> int:
        """Number of rows of all layers."""
        return sum(self.layer_rows)

    @cached_property
    def most_rows(self) -> int:
        """Number of rows of the largest layer."""
        return max(self.layer_rows)

    def gather(self, values: Array) -> Array:
        """The entries of an (n_states, A) array at the rows, shape (n_rows,)."""
        flat = values.reshape(-1)
        return flat if self.pairs is None else flat[self.pairs]

    def scatter(self, values: Array) -> Array:
        """The (n_states, A) array that has these numbers at the rows, and 0 at masked pairs; the inverse of `gather`."""
        if self.pairs is None:
            return values.reshape(self.layout.shape)
        full = np.zeros(self.layout.n_states * self.layout.n_actions)
        full[self.pairs] = values
        return full.reshape(self.layout.shape)
