"""Layers of stationary models that are copies of one another; what they share is stored once.

A row is an allowed state-action pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from .._support.checks import MANY, as_integer, frozen
from ..errors import OpoError
from ..kernels.evaluation import PLAN
from .layout import Immutable, Layout, as_mask_2d, row_starts

__all__ = ["NO_PLAN", "Distinct", "short_layers"]

Array = npt.NDArray[Any]

NO_PLAN = frozen(np.empty(0, np.int64))
"""The plan of a backward sweep if no layer is a copy of another."""

_GROUP = 8
"""Number of entries of `short_layers` for each distinct layer."""


def short_layers(first: int, size: int, following: int) -> list[int]:
    """The offsets of a layer and the next one, for kernels that read entries k, k + 1 and k + 2; once for an even k, once for an odd k.

    The order of a dense sum depends on whether the number of its layer is even, so copies with even and odd numbers need both.
    """
    offsets = [first, first + size, first + size + following]
    return [first, first, *offsets, *offsets]


def _number(group: int, h: int) -> int:
    """The entry k of distinct layer `group` in `places` that has the parity of `h`."""
    return _GROUP * group + (5 if h % 2 else 2)


class Distinct(Immutable):
    """The distinct layers of a stationary layout, and of which of them each layer is a copy.

    The states of the distinct layers are a model's *own* states, numbered layer by layer. `rows`, `pairs`, `mask` and losses have
    entries for own states only.

    Parameters
    ----------
    layout : Layout
    which : sequence of int, one for each layer
        Its distinct layer, numbered from 0 in order of first appearance. All layers but the first have the same size.
    mask : ndarray of bool, shape (own states, A), or None
    start : int, optional
        The stationary state of which the first layer is a copy.
    """

    _transient = ("_plans", "places")

    def __init__(self, layout: Layout, which: Sequence[int], mask: Array | None, start: int | None) -> None:
        self.layout, self.which, self.start = layout, tuple(which), start
        self.sizes = [layout.layer_sizes[self.which.index(d)] for d in range(max(self.which) + 1)]
        self.offsets = [0, *itertools.accumulate(self.sizes)]
        self.n_states = self.offsets[-1]
        self.mask = None if mask is None or mask.all() else frozen(np.array(mask))
        self.rows: Array = frozen(np.arange(self.n_states + 1, dtype=np.int64) * layout.n_actions)
        self.pairs: Array | None = None
        if self.mask is not None:
            self.rows = frozen(row_starts(self.mask.sum(axis=1)))
            self.pairs = frozen(np.flatnonzero(self.mask))
        self._seal()

    @classmethod
    def stored(cls, layout: Layout, count: int, mask: Any, start: Any) -> Distinct:
        """The `Distinct` of a file, with `count` distinct layers; if there are three, only the last layer is a copy of the third."""
        sizes = layout.layer_sizes
        if not 1 <= count <= min(3, layout.horizon) or len(set(sizes[1:])) > 1 or (count == 1) != (layout.horizon == 1):
            raise OpoError(f"distinct is {count}: layers of sizes {sizes[:3]}, ... cannot have so many distinct ones")
        if start is not None:
            start = as_integer(start, "start", least=0, most=sizes[-1] - 1 if layout.horizon > 1 else MANY)
        which = [min(h, 1) for h in range(layout.horizon - 1)] + [count - 1]
        n_own = 1 + (count - 1) * sizes[-1]
        return cls(layout, which, None if mask is None else as_mask_2d(mask, (n_own, layout.n_actions), "action_mask"), start)

    def own(self, h: int) -> slice:
        """The own states of which those of layer `h` are copies."""
        return slice(self.offsets[self.which[h]], self.offsets[self.which[h] + 1])

    def unroll(self, values: Array) -> Array:
        """Values of the own states, repeated for the states of all layers."""
        return np.concatenate([values[self.own(h)] for h in range(self.layout.horizon)])

    def unroll_rows(self) -> Array:
        """First row of each state of all layers."""
        return frozen(row_starts(self.unroll(np.diff(self.rows))))

    def spread(self, values: Array, first: Array, last: Array | None = None) -> Array:
        """Values for the own states, from values (S, ...) for the stationary states.

        `first` is used for the first layer if it is not a copy of a state, `last`, if given, for the third distinct layer.
        """
        head = first if self.start is None else values[self.start]
        parts = [head[None]] + [values] * (len(self.sizes) - 1)
        return np.concatenate(parts if last is None else [*parts[:-1], last])

    @property
    def stationary_size(self) -> int:
        """Number of states of each layer after the first."""
        return self.layout.layer_sizes[-1]

    @property
    def stationary_shape(self) -> tuple[int, int]:
        """Shape (S, A) of arrays that are the same in every layer."""
        return self.stationary_size, self.layout.n_actions

    def shapes(self) -> str:
        """The possible shapes of an array with one number per state-action pair, for a message."""
        return f"(n_states, n_actions) = {self.layout.shape}, or (S, A) = {self.stationary_shape} for the same in every layer,"

    # -- backward sweeps -----------------------------------------------------------------------------------------

    @cached_property
    def places(self) -> Array:
        """`short_layers` of each distinct layer; kernels get it instead of the layout's offsets."""
        following = [*self.sizes[1:2] * (len(self.sizes) - 1), self.sizes[-1]]
        each = zip(self.offsets, self.sizes, following, strict=False)
        return frozen(np.concatenate([short_layers(*one) for one in each]).astype(np.int64))

    def blocks(self, block: Array) -> Array:
        """The block of each entry of `places`; kernels get it instead of `block`."""
        return frozen(np.repeat(block[[self.which.index(d) for d in range(len(self.sizes))]], _GROUP))

    def plan(self, *, own_losses: bool, own_policy: bool, start_alone: bool) -> Array:
        """The plan of a backward sweep (see `kernels.evaluation.backward_sweep`).

        Parameters
        ----------
        own_losses, own_policy : bool
            Whether losses, or the policy, have numbers for the own states only.
        start_alone : bool
            Whether only the values of two layers are kept at a time, in `two_layers` numbers; that of the start is at `first_value`.
        """
        key = own_losses, own_policy, start_alone
        if key not in self._plans:
            self._plans[key] = self._make_plan(*key)
        return self._plans[key]

    @cached_property
    def _plans(self) -> dict[tuple[bool, bool, bool], Array]:
        return {}

    @property
    def first_value(self) -> int:
        """Position of the value of the first state, if only the values of two layers are kept."""
        # Beyond all own states, so that no shift in a plan is negative. Memory that is not touched costs nothing.
        return self.n_states

    @property
    def two_layers(self) -> int:
        """Length of the array for the values of two layers."""
        return self.n_states + 2 * max(self.sizes)

    def _make_plan(self, own_losses: bool, own_policy: bool, start_alone: bool) -> Array:
        horizon, row = self.layout.horizon, 0
        plan = np.zeros((horizon, PLAN), np.int64)
        for h, d in enumerate(self.which):
            x, shift = self.offsets[d], row - int(self.rows[self.offsets[d]])
            here = after = int(self.layout.offsets[h]) - x
            if start_alone:
                here, after = (self.first_value + k % 2 * max(self.sizes) for k in (h, h + 1))
                here, after = here - x, after - x - self.sizes[d]
            plan[h] = (
                _number(d, h), 0 if own_losses else shift, 0 if own_policy else shift, here, after if h < horizon - 1 else -1,
            )  # fmt: skip
            row += int(self.rows[self.offsets[d + 1]] - self.rows[x])
        return frozen(plan.reshape(-1))
