"""Layouts: layers of states and how the states are numbered; checks of arrays with one number per state-action pair."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from .._support.checks import as_array, as_integer, as_real, checked_unit, frozen
from .._support.memory import check_room
from ..errors import OpoError, Place

__all__ = [
    "Immutable",
    "Layout",
    "address",
    "aligned",
    "aligned_parts",
    "as_losses",
    "as_mask",
    "as_mask_2d",
    "row_starts",
    "uniform_policy",
]

Array = npt.NDArray[Any]


def address(array: Array) -> int:
    """Where an array begins in memory."""
    return array.ctypes.data


def aligned(count: int, dtype: npt.DTypeLike = np.float64, *, zero: bool = False, worth: int = 0) -> Array:
    """A vector that begins on a cache line: eight numbers that straddle two lines take twice as long to load.

    The alignment costs a microsecond or two, so vectors of fewer than `worth` numbers are not aligned.
    """
    make = np.zeros if zero else np.empty
    if count < worth:
        return make(count, dtype)
    item = np.dtype(dtype).itemsize
    room = make(count + 64 // item, dtype)
    skipped = -address(room) % 64 // item
    return room[skipped : skipped + count]


def aligned_parts(sizes: Sequence[int]) -> list[Array]:
    """Vectors of zeros, each of which begins on a cache line; they are parts of one array, which is faster to make than several."""
    begins = list(itertools.accumulate((-(-size // 8) * 8 for size in sizes), initial=0))
    room = aligned(begins[-1], zero=True)
    return [room[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


class Immutable:
    """Base class of objects that do not change after they are built, so that a copy is the object itself.

    Pickling makes arrays writable again, so those that are read back are made read-only once more.
    """

    _sealed = False

    def _seal(self) -> None:
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise OpoError(f"{name}: a {type(self).__name__} is immutable; build a new one")
        super().__setattr__(name, value)

    _transient: tuple[str, ...] = ()
    """Attributes that are not pickled, but computed again."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._transient}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                frozen(value)


class Layout(Immutable):
    """The layers of states and the number of actions.

    States are numbered layer by layer from 0 to ``n_states - 1``; ``n_states`` is the end state, in which nothing is played.

    Parameters
    ----------
    layer_sizes : sequence of int
        Number of states of the layers S_1..S_H. The first layer holds the single start state.
    n_actions : int
        Number of actions, the same in every state; if a state has fewer, mask the others.

    Attributes
    ----------
    layer_sizes : tuple of int
    n_actions, n_states, horizon : int
    shape : tuple of int
        Shape of an array with one number per state-action pair, (n_states, n_actions).
    offsets : ndarray of int64, shape (horizon + 1,)
        First state of each layer; the last entry is ``n_states``.

    Raises
    ------
    OpoError
        No layer, an empty layer, a first layer of more than one state, or no action.
    """

    def __init__(self, layer_sizes: Sequence[int], n_actions: int) -> None:
        try:
            sizes = [as_integer(size, f"layer_sizes[{h}]", least=1) for h, size in enumerate(layer_sizes)]
        except TypeError:
            raise OpoError(f"layer_sizes: a sequence of layer sizes is needed, got {layer_sizes!r}") from None
        if not sizes:
            raise OpoError("layer_sizes is empty: give the size of at least one layer")
        if sizes[0] != 1:
            raise OpoError(
                f"layer_sizes[0] is {sizes[0]}: the first layer must be the single start state (for a start distribution, add a first "
                "layer that leads to it, as LayeredMDP.stationary(..., start=distribution) does)"
            )
        self.layer_sizes = tuple(sizes)
        self.n_actions = as_integer(n_actions, "n_actions", least=1)
        self.horizon = len(sizes)
        self.n_states = sum(sizes)
        self.shape = (self.n_states, self.n_actions)
        if max(sizes) >= 2**32:
            raise OpoError(f"layer_sizes: a layer has {max(sizes)} states; at most 2**32 - 1 are possible")
        check_room(self.n_states * self.n_actions, f"layer_sizes, n_actions: the losses of {self.n_states} states and {n_actions} actions")
        self.offsets = frozen(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        self._seal()

    def layer(self, h: int) -> slice:
        """States of layer `h`, counted from 0, as a slice into arrays of shape (n_states, ...)."""
        return slice(int(self.offsets[h]), int(self.offsets[h + 1]))

    @cached_property
    def rows(self) -> Array:
        """First row of each state if every action is allowed, `n_states + 1` entries. A row is an allowed state-action pair."""
        return frozen(np.arange(self.n_states + 1, dtype=np.int64) * self.n_actions)

    @cached_property
    def dense_shapes(self) -> list[tuple[int, int, int]]:
        """The shape (S_h, A, S_h+1) of the dense transitions of each layer but the last."""
        return [(n, self.n_actions, n_next) for n, n_next in itertools.pairwise(self.layer_sizes)]

    @cached_property
    def dense_block(self) -> Array:
        """Where the block of each layer starts in dense transitions whose layers share no blocks; the last entry is the total size."""
        sizes = np.array(self.layer_sizes, np.int64)
        return frozen(np.concatenate([[0], np.cumsum(sizes[:-1] * self.n_actions * sizes[1:])]))

    @cached_property
    def dense_sizes(self) -> tuple[int, int]:
        """Number of dense transitions, and of state-action pairs in the largest layer."""
        return int(self.dense_block[-1]), self.n_actions * max(self.layer_sizes)

    @cached_property
    def dense_place(self) -> int:
        """Where `dense_block` is in memory."""
        return address(self.dense_block)

    @cached_property
    def next_sizes(self) -> Array:
        """Number of next states of each state-action pair in all layers but the last."""
        return frozen(np.repeat(self.layer_sizes[1:], np.array(self.layer_sizes[:-1], np.int64) * self.n_actions))

    @cached_property
    def row_places(self) -> Array:
        """Where the probabilities of each state-action pair begin if they are stored pair after pair; the last entry is the total."""
        return frozen(np.concatenate([[0], np.cumsum(self.next_sizes)]).astype(np.int64))

    def layer_of(self, state: int) -> int:
        """Layer of `state`, counted from 0; ``horizon`` for the end state."""
        return int(np.searchsorted(self.offsets, state, side="right")) - 1

    def state(self, stage: int, local: int) -> int:
        """Number of the state at position `local` of layer `stage`, both counted from 0; the inverse of the method `local`."""
        stage = as_integer(stage, "stage", least=0, most=self.horizon - 1)
        return int(self.offsets[stage]) + as_integer(local, "local", least=0, most=self.layer_sizes[stage] - 1)

    def local(self, state: int) -> tuple[int, int]:
        """Layer of `state` and its position in that layer, both counted from 0; (horizon, 0) for the end state."""
        state = as_integer(state, "state", least=0, most=self.n_states)
        stage = self.layer_of(state)
        return stage, state - int(self.offsets[stage])

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


def as_losses(layout: Layout, losses: Any, where: str | Place = "losses") -> Array:
    """Losses (n_states, A) in [0, 1] as a read-only float64 copy; an error names the first bad entry."""
    array = as_real(losses, where)
    if array.shape != layout.shape:
        raise OpoError(f"{where} has shape {array.shape}: (n_states, n_actions) = {layout.shape} is needed")
    return frozen(checked_unit(array, where))


def row_starts(counts: Array) -> Array:
    """First row of each state, from the number of allowed actions of each; `n_states + 1` entries."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def as_mask(layout: Layout, mask: Any) -> Array | None:
    """An action mask (n_states, A) as a read-only bool copy; None if it allows every action."""
    if mask is None:
        return None
    result = as_mask_2d(mask, layout.shape, "action_mask", layout)
    return None if result.all() else frozen(result)


def as_mask_2d(mask: Any, shape: tuple[int, int], name: str, layout: Layout | None = None) -> Array:
    """An action mask as a bool copy. Every state must allow an action; with a `layout`, the error names the state's layer."""
    array = np.array(as_array(mask, name))
    if array.dtype != np.bool_:
        raise OpoError(f"{name} has dtype {array.dtype}: booleans are needed")
    if array.shape != shape:
        raise OpoError(f"{name} has shape {array.shape}: {shape} is needed")
    empty = np.flatnonzero(~array.any(axis=1))
    if empty.size:
        layer = f" (layer {layout.layer_of(int(empty[0]))})" if layout else ""
        raise OpoError(f"{name}: state {int(empty[0])}{layer} allows no action; every state needs at least one")
    return array


def uniform_policy(layout: Layout, action_mask: Array | None) -> Array:
    """The policy (n_states, A) that is uniform over the allowed actions of each state."""
    if action_mask is None:
        return np.full(layout.shape, 1.0 / layout.n_actions)
    return np.where(action_mask, 1.0 / action_mask.sum(axis=1, keepdims=True), 0.0)
