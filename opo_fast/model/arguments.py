"""What the public operations take and give: models, policies, and arrays of the caller to be filled."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._support.checks import FLOAT64, as_real, one_of, tolerance_of
from ..errors import OpoError
from ..kernels import weights as weight_kernels
from .layered import LayeredMDP
from .layout import Layout, aligned
from .updatable import UpdatableMDP

__all__ = [
    "UNCHECKED",
    "Backend",
    "as_policy",
    "check_backend",
    "check_mdp",
    "check_policy",
    "checked_policy",
    "own",
    "plain",
    "policy_rows",
    "to_fill",
    "values_to_fill",
]

Array = npt.NDArray[Any]
Backend = Literal["numba", "numpy"]

UNCHECKED = -1.0
"""The tolerance at which a kernel does not look at a policy."""


def check_backend(backend: str) -> None:
    one_of(backend, "backend", ("numba", "numpy"))


def check_mdp(mdp: Any) -> None:
    if isinstance(mdp, UpdatableMDP):
        mdp.check_whole()
    elif not isinstance(mdp, LayeredMDP):
        raise OpoError(f"mdp is a {type(mdp).__name__}: an opo_fast.LayeredMDP is needed")


def check_policy(mdp: LayeredMDP | UpdatableMDP, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of this model."""
    check_mdp(mdp)
    return checked_policy(as_real(policy, "policy"), mdp.layout, mdp.action_mask)


def as_policy(layout: Layout, action_mask: Array | None, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of a layout and mask."""
    return checked_policy(as_real(policy, "policy"), layout, action_mask)


def policy_rows(mdp: LayeredMDP | UpdatableMDP, policy: npt.ArrayLike, room: Array | None = None) -> tuple[Array, float]:
    """`policy`, one number per row, and the tolerance at which the kernel that reads it is to check it as it goes."""
    t, array = mdp.transitions, as_real(policy, "policy")
    if t.pairs is None and array.shape == t.layout.shape:
        return plain(array).reshape(-1), tolerance_of(array.dtype)
    checked = checked_policy(array, t.layout, t.action_mask).reshape(-1)
    return checked if t.pairs is None else np.take(checked, t.pairs, out=room, mode="clip"), UNCHECKED


def to_fill(out: Any, name: str, shape: tuple[int, ...], *inputs: Array) -> Array:
    """`out`, an array that a result may be written to and that shares no memory with the inputs; None: a new one."""
    if out is None:
        return aligned(math.prod(shape), worth=4096).reshape(shape)
    if type(out) is not np.ndarray or out.dtype != FLOAT64 or out.shape != shape:
        what = f"has dtype {out.dtype} and shape {out.shape}" if isinstance(out, np.ndarray) else f"is a {type(out).__name__}"
        raise OpoError(f"{name} {what}: a float64 array of shape {shape} is needed")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise OpoError(f"{name} is {'not contiguous' if out.flags.writeable else 'read-only'}: a writable C-contiguous array is needed")
    for given in inputs:
        if np.may_share_memory(out, given):
            raise OpoError(f"{name} shares memory with an argument that is read: another array is needed")
    return out


def values_to_fill(shape: tuple[int, ...], returns: str, out: Any, *inputs: Array) -> tuple[Array | None, Array]:
    """Arrays for Q of this shape (..., n_states, A), if it is to be kept, and for V."""
    if returns != "all":
        return None, to_fill(out, "out", shape[:-1], *inputs)
    q = to_fill(None if out is None else out[0], "out[0]", shape, *inputs)
    return q, to_fill(None if out is None else out[1], "out[1]", shape[:-1], q, *inputs)


_FAULTS = {
    1: "the probability is {value!r}; a finite number is needed",
    2: "the probability is {value!r}; at least 0 is needed",
    3: "the action is masked and has probability {value!r}; 0 is needed (build the agent with action_mask=env.action_mask)",
}
_ALL = np.empty((0, 0), dtype=np.bool_)


def checked_policy(array: Array, layout: Layout | None, mask: Array | None) -> Array:
    """`array` as a valid contiguous float64 policy, of a layout if there is one."""
    if layout is not None and array.shape != layout.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) = {layout.shape} is needed")
    if array.ndim != 2 or 0 in array.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) is needed")
    result = plain(array)
    fault = weight_kernels.check_policy(result, _ALL if mask is None else own(mask), tolerance_of(array.dtype))
    if fault:
        pair, code = divmod(int(fault), 8)
        s, a = divmod(pair, array.shape[1])
        layer = f" (layer {layout.layer_of(s)})" if layout is not None else ""
        if code == 4:
            raise OpoError(f"policy: state {s}{layer}: the probabilities sum to {float(result[s].sum())!r}; 1 is needed")
        raise OpoError(f"policy: state {s}{layer}, action {a}: {_FAULTS[code].format(value=float(result[s, a]))}")
    return result


def plain(array: Array) -> Array:
    """A writable contiguous float64 array of the same content."""
    flags = array.flags
    if array.dtype == FLOAT64 and flags.c_contiguous and flags.writeable:
        return array
    return own(np.ascontiguousarray(array, dtype=np.float64))


def own(array: Array) -> Array:
    """A writable array of the same content, since Numba compiles read-only arrays apart."""
    return array if array.flags.writeable else array.copy()
