"""Layered MDPs: a layout, transitions and losses.

Everything is validated once, when a model is built. Models are immutable, so kernels need not check them again.
"""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.cached import cached_property
from .._support.checks import MANY, as_array, as_distribution, as_integer, as_losses_2d, as_real, frozen, instance, tolerance_of
from .._support.files import reading
from .._support.state import read_state, write_state
from .._support.text import count, html_table
from ..errors import OpoError
from .blocks import stored_arrays
from .conversion import as_transitions
from .distinct import Distinct
from .layout import Immutable, Layout, address, as_losses, as_mask, as_mask_2d, uniform_policy
from .rows import Rows
from .sparse import rows_of_state
from .transitions import Transitions

__all__ = ["LayeredMDP", "Layout", "Transitions"]

Array = npt.NDArray[Any]
LAYERS_SHOWN = 20
"""Maximum number of lines in the table that a notebook shows."""


class LayeredMDP(Immutable):
    """A loop-free layered MDP (paper, section 2.1): a layout, losses and transitions. Immutable.

    Parameters
    ----------
    layout : Layout
    losses : array_like, shape (n_states, A)
        Mean losses, each in [0, 1].
    transitions : Transitions, or as in `Transitions`
    action_mask : array_like of bool, shape (n_states, A), optional
        Allowed state-action pairs; every state needs one. A masked action is never played; its Q and occupancy are reported as 0.
    dtype : {float64, float32}
        Storage of the transitions (see `Transitions`).

    Raises
    ------
    OpoError
        See `Transitions`; and losses that are not in [0, 1] or have a wrong shape.
    """

    transitions: Transitions
    layout: Layout
    _own_losses: Array
    _transient = ("losses", "row_losses", "own_row_losses", "loss_place")

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
        if type(transitions) is list and action_mask is None:
            stored = Transitions(layout, transitions, dtype=dtype)
        else:
            stored = as_transitions(layout, transitions, cast("Array | None", action_mask), dtype=dtype)
        # One update is faster than setting attributes, each of which is checked.
        vars(self).update(transitions=stored, layout=layout, _own_losses=as_losses(layout, losses), _sealed=True)

    @classmethod
    def _of(cls, transitions: Transitions, own_losses: Array) -> LayeredMDP:
        """A model from valid transitions and losses, given for their own states only (see `Rows`)."""
        model = cls.__new__(cls)
        model.transitions, model.layout, model._own_losses = transitions, transitions.layout, frozen(own_losses)
        model._seal()
        return model

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
        """A time-homogeneous model unrolled over `horizon` steps; all layers share one block of transitions, losses and mask.

        Parameters
        ----------
        P : array_like (S, A, S) or SciPy sparse array (S * A, S)
        losses : array_like, shape (S, A)
        horizon : int
            Number of steps H that are played in the given model.
        start : int or array_like, shape (S,)
            A state: the first layer is that state alone, so the layer sizes are [1, S, ..., S], H layers. A distribution: an
            extra first layer is added, with one state of loss 0 in which every action leads to that distribution; H + 1 layers.
        action_mask : array_like of bool, shape (S, A), optional
        terminal : array_like, shape (S,), optional
            Terminal (salvage) values in [0, 1]: what it costs to be in each state after the last step. They add a layer in which
            every action has that loss.

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
        mask = None if action_mask is None else as_mask_2d(action_mask, (n_states, n_actions), "action_mask")
        state, head = None, np.zeros((1, n_actions))
        if as_array(start, "start").ndim == 0:
            state = as_integer(start, "start", least=0, most=n_states - 1)
            array, first = rows_of_state(array, state, n_actions, "P") if sparse else (array, array[state : state + 1])
            head = base[state : state + 1]
        else:
            first = np.broadcast_to(as_distribution(start, n_states, "start", "state"), (1, n_actions, n_states))
            if sparse:
                first = sp.csr_array(np.ascontiguousarray(first[0]))
        tail = base[:0] if terminal is None else _terminal_losses(terminal, base.shape)
        steps = horizon - (state is not None)
        which = [0] + [1] * steps + [1 + (steps > 0)] * (terminal is not None)
        layout = Layout([1] + [n_states] * (len(which) - 1), n_actions)
        parts = [head] + [base] * (steps > 0) + [tail]
        if mask is not None:
            above = np.ones((1, n_actions), bool) if state is None else mask[state : state + 1]
            mask = np.concatenate([above] + [mask] * max(which))
        arrays = [first] + [array] * (layout.horizon - 2) if layout.horizon > 1 else []
        distinct = Distinct(layout, which, mask, state)
        return cls._of(Transitions(layout, arrays, dtype=dtype, where="P", distinct=distinct), np.concatenate(parts))

    @property
    def action_mask(self) -> Array | None:
        """Allowed state-action pairs (n_states, A), or None if all are."""
        return self.transitions.action_mask

    @cached_property
    def losses(self) -> Array:
        """Mean losses (n_states, A), with those of stationary layers repeated in each layer."""
        d = self.transitions.distinct
        return frozen(d.unroll(self._own_losses)) if d is not None and self.keeps_losses_once else self._own_losses

    @cached_property
    def row_losses(self) -> Array:
        """Losses of the rows, the allowed state-action pairs; shape (n_rows,)."""
        return frozen(np.ascontiguousarray(self.transitions.gather(self.losses)))

    @property
    def keeps_losses_once(self) -> bool:
        """Whether layers that are copies of one another share one block of losses."""
        d = self.transitions.distinct
        return d is not None and self._own_losses.shape[0] == d.n_states

    @cached_property
    def own_row_losses(self) -> Array:
        """`row_losses` of all states, or of the own states only (see `Rows`) if layers share their losses."""
        if not self.keeps_losses_once:
            return self.row_losses
        flat, pairs = self._own_losses.reshape(-1), self.transitions.own_pairs
        return flat if pairs is None else frozen(flat[pairs])

    @cached_property
    def loss_place(self) -> tuple[int]:
        """Where `row_losses` are in memory."""
        if self.transitions.pairs is None and self.transitions.distinct is None:
            return (address(self._own_losses),)
        return (address(self.row_losses),)

    def with_losses(self, losses: npt.ArrayLike) -> LayeredMDP:
        """The same model with other losses. The validated transitions are shared, not copied.

        Parameters
        ----------
        losses : array_like, shape (n_states, A)
            For a stationary model also (S, A): the same in every layer, and stored once. The extra first layer of a start
            distribution and the layer of terminal values keep their losses.
        """
        d, array = self.transitions.distinct, as_real(losses, "losses")
        if d is None or array.shape == self.layout.shape:
            return LayeredMDP(self.layout, array, self.transitions)
        if array.shape != d.stationary_shape:
            raise OpoError(f"losses has shape {array.shape}: {d.shapes()} is needed")
        if self.layout.horizon == 2 and d.start is not None:
            raise OpoError(
                f"losses has shape {array.shape}: {self.layout.shape} is needed, since the second layer may be that of `terminal`"
            )
        last = self._own_losses[-d.stationary_size :] if len(d.sizes) == 3 else None
        own = d.spread(as_losses_2d(array, "losses"), self._own_losses[0], last)
        return LayeredMDP._of(self.transitions, own)

    def uniform_policy(self) -> Array:
        """The policy (n_states, A) that is uniform over the allowed actions of each state: pi^1 of Algorithm 1."""
        return uniform_policy(self.layout, self.action_mask)

    def unroll(self, values: npt.ArrayLike, first: npt.ArrayLike | None = None) -> Array:
        """Repeat the values of the S states of a stationary model in every layer.

        Parameters
        ----------
        values : array_like, shape (S, ...)
            For instance a stationary policy (S, A).
        first : array_like, shape (...), optional
            The values of the first layer's single state. Default: those of the state that was given to `LayeredMDP.stationary` as
            `start`. If the first layer is not a copy of a state, but `values` is a policy, the default is the uniform policy.

        Raises
        ------
        OpoError
            A wrong shape; or no `first`, although the first layer is not a copy of a state and `values` is not a policy.
        """
        array = as_array(values, "values")
        sizes = set(self.layout.layer_sizes[1:])
        if array.ndim < 1 or sizes - {array.shape[0]}:
            raise OpoError(
                f"values has shape {array.shape}: its first axis must be the size of every layer after the first, {sorted(sizes)}"
            )
        head = self._first_of(array) if first is None else as_array(first, "first")
        if head.shape != array.shape[1:]:
            raise OpoError(f"first has shape {head.shape}: {array.shape[1:]}, the shape of a row of values, is needed")
        return np.concatenate([head[None]] + [array] * (self.layout.horizon - 1))

    def _first_of(self, values: Array) -> Array:
        """The default values of the first state: those of the state that it is a copy of, or else the uniform policy."""
        d = self.transitions.distinct
        if d is not None and d.start is not None and d.start < len(values):
            return np.asarray(values[d.start])
        policy = values.ndim == 2 and values.shape[1] == self.layout.n_actions and values.dtype.kind in "fiub"
        if not policy or not (np.abs(values.sum(axis=1, dtype=np.float64) - 1.0) <= tolerance_of(values.dtype)).all():
            raise OpoError(
                f"first is None: values for the first state, of shape {values.shape[1:]}, are needed, since its layer is a copy of no "
                "state, and the rows of values are no policy's"
            )
        return np.asarray(self.uniform_policy()[0])

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path` as npz (no pickle); blocks that layers share are written once."""
        t, d = self.transitions, self.transitions.distinct
        meta = {"format": "opo_fast.LayeredMDP", "version": 2, "kind": t.kind, "masked": t.masked}
        arrays = {"data": t.data, "indptr": t.indptr, "indices": t.indices, "block": t.block, "losses": self._own_losses}
        if d is not None:
            meta.update(version=3, start=d.start, distinct=len(d.sizes))
        if t.masked:
            arrays["action_mask"] = cast(Array, t.action_mask if d is None else d.mask)
        sizes = np.array(self.layout.layer_sizes, np.int64)
        write_state(path, {**meta, "layer_sizes": sizes, "n_actions": np.array(self.layout.n_actions), **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LayeredMDP:
        """Read a model that `save` wrote; it is validated like any other.

        Raises
        ------
        OpoError
            The file does not exist, is damaged, or was not written by `save`.
        """
        with reading(path, "a model that LayeredMDP.save wrote"):
            stored = read_state(path, "a model that LayeredMDP.save wrote")
            if stored["format"] != "opo_fast.LayeredMDP" or stored["version"] not in (2, 3):
                raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
            layout = Layout(stored["layer_sizes"].tolist(), stored["n_actions"])
            losses, mask = stored["losses"], stored["action_mask"] if stored["masked"] else None
            if stored["version"] == 3:
                return cls._stationary_of(layout, losses, mask, stored)
            # Losses first: a damaged size is noticed here, before anything of that size is allocated.
            losses, mask = as_losses(layout, losses), as_mask(layout, mask)
            rows = Rows.of(layout, mask)
            arrays = stored_arrays(rows, int(stored["kind"]), stored)
            return cls(layout, losses, Transitions(layout, arrays, action_mask=mask, dtype=stored["data"].dtype))

    @classmethod
    def _stationary_of(cls, layout: Layout, losses: Array, mask: Array | None, stored: dict[str, Any]) -> LayeredMDP:
        """The stationary model in a file, whose losses and mask are those of the own states (see `Rows`)."""
        distinct = Distinct.stored(layout, int(stored["distinct"]), mask, stored["start"])
        arrays = stored_arrays(Rows.of(layout, None, distinct), int(stored["kind"]), stored)
        transitions = Transitions(layout, arrays, dtype=stored["data"].dtype, distinct=distinct)
        if losses.shape == layout.shape:
            return cls(layout, losses, transitions)
        own = as_losses_2d(losses, "losses")
        if own.shape != (distinct.n_states, layout.n_actions):
            raise OpoError(f"losses have shape {own.shape}: {(distinct.n_states, layout.n_actions)} is needed")
        return cls._of(transitions, own)

    def __repr__(self) -> str:
        masked = f", {self.transitions.n_rows} allowed pairs" if self.transitions.masked else ""
        return f"<LayeredMDP {self.layout!r}: {self.layout.n_states} states{masked}, {self.transitions!r}>"

    def _repr_html_(self) -> str:
        """For notebooks: one line for each run of layers of equal sizes and losses."""
        layout = self.layout
        kind = "sparse" if self.transitions.kind else "dense"
        title = f"LayeredMDP: {count(layout.horizon, 'layer')}, {count(layout.n_states, 'state')}, {count(layout.n_actions, 'action')}"
        facts: list[tuple[int, int, float, float]] = []
        for h, size in enumerate(layout.layer_sizes):
            allowed = self.transitions.allowed(h)
            costs = self._own_losses[self.transitions.own(h) if self.keeps_losses_once else layout.layer(h)].ravel()
            costs = costs if allowed is None else costs[allowed]
            facts.append((size, costs.size, float(costs.min()), float(costs.max())))
        begins = [h for h in range(layout.horizon) if h == 0 or facts[h] != facts[h - 1]]
        rows = []
        for first, after in list(zip(begins, [*begins[1:], layout.horizon], strict=True))[:LAYERS_SHOWN]:
            size, pairs, low, high = facts[first]
            span = str(first) if after == first + 1 else f"{first} to {after - 1}"
            rows.append([span, f"{size:,}", f"{pairs:,}", f"{low:.4g} to {high:.4g}"])
        rest = f"... {len(begins) - LAYERS_SHOWN} more rows; " if len(begins) > LAYERS_SHOWN else ""
        rest += f"{self.transitions.n_transitions:,} transitions ({kind}, {self.transitions.nbytes / 1e6:.3g} MB)"
        return html_table(title, ["layer", "states", "allowed pairs", "losses"], rows, rest)


def _terminal_losses(terminal: npt.ArrayLike, shape: tuple[int, int]) -> Array:
    values = as_array(terminal, "terminal")
    if values.shape != shape[:1]:
        raise OpoError(f"terminal has shape {values.shape}: ({shape[0]},) is needed")
    return as_losses_2d(np.repeat(values[:, None], shape[1], axis=1), "terminal")
