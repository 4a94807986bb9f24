"""Layered models: a layout, the transitions of one dynamics, and losses.

Everything is validated once, when it is built; what is built is immutable, and kernels never check.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import MANY, as_array, as_distribution, as_integer, as_losses_2d, as_real, frozen, instance
from .._support.files import reading
from .._support.state import read_state, write_state
from ..errors import OpoError
from .blocks import stored_arrays
from .conversion import as_transitions
from .layout import Immutable, Layout, as_losses, as_mask, as_mask_2d, uniform_policy
from .sparse import as_csr
from .transitions import Transitions

__all__ = ["LayeredMDP", "Layout", "Transitions"]

Array = npt.NDArray[Any]


class LayeredMDP(Immutable):
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

    _passing = ("loss_place",)

    def __init__(
        self,
        layout: Layout,
        losses: npt.ArrayLike,
        transitions: Any,
        action_mask: npt.ArrayLike | None = None,
        *,
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        instance(layout, "layout", Layout)
        mask = None if action_mask is None else cast(Array, action_mask)
        self.transitions = as_transitions(layout, transitions, mask, dtype=dtype)
        self.layout = layout
        self.losses = as_losses(layout, losses)
        self._seal()

    @classmethod
    def stationary(
        cls,
        P: Any,
        losses: npt.ArrayLike,
        horizon: int,
        start: Any = 0,
        action_mask: npt.ArrayLike | None = None,
        *,
        terminal: npt.ArrayLike | None = None,
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
        terminal : array_like, shape (S,), optional
            Terminal (salvage) values: what it costs to be in a state after the last step, in [0, 1]. One more layer, in which every
            action has that loss.

        Returns
        -------
        LayeredMDP
            ``v[0]`` of `solve` and `evaluate` is V(s_1).
        """
        base = as_losses_2d(losses, "losses")
        n_states, n_actions = base.shape
        horizon = as_integer(horizon, "horizon", least=1, most=MANY)
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
        if as_array(start, "start").ndim == 0:
            state = as_integer(start, "start", least=0, most=n_states - 1)
            first: Any = array[state * n_actions : (state + 1) * n_actions] if sparse else array[state : state + 1]
            head, head_mask, steps = base[state : state + 1], None if mask is None else mask[state : state + 1], horizon - 1
        else:
            distribution = as_distribution(start, n_states, "start", "state")
            first = np.broadcast_to(distribution, (1, n_actions, n_states))
            if sparse:
                first = sp.csr_array(np.ascontiguousarray(first[0]))
            head, head_mask, steps = np.zeros((1, n_actions)), None if mask is None else np.ones((1, n_actions), bool), horizon
        tail = base[:0]
        if terminal is not None:
            values = as_array(terminal, "terminal")
            if values.shape != (n_states,):
                raise OpoError(f"terminal has shape {values.shape}: ({n_states},) is needed")
            tail = as_losses_2d(np.repeat(values[:, None], n_actions, axis=1), "terminal")
        layout = Layout([1] + [n_states] * (steps + (terminal is not None)), n_actions)
        every_mask = None if mask is None else np.concatenate([cast(Array, head_mask)] + [mask] * (layout.horizon - 1))
        every_loss = np.concatenate([head] + [base] * steps + [tail])
        arrays = ([first] + [array] * (layout.horizon - 2)) if layout.horizon > 1 else []
        return cls(layout, every_loss, Transitions(layout, arrays, action_mask=every_mask, dtype=dtype, where="P"))

    @property
    def action_mask(self) -> Array | None:
        """Allowed pairs (n_states, A), or None where all are."""
        return self.transitions.action_mask

    @cached_property
    def row_losses(self) -> Array:
        """Losses of the allowed pairs, one per row."""
        return frozen(np.ascontiguousarray(self.transitions.gather(self.losses)))

    @cached_property
    def loss_place(self) -> tuple[int]:
        """Where `row_losses` are in memory."""
        return (self.row_losses.__array_interface__["data"][0],)

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
        array = as_array(values, "values")
        sizes = set(self.layout.layer_sizes[1:])
        if array.ndim < 1 or sizes - {array.shape[0]}:
            raise OpoError(
                f"values has shape {array.shape}: its first axis must be the size of every layer after the first, {sorted(sizes)}"
            )
        head = self.uniform_policy()[0] if first is None else as_array(first, "first")
        if head.shape != array.shape[1:]:
            given = "first" if first is None else f"first has shape {head.shape}"
            raise OpoError(f"{given}: a value of shape {array.shape[1:]}, that of a row of values, is needed for the first state")
        return np.concatenate([head[None]] + [array] * (self.layout.horizon - 1))

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path` as npz (no pickle); blocks that layers share are written once."""
        t = self.transitions
        meta = {"format": "opo_fast.LayeredMDP", "version": 2, "kind": t.kind, "masked": t.action_mask is not None}
        arrays = {"data": t.data, "indptr": t.indptr, "indices": t.indices, "block": t.block, "losses": self.losses}
        if t.action_mask is not None:
            arrays["action_mask"] = t.action_mask
        sizes = np.array(self.layout.layer_sizes, np.int64)
        write_state(path, {**meta, "layer_sizes": sizes, "n_actions": np.array(self.layout.n_actions), **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LayeredMDP:
        """Read a model that `save` wrote; it is validated like any other.

        Raises
        ------
        OpoError
            No such file, or one that is damaged or was written by something else.
        """
        with reading(path, "a model that LayeredMDP.save wrote"):
            stored = read_state(path, "a model that LayeredMDP.save wrote")
            if (stored["format"], stored["version"]) != ("opo_fast.LayeredMDP", 2):
                raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
            layout = Layout(stored["layer_sizes"].tolist(), stored["n_actions"])
            # The losses first: a damaged size is noticed before anything of that size is made.
            losses, mask = as_losses(layout, stored["losses"]), as_mask(layout, stored["action_mask"] if stored["masked"] else None)
            arrays = stored_arrays(layout, mask, int(stored["kind"]), stored)
            return cls(layout, losses, Transitions(layout, arrays, action_mask=mask, dtype=stored["data"].dtype))

    def __repr__(self) -> str:
        masked = "" if self.action_mask is None else f", {int(self.action_mask.sum())} allowed pairs"
        return f"<LayeredMDP {self.layout!r}: {self.layout.n_states} states{masked}, {self.transitions!r}>"
