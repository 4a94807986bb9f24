"""Layered models: the layout of layers, the transitions of one dynamics, and a model with its losses.

Everything is validated here, once, when it is built; what is built is immutable, and kernels never check.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .errors import OpoError, Place
from .kernels.ingest import check_csr, check_dense, check_unit, ingest_dense, unordered_row
from .kernels.scores import path_probabilities

__all__ = ["LayeredMDP", "Layout", "Transitions"]

Array = npt.NDArray[Any]

DENSE, CSR = 0, 1
_FLOAT64 = np.dtype(np.float64)
_SMALL = 1 << 14
"""Transitions up to which a dense model is copied once more on its way in, to be checked in one call."""
_NO_POINTER, _NO_INDICES = np.empty(0, np.int64), np.empty(0, np.uint32)
_NO_POINTER.flags.writeable = _NO_INDICES.flags.writeable = False
_WORTH_MEETING = 1 << 15
"""Transitions of a layer from which a further thread gains more than the threads' meeting after the layer costs."""


class _Immutable:
    """What is built stays read-only, also in another process: pickling and copying forget that arrays are."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                frozen(value)


class Layout(_Immutable):
    """Layers of states and the number of actions: where each state lives in the flat arrays.

    States are numbered layer by layer from 0 to ``n_states - 1``; ``n_states`` is the end state, which owns no row.

    Parameters
    ----------
    layer_sizes : sequence of int
        Number of states of the layers S_1..S_H. The first layer holds the single start state.
    n_actions : int
        Number of actions, the same in every state; a state with fewer has the others masked.

    Attributes
    ----------
    layer_sizes : tuple of int
    n_actions, n_states, horizon : int
    offsets : ndarray of int64, shape (horizon + 1,)
        First state of each layer; the last entry is ``n_states``.

    Raises
    ------
    OpoError
        No layer, an empty layer, a first layer of more than one state, or no action.
    """

    def __init__(self, layer_sizes: Sequence[int], n_actions: int) -> None:
        try:
            sizes = [whole(size, f"layer_sizes[{h}]", least=1) for h, size in enumerate(layer_sizes)]
        except TypeError:
            raise OpoError(f"layer_sizes: a sequence of layer sizes is needed, got {layer_sizes!r}") from None
        if not sizes:
            raise OpoError("layer_sizes: at least one layer is needed, got none")
        if sizes[0] != 1:
            raise OpoError(
                f"layer_sizes[0] is {sizes[0]}: the first layer holds the single start state (a start distribution "
                "becomes an extra first layer: LayeredMDP.stationary(..., start=distribution))"
            )
        self.layer_sizes = tuple(sizes)
        self.n_actions = whole(n_actions, "n_actions", least=1)
        self.horizon = len(sizes)
        self.n_states = sum(sizes)
        if max(sizes) >= 2**32 or self.n_states * self.n_actions >= 2**62:
            raise OpoError(f"layer_sizes: a layer of {max(sizes)} states is more than 2**32 - 1")
        self.offsets = frozen(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of an array with one number per pair: (n_states, n_actions)."""
        return self.n_states, self.n_actions

    def layer(self, h: int) -> slice:
        """States of layer `h`, counted from 0, as a slice into arrays of shape (n_states, ...)."""
        return slice(int(self.offsets[h]), int(self.offsets[h + 1]))

    @cached_property
    def rows(self) -> Array:
        """First row of each state where every action is allowed, `n_states + 1` entries."""
        return frozen(np.arange(self.n_states + 1, dtype=np.int64) * self.n_actions)

    @cached_property
    def dense_block(self) -> Array:
        """Where the block of each layer starts in dense transitions without shared blocks; the last entry is the total."""
        sizes = np.array(self.layer_sizes, np.int64)
        return frozen(np.concatenate([[0], np.cumsum(sizes[:-1] * self.n_actions * sizes[1:])]))

    def layer_of(self, state: int) -> int:
        """Layer of `state`, counted from 0; ``horizon`` for the end state."""
        return int(np.searchsorted(self.offsets, state, side="right")) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.layer_sizes == other.layer_sizes and self.n_actions == other.n_actions

    def __hash__(self) -> int:
        return hash((self.layer_sizes, self.n_actions))

    def __repr__(self) -> str:
        if self.horizon > 8:
            sizes = f"[{', '.join(map(str, self.layer_sizes[:3]))}, ..., {self.layer_sizes[-1]}]"
        else:
            sizes = str(list(self.layer_sizes))
        return f"Layout({sizes}, n_actions={self.n_actions})"


class Transitions(_Immutable):
    """The transitions of one dynamics, validated and laid out for the kernels.

    Rows of pairs that the mask forbids are not stored. Layers given by the same array object share one block.

    Parameters
    ----------
    layout : Layout
    arrays : sequence of H-1 arrays (S_h, A, S_{h+1}), or of H-1 SciPy sparse arrays (S_h * A, S_{h+1})
        Entry h holds P(s' | s, a) from layer h to layer h+1. The last layer leads to the end state and has no entry.
    action_mask : ndarray of bool, shape (n_states, A), optional
        The allowed pairs; the rows of the others are not looked at.
    dtype : {float64, float32}
        How probabilities are stored. All arithmetic is float64; float32 rounds each probability by at most 6e-8 of
        itself, and so a value by at most 6e-8 H^2.
    where : str
        How error messages name the argument.

    Raises
    ------
    OpoError
        A wrong number of arrays or a wrong shape; entries that are negative or not finite; a row that misses 1 by more
        than 1e-8 (float64 input) or 1e-6 (float32 input); masks or positions out of range. Nothing is renormalised.
    """

    def __init__(
        self,
        layout: Layout,
        arrays: Sequence[Any],
        *,
        action_mask: Array | None = None,
        dtype: npt.DTypeLike = np.float64,
        where: str | Place = "transitions",
    ) -> None:
        self.layout = layout
        self.dtype = _as_dtype(dtype)
        self.action_mask = as_mask(layout, action_mask)
        self.rows, self.pairs = layout.rows, None
        if self.action_mask is not None:
            self.rows = frozen(np.concatenate([[0], np.cumsum(self.action_mask.sum(axis=1))]).astype(np.int64))
            self.pairs = frozen(np.flatnonzero(self.action_mask))
        arrays = _as_list(arrays, layout, where)
        sparse = [type(array) is not np.ndarray and sp.issparse(array) for array in arrays]
        if any(sparse) and not all(sparse):
            raise OpoError(
                f"{where}[{sparse.index(False)}] is dense and {where}[{sparse.index(True)}] is sparse: all of one kind are needed"
            )
        self.kind = CSR if any(sparse) else DENSE
        self.block = np.zeros(layout.horizon, dtype=np.int64)
        if self.kind == DENSE:
            self._fill_dense(arrays, where)
        else:
            self._fill_csr(arrays, where)
        frozen(self.block)

    # -- building ------------------------------------------------------------------------------------------------

    @classmethod
    def from_flat(cls, layout: Layout, data: Array, indptr: Array, indices: Array, block: Array) -> Transitions:
        """CSR transitions of a layout without masks from flat arrays in the kernels' own form: checked, and not copied.

        For models whose copy would not fit. The arrays become read-only.

        Parameters
        ----------
        data : ndarray of float64 or float32, shape (n,)
        indptr : ndarray of int64
            The row pointers of one block after another, S_h * A + 1 each, all counting from the start of `data`.
        indices : ndarray of uint32, shape (n,)
            Positions inside the next layer, increasing within a row.
        block : ndarray of int64, shape (H,)
            Where the block of each layer starts in `indptr`; layers may share one. The last entry is not looked at.

        Raises
        ------
        OpoError
            As for `Transitions`; and where a dtype or a length is another, or a row is not in order.
        """
        needed = ("data", data, ("float64", "float32")), ("indptr", indptr, ("int64",)), ("indices", indices, ("uint32",))
        for name, array, kinds in needed:
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.name not in kinds or not array.flags.c_contiguous:
                raise OpoError(f"{name}: a contiguous vector of {' or '.join(kinds)} is needed")
        result = cls.__new__(cls)
        result.layout, result.dtype, result.kind = layout, data.dtype, CSR
        result.action_mask, result.rows, result.pairs = None, layout.rows, None
        result.block = np.array(block, np.int64)
        if result.block.shape != (layout.horizon,) or data.size != indices.size:
            raise OpoError(
                f"block has shape {result.block.shape} and indices {indices.shape}: {(layout.horizon,)} and {data.shape} are needed"
            )
        result.block[-1] = 0
        result.data, result.indptr, result.indices = _read_only(data), _read_only(indptr), _read_only(indices)
        seen = set()
        for h in range(layout.horizon - 1):
            start, n_rows, n_next = int(result.block[h]), result._n_rows(h), layout.layer_sizes[h + 1]
            if (start, n_rows, n_next) in seen:
                continue
            seen.add((start, n_rows, n_next))
            pointer = result.indptr[start : start + n_rows + 1]
            if not 0 <= start <= indptr.size - n_rows - 1 or pointer[0] < 0 or pointer[-1] > data.size:
                raise OpoError(f"block[{h}] is {start}: the {n_rows} rows of layer {h} do not fit into indptr and data")
            row = int(unordered_row(pointer, result.indices, n_next))
            if row >= 0:
                raise OpoError(f"indices: layer {h}, row {row}: next states that increase from 0 to {n_next - 1} are needed")
            sums, place = np.empty(n_rows), np.zeros(2, np.int64)
            code = check_csr(result.data, result.indptr, start, n_rows, _tolerance(data.dtype), sums, place)
            if code:
                p = int(place[1])
                position = int(indices[p]) if code == 1 else 0
                raise result._fault(code, h, "data", float(data[p]) if code == 1 else 0.0, position, place[0], sums)
        for array in (result.block, data, indptr, indices):
            frozen(array)
        return result

    def _distinct(self, arrays: Sequence[Any], size: Callable[[int], int]) -> tuple[list[int], int]:
        """Layers that open a new block, and the total size; a layer shares the block of the same array and rows."""
        seen: dict[Any, int] = {}
        opening, total = [], 0
        for h, array in enumerate(arrays):
            key: Any = (id(array), self.layout.layer_sizes[h : h + 2])
            if self.action_mask is not None and key in seen:
                mine, first = self.layout.layer(h), self.layout.layer(seen[key])
                if not np.array_equal(self.action_mask[mine], self.action_mask[first]):
                    key = (h,)
            if key in seen:
                self.block[h] = self.block[seen[key]]
            else:
                seen[key] = h
                opening.append(h)
                self.block[h] = total
                total += size(h)
        return opening, total

    def _n_rows(self, h: int) -> int:
        offsets = self.layout.offsets
        return int(self.rows[offsets[h + 1]] - self.rows[offsets[h]])

    def _allowed(self, h: int) -> Array | None:
        return None if self.action_mask is None else self.action_mask[self.layout.layer(h)].ravel()

    def _fill_dense(self, arrays: Sequence[Any], where: str | Place) -> None:
        if self._fill_small(arrays):
            return
        sizes, n_actions = self.layout.layer_sizes, self.layout.n_actions
        opening, total = self._distinct(arrays, lambda h: self._n_rows(h) * sizes[h + 1])
        data = np.empty(total, dtype=self.dtype)
        for h in opening:
            array = as_real(arrays[h], Place("{}[{}]", where, h))
            if array.shape != (sizes[h], n_actions, sizes[h + 1]):
                raise OpoError(f"{where}[{h}] has shape {array.shape}: (S_h, A, S_h+1) = {(sizes[h], n_actions, sizes[h + 1])} is needed")
            n_rows, n_next, start = self._n_rows(h), sizes[h + 1], int(self.block[h])
            flat = array.reshape(sizes[h] * n_actions, n_next)
            allowed = self._allowed(h)
            if allowed is not None:
                flat = flat[allowed]
            data[start : start + n_rows * n_next].reshape(n_next, n_rows)[...] = flat.T
            sums, place = np.empty(n_rows), np.zeros(2, np.int64)
            code = check_dense(data, start, n_rows, n_next, _tolerance(array.dtype, self.dtype), sums, place)
            if code:
                entry = data[start + place[1] * n_rows + place[0]]
                raise self._fault(code, h, where, float(entry), int(place[1]), place[0], sums)
        self.data, self.indptr, self.indices = frozen(data), _NO_POINTER, _NO_INDICES

    def _fill_small(self, arrays: Sequence[Any]) -> bool:
        """The common small case in one kernel call; whatever is special or wrong is left to the general way."""
        layout = self.layout
        total = int(layout.dense_block[-1])
        if (
            self.action_mask is not None
            or total > _SMALL
            or self.dtype != _FLOAT64
            or not arrays
            or len(set(map(id, arrays))) < len(arrays)
        ):
            return False
        sizes, n_actions = layout.layer_sizes, layout.n_actions
        for h, array in enumerate(arrays):
            if type(array) is not np.ndarray or array.dtype != _FLOAT64 or array.shape != (sizes[h], n_actions, sizes[h + 1]):
                return False
        data = np.empty(total)
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        if not ingest_dense(flat, layout.dense_block, layout.offsets, n_actions, _tolerance(_FLOAT64), data):
            return False
        self.block = layout.dense_block
        self.data, self.indptr, self.indices = frozen(data), _NO_POINTER, _NO_INDICES
        return True

    def _fill_csr(self, arrays: Sequence[Any], where: str | Place) -> None:
        sizes, n_actions = self.layout.layer_sizes, self.layout.n_actions
        opening, total_rows = self._distinct(arrays, lambda h: self._n_rows(h) + 1)
        parts = {}
        for h in opening:
            shape = (sizes[h] * n_actions, sizes[h + 1])
            if arrays[h].shape != shape:
                raise OpoError(f"{where}[{h}] has shape {arrays[h].shape}: (S_h * A, S_h+1) = {shape} is needed")
            parts[h] = as_csr(arrays[h], Place("{}[{}]", where, h))
            allowed = self._allowed(h)
            if allowed is not None and not allowed.all():
                parts[h] = parts[h][np.flatnonzero(allowed)]
        nnz = sum(part.nnz for part in parts.values())
        data, indices = np.empty(nnz, self.dtype), np.empty(nnz, np.uint32)
        indptr = np.empty(total_rows, np.int64)
        end = 0
        for h in opening:
            part = parts.pop(h)
            start, n_rows, begin = int(self.block[h]), self._n_rows(h), end
            end += part.nnz
            data[begin:end] = part.data
            indices[begin:end] = part.indices
            indptr[start : start + n_rows + 1] = part.indptr
            indptr[start : start + n_rows + 1] += begin
            sums, place = np.empty(n_rows), np.zeros(2, np.int64)
            code = check_csr(_read_only(data), _read_only(indptr), start, n_rows, _tolerance(part.dtype, self.dtype), sums, place)
            if code:
                p = int(place[1])
                position = int(indices[p]) if code == 1 else 0
                raise self._fault(code, h, where, float(data[p]) if code == 1 else 0.0, position, place[0], sums)
        self.data, self.indptr, self.indices = frozen(data), frozen(indptr), frozen(indices)

    def _fault(self, code: int, h: int, where: str | Place, entry: float, position: int, row: int, sums: Array) -> OpoError:
        layout, row = self.layout, int(row)
        pair = int(self.rows[layout.offsets[h]]) + row
        if self.pairs is not None:
            pair = int(self.pairs[pair])
        state, action = divmod(pair, layout.n_actions)
        local = state - int(layout.offsets[h])
        place = f"{where}[{h}]: layer {h}, state {state} (position {local}), action {action}"
        if code == 1:
            return OpoError(f"{place}: the probability of next state {position} is {entry!r}; a finite number of at least 0 is needed")
        total = float(sums[row])
        if total == 0.0:
            return OpoError(
                f"{place}: the row is all zero; mask the action if it is not available, or give a terminal state a row "
                "that leads to an absorbing state"
            )
        return OpoError(f"{place}: the row sums to {total!r}; 1 is needed (rows are not renormalised)")

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The seven model arguments of every kernel (see `opo_fast.kernels`)."""
        return self.kind, self.data, self.indptr, self.indices, self.block, self.layout.offsets, self.rows

    def probability(self, h: int, local: int, action: int, next_local: int) -> float:
        """P(next | state, action) out of layer `h`, by positions inside the layers; 0 for a masked pair."""
        state = int(self.layout.offsets[h]) + local
        row, first = state * self.layout.n_actions + action, int(self.rows[self.layout.offsets[h]])
        if self.action_mask is not None:
            if not self.action_mask[state, action]:
                return 0.0
            row = int(self.rows[state]) + int(self.action_mask[state, :action].sum())
        start, i = int(self.block[h]), row - first
        if self.kind == DENSE:
            return float(self.data[start + next_local * self._n_rows(h) + i])
        part = slice(int(self.indptr[start + i]), int(self.indptr[start + i + 1]))
        p = part.start + int(np.searchsorted(self.indices[part], next_local))
        return float(self.data[p]) if p < part.stop and self.indices[p] == next_local else 0.0

    def along(self, states: Array, actions: Array) -> Array:
        """P(s_{h+1} | s_h, a_h) along a path of allowed pairs: states (H + 1,), actions (H,) -> shape (H - 1,)."""
        chosen = self.rows[states[:-1]]
        if self.action_mask is None:
            chosen = chosen + actions
        else:
            before = np.arange(self.layout.n_actions) < actions[:, None]
            chosen = chosen + (self.action_mask[states[:-1]] & before).sum(axis=1)
        result = np.empty(self.layout.horizon - 1)
        path_probabilities(*self.arguments, chosen, np.array(states, np.int64), result)
        return result

    @property
    def n_rows(self) -> int:
        """Number of allowed pairs, in all layers."""
        return int(self.rows[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the stored transitions."""
        return self.data.nbytes + self.indptr.nbytes + self.indices.nbytes

    @cached_property
    def layer_rows(self) -> list[int]:
        """Number of rows of each layer."""
        return [self._n_rows(h) for h in range(self.layout.horizon)]

    def layer_size(self, h: int) -> int:
        """Number of stored transitions from layer `h` to layer `h + 1`."""
        n_rows = self._n_rows(h)
        if self.kind == DENSE:
            return n_rows * self.layout.layer_sizes[h + 1]
        start = int(self.block[h])
        return int(self.indptr[start + n_rows] - self.indptr[start])

    @cached_property
    def n_transitions(self) -> int:
        """Number of transitions of all layers, those of shared blocks counted once per layer."""
        return sum(self.layer_size(h) for h in range(self.layout.horizon - 1))

    @cached_property
    def _largest_layer(self) -> int:
        return max((self.layer_size(h) for h in range(self.layout.horizon - 1)), default=0)

    @cached_property
    def threads(self) -> int:
        """Threads that are worth meeting after each layer."""
        return max(1, self._largest_layer // _WORTH_MEETING)

    @property
    def width(self) -> int:
        """Number of actions where the rows of whole states fill a vector of eight, else 0."""
        return self.layout.n_actions if self.action_mask is None and self.layout.n_actions in (2, 4, 8) else 0

    @cached_property
    def parts(self) -> int:
        """Parts of a layer in the forward pass of CSR, each with its own sums: a matter of shape, so that bits never depend on threads."""
        if self.kind == DENSE or self._largest_layer < 2 * _WORTH_MEETING:
            return 1
        return min(8, max(2, self._largest_layer // (8 * max(self.layout.layer_sizes))))

    def arrays(self) -> list[Any]:
        """The transitions as a user gives them; rows of masked pairs are zero, layers that share a block share the array.

        Returns
        -------
        list of H-1 ndarrays (S_h, A, S_{h+1}), or of H-1 `scipy.sparse.csr_array` (S_h * A, S_{h+1})
        """
        built: dict[Any, Any] = {}
        result = []
        for h in range(self.layout.horizon - 1):
            key = (int(self.block[h]), self.layout.layer_sizes[h : h + 2])
            if key not in built:
                built[key] = self._array(h)
            result.append(built[key])
        return result

    def _array(self, h: int) -> Any:
        start, n_rows = int(self.block[h]), self._n_rows(h)
        if self.kind == DENSE:
            block = self.data[start : start + n_rows * self.layout.layer_sizes[h + 1]]
            return _dense_array(self.layout, h, block, self._allowed(h))
        pointer = self.indptr[start : start + n_rows + 1]
        part = slice(int(pointer[0]), int(pointer[-1]))
        return _csr_array(self.layout, h, self.data[part], self.indices[part], pointer, self._allowed(h))

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

    def __repr__(self) -> str:
        kind = "CSR" if self.kind == CSR else "dense"
        return f"<Transitions {kind} of {self.layout!r}: {self.n_transitions} transitions, {self.nbytes / 2**20:.3g} MiB>"


class LayeredMDP(_Immutable):
    """A loop-free layered MDP (paper, section 2.1): a layout, losses and transitions. Immutable.

    Parameters
    ----------
    layout : Layout
    losses : array_like, shape (n_states, A)
        Mean losses, each in [0, 1].
    transitions : Transitions, or as in `Transitions`
    action_mask : array_like of bool, shape (n_states, A), optional
        Allowed pairs; every state needs one. A masked action is never played; its Q and occupancy are reported as 0.
    dtype : {float64, float32}
        Storage of the transitions (see `Transitions`).

    Raises
    ------
    OpoError
        See `Transitions`; and losses that are not in [0, 1] or have a wrong shape.
    """

    def __init__(
        self,
        layout: Layout,
        losses: npt.ArrayLike,
        transitions: Any,
        action_mask: npt.ArrayLike | None = None,
        *,
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        if not isinstance(layout, Layout):
            raise OpoError(f"layout is a {type(layout).__name__}: an opo_fast.Layout is needed")
        mask = None if action_mask is None else cast(Array, action_mask)
        self.transitions = as_transitions(layout, transitions, mask, dtype=dtype)
        self.layout = layout
        self.losses = as_losses(layout, losses)

    @classmethod
    def stationary(
        cls,
        P: Any,
        losses: npt.ArrayLike,
        horizon: int,
        start: Any = 0,
        action_mask: npt.ArrayLike | None = None,
        *,
        dtype: npt.DTypeLike = np.float64,
    ) -> LayeredMDP:
        """Unroll a time-homogeneous model over `horizon` steps; all layers share one block of transitions.

        Parameters
        ----------
        P : array_like (S, A, S) or SciPy sparse array (S * A, S)
        losses : array_like, shape (S, A)
        horizon : int
            Number of steps H that are played in the given model.
        start : int or array_like, shape (S,)
            A state: layer sizes are [1, S, ..., S], H layers, the first layer being that state. A distribution: an
            extra first layer of one state with loss 0 is added, whose rows are that distribution: H + 1 layers.
        action_mask : array_like of bool, shape (S, A), optional

        Returns
        -------
        LayeredMDP
            ``v[0]`` of `solve` and `evaluate` is V(s_1).
        """
        base = _as_losses_2d(losses, "losses")
        n_states, n_actions = base.shape
        horizon = whole(horizon, "horizon", least=1)
        sparse = sp.issparse(P)
        array = P if sparse else as_real(P, "P")
        shape = (n_states * n_actions, n_states) if sparse else (n_states, n_actions, n_states)
        if array.shape != shape:
            raise OpoError(
                f"P has shape {array.shape}: {'(S * A, S)' if sparse else '(S, A, S)'} = {shape} is needed (losses are {base.shape})"
            )
        if sparse:
            array = as_csr(P, "P")
        mask = None if action_mask is None else as_mask_2d(action_mask, (n_states, n_actions), "action_mask")
        if np.ndim(start) == 0:
            state = whole(start, "start", least=0, most=n_states - 1)
            first: Any = array[state * n_actions : (state + 1) * n_actions] if sparse else array[state : state + 1]
            head, head_mask, steps = base[state : state + 1], None if mask is None else mask[state : state + 1], horizon - 1
        else:
            distribution = as_distribution(start, n_states, "start", "state")
            first = np.broadcast_to(distribution, (1, n_actions, n_states))
            if sparse:
                first = sp.csr_array(np.ascontiguousarray(first[0]))
            head, head_mask, steps = np.zeros((1, n_actions)), None if mask is None else np.ones((1, n_actions), bool), horizon
        layout = Layout([1] + [n_states] * steps, n_actions)
        every_mask = None if mask is None else np.concatenate([cast(Array, head_mask)] + [mask] * steps)
        every_loss = np.concatenate([head] + [base] * steps)
        arrays = ([first] + [array] * (steps - 1)) if steps else []
        return cls(layout, every_loss, Transitions(layout, arrays, action_mask=every_mask, dtype=dtype, where="P"))

    @property
    def action_mask(self) -> Array | None:
        """Allowed pairs (n_states, A), or None where all are."""
        return self.transitions.action_mask

    @cached_property
    def row_losses(self) -> Array:
        """Losses of the allowed pairs, one per row."""
        return frozen(np.ascontiguousarray(self.transitions.gather(self.losses)))

    def with_losses(self, losses: npt.ArrayLike) -> LayeredMDP:
        """The same model with other losses; the validated transitions are shared, not copied."""
        return LayeredMDP(self.layout, losses, self.transitions)

    def uniform_policy(self) -> Array:
        """The policy (n_states, A) that is uniform over the allowed actions of each state: pi^1 of Algorithm 1."""
        return uniform_policy(self.layout, self.action_mask)

    def unroll(self, values: npt.ArrayLike, first: npt.ArrayLike | None = None) -> Array:
        """Repeat stationary values, one row per state of a stationary model, in every layer.

        Parameters
        ----------
        values : array_like, shape (S, ...)
            For instance a stationary policy (S, A).
        first : array_like, shape (...), optional
            The values of the first layer's single state; needed where the first layer is not a copy of one of the S
            states. Default: the uniform policy's row, for a policy.
        """
        array = np.asarray(values)
        sizes = set(self.layout.layer_sizes[1:])
        if array.ndim < 1 or sizes - {array.shape[0]}:
            raise OpoError(
                f"values has shape {array.shape}: its first axis must be the size of every layer after the first, {sorted(sizes)}"
            )
        head = self.uniform_policy()[0] if first is None else np.asarray(first)
        if head.shape != array.shape[1:]:
            given = "first" if first is None else f"first has shape {head.shape}"
            raise OpoError(f"{given}: a value of shape {array.shape[1:]}, that of a row of values, is needed for the first state")
        return np.concatenate([head[None]] + [array] * (self.layout.horizon - 1))

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path` as npz (no pickle); blocks that layers share are written once."""
        t = self.transitions
        meta = json.dumps({"format": "opo_fast.LayeredMDP", "version": 1, "kind": t.kind, "masked": t.action_mask is not None})
        arrays = {"data": t.data, "indptr": t.indptr, "indices": t.indices, "block": t.block, "losses": self.losses}
        if t.action_mask is not None:
            arrays["action_mask"] = t.action_mask
        sizes = np.array(self.layout.layer_sizes, np.int64)
        with open(path, "wb") as file:
            np.savez(file, meta=np.array(meta), layer_sizes=sizes, n_actions=np.array(self.layout.n_actions), **cast(Any, arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LayeredMDP:
        """Read a model that `save` wrote; it is validated like any other.

        Raises
        ------
        OpoError
            No such file, or one that is damaged or was written by something else.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                stored = dict(file)
            meta = json.loads(str(stored["meta"]))
            if (meta["format"], meta["version"]) != ("opo_fast.LayeredMDP", 1):
                raise ValueError(f"format {meta['format']!r}, version {meta['version']!r}")
            layout = Layout(stored["layer_sizes"].tolist(), stored["n_actions"])
            # The losses first: a damaged size is noticed before anything of that size is made.
            losses, mask = as_losses(layout, stored["losses"]), as_mask(layout, stored["action_mask"] if meta["masked"] else None)
            arrays = _stored_arrays(layout, mask, int(meta["kind"]), stored)
            return cls(layout, losses, Transitions(layout, arrays, action_mask=mask, dtype=stored["data"].dtype))
        except FileNotFoundError:
            raise OpoError(f"path: there is no file {os.fspath(path)!r}") from None
        except Exception as error:
            # What a damaged archive raises depends on the byte that is damaged: errors of zip, zlib, NumPy, JSON and ours.
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, OpoError) else str(error)
            raise OpoError(f"path: {os.fspath(path)!r} is not a model that LayeredMDP.save wrote ({reason})") from None

    def __repr__(self) -> str:
        masked = "" if self.action_mask is None else f", {int(self.action_mask.sum())} allowed pairs"
        return f"<LayeredMDP {self.layout!r}: {self.layout.n_states} states{masked}, {self.transitions!r}>"


# -- blocks as users give them ---------------------------------------------------------------------------------------


def _dense_array(layout: Layout, h: int, block: Array, allowed: Array | None) -> Array:
    """One stored dense block (next state, row) as (S_h, A, S_{h+1}); rows of masked pairs are zero."""
    n_next = layout.layer_sizes[h + 1]
    full = np.zeros((layout.layer_sizes[h] * layout.n_actions, n_next), block.dtype)
    full[slice(None) if allowed is None else allowed] = block.reshape(n_next, -1).T
    return full.reshape(layout.layer_sizes[h], layout.n_actions, n_next)


def _csr_array(layout: Layout, h: int, data: Array, indices: Array, pointer: Array, allowed: Array | None) -> Any:
    """One stored CSR block, of which `pointer` may begin anywhere, as (S_h * A, S_{h+1}); rows of masked pairs are empty."""
    n_pairs = layout.layer_sizes[h] * layout.n_actions
    lengths = np.zeros(n_pairs, np.int64)
    lengths[slice(None) if allowed is None else allowed] = np.diff(pointer)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((data, indices.astype(np.int64), indptr), shape=(n_pairs, layout.layer_sizes[h + 1]))


def _stored_arrays(layout: Layout, mask: Array | None, kind: int, stored: dict[str, Array]) -> list[Any]:
    """The transitions of a file, one array per layer; every number that points into another array is checked."""
    data, indptr, indices, block = (stored[name] for name in ("data", "indptr", "indices", "block"))
    for name, array, kinds in (("data", data, "f"), ("indptr", indptr, "iu"), ("indices", indices, "iu"), ("block", block, "iu")):
        if array.ndim != 1 or array.dtype.kind not in kinds:
            raise OpoError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if kind not in (DENSE, CSR) or block.size != layout.horizon:
        raise OpoError(f"kind is {kind}, and there are {block.size} blocks for {layout.horizon} layers")
    built: dict[Any, Any] = {}
    arrays = []
    for h in range(layout.horizon - 1):
        allowed = None if mask is None else mask[layout.layer(h)].ravel()
        n_rows = layout.layer_sizes[h] * layout.n_actions if allowed is None else int(allowed.sum())
        start, n_next = int(block[h]), layout.layer_sizes[h + 1]
        size, source = (n_rows * n_next, data) if kind == DENSE else (n_rows + 1, indptr)
        if start < 0 or start + size > source.size:
            raise OpoError(f"block[{h}] is {start}: {size} entries from there are more than the {source.size} in the file")
        key = (start, layout.layer_sizes[h : h + 2], None if allowed is None else allowed.tobytes())
        if key not in built:
            part = source[start : start + size]
            if kind == DENSE:
                built[key] = _dense_array(layout, h, part, allowed)
            else:
                lo, hi = int(part[0]), int(part[-1])
                if not 0 <= lo <= hi <= min(data.size, indices.size) or (np.diff(part.astype(np.int64)) < 0).any():
                    raise OpoError(f"indptr: the row pointers of layer {h} run from {lo} to {hi} in {data.size} stored entries")
                built[key] = _csr_array(layout, h, data[lo:hi], indices[lo:hi], part.astype(np.int64), allowed)
        arrays.append(built[key])
    return arrays


# -- checks that other modules share --------------------------------------------------------------------------------


def frozen(array: Array) -> Array:
    """Mark an array read-only and hand it on."""
    array.flags.writeable = False
    return array


def _read_only(array: Array) -> Array:
    """A read-only view: Numba compiles kernels for read-only arrays apart, so a check sees these alone."""
    return frozen(array.view())


def whole(value: Any, name: str, *, least: int, most: int | None = None) -> int:
    """`value` as an int within [least, most], or an error that names it."""
    scalar = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not scalar and not (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu"):
        raise OpoError(f"{name} is {value!r}: a whole number is needed")
    number = int(value)
    if number < least or (most is not None and number > most):
        span = f"at least {least}" if most is None else f"from {least} to {most}"
        raise OpoError(f"{name} is {number}: a whole number {span} is needed")
    return number


def real(value: Any, name: str, *, least: float = 0.0, most: float = np.inf, strict: bool = False) -> float:
    """`value` as a finite float within [least, most] (`strict`: both ends excluded), or an error that names it."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise OpoError(f"{name} is {value!r}: a number is needed") from None
    inside = least < number < most if strict else least <= number <= most
    if not (np.isfinite(number) and inside):
        if most == np.inf:
            span = f"{'above' if strict else 'of at least'} {least:g}"
        else:
            span = f"strictly between {least:g} and {most:g}" if strict else f"from {least:g} to {most:g}"
        raise OpoError(f"{name} is {number!r}: a finite number {span} is needed")
    return number


def as_real(array: Any, name: str | Place) -> Array:
    """`array` as a float64 or float32 ndarray (integers and booleans become float64); anything else is refused."""
    if type(array) is np.ndarray and array.dtype == _FLOAT64:
        return array
    if sp.issparse(array):
        raise OpoError(f"{name} is a sparse array: a dense one is needed")
    try:
        result = np.asarray(array)
    except ValueError as error:
        raise OpoError(f"{name} is not a rectangular array: {error}") from None
    if np.ma.isMaskedArray(array):
        raise OpoError(f"{name} is a masked array: fill it first")
    if result.dtype.kind in "iub":
        result = result.astype(np.float64)
    if result.dtype not in (np.float64, np.float32):
        if result.dtype.kind == "f":
            result = result.astype(np.float64)
        else:
            raise OpoError(f"{name} has dtype {result.dtype}: real numbers are needed")
    return result


def as_csr(array: Any, name: str | Place) -> Any:
    """A canonical CSR form of `array` (duplicates add up); the caller's arrays are never written to."""
    if array.dtype.kind not in "fiub":
        raise OpoError(f"{name} has dtype {array.dtype}: real numbers are needed")
    if array.ndim != 2:
        raise OpoError(f"{name} has shape {array.shape}: two axes are needed")
    if array.format == "coo":
        # Positions are checked before SciPy follows them: it does not.
        for axis, coordinates in enumerate((array.row, array.col)):
            bad = np.flatnonzero((coordinates < 0) | (coordinates >= array.shape[axis]))
            if bad.size:
                which = ("row", "next state")[axis]
                raise OpoError(
                    f"{name}: entry {int(bad[0])} names {which} {int(coordinates[bad[0]])}; 0 to {array.shape[axis] - 1} is needed"
                )
    elif array.format in ("csc", "bsr"):
        try:
            array.check_format(full_check=True)
        except ValueError as error:
            raise OpoError(f"{name} is not a valid sparse array: {error}") from None
    source = array.tocsr()
    indptr, indices, data = source.indptr, source.indices, source.data
    n_rows, n_next = source.shape
    bad_pointer = indptr.size != n_rows + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] > min(indices.size, data.size)
    if bad_pointer:
        raise OpoError(f"{name}: the row pointers are not those of {n_rows} rows in {indices.size} stored entries")
    indices, data = indices[: indptr[-1]], data[: indptr[-1]]
    if indices.size and (indices.min() < 0 or indices.max() >= n_next):
        p = int(np.flatnonzero((indices < 0) | (indices >= n_next))[0])
        row = int(np.searchsorted(indptr, p, side="right")) - 1
        raise OpoError(f"{name}: row {row} names next state {int(indices[p])}; 0 to {n_next - 1} is needed")
    if data.dtype not in (np.float64, np.float32):
        data = data.astype(np.float64)
    result = sp.csr_array((data, indices, indptr), shape=source.shape, copy=False)
    result.has_canonical_format = False
    if not _is_canonical(result):
        result = result.copy()
        result.sum_duplicates()
    return result


def _is_canonical(matrix: Any) -> bool:
    """Whether indices increase strictly within each row, decided from the arrays and not from a flag."""
    # Positions are within range by now, so that both of SciPy's types can be read as the kernels' own.
    indices = np.ascontiguousarray(matrix.indices)
    indices = indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32)
    indptr = np.ascontiguousarray(matrix.indptr, np.int64)
    return bool(unordered_row(_read_only(indptr), _read_only(indices), matrix.shape[1]) < 0)


def as_transitions(
    layout: Layout,
    transitions: Any,
    action_mask: Array | None = None,
    *,
    dtype: npt.DTypeLike = np.float64,
    where: str | Place = "transitions",
) -> Transitions:
    """`transitions` as a `Transitions` of this layout; one that is already is handed on as it is."""
    if isinstance(transitions, LayeredMDP):
        transitions = transitions.transitions
    if not isinstance(transitions, Transitions):
        return Transitions(layout, transitions, action_mask=action_mask, dtype=dtype, where=where)
    if transitions.layout != layout:
        raise OpoError(f"{where} belong to {transitions.layout!r}: {layout!r} is needed")
    if action_mask is not None:
        mask = as_mask(layout, action_mask)
        mine = transitions.action_mask
        if not (mask is mine or (mask is not None and mine is not None and np.array_equal(mask, mine))):
            raise OpoError(f"action_mask differs from the mask of the {where}, which were built with their own")
    return transitions


def as_losses(layout: Layout, losses: Any, where: str | Place = "losses") -> Array:
    """Losses (n_states, A) in [0, 1] as a read-only float64 copy, or an error that names the first bad entry."""
    array = as_real(losses, where)
    if array.shape != layout.shape:
        raise OpoError(f"{where} has shape {array.shape}: (n_states, n_actions) = {layout.shape} is needed")
    return frozen(_checked_unit(array, where))


def _as_losses_2d(losses: Any, where: str | Place) -> Array:
    array = as_real(losses, where)
    if array.ndim != 2 or 0 in array.shape:
        raise OpoError(f"{where} has shape {array.shape}: (S, A) is needed")
    return _checked_unit(array, where)


def _checked_unit(array: Array, where: str | Place) -> Array:
    copy = np.array(array, dtype=np.float64, order="C")
    place = np.zeros(1, np.int64)
    if check_unit(copy.reshape(-1), place):
        state, action = divmod(int(place[0]), copy.shape[1])
        raise OpoError(
            f"{where}: state {state}, action {action}: the loss is {float(copy[state, action])!r}; a number in [0, 1] is "
            "needed (opo_fast.rewards_to_losses rescales rewards; an action that is not available goes to the mask)"
        )
    return copy


def as_mask(layout: Layout, mask: Any) -> Array | None:
    """An action mask (n_states, A) as a read-only bool copy; None where it allows everything."""
    if mask is None:
        return None
    result = as_mask_2d(mask, layout.shape, "action_mask", layout)
    return None if result.all() else frozen(result)


def as_mask_2d(mask: Any, shape: tuple[int, int], name: str, layout: Layout | None = None) -> Array:
    array = np.array(mask)
    if array.dtype != np.bool_:
        raise OpoError(f"{name} has dtype {array.dtype}: booleans are needed")
    if array.shape != shape:
        raise OpoError(f"{name} has shape {array.shape}: {shape} is needed")
    empty = np.flatnonzero(~array.any(axis=1))
    if empty.size:
        layer = f" (layer {layout.layer_of(int(empty[0]))})" if layout else ""
        raise OpoError(f"{name}: state {int(empty[0])}{layer} allows no action; at least one is needed")
    return array


def uniform_policy(layout: Layout, action_mask: Array | None) -> Array:
    """The policy (n_states, A) that is uniform over the allowed actions of each state."""
    if action_mask is None:
        return np.full(layout.shape, 1.0 / layout.n_actions)
    return np.where(action_mask, 1.0 / action_mask.sum(axis=1, keepdims=True), 0.0)


def as_distribution(values: Any, n: int, name: str, of: str) -> Array:
    """Probabilities (n,) of `n` things, which `of` names in the singular; not renormalised."""
    array = as_real(values, name)
    if array.shape != (n,):
        raise OpoError(f"{name} has shape {array.shape}: ({n},), one probability for each {of}, is needed")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise OpoError(f"{name}: {of} {int(bad[0])} has probability {float(array[bad[0]])!r}; a finite number of at least 0 is needed")
    total = float(array.sum(dtype=np.float64))
    if abs(total - 1.0) > _tolerance(array.dtype, array.dtype):
        raise OpoError(f"{name} sums to {total!r}; 1 is needed")
    return array


def _as_list(arrays: Any, layout: Layout, where: str | Place) -> list[Any]:
    if isinstance(arrays, (str, bytes)) or sp.issparse(arrays) or not isinstance(arrays, (Iterable, np.ndarray)):
        raise OpoError(
            f"{where} is a {type(arrays).__name__}: a sequence of {layout.horizon - 1} arrays, one per layer but the last, is needed"
        )
    result = list(arrays)
    if len(result) != layout.horizon - 1:
        raise OpoError(f"{where} has {len(result)} arrays: H - 1 = {layout.horizon - 1} are needed (the last layer leads to the end state)")
    return result


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    for known in (np.dtype(np.float64), np.dtype(np.float32)):
        with contextlib.suppress(TypeError):
            if known == np.dtype(dtype):
                return known
    raise OpoError(f"dtype is {dtype!r}: float64 or float32 is needed")


def _tolerance(*dtypes: npt.DTypeLike) -> float:
    return 1e-6 if any(np.dtype(dtype) == np.float32 for dtype in dtypes) else 1e-8
