"""All candidates of finite classes at the contexts of a pack, evaluated, checked and laid out at once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.checks import FLOAT64, tolerance_of
from ..kernels._simd import LANES
from ..model.layout import aligned

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["WholeClasses"]

Array = npt.NDArray[Any]

MOST_BYTES = 1 << 20
"""Maximum size of the candidates at the contexts of a pack; of larger classes, only the candidates that a step needs are laid out."""


class WholeClasses:
    """The candidates of a loss class and of a dynamics class at the contexts of one pack, in the layout of its kernels.

    Parameters
    ----------
    engine : ChainEngine
    losses : list of ndarrays (n, n_states, A), one per context
        In [0, 1].
    dynamics : list of ndarrays (m, transitions), one per context
        Rows in their order, layer after layer, those of masked pairs among them.
    """

    def __init__(self, engine: ChainEngine, losses: list[Array], dynamics: list[Array]) -> None:
        layout, mask = engine.layout, engine.action_mask
        f = np.array(losses).reshape(len(losses), len(losses[0]), -1)
        p = np.array(dynamics)
        if mask is not None:
            f = f[:, :, mask.reshape(-1)]
            p = p[:, :, np.repeat(mask.reshape(-1)[: layout.next_sizes.size], layout.next_sizes)]
        self.losses, self.dynamics = _packed(f), _packed(p)
        self._valid = _valid(p, engine).tolist()
        self._begin, self._stride = self.dynamics.__array_interface__["data"][0], self.dynamics.strides[0]
        self._size = self.dynamics.shape[1]
        self._nbytes = self.losses.nbytes + self.dynamics.nbytes

    @classmethod
    def of(cls, engine: ChainEngine, contexts: list[Any]) -> WholeClasses | None:
        """The classes of an engine, or None if its source cannot list their candidates or they are too large."""
        at = getattr(engine.source, "candidates_at", None)
        first = None if at is None else at(contexts[0])
        if first is None or 8 * LANES * sum(array.size for array in first) > MOST_BYTES:
            return None
        told = [first, *map(at, contexts[1:])]  # type: ignore[arg-type]
        if None in told:
            return None
        losses, dynamics = zip(*told, strict=True)
        return cls(engine, list(losses), list(dynamics))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._nbytes

    def has(self, fit: Hashable) -> bool:
        """Whether `fit` is a candidate dynamics with valid probabilities at all contexts of the pack."""
        return type(fit) is int and 0 <= fit < len(self._valid) and self._valid[fit]

    def table(self, fits: tuple[Any, ...]) -> Array:
        """Address and number of entries of each of these dynamics, for the kernels."""
        table = np.empty((len(fits), 2), np.int64)
        table[:, 0] = fits
        table[:, 0] *= self._stride
        table[:, 0] += self._begin
        table[:, 1] = self._size
        return table

    def least(self, members: Array) -> Array:
        """The least losses over some candidates."""
        if members.size == 1:
            found: Array = self.losses[members[0]]
            return found
        some = self.losses if members.size == len(self.losses) else self.losses[members]
        return np.minimum.reduce(some, axis=0, out=aligned(some.shape[1]))


def _packed(values: Array) -> Array:
    """(contexts, candidates, entries) as (candidates, entries * lanes)."""
    count, n, size = values.shape
    packed = aligned(n * size * LANES, zero=count < LANES)
    packed.reshape(n, size, LANES)[:, :, :count] = values.transpose(1, 2, 0)
    return packed.reshape(n, -1)


def _valid(p: Array, engine: ChainEngine) -> Array:
    """Which candidates have valid probabilities at all contexts: no negative entries, and rows that sum to 1."""
    if not p.shape[2]:
        return np.ones(p.shape[1], bool)
    sums = np.add.reduceat(p, engine.row_starts, axis=2)
    within = np.abs(sums - 1.0) <= tolerance_of(FLOAT64)
    found: Array = within.all(axis=(0, 2)) & (p.min(axis=(0, 2)) >= 0.0)
    return found
