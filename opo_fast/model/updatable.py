"""Models whose losses and transitions can be replaced in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import FLOAT64, as_real, read_only
from ..errors import OpoError
from ..kernels.ingest import take_unit
from .blocks import CSR, DENSE, is_small, layer_list, small_dense
from .layered import LayeredMDP
from .layout import Layout, as_losses, uniform_policy
from .sparse import as_block
from .transitions import Transitions

__all__ = ["UpdatableMDP"]

Array = npt.NDArray[Any]


class UpdatableMDP:
    """A layered MDP whose losses and transitions can be replaced without building a new model.

    `evaluate`, `solve`, `occupancy`, `rollout` and `opo_fast.kernels.arrays` take it like a `LayeredMDP`. Code that keeps models and
    tells them apart by identity (policy chains, agents, contexts) takes only a `LayeredMDP`.

    Parameters
    ----------
    layout, losses, transitions, action_mask, dtype
        As for `LayeredMDP`; all are copied.

    Notes
    -----
    Only the model can write to the positions that kernels follow. An update reads its arguments once and checks the numbers while
    it copies them, so what is kept is what was checked.
    """

    keeps_losses_once = False
    layout: Layout
    transitions: Transitions
    losses: Array
    own_row_losses: Array
    loss_place: tuple[int]

    def __init__(
        self,
        layout: Layout,
        losses: npt.ArrayLike,
        transitions: Any,
        action_mask: npt.ArrayLike | None = None,
        *,
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        if isinstance(transitions, Transitions):
            raise OpoError("transitions are opo_fast.Transitions, which other models may share: pass transitions.arrays()")
        model = LayeredMDP(layout, losses, transitions, action_mask, dtype=dtype)
        t, copied = model.transitions, np.array(model.losses)
        vars(t)["changing"] = True
        rows = copied.reshape(-1) if t.pairs is None else np.array(model.row_losses)
        self._losses, self._row_losses = copied, rows
        self._storage, self._places = _storage(t)
        # The only form of a model that `small_dense` can fill.
        self._ordinary = t.block is layout.dense_block and t.dtype == FLOAT64 and t.pairs is None
        self._damaged: dict[str, bool] = {"losses": False, "transitions": False}
        vars(self).update(
            layout=layout, transitions=t, losses=read_only(copied), own_row_losses=read_only(rows), loss_place=(rows.ctypes.data,)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise OpoError(f"{name} of an UpdatableMDP cannot be assigned: call update(losses=..., transitions=...) to replace its numbers")
        super().__setattr__(name, value)

    @property
    def row_losses(self) -> Array:
        """Losses of the rows, the allowed state-action pairs; an error if the last update failed half-way."""
        self.check_whole()
        return self.own_row_losses

    @property
    def action_mask(self) -> Array | None:
        """Allowed state-action pairs (n_states, A), or None if all are."""
        return self.transitions.action_mask

    def uniform_policy(self) -> Array:
        """The policy (n_states, A) that is uniform over the allowed actions of each state."""
        return uniform_policy(self.layout, self.action_mask)

    def update(self, losses: npt.ArrayLike | None = None, transitions: Sequence[Any] | None = None) -> None:
        """Replace the losses, the transitions, or both.

        Parameters
        ----------
        losses : array_like, shape (n_states, A), optional
            Mean losses, each in [0, 1].
        transitions : sequence of H-1 arrays, optional
            Dense or sparse, as when the model was built. Sparse arrays must have as many stored entries in each layer as before, at
            any positions. Layers that shared an array must share one again.

        Raises
        ------
        OpoError
            As for `LayeredMDP`. A wrong type, shape or number of entries leaves the model unchanged. A wrong value is noticed only
            while the numbers are copied: the model then cannot be used until an update of the same part (losses or transitions)
            succeeds.
        """
        numbers = None if losses is None else self._as_losses(losses)
        small = transitions is not None and self._ordinary and is_small(self.layout, transitions)
        blocks = None if transitions is None or small else self._as_blocks(transitions)
        if numbers is not None:
            self._damaged["losses"] = True
            self._write_losses(numbers)
            self._damaged["losses"] = False
        if transitions is not None:
            self._damaged["transitions"] = True
            if small and small_dense(self.layout, transitions, self._storage[2]) is None:
                # Layer by layer, to say where the fault is.
                blocks = self._as_blocks(transitions)
            for h, block in (blocks or {}).items():
                self._refill(h, block)
            self._damaged["transitions"] = False

    def _as_losses(self, losses: npt.ArrayLike) -> Array:
        """Losses with the right shape and dtype; their values are checked later."""
        array = as_real(losses, "losses")
        if array.shape != self.layout.shape:
            raise OpoError(f"losses have shape {array.shape}: (n_states, n_actions) = {self.layout.shape} is needed")
        return array

    def _write_losses(self, array: Array) -> None:
        if not take_unit(read_only(np.ascontiguousarray(array, FLOAT64).reshape(-1)), self._losses.reshape(-1)):
            as_losses(self.layout, self._losses)
        if self.transitions.pairs is not None:
            np.take(self._losses.reshape(-1), self.transitions.pairs, out=self._row_losses, mode="clip")

    def _as_blocks(self, transitions: Sequence[Any]) -> dict[int, Any]:
        """The arrays of the layers that open a block, with the right shape, dtype and number of stored entries."""
        t = self.transitions
        blocks: dict[int, Any] = {}
        first: dict[tuple[int, int], int] = {}
        arrays = layer_list(transitions, self.layout, "transitions")
        for h, array in enumerate(arrays):
            if sp.issparse(array) != (t.kind == CSR):
                needed = "a SciPy sparse" if t.kind == CSR else "a dense"
                raise OpoError(f"transitions[{h}]: {needed} array is needed, as when the model was built")
            same = first.setdefault(self._places[h], h)
            if same == h:
                blocks[h] = self._as_block(h, array)
            elif arrays[same] is not array:
                raise OpoError(f"transitions[{h}] is not the same array as transitions[{same}], although the two layers share their memory")
        return blocks

    def _as_block(self, h: int, array: Any) -> Any:
        t = self.transitions
        if t.kind == DENSE:
            return t.as_dense(h, array, "transitions")
        part = as_block(array, t.n_pairs(h), t.allowed(h), f"transitions[{h}]")
        self._check_size(h, part.nnz)
        return part

    def _check_size(self, h: int, size: int) -> None:
        needed = self._places[h][1]
        if size != needed:
            raise OpoError(f"transitions[{h}] has {size} stored entries: {needed} are needed, as many as before")

    def _refill(self, h: int, block: Any) -> None:
        t = self.transitions
        if t.kind == DENSE:
            t.fill_dense(h, block, "transitions", self._storage[2])
            return
        try:
            # Checked again, since the array may have changed meanwhile, or duplicate entries have been summed.
            self._check_size(h, block.nnz)
            self._check_size(h, t.fill_csr(h, block, "transitions", self._places[h][0], self._storage))
        except BaseException:
            # The block may be half written, and kernels must not follow such positions.
            self._storage[0][:] = 0
            self._storage[1][:] = 0
            raise

    def check_whole(self) -> None:
        """Refuse a model whose last update failed half-way."""
        if any(self._damaged.values()):
            damaged = [part for part, is_damaged in self._damaged.items() if is_damaged]
            raise OpoError(
                f"mdp is half updated, since an update of its {' and '.join(damaged)} failed: "
                f"call update({', '.join(f'{part}=...' for part in damaged)}) with valid arrays"
            )

    def __repr__(self) -> str:
        return f"<UpdatableMDP {self.layout!r}: {self.layout.n_states} states, {self.transitions!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_whole()
        return _again, (self.layout, self.losses, self.transitions.arrays(), self.action_mask, self.transitions.dtype)


def _again(layout: Layout, losses: Array, arrays: list[Any], action_mask: Array | None, dtype: Any) -> UpdatableMDP:
    return UpdatableMDP(layout, losses, arrays, action_mask, dtype=dtype)


def _storage(t: Transitions) -> tuple[tuple[Array, Array, Array], list[tuple[int, int]]]:
    """Writable views of row pointers, next states and probabilities, the only ones; first entry and number of entries of each layer."""
    sizes = [t.layer_size(h) for h in range(t.layout.horizon - 1)]
    starts = [int(t.indptr[t.block[h]] if t.kind == CSR else t.block[h]) for h in range(t.layout.horizon - 1)]
    views = []
    for array in (t.indptr, t.indices, t.data):
        if array.size:
            array.flags.writeable = True
        views.append(array[:])
        array.flags.writeable = False
    return (views[0], views[1], views[2]), list(zip(starts, sizes, strict=True))
