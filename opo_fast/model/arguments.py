"""Arguments and results of the public operations: models, policies, and output arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._support.checks import FLOAT64, as_real, one_of, tolerance_of
from ..errors import OpoError
from ..kernels import weights as weight_kernels
from .distinct import Distinct
from .layered import LayeredMDP
from .layout import Layout, aligned
from .transitions import Transitions
from .updatable import UpdatableMDP

__all__ = [
    "UNCHECKED",
    "EXACT",
    "NUMBA",
    "Backend",
    "as_it_is",
    "as_model",
    "as_policy",
    "check_backend",
    "check_policy",
    "check_returns",
    "checked_policy",
    "empty",
    "filled",
    "is_stationary",
    "plain",
    "own_policy_rows",
    "policy_rows",
    "to_fill",
    "values_to_fill",
    "writable",
]

Array = npt.NDArray[Any]
Backend = Literal["numba", "numpy"]

NUMBA: Literal["numba"] = "numba"
EXACT = tolerance_of(FLOAT64)
UNCHECKED = -1.0
"""The tolerance with which a kernel does not check the policy."""


def check_backend(backend: str) -> None:
    """Refuse a `backend` that is not "numba" or "numpy"."""
    one_of(backend, "backend", ("numba", "numpy"))


def as_model(mdp: Any) -> LayeredMDP | UpdatableMDP:
    """`mdp`, which must be a model that kernels can read."""
    if isinstance(mdp, UpdatableMDP):
        mdp.check_whole()
        return mdp
    if not isinstance(mdp, LayeredMDP):
        raise OpoError(f"mdp is a {type(mdp).__name__}: an opo_fast.LayeredMDP is needed")
    return mdp


def as_it_is(mdp: Any, policy: Any) -> tuple[LayeredMDP, Array] | None:
    """Model and policy, one number per row, where nothing has to be done about them but to look at the probabilities; else None.

    A short cut: in a small model, looking at each argument by itself takes as long as the kernel.
    """
    if type(mdp) is not LayeredMDP or type(policy) is not np.ndarray:
        return None
    t, flags = mdp.transitions, policy.flags
    as_kernels_take_it = policy.dtype is FLOAT64 and flags.c_contiguous and flags.writeable
    return (mdp, policy.reshape(-1)) if as_kernels_take_it and policy.shape == t.layout.shape and t.pairs is None else None


def check_policy(mdp: LayeredMDP | UpdatableMDP, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of this model."""
    model = as_model(mdp)
    array, d = as_real(policy, "policy"), model.transitions.distinct
    if d is not None and is_stationary(model.transitions, array):
        return d.unroll(_own_policy(d, array))
    return _policy_of(model, array)


def _policy_of(model: LayeredMDP | UpdatableMDP, array: Array) -> Array:
    """A policy for all states. For a stationary model, the message about a wrong shape also names (S, A)."""
    d = model.transitions.distinct
    if d is not None and array.shape != model.layout.shape != d.stationary_shape:
        raise OpoError(f"policy has shape {array.shape}: {d.shapes()} is needed")
    return checked_policy(array, model.layout, model.action_mask)


def is_stationary(t: Transitions, policy: Array) -> bool:
    """Whether a policy is given for the S states of a stationary model, not for all states of the layout."""
    d = t.distinct
    return d is not None and policy.shape == d.stationary_shape != t.layout.shape


def _own_policy(d: Distinct, policy: Array) -> Array:
    """A stationary policy, checked, for the own states (see `Rows`)."""
    checked = checked_policy(policy, None, None if d.mask is None else d.mask[d.own(d.layout.horizon - 1)])
    return d.spread(checked, np.full(policy.shape[1], 1.0 / policy.shape[1]))


def as_policy(layout: Layout, action_mask: Array | None, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of a layout and mask."""
    return checked_policy(as_real(policy, "policy"), layout, action_mask)


def own_policy_rows(d: Distinct, policy: Array) -> Array:
    """A stationary policy, checked, with one number per row (allowed state-action pair) of the own states."""
    rows = _own_policy(d, policy).reshape(-1)
    return rows if d.pairs is None else rows[d.pairs]


def policy_rows(mdp: LayeredMDP | UpdatableMDP, array: Array, buffer: Array | None = None) -> tuple[Array, float]:
    """The policy `array` with one number per row, and the tolerance with which the kernel that reads it must check it.

    `buffer`, if given, may be filled with the policy.
    """
    t = mdp.transitions
    if is_stationary(t, array):
        return t.gather(check_policy(mdp, array)), UNCHECKED
    if t.pairs is None and array.shape == t.layout.shape:
        return plain(array).reshape(-1), tolerance_of(array.dtype)
    checked = _policy_of(mdp, array).reshape(-1)
    return checked if t.pairs is None else np.take(checked, t.pairs, out=buffer, mode="clip"), UNCHECKED


def to_fill(out: Any, name: str, shape: tuple[int, ...], *inputs: Array, results: Sequence[Array | None] = ()) -> Array:
    """`out`, checked to be an array that a result can be written to; a new array if it is None.

    It must not share memory with the inputs, nor with `results`, which are the arrays given as out[0], out[1] and so on.
    """
    if out is None:
        return empty(shape)
    if type(out) is not np.ndarray or out.dtype != FLOAT64 or out.shape != shape:
        what = f"has dtype {out.dtype} and shape {out.shape}" if isinstance(out, np.ndarray) else f"is a {type(out).__name__}"
        raise OpoError(f"{name} {what}: a float64 array of shape {shape} is needed")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise OpoError(f"{name} is {'not contiguous' if out.flags.writeable else 'read-only'}: a writable C-contiguous array is needed")
    for given in inputs:
        if np.may_share_memory(out, given):
            raise OpoError(f"{name} shares memory with an argument that is read: pass a separate array")
    for i, other in enumerate(results):
        if other is not None and np.may_share_memory(out, other):
            raise OpoError(f"{name} shares memory with out[{i}]: pass a separate array")
    return out


def values_to_fill(shape: tuple[int, ...], returns: str, out: Any, *inputs: Array) -> tuple[Array | None, Array]:
    """Arrays for Q, of this shape (..., n_states, A), and for V; None instead of Q if only V is returned."""
    if returns != "all":
        return None, to_fill(out, "out", shape[:-1], *inputs)
    if out is None:
        return empty(shape), empty(shape[:-1])
    q = to_fill(out[0], "out[0]", shape, *inputs)
    return q, to_fill(out[1], "out[1]", shape[:-1], *inputs, results=(q,))


def check_returns(returns: str, out: Any, count: int = 2) -> None:
    """Check `returns`, and that `out` has as many arrays as are returned."""
    one_of(returns, "returns", ("all", "v", "start"))
    if out is None:
        return
    if returns == "start":
        raise OpoError("out is given, but returns is 'start': numbers are returned, and there is nothing to fill; omit out")
    if returns == "all" and not (isinstance(out, tuple) and len(out) == count):
        given = f"tuple of {len(out)}" if isinstance(out, tuple) else type(out).__name__
        raise OpoError(f"out is a {given}: a tuple of {count} arrays is needed")


def filled(out: Array | None, name: str, result: Any, *inputs: Array, results: Sequence[Array | None] = ()) -> Array:
    """`result`, or `out` filled with it."""
    if out is None:
        return np.asarray(result)
    to_fill(out, name, result.shape, *inputs, results=results)[...] = result
    return out


def empty(shape: tuple[int, ...]) -> Array:
    """A new array for a result."""
    count = math.prod(shape)
    return np.empty(shape) if count < 4096 else aligned(count).reshape(shape)


_FAULTS = {
    1: "the probability is {value!r}; a finite number is needed",
    2: "the probability is {value!r}; at least 0 is needed",
    3: "the action is masked and has probability {value!r}; 0 is needed (an agent takes the mask as action_mask=env.action_mask)",
}
_ALL = np.empty((0, 0), dtype=np.bool_)


def checked_policy(array: Array, layout: Layout | None, mask: Array | None) -> Array:
    """`array` as a valid contiguous float64 policy. With a `layout`, its shape must be that of the layout."""
    if layout is not None and array.shape != layout.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) = {layout.shape} is needed")
    if array.ndim != 2 or 0 in array.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) is needed")
    result = plain(array)
    fault = weight_kernels.check_policy(result, _ALL if mask is None else writable(mask), tolerance_of(array.dtype))
    if fault:
        pair, code = divmod(int(fault), 8)
        s, a = divmod(pair, array.shape[1])
        layer = f" (layer {layout.layer_of(s)})" if layout is not None else ""
        if code == 4:
            raise OpoError(f"policy: state {s}{layer}: the probabilities sum to {float(result[s].sum())!r}; 1 is needed")
        raise OpoError(f"policy: state {s}{layer}, action {a}: {_FAULTS[code].format(value=float(result[s, a]))}")
    return result


def plain(array: Array) -> Array:
    """A writable contiguous float64 array with the same content; the array itself if it is one."""
    flags = array.flags
    if array.dtype == FLOAT64 and flags.c_contiguous and flags.writeable:
        return array
    return writable(np.ascontiguousarray(array, dtype=np.float64))


def writable(array: Array) -> Array:
    """A writable array with the same content, since Numba would compile the kernels again for read-only arrays."""
    return array if array.flags.writeable else array.copy()
