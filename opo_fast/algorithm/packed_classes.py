"""All candidates of finite classes at the contexts of a pack, evaluated, checked and laid out at once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.checks import FLOAT64, tolerance_of
from ..kernels._simd import LANES
from ..kernels.ingest import pack_candidates
from ..model.layout import address, aligned

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["PackedClasses"]

Array = npt.NDArray[Any]

MOST_BYTES = 1 << 20
"""Maximum size of the candidates at the contexts of a pack; of larger classes, only the candidates that a step needs are laid out."""


class PackedClasses:
    """The candidates of a loss class and of a dynamics class at the contexts of one pack, in the layout of its kernels.

    Parameters
    ----------
    engine : ChainEngine
    losses : list of ndarrays (n, n_states, A), one per context
        In [0, 1].
    dynamics : list of ndarrays (m, transitions), one per context
        Rows in their order, layer after layer, those of masked pairs among them.

    Attributes
    ----------
    losses, dynamics : ndarray, shape (n, rows * lanes) and (m, transitions * lanes)
    base : int
        Where `dynamics` is in memory.
    sound : bool
        Whether the rows of all dynamics are probabilities at all contexts.
    """

    def __init__(self, engine: ChainEngine, losses: list[Array], dynamics: list[Array]) -> None:
        layout, mask = engine.layout, engine.action_mask
        f = np.array(losses).reshape(len(losses), len(losses[0]), -1)
        p = np.array(dynamics)
        if mask is not None:
            f = f[:, :, mask.reshape(-1)]
            p = p[:, :, np.repeat(mask.reshape(-1)[: layout.next_sizes.size], layout.next_sizes)]
        self.losses, self.dynamics, valid = _packed(f), _packed(p, fill=False), np.empty(p.shape[1], bool)
        pack_candidates(p, engine.row_starts, tolerance_of(FLOAT64), self.dynamics, valid)
        self._valid, self.sound = valid.tolist(), bool(valid.all())
        self.base, self._stride = address(self.dynamics), self.dynamics.strides[0]
        self._size = self.dynamics.shape[1]
        self._nbytes = self.losses.nbytes + self.dynamics.nbytes

    @classmethod
    def of(cls, engine: ChainEngine, contexts: list[Any]) -> PackedClasses | None:
        """The classes of an engine, or None if its source cannot list their candidates or they are too large."""
        at = getattr(engine.source, "candidates_at", None)
        first = None if at is None else at(contexts[0])
        if first is None or 8 * LANES * sum(array.size for array in first) > MOST_BYTES:
            return None
        both = [first, *map(at, contexts[1:])]  # type: ignore[arg-type]
        if None in both:
            return None
        losses, dynamics = zip(*both, strict=True)
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
        table[:, 0] += self.base
        table[:, 1] = self._size
        return table

    def least(self, members: Array) -> Array:
        """The least losses over some candidates."""
        if members.size == 1:
            found: Array = self.losses[members[0]]
            return found
        some = self.losses if members.size == len(self.losses) else self.losses[members]
        return np.minimum.reduce(some, axis=0, out=aligned(some.shape[1]))


def _packed(values: Array, *, fill: bool = True) -> Array:
    """(contexts, candidates, entries) as (candidates, entries * lanes); without `fill` lanes of no context alone are filled."""
    count, n, size = values.shape
    packed = aligned(n * size * LANES, zero=count < LANES)
    if fill:
        packed.reshape(n, size, LANES)[:, :, :count] = values.transpose(1, 2, 0)
    return packed.reshape(n, -1)
