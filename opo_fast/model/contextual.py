"""Contextual MDPs: the protocol of environments, finite sets of contexts, and trajectories."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .._support.checks import as_array, as_distribution, as_items, having, instance, labels_of, shown
from ..errors import OpoError
from ..kernels.ingest import check_path
from .layered import LayeredMDP
from .layout import Layout

__all__ = ["ContextualMDP", "FiniteContexts", "Trajectory", "check_trajectory", "context_key", "passed"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode (c, s_1, a_1, l_1, ..., s_H, a_H, l_H, s_{H+1}) (paper, section 2.2).

    Parameters
    ----------
    context : hashable or ndarray
    states : ndarray of int64, shape (H + 1,)
        The last entry is the end state ``layout.n_states``.
    actions : ndarray of int64, shape (H,)
    losses : ndarray of float64, shape (H,)
        Observed losses in [0, 1].
    """

    context: Any
    states: Array
    actions: Array
    losses: Array


@runtime_checkable
class ContextualMDP(Protocol):
    """An environment: any object with these three members is one.

    An environment may also define ``sample_losses(means, uniforms)``, which takes the mean losses and uniforms of the visited
    state-action pairs, (H,) each, and returns the observed losses; without it, losses are Bernoulli with these means. Losses that
    depend on the next state come from ``joint_losses(context, states, actions, uniforms)``, with shapes (H + 1,), (H,) and (H,); their
    mean given the state-action pair must be that of the model.
    """

    @property
    def layout(self) -> Layout:
        """Layers and actions, the same for every context."""
        ...

    def sample_context(self, rng: np.random.Generator) -> Any:
        """Draw a context: anything hashable, or an array."""
        ...

    def mdp(self, context: Any) -> LayeredMDP:
        """The true model of a context."""
        ...


class FiniteContexts:
    """A contextual MDP with contexts 0..n-1.

    Parameters
    ----------
    mdps : sequence of LayeredMDP
        One per context, all with the same layout.
    probabilities : array_like, shape (n,), optional
        Probabilities of the contexts; uniform by default.
    labels : sequence of str, optional
        The meaning of each context, for tables and plots.
    name : str
    """

    def __init__(
        self,
        mdps: Sequence[LayeredMDP],
        probabilities: npt.ArrayLike | None = None,
        labels: Sequence[str] | None = None,
        name: str = "finite contexts",
    ) -> None:
        self.mdps: tuple[LayeredMDP, ...] = tuple(as_items(mdps, "mdps", "models, one per context,", some=True))
        for c, mdp in enumerate(self.mdps):
            instance(mdp, f"mdps[{c}]", LayeredMDP)
            if mdp.layout != self.mdps[0].layout:
                raise OpoError(f"mdps[{c}] has {mdp.layout!r}: the layout of mdps[0], {self.mdps[0].layout!r}, is needed")
        n = len(self.mdps)
        p = np.full(n, 1 / n) if probabilities is None else as_distribution(probabilities, n, "probabilities", "context")
        self.probabilities = p.astype(np.float64)
        self.labels = labels_of(range(n) if labels is None else labels, n, "labels", "contexts")
        self.name = name
        self._cumulative = np.cumsum(self.probabilities)
        self._last = int(np.flatnonzero(p)[-1])

    @property
    def layout(self) -> Layout:
        """Layers and actions of every context."""
        return self.mdps[0].layout

    def sample_context(self, rng: np.random.Generator) -> int:
        """Draw a context from one uniform."""
        having(rng, "rng", ("random",), "a numpy.random.Generator")
        return min(int(np.searchsorted(self._cumulative, rng.random(), side="right")), self._last)

    def mdp(self, context: Any) -> LayeredMDP:
        """The true model of a context."""
        if isinstance(context, (int, np.integer)) and 0 <= context < len(self.mdps):
            return self.mdps[int(context)]
        raise OpoError(f"context is {shown(context)}: a whole number from 0 to {len(self.mdps) - 1} is needed")

    def __repr__(self) -> str:
        n = len(self.mdps)
        return f"<FiniteContexts {self.name!r}: {n} {'context' if n == 1 else 'contexts'} of {self.layout!r}>"


def context_key(context: Any) -> Hashable:
    """What identifies a context: the context itself, or the shape and values of an array.

    Arrays of equal numbers in another precision or byte order are the same context. Missing values (NaN, NaT) are refused: they do
    not equal themselves, so each would count as a new context.
    """
    kind = type(context)
    if kind is int or kind is str or (kind is float and context == context):
        return context  # type: ignore[no-any-return]
    if isinstance(context, np.ndarray):
        return _array_key(context)
    try:
        hash(context)
        missing = not _is_itself(context)
    except (TypeError, ValueError):
        raise OpoError(f"context is a {kind.__name__}, which is not hashable: use a hashable object or an array") from None
    if missing:
        raise OpoError(f"context is {shown(context)}: a missing value cannot be a context")
    return context  # type: ignore[no-any-return]


def _is_itself(context: Any) -> bool:
    if isinstance(context, (tuple, frozenset)):
        return all(map(_is_itself, context))
    return bool(context == context)


_DOUBLE, _EXACT = np.dtype("<f8"), 2**53


def _array_key(context: Array) -> Hashable:
    kind = context.dtype.kind
    if kind not in "biufcSU" or np.ma.isMaskedArray(context):
        raise OpoError(f"context is an array of dtype {context.dtype}: numbers or texts, none of them masked, are needed")
    if kind in "SU":
        return context.shape, kind, tuple(context.ravel().tolist())
    if kind == "c":
        values, code = context.astype("<c16"), "<c16"
    elif kind in "iu" and context.itemsize == 8 and context.size and not (-_EXACT <= context.min() <= context.max() <= _EXACT):
        values, code = context.astype(f"<{kind}8"), f"<{kind}8"
    else:
        values, code = context.astype(_DOUBLE, copy=False), "<f8"
    # The sum of squares is NaN only if an entry is. Adding 0 turns -0.0 into 0.0, so that the two are the same context.
    if values.dtype.kind in "fc" and not (np.abs(np.vdot(values, values)) >= 0):
        raise OpoError(f"context is {shown(context)}: a missing value cannot be a context")
    return context.shape, code, (values + 0).tobytes()


def check_trajectory(layout: Layout, action_mask: Array | None, trajectory: Any) -> Trajectory:
    """`trajectory` with read-only int64 and float64 arrays; an error names the first invalid step.

    A trajectory that this function returned for the same layout and mask is returned unchanged.
    """
    known = getattr(trajectory, "_passed", None)
    if known is not None and known[0] is layout and (action_mask is None or known[1] is action_mask):
        return trajectory  # type: ignore[no-any-return]
    having(trajectory, "trajectory", ("context", "states", "actions", "losses"), "an opo_fast.Trajectory")
    horizon = layout.horizon
    arrays = {}
    for name, length, kinds in (("states", horizon + 1, "iu"), ("actions", horizon, "iu"), ("losses", horizon, "iufb")):
        array = as_array(getattr(trajectory, name), f"trajectory.{name}")
        if array.shape != (length,):
            raise OpoError(f"trajectory.{name} has shape {array.shape}: ({length},) is needed")
        if array.dtype.kind not in kinds:
            raise OpoError(f"trajectory.{name} has dtype {array.dtype}: {'whole ' if kinds == 'iu' else ''}numbers are needed")
        arrays[name] = array.astype(np.int64 if kinds == "iu" else np.float64)
    states, actions, losses = arrays["states"], arrays["actions"], arrays["losses"]
    if action_mask is not None or not check_path(states, actions, losses, layout.offsets, layout.n_actions):
        _refuse_path(layout, action_mask, states, actions, losses)
    return passed(Trajectory(trajectory.context, states, actions, losses), layout, action_mask)


def passed(trajectory: Trajectory, layout: Layout, action_mask: Array | None) -> Trajectory:
    """Mark a trajectory as checked. It must be valid, and nobody else may hold its arrays."""
    for array in (trajectory.states, trajectory.actions, trajectory.losses):
        array.flags.writeable = False
    object.__setattr__(trajectory, "_passed", (layout, action_mask))
    return trajectory


def _refuse_path(layout: Layout, action_mask: Array | None, states: Array, actions: Array, losses: Array) -> None:
    """Raise the error for the first impossible step of a path, if there is one."""
    horizon = layout.horizon
    low, high = layout.offsets[:-1], layout.offsets[1:]
    bad = np.flatnonzero((states[:-1] < low) | (states[:-1] >= high))
    if bad.size:
        h = int(bad[0])
        raise OpoError(f"trajectory.states[{h}] is {int(states[h])}: a state of layer {h}, {int(low[h])} to {int(high[h]) - 1}, is needed")
    if states[-1] != layout.n_states:
        raise OpoError(f"trajectory.states[{horizon}] is {int(states[-1])}: the end state {layout.n_states} is needed")
    bad = np.flatnonzero((actions < 0) | (actions >= layout.n_actions))
    if bad.size:
        h = int(bad[0])
        raise OpoError(f"trajectory.actions[{h}] is {int(actions[h])}: 0 to {layout.n_actions - 1} is needed")
    if action_mask is not None:
        bad = np.flatnonzero(~action_mask[states[:-1], actions])
        if bad.size:
            h = int(bad[0])
            raise OpoError(f"trajectory.actions[{h}] is {int(actions[h])}, which is masked in state {int(states[h])}")
    bad = np.flatnonzero(~((losses >= 0) & (losses <= 1)))
    if bad.size:
        h = int(bad[0])
        raise OpoError(f"trajectory.losses[{h}] is {float(losses[h])!r}: a number in [0, 1] is needed")
