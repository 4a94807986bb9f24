"""The optimum of one layer of a model, given the values of the next layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_real
from .._support.threads import run_together
from ..errors import OpoError
from ..kernels.evaluation import backward_sweep
from . import reference
from .arguments import UNCHECKED, Backend, as_model, check_backend, to_fill
from .layered import LayeredMDP
from .layout import aligned
from .reference import Solution
from .scratch import chunk_of
from .transitions import Transitions
from .updatable import UpdatableMDP

__all__ = ["solve_layer"]

Array = npt.NDArray[Any]


def solve_layer(
    mdp: LayeredMDP | UpdatableMDP,
    stage: int,
    v: npt.ArrayLike | None = None,
    *,
    out: tuple[Array, Array, Array] | None = None,
    backend: Backend = "numba",
) -> Solution:
    """The optimum of one layer, given the values of the next: the same bits as `solve`.

    For models so large that Q and the policy of all layers do not fit into memory.

    Parameters
    ----------
    mdp : LayeredMDP or UpdatableMDP
    stage : int
        The layer, counted from 0.
    v : array_like, shape (n_states,) or (S_next,)
        Values of all states, as ``solve(mdp, returns="v")`` returns them, or of the next layer only. Not needed for the last layer.
    out : optional
        Arrays to be filled with the result: (q, v, policy), all float64.
    backend : {"numba", "numpy"}

    Returns
    -------
    Solution
        ``q`` (S, A), 0 at masked pairs; ``v`` (S,); ``policy`` (S, A), deterministic; for the S states of the layer.
    """
    check_backend(backend)
    as_model(mdp)
    layout, t = mdp.layout, mdp.transitions
    h = as_integer(stage, "stage", least=0, most=layout.horizon - 1)
    following = _next_values(mdp, h, v)
    size = layout.layer_sizes[h]
    result = _result_arrays(out, size, layout.n_actions, following)
    if backend == "numpy":
        return _written(result, reference.solve_layer(mdp, h, following))
    values = np.empty(size + following.size)
    values[size:] = following
    arguments, plan = t.layer_arguments(h)
    q, policy = aligned(t.layer_rows[h]), aligned(t.layer_rows[h])
    first = int(t.own_rows[t.own(h).start]) if mdp.keeps_losses_once else sum(t.layer_rows[:h])
    losses = mdp.own_row_losses[first : first + q.size]
    after = (plan, chunk_of(t), t.width, 1, 1, losses, policy, UNCHECKED, q, values)
    run_together(backward_sweep, arguments, after, t.threads, t.layer_size(h) if following.size else q.size)
    return _written(result, Solution(_full(t, h, q), values[:size], _full(t, h, policy)))


def _result_arrays(out: Any, size: int, n_actions: int, following: Array) -> Solution:
    """Arrays for the result, none of which shares memory with another or with `following`."""
    if out is not None and not (isinstance(out, tuple) and len(out) == 3):
        raise OpoError(f"out is a {type(out).__name__}: a tuple of 3 arrays is needed")
    given = (None, None, None) if out is None else out
    arrays: list[Array] = []
    for i, shape in enumerate(((size, n_actions), (size,), (size, n_actions))):
        arrays.append(to_fill(given[i], f"out[{i}]", shape, following, results=arrays))
    return Solution(*arrays)


def _written(result: Solution, found: Solution) -> Solution:
    for array, part in zip(result, found, strict=True):
        array[...] = part
    return result


def _next_values(mdp: LayeredMDP | UpdatableMDP, h: int, v: npt.ArrayLike | None) -> Array:
    """Values of the layer after `h`; empty after the last."""
    layout = mdp.layout
    if h == layout.horizon - 1:
        return np.empty(0)
    n_next = layout.layer_sizes[h + 1]
    if v is None:
        raise OpoError(f"v is None: give the values of the {n_next} states of layer {h + 1}, or of all states")
    array = np.asarray(as_real(v, "v"), np.float64)
    if array.shape == (layout.n_states,):
        array = array[layout.layer(h + 1)]
    if array.shape != (n_next,):
        raise OpoError(f"v has shape {array.shape}: ({layout.n_states},), or ({n_next},) for layer {h + 1} alone, is needed")
    if not np.isfinite(array).all():
        s = int(np.flatnonzero(~np.isfinite(array))[0])
        raise OpoError(f"v of layer {h + 1}, position {s}, is {float(array[s])!r}; a finite number is needed")
    return array


def _full(t: Transitions, h: int, rows: Array) -> Array:
    """An (S, A) array from one number per row (allowed state-action pair) of a layer; 0 at masked pairs."""
    allowed, shape = t.allowed(h), (-1, t.layout.n_actions)
    if allowed is None:
        return rows.reshape(shape)
    full = np.zeros(allowed.size)
    full[allowed] = rows
    return full.reshape(shape)
