"""The transitions of one dynamics: validated once, laid out for the kernels, and immutable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.cached import cached_property
from .._support.checks import FLOAT64, as_dtype, as_real, frozen, instance, read_only, tolerance_of
from ..errors import OpoError, Place
from ..kernels.ingest import check_csr, check_dense, take_csr, take_dense, unordered_row
from ..kernels.scores import path_probabilities
from .blocks import CSR, DENSE, csr_array, dense_array, fault_of_row, is_small, layer_list, small_dense
from .distinct import Distinct, short_layers
from .layout import Layout, address, aligned, as_mask
from .rows import Rows
from .slices import RowSlices, TransposedSlices
from .sparse import as_block, as_csr, plain_csr

__all__ = ["CSR", "DENSE", "Transitions"]

Array = npt.NDArray[Any]

_NO_POINTER, _NO_INDICES = np.empty(0, np.int64), np.empty(0, np.uint32)

_NO_POINTER.flags.writeable = _NO_INDICES.flags.writeable = False
_NOWHERE = address(_NO_POINTER)

_WORTH_A_BARRIER = {DENSE: 1 << 14, CSR: 1 << 11}
"""Transitions of a layer (some microseconds of work) for which another thread is worth the cost of synchronising."""


class Transitions(Rows):
    """The transitions of one dynamics, validated and laid out for the kernels.

    A *row* is a state-action pair that the mask allows; probabilities of other pairs are not stored. Layers given by the same array
    object share one block.

    Parameters
    ----------
    layout : Layout
    arrays : sequence of H-1 arrays (S_h, A, S_{h+1}), or of H-1 SciPy sparse arrays (S_h * A, S_{h+1})
        Entry h holds P(s' | s, a) from layer h to layer h+1. The last layer leads to the end state and has no entry.
    action_mask : ndarray of bool, shape (n_states, A), optional
        The allowed state-action pairs. Probabilities of other pairs are ignored.
    dtype : {float64, float32}
        How probabilities are stored. All arithmetic is float64; storing float32 changes each probability by a relative error of
        at most 6e-8, and so a value by at most 6e-8 H^2.
    where : str
        Name of the argument in error messages.
    distinct : Distinct, optional
        The layers that are copies of others. It also holds the mask, instead of `action_mask`.

    Raises
    ------
    OpoError
        A wrong number of arrays or a wrong shape; entries that are negative or not finite; a row whose sum differs from 1 by
        more than 1e-8 (float64 input) or 1e-6 (float32 input); masks or positions out of range. Nothing is renormalised.
    """

    changing = False
    """Whether they belong to an `UpdatableMDP`, which can change them."""
    _transient = ("scratch", "places", "transposed_slices", "row_slices", "own_arguments")

    def __init__(
        self,
        layout: Layout,
        arrays: Sequence[Any],
        *,
        action_mask: Array | None = None,
        dtype: npt.DTypeLike = np.float64,
        where: str | Place = "transitions",
        distinct: Distinct | None = None,
    ) -> None:
        if (
            distinct is None
            and isinstance(layout, Layout)
            and action_mask is None
            and (dtype is np.float64 or dtype is FLOAT64)
            and self._fill_small(layout, arrays)
        ):
            return
        instance(layout, "layout", Layout)
        self.layout = layout
        self.dtype = as_dtype(dtype)
        if distinct is None:
            self._lay_out_rows(as_mask(layout, action_mask))
        else:
            self.distinct = distinct
        arrays = layer_list(arrays, layout, where)
        sparse = [type(array) is not np.ndarray and sp.issparse(array) for array in arrays]
        if any(sparse) and not all(sparse):
            raise OpoError(
                f"{where}[{sparse.index(False)}] is dense and {where}[{sparse.index(True)}] is sparse: make all dense, or all sparse"
            )
        self.kind = CSR if any(sparse) else DENSE
        self.block = np.zeros(layout.horizon, dtype=np.int64)
        self._fill(arrays, where)
        frozen(self.block)
        self._seal()

    # -- building ------------------------------------------------------------------------------------------------

    @classmethod
    def from_flat(cls, layout: Layout, data: Array, indptr: Array, indices: Array, block: Array) -> Transitions:
        """CSR transitions of a layout without a mask, from flat arrays in the form that the kernels use.

        For large models: `data` is checked and made read-only; it is copied only if it is a view.

        Parameters
        ----------
        data : ndarray of float64 or float32, shape (n,)
        indptr : ndarray of int64
            Row pointers, block after block, S_h * A + 1 for each; all count from the start of `data`.
        indices : ndarray of uint32, shape (n,)
            Positions inside the next layer, increasing within a row.
        block : ndarray of int64, shape (H,)
            Where the block of each layer starts in `indptr`; layers may share one. The last entry is ignored.

        Raises
        ------
        OpoError
            As for `Transitions`; also for a wrong dtype or length, or if the next states of a row do not increase.
        """
        needed = ("data", data, ("float64", "float32")), ("indptr", indptr, ("int64",)), ("indices", indices, ("uint32",))
        for name, array, kinds in needed:
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.name not in kinds or not array.flags.c_contiguous:
                raise OpoError(f"{name}: a contiguous vector of {' or '.join(kinds)} is needed")
        # Kernels do not check positions, and an older view could still change them, so `indptr` and `indices` are copied. A changed
        # probability would only give wrong numbers, so `data` is copied only if it is a view.
        return cls._from_own(layout, data if data.base is None else data.copy(), indptr.copy(), indices.copy(), block)

    @classmethod
    def _from_own(cls, layout: Layout, data: Array, indptr: Array, indices: Array, block: Array) -> Transitions:
        """`from_flat` for arrays that nobody else holds."""
        result = cls.__new__(cls)
        result.layout, result.dtype, result.kind = layout, data.dtype, CSR
        result._lay_out_rows(None)
        result.block = np.array(block, np.int64)
        if result.block.shape != (layout.horizon,) or data.size != indices.size:
            raise OpoError(
                f"block has shape {result.block.shape} and indices {indices.shape}: {(layout.horizon,)} and {data.shape} are needed"
            )
        result.block[-1] = 0
        result.data, result.indptr, result.indices = read_only(data), read_only(indptr), read_only(indices)
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
            code = check_csr(result.data, result.indptr, start, n_rows, tolerance_of(data.dtype), sums, place)
            if code:
                p = int(place[1])
                position = int(indices[p]) if code == 1 else 0
                raise result._fault(code, h, "data", float(data[p]) if code == 1 else 0.0, position, place[0], sums)
        for array in (result.block, data, indptr, indices):
            frozen(array)
        result._seal()
        return result

    def _opening(self, arrays: Sequence[Any]) -> list[int]:
        """Set where the block of each layer starts, and list the layers that open one; layers of the same array and rows share a block."""
        sizes = self.layout.layer_sizes
        seen: dict[Any, int] = {}
        opening, total = [], 0
        for h, array in enumerate(arrays):
            key: Any = (id(array), sizes[h : h + 2])
            if self.masked and key in seen and self.own(h) != self.own(seen[key]):
                mine, first = self.allowed(h), self.allowed(seen[key])
                if not np.array_equal(cast(Array, mine), cast(Array, first)):
                    key = (h,)
            if key in seen:
                self.block[h] = self.block[seen[key]]
            else:
                seen[key] = h
                opening.append(h)
                self.block[h] = total
                total += self._n_rows(h) * sizes[h + 1] if self.kind == DENSE else self._n_rows(h) + 1
        self.block[-1] = total
        return opening

    def _fill(self, arrays: Sequence[Any], where: str | Place) -> None:
        opening = self._opening(arrays)
        if self.kind == DENSE:
            data = aligned(int(self.block[-1]), self.dtype)
            indptr, indices = _NO_POINTER, _NO_INDICES
            for h in opening:
                self.fill_dense(h, arrays[h], where, data)
        else:
            parts = [as_block(arrays[h], self.n_pairs(h), self.allowed(h), Place("{}[{}]", where, h)) for h in opening]
            data, indices = (aligned(sum(part.nnz for part in parts), dtype) for dtype in (self.dtype, np.dtype(np.uint32)))
            indptr, begin = np.empty(int(self.block[-1]), np.int64), 0
            self.block[-1] = 0
            for h, part in zip(opening, parts, strict=True):
                begin += self.fill_csr(h, part, where, begin, (indptr, indices, data))
            data, indices = data[:begin], indices[:begin]
        self.data, self.indptr, self.indices = frozen(data), frozen(indptr), frozen(indices)

    def n_pairs(self, h: int) -> tuple[int, int]:
        """Shape (S_h * A, S_{h+1}) of the sparse transitions of layer `h`."""
        return self.layout.layer_sizes[h] * self.layout.n_actions, self.layout.layer_sizes[h + 1]

    def as_dense(self, h: int, given: Any, where: str | Place) -> Array:
        """The block of layer `h` as real numbers of shape (S_h, A, S_{h+1}); its entries are checked later."""
        array, shape = as_real(given, Place("{}[{}]", where, h)), self.layout.dense_shapes[h]
        if array.shape != shape:
            raise OpoError(f"{where}[{h}] has shape {array.shape}: (S_h, A, S_h+1) = {shape} is needed")
        return array

    def fill_dense(self, h: int, given: Any, where: str | Place, data: Array) -> None:
        """Fill the block of layer `h` in `data`."""
        array = self.as_dense(h, given, where)
        n_rows, n_next, start = self._n_rows(h), array.shape[2], int(self.block[h])
        flat, allowed = array.reshape(-1, n_next), self.allowed(h)
        if allowed is not None:
            flat = flat[allowed]
        sums, tolerance = np.empty(n_rows), tolerance_of(array.dtype, self.dtype)
        if self.dtype == FLOAT64:
            source = read_only(np.ascontiguousarray(flat, FLOAT64).reshape(-1))
            if take_dense(source, n_rows, n_next, tolerance, sums, data, start):
                return
        else:
            data[start : start + n_rows * n_next].reshape(n_next, n_rows)[...] = flat.T
        place = np.zeros(2, np.int64)
        code = check_dense(data, start, n_rows, n_next, tolerance, sums, place)
        if code:
            entry = data[start + place[1] * n_rows + place[0]]
            raise self._fault(code, h, where, float(entry), int(place[1]), place[0], sums)

    def fill_csr(self, h: int, part: Any, where: str | Place, begin: int, into: tuple[Array, Array, Array]) -> int:
        """Fill the block of layer `h` in indptr, indices and data, with entries from `begin` on; returns their number."""
        n_next, start, tolerance = self.layout.layer_sizes[h + 1], int(self.block[h]), tolerance_of(part.dtype, self.dtype)
        if not take_csr(*plain_csr(part), n_next, tolerance, start, begin, *into):
            # The positions are not in order, or something is wrong.
            part = as_csr(part, Place("{}[{}]", where, h))
            pointer, positions, wide, data = plain_csr(part)
            if not take_csr(pointer, positions, wide, data, n_next, tolerance, start, begin, *into):
                sums, place = np.empty(self._n_rows(h)), np.zeros(2, np.int64)
                code = check_csr(data, pointer, 0, sums.size, tolerance, sums, place)
                if not code:
                    raise OpoError(f"{where}[{h}] changed while it was read")
                p = int(place[1]) if code == 1 else 0
                raise self._fault(code, h, where, float(data[p]), int(part.indices[p]), place[0], sums)
        return int(part.nnz)

    def _fill_small(self, layout: Layout, arrays: Any) -> bool:
        """Build a small ordinary model in one kernel call; False, so that the general code runs, if anything is unusual or wrong."""
        data = small_dense(layout, arrays) if is_small(layout, arrays) else None
        if data is None:
            return False
        # One update is faster than setting attributes, each of which is checked: a small run builds several models per episode.
        vars(self).update(
            layout=layout, dtype=FLOAT64, action_mask=None, rows=layout.rows, pairs=None, kind=DENSE, block=layout.dense_block,
            data=frozen(data), indptr=_NO_POINTER, indices=_NO_INDICES, _sealed=True,
        )  # fmt: skip
        return True

    def _fault(self, code: int, h: int, where: str | Place, entry: float, position: int, row: int, sums: Array) -> OpoError:
        """The error for a fault that `check_dense` or `check_csr` found."""
        pair = int(self.rows[self.layout.offsets[h]]) + int(row)
        if self.pairs is not None:
            pair = int(self.pairs[pair])
        return fault_of_row(self.layout, h, pair, where, (position, entry) if code == 1 else None, float(sums[row]))

    def as_float64(self) -> Transitions:
        """The same probabilities stored as float64, which is exact; the same object if they already are."""
        if self.dtype == FLOAT64:
            return self
        data = aligned(self.data.size)
        data[:] = self.data
        other = Transitions.__new__(Transitions)
        derived = ("arguments", *self._transient)
        fields = {name: value for name, value in vars(self).items() if name not in derived}
        vars(other).update(fields, dtype=FLOAT64, data=frozen(data))
        return other

    # -- reading -------------------------------------------------------------------------------------------------

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """The seven model arguments of every kernel (see `opo_fast.kernels`)."""
        return self.kind, self.data, self.indptr, self.indices, self.block, self.layout.offsets, self.rows

    @cached_property
    def own_arguments(self) -> tuple[Any, ...]:
        """The seven model arguments of a backward sweep: of the own states only (see `Rows`) if layers are copies of others."""
        if self.distinct is None:
            return self.arguments
        own = self.distinct.blocks(self.block), self.distinct.places, self.distinct.rows
        return self.kind, self.data, self.indptr, self.indices, *own

    def layer_arguments(self, h: int) -> tuple[tuple[Any, ...], Array]:
        """The model arguments of a backward sweep over layer `h` alone, and its plan. Its values come first, then the next layer's."""
        sizes, own = (*self.layout.layer_sizes, 0), self.own(h)
        last = h == self.layout.horizon - 1
        block = frozen(np.full(8, 0 if last else self.block[h]))
        layers = frozen(np.array(short_layers(0, sizes[h], sizes[h + 1]), np.int64))
        rows = frozen(self.own_rows[own.start : own.stop + 1] - self.own_rows[own.start])
        plan = np.array([5 if h % 2 else 2, 0, 0, 0, -1 if last else 0], np.int64)
        return (self.kind, self.data, self.indptr, self.indices, block, layers, rows), frozen(plan)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the arrays are in memory: a line of `kernels.models`."""
        block = address(self.block) if self.block is not self.layout.dense_block else self.layout.dense_place
        if self.indptr is _NO_POINTER:
            return DENSE, address(self.data), self.data.size, _NOWHERE, 0, _NOWHERE, 0, block, self.parts
        pairs = [number for array in (self.data, self.indptr, self.indices) for number in (address(array), array.size)]
        return self.kind, *pairs, block, self.parts

    def probability(self, h: int, local: int, action: int, next_local: int) -> float:
        """P(next | state, action) from layer `h`, with states given by their positions in the layers; 0 for a masked pair."""
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
        if self.action_mask is None:
            chosen = states[:-1] * self.layout.n_actions + actions
        else:
            chosen = self.rows[states[:-1]]
            before = np.arange(self.layout.n_actions) < actions[:, None]
            chosen = chosen + (self.action_mask[states[:-1]] & before).sum(axis=1)
        result = np.empty(self.layout.horizon - 1)
        path_probabilities(*self.arguments, chosen, np.array(states, np.int64), result)
        return result

    @cached_property
    def scratch(self) -> list[Any]:
        """Work arrays that no pass is using at the moment (see `borrowed`)."""
        return []

    @cached_property
    def transposed_slices(self) -> TransposedSlices:
        """The transposed copy of CSR transitions, from which repeated forward passes gather."""
        return TransposedSlices()

    @cached_property
    def row_slices(self) -> RowSlices:
        """The copy of the rows of CSR transitions, which repeated backward passes read."""
        return RowSlices()

    @property
    def nbytes(self) -> int:
        """Bytes of the stored transitions."""
        return self.data.nbytes + self.indptr.nbytes + self.indices.nbytes

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
        if self.block is self.layout.dense_block:
            return int(self.block[-1])
        return sum(self.layer_size(h) for h in range(self.layout.horizon - 1))

    @cached_property
    def _largest_layer(self) -> int:
        return max((self.layer_size(h) for h in range(self.layout.horizon - 1)), default=0)

    @cached_property
    def threads(self) -> int:
        """Maximum number of threads that are worth synchronising after each layer."""
        return self.threads_for(1)

    def threads_for(self, policies: int) -> int:
        """The same if each layer is processed for `policies` policies at once."""
        return min(64, max(1, self._largest_layer * policies // _WORTH_A_BARRIER[self.kind]))

    @cached_property
    def width(self) -> int:
        """Number of actions if the rows of whole states fill a vector of eight numbers, else 0."""
        return self.layout.n_actions if not self.masked and self.layout.n_actions in (2, 4, 8) else 0

    @cached_property
    def parts(self) -> int:
        """Parts of a CSR layer in the forward pass, with separate sums. They depend on the shape only, so that threads change no bits."""
        if self.kind == DENSE or self._largest_layer < 2 * _WORTH_A_BARRIER[CSR]:
            return 1
        # A power of two, so that two or four threads get equal numbers of parts.
        worth = self._largest_layer / (8 * max(self.layout.layer_sizes))
        return 2 if worth < 3 else 4 if worth < 6 else 8

    def arrays(self) -> list[Any]:
        """The transitions as arrays of the user's form. Masked pairs have zeros, and layers that share a block share the array.

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
            return dense_array(self.layout, h, block, self.allowed(h))
        pointer = self.indptr[start : start + n_rows + 1]
        part = slice(int(pointer[0]), int(pointer[-1]))
        return csr_array(self.layout, h, self.data[part], self.indices[part], pointer, self.allowed(h))

    def __getstate__(self) -> dict[str, Any]:
        repeated = () if self.distinct is None else ("action_mask", "rows", "pairs", "arguments")
        return {name: value for name, value in super().__getstate__().items() if name not in repeated}

    def __repr__(self) -> str:
        kind = "CSR" if self.kind == CSR else "dense"
        return f"<Transitions {kind} of {self.layout!r}: {self.n_transitions} transitions, {self.nbytes / 2**20:.3g} MiB>"
