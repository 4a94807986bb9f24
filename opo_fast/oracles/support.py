"""The transitions that a dynamics class allows: cells (s, a, s') in one flat order, and models stored in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_items, frozen
from .._support.numbers import log_loss
from ..errors import OpoError
from ..model.contextual import Trajectory
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.sparse import as_csr
from ..model.transitions import Transitions

__all__ = ["Support"]

Array = npt.NDArray[Any]
_MOST = 1 << 27
"""Number of transitions above which a support must be given: a table of all of them would take 3 GiB."""


class Support:
    """The allowed transitions of a layout, row by row; a row is a state-action pair s * A + a of layers 1..H-1.

    Parameters
    ----------
    layout : Layout
    allowed : optional
        Default: every transition to the next layer. H-1 boolean arrays (S_h, A, S_{h+1}), or H-1 SciPy sparse arrays
        (S_h * A, S_{h+1}), whose stored entries are allowed; or a `Transitions` or `LayeredMDP`, whose positive ones are.
    action_mask : ndarray of bool (n_states, A), optional
        Every allowed pair must have an allowed transition.

    Attributes
    ----------
    indptr : ndarray of int64, shape (n_rows + 1,)
        Where the cells of each row begin.
    positions : ndarray of int64, shape (n_cells,)
        The next state's position inside its layer.
    """

    def __init__(self, layout: Layout, allowed: Any = None, action_mask: Array | None = None) -> None:
        self.layout = layout
        n_actions = layout.n_actions
        self.n_rows = int(layout.offsets[-2]) * n_actions
        given = _given(layout, allowed)
        self.sparse = given is not None and any(sp.issparse(array) for array in given)
        layers = [_every(layout, h) if given is None else _cells(layout, h, given[h]) for h in range(layout.horizon - 1)]
        empty = [np.empty(0, np.int64)]
        counts = np.concatenate([lengths for lengths, _ in layers] or empty).astype(np.int64)
        if action_mask is None:
            action_mask = np.ones(layout.shape, bool)
        bad = np.flatnonzero((counts == 0) & action_mask.ravel()[: self.n_rows])
        if bad.size:
            state, action = divmod(int(bad[0]), n_actions)
            raise OpoError(
                f"support: layer {layout.layer_of(state)}, state {state}, action {action} allows no next state; at least one is needed"
            )
        self.indptr = frozen(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        self.positions = frozen(np.concatenate([positions for _, positions in layers] or empty).astype(np.int64))
        self.n_cells = self.positions.size
        self.row_of = frozen(np.repeat(np.arange(self.n_rows), counts))
        self.counts = frozen(counts)
        self._stride = max(layout.layer_sizes)
        self._keys = self.row_of * self._stride + self.positions
        self._firsts = [int(o) * n_actions for o in layout.offsets[:-1]]
        self._filled = np.flatnonzero(counts)
        self._starts = self.indptr[self._filled]

    def cells(self, states: Array, actions: Array) -> Array:
        """Cell of every step of layers 1..H-1, -1 if not allowed: states (n, H + 1), actions (n, H) -> (n, H - 1)."""
        steps = slice(0, self.layout.horizon - 1)
        rows = states[:, steps] * self.layout.n_actions + actions[:, steps]
        keys = rows * self._stride + (states[:, 1:-1] - self.layout.offsets[1:-1])
        found = np.searchsorted(self._keys, keys)
        known = self._keys[np.minimum(found, self.n_cells - 1)] == keys if self.n_cells else np.zeros(keys.shape, bool)
        return np.where(known, found, -1)

    def checked_cells(self, contexts: Any, states: Array, actions: Array) -> Array:
        """Like `cells`, but a transition that is not allowed is an error, which names the first one."""
        cells = self.cells(states, actions)
        if (cells < 0).any():
            i, h = (int(x) for x in np.argwhere(cells < 0)[0])
            raise OpoError(
                f"the transition of layer {h} from state {int(states[i, h])} under action {int(actions[i, h])} to state "
                f"{int(states[i, h + 1])} at context {contexts[i]!r} is outside the support of the dynamics class"
            )
        return cells

    def log_loss(self, values: Array, trajectory: Trajectory) -> float:
        """Sum of -log P along a trajectory, for one probability per cell; infinite if a transition is not allowed."""
        cells = self.cells(trajectory.states[None], trajectory.actions[None])[0]
        return log_loss(np.where(cells >= 0, values[cells], 0.0)) if cells.size else 0.0

    def row_sums(self, values: Array) -> Array:
        """Sum of each row's cells along the first axis, shape (n_rows, ...); 0 for a row without cells."""
        sums = np.zeros((self.n_rows, *values.shape[1:]))
        if self.n_cells:
            sums[self._filled] = np.add.reduceat(values, self._starts, axis=0)
        return sums

    def row_max(self, values: Array) -> Array:
        """The greatest of each row's cells, shape (n_rows,); 0 for a row without cells."""
        most = np.zeros(self.n_rows)
        if self.n_cells:
            most[self._filled] = np.maximum.reduceat(values, self._starts)
        return most

    def cells_of(self, rows: Array) -> tuple[Array, Array]:
        """All cells of the given rows, row after row, and where each row begins among them."""
        lengths = self.counts[rows]
        ends = np.cumsum(lengths)
        begins = ends - lengths
        return np.arange(int(lengths.sum())) + np.repeat(self.indptr[rows] - begins, lengths), begins

    @property
    def uniform(self) -> Array:
        """Each row uniform over its allowed next states, one number per cell."""
        return 1.0 / self.counts[self.row_of]

    def arrays(self, values: Array) -> list[Any]:
        """Transitions as `LayeredMDP` takes them, from one number per cell; 0 elsewhere."""
        result: list[Any] = []
        sizes, n_actions = self.layout.layer_sizes, self.layout.n_actions
        for h in range(self.layout.horizon - 1):
            lo, hi = self._firsts[h], self._firsts[h + 1]
            part = slice(int(self.indptr[lo]), int(self.indptr[hi]))
            shape = (sizes[h] * n_actions, sizes[h + 1])
            if self.sparse:
                result.append(sp.csr_array((values[part], self.positions[part], self.indptr[lo : hi + 1] - part.start), shape=shape))
                continue
            if part.stop - part.start == shape[0] * shape[1]:
                block = values[part]
            else:
                block = np.zeros(shape)
                block[self.row_of[part] - lo, self.positions[part]] = values[part]
            result.append(block.reshape(sizes[h], n_actions, sizes[h + 1]))
        return result

    def values(self, transitions: Transitions) -> Array:
        """Probabilities of a model, one per cell."""
        result = np.empty(self.n_cells)
        for h, array in enumerate(transitions.arrays()):
            lo, hi = self._firsts[h], self._firsts[h + 1]
            part = slice(int(self.indptr[lo]), int(self.indptr[hi]))
            rows, positions = self.row_of[part] - lo, self.positions[part]
            flat = array if sp.issparse(array) else array.reshape(hi - lo, -1)
            result[part] = np.asarray(flat[rows, positions]).ravel()
        return result


def _given(layout: Layout, allowed: Any) -> list[Any] | None:
    """The arrays of a given support, one per layer but the last; None: every transition is allowed."""
    if isinstance(allowed, LayeredMDP):
        allowed = allowed.transitions
    if isinstance(allowed, Transitions):
        if allowed.layout != layout:
            raise OpoError(f"support belongs to {allowed.layout!r}: {layout!r} is needed")
        allowed = [array.copy() if sp.issparse(array) else array > 0 for array in allowed.arrays()]
        for array in allowed:
            if sp.issparse(array):
                array.eliminate_zeros()
    if allowed is None:
        everything = sum(n * layout.n_actions * n_next for n, n_next in pairwise(layout.layer_sizes))
        if everything > _MOST:
            raise OpoError(
                f"support is missing: all {everything} transitions of {layout!r} are too many for a table; give the possible ones"
            )
        return None
    listed = as_items(allowed, "support", "arrays, one per layer but the last,")
    if len(listed) != layout.horizon - 1:
        raise OpoError(f"support has {len(listed)} arrays: H - 1 = {layout.horizon - 1} are needed")
    return listed


def _every(layout: Layout, h: int) -> tuple[Array, Array]:
    """Number of cells of each row of layer `h`, and their positions, if every transition is allowed."""
    n_rows, n_next = layout.layer_sizes[h] * layout.n_actions, layout.layer_sizes[h + 1]
    return np.full(n_rows, n_next), np.tile(np.arange(n_next), n_rows)


def _cells(layout: Layout, h: int, array: Any) -> tuple[Array, Array]:
    """Number of cells of each row of layer `h`, and their positions, as `array` allows them."""
    n_states, n_next = layout.layer_sizes[h], layout.layer_sizes[h + 1]
    n_rows = n_states * layout.n_actions
    if sp.issparse(array):
        if array.shape != (n_rows, n_next):
            raise OpoError(f"support[{h}] has shape {array.shape}: (S_h * A, S_h+1) = {(n_rows, n_next)} is needed")
        rows = as_csr(array, f"support[{h}]")
        return np.diff(rows.indptr), rows.indices
    array = np.asarray(array)
    wanted = (n_states, layout.n_actions, n_next)
    if array.shape != wanted or array.dtype != np.bool_:
        raise OpoError(f"support[{h}] has shape {array.shape} and dtype {array.dtype}: booleans (S_h, A, S_h+1) = {wanted} are needed")
    flat = array.reshape(n_rows, n_next)
    return flat.sum(axis=1), np.nonzero(flat)[1]
