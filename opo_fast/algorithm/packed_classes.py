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

__all__ = ["PackedClasses", "small_enough"]

Array = npt.NDArray[Any]

_NO_ROWS = np.empty(0, np.int64)
MOST_BYTES = 1 << 20
"""Maximum size of the candidates at the contexts of a pack; of larger classes, only the candidates that a step needs are laid out."""


def small_enough(losses: int, dynamics: int) -> bool:
    """Whether so many numbers of the candidates at a context are laid out for a pack."""
    return 8 * LANES * (losses + dynamics) <= MOST_BYTES


class PackedClasses:
    """The candidates of a loss class and of a dynamics class at the contexts of one pack, in the layout of its kernels.

    Parameters
    ----------
    engine : ChainEngine
    losses : ndarray, shape (k, n, n_states * A)
        In [0, 1], for k contexts.
    dynamics : ndarray, shape (k, m, transitions)
        Rows in their order, layer after layer, those of masked pairs among them.

    Attributes
    ----------
    losses, dynamics : ndarray, shape (n, rows * lanes) and (m, transitions * lanes)
    base : int
        Where `dynamics` is in memory.
    sound : bool
        Whether the rows of all dynamics are probabilities at all contexts.
    """

    def __init__(self, engine: ChainEngine, losses: Array, dynamics: Array) -> None:
        layout, mask, f, p = engine.layout, engine.action_mask, losses, dynamics
        if mask is not None:
            f = f[:, :, mask.reshape(-1)]
            p = p[:, :, np.repeat(mask.reshape(-1)[: layout.next_sizes.size], layout.next_sizes)]
        self.losses, _ = _packed(f, _NO_ROWS)
        self.dynamics, valid = _packed(p, engine.row_starts)
        self._valid, self.sound = valid.tolist(), bool(valid.all())
        self.base, self._stride = address(self.dynamics), self.dynamics.strides[0]
        self._size = self.dynamics.shape[1]
        self._nbytes = self.losses.nbytes + self.dynamics.nbytes

    @classmethod
    def of(cls, engine: ChainEngine, contexts: list[Any]) -> PackedClasses | None:
        """The classes of an engine, or None if its source cannot list their candidates or they are too large."""
        at = getattr(engine.source, "candidates_at", None)
        first = None if at is None else at(contexts[0])
        if first is None or not small_enough(*(array.size for array in first)):
            return None
        both = [first, *map(at, contexts[1:])]  # type: ignore[arg-type]
        if None in both:
            return None
        losses, dynamics = map(np.array, zip(*both, strict=True))
        return cls(engine, losses.reshape(*losses.shape[:2], -1), dynamics)

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


def _packed(values: Array, starts: Array) -> tuple[Array, Array]:
    """(contexts, candidates, entries) as (candidates, entries * lanes), and whether the rows of each candidate are probabilities."""
    count, n, size = values.shape
    packed, valid = aligned(n * size * LANES, zero=count < LANES), np.empty(n, bool)
    pack_candidates(values.reshape(-1), count, starts, size, tolerance_of(FLOAT64), packed, valid)
    return packed.reshape(n, -1), valid
