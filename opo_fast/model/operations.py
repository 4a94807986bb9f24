"""The public operations on one model: each validates once and hands flat arrays to a kernel or to the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._support.checks import FLOAT64, as_real, real, shown, tolerance_of
from .._support.threads import run_together
from ..errors import OpoError
from ..kernels import weights as weight_kernels
from ..kernels.evaluation import backward_sweep
from ..kernels.occupancy import STATES, visit_sweep
from ..kernels.rollout import rollout as rollout_kernel
from . import reference
from .contextual import Trajectory, check_trajectory
from .layered import LayeredMDP
from .layout import Layout, aligned
from .reference import Evaluation, Solution
from .transitions import Transitions

__all__ = ["bonus", "evaluate", "exponential_weights", "occupancy", "rollout", "solve"]

Array = npt.NDArray[Any]
Backend = Literal["numba", "numpy"]

UNCHECKED = -1.0
"""The tolerance at which a kernel does not look at a policy."""


def occupancy(mdp: LayeredMDP, policy: npt.ArrayLike, *, backend: Backend = "numba") -> Array:
    """Occupancy measure q(s, a | policy, P): the probability to reach s and play a (paper, section 2.1).

    Parameters
    ----------
    mdp : LayeredMDP
    policy : array_like, shape (n_states, A)
        Rows sum to 1 within 1e-8 (float32: 1e-6), also those of unreachable states; masked actions have probability 0.
    backend : {"numba", "numpy"}

    Returns
    -------
    ndarray, shape (n_states, A)
        Sums to 1 in every layer. Weights below 1e-280 count as 0.
    """
    check_backend(backend)
    if backend == "numpy":
        return reference.occupancy(mdp, check_policy(mdp, policy))
    rows, tolerance = _policy_rows(mdp, policy)
    t = mdp.transitions
    visits = aligned(t.n_rows, zero=True, worth=4096)
    if visit_once(t, rows.reshape(1, -1), 0, visits, Scratch(t), tolerance):
        check_policy(mdp, policy)
    return t.scatter(visits)


def evaluate(mdp: LayeredMDP, policy: npt.ArrayLike, *, backend: Backend = "numba") -> Evaluation:
    """Q and V of a policy by the Bellman equations (paper, section 2.1).

    Parameters
    ----------
    mdp, policy, backend
        As in `occupancy`.

    Returns
    -------
    Evaluation
        ``q`` (n_states, A), 0 at masked pairs, and ``v`` (n_states,); ``v[0]`` is V(s_1).
    """
    check_backend(backend)
    if backend == "numpy":
        return reference.evaluate(mdp, check_policy(mdp, policy))
    rows, tolerance = _policy_rows(mdp, policy)
    q, v, fault = _backward(mdp, rows, tolerance, greedy=0)
    if fault:
        check_policy(mdp, policy)
    return Evaluation(q, v)


def solve(mdp: LayeredMDP, *, backend: Backend = "numba") -> Solution:
    """The optimum by backward induction; among equal actions the lowest index is taken.

    Returns
    -------
    Solution
        ``q`` (n_states, A), 0 at masked pairs; ``v`` (n_states,); ``policy`` (n_states, A), deterministic.
    """
    check_backend(backend)
    _check_mdp(mdp)
    if backend == "numpy":
        return reference.solve(mdp)
    policy = np.empty(mdp.transitions.n_rows)
    q, v, _ = _backward(mdp, policy, UNCHECKED, greedy=1)
    return Solution(q, v, mdp.transitions.scatter(policy))


def _backward(mdp: LayeredMDP, policy: Array, tolerance: float, *, greedy: int) -> tuple[Array, Array, bool]:
    """Q, V and whether `policy` (one number per row) seems to be none; with `greedy` it is filled."""
    t = mdp.transitions
    q, v = aligned(t.n_rows, worth=4096), np.empty(mdp.layout.n_states)
    after = (chunk_of(t), t.width, greedy, mdp.row_losses, policy, tolerance, q, v)
    fault = run_together(backward_sweep, t.arguments, after, t.threads, t.n_transitions)
    return t.scatter(q), v, fault


def chunk_of(t: Transitions) -> int:
    """States that are backed up at a time; a dense block is read in whole lines."""
    return STATES if t.kind else t.layout.n_states


class Scratch:
    """Working arrays of the forward pass of one policy through one dynamics."""

    __slots__ = ("d", "private", "w")

    def __init__(self, t: Transitions) -> None:
        self.d = np.empty(t.layout.n_states + 8)
        self.w = aligned(t.threads * STATES * t.layout.n_actions if t.kind else t.most_rows, worth=4096)
        self.private = np.empty(t.parts * max(t.layout.layer_sizes)) if t.kind else self.w


def visit_once(t: Transitions, policies: Array, at: int, visits: Array, scratch: Scratch, tolerance: float = UNCHECKED) -> bool:
    """Add the occupancy of `policies[at]`, one number per row, to `visits`; returns whether it seems to be no policy."""
    after = (t.parts, t.width, policies, at, tolerance, scratch.d, scratch.w, visits, scratch.private)
    return run_together(visit_sweep, t.arguments, after, t.threads, t.n_transitions)


def bonus(visits: npt.ArrayLike, beta: float, *, backend: Backend = "numba") -> Array:
    """Exploration bonus min{1, (beta/2) / (1 + visits)} (paper, eq. (2)).

    Parameters
    ----------
    visits : array_like
        Expected numbers of visits, finite and at least 0, of any shape.
    beta : float
        At least 0.

    Returns
    -------
    ndarray of the shape of `visits`
    """
    check_backend(backend)
    n = np.asarray(as_real(visits, "visits"), dtype=np.float64, order="C")
    bad = np.flatnonzero(~(np.isfinite(n.ravel()) & (n.ravel() >= 0)))
    if bad.size:
        place = f"[{', '.join(str(i) for i in np.unravel_index(bad[0], n.shape))}]" if n.ndim else ""
        raise OpoError(f"visits{place} is {float(n.ravel()[bad[0]])!r}: a finite number of at least 0 is needed")
    scale = real(beta, "beta")
    if backend == "numpy":
        return np.asarray(reference.bonus(n, scale))
    out = np.empty_like(n)
    weight_kernels.bonus(_own(n).reshape(-1), scale, out.reshape(-1))
    return out


def exponential_weights(policy: npt.ArrayLike, q: npt.ArrayLike, eta: float, *, backend: Backend = "numba") -> Array:
    """The next policy, proportional to policy(a|s) exp(-eta q(s,a)) (Algorithm 1, policy improvement).

    Parameters
    ----------
    policy : array_like, shape (n, A)
        Rows sum to 1. An action of probability 0 keeps it: to recover from a weight that has underflowed, keep the sum
        of Q, as `policy_chain` does.
    q : array_like, shape (n, A)
        Finite.
    eta : float
        Learning rate, at least 0.

    Returns
    -------
    ndarray, shape (n, A)
    """
    check_backend(backend)
    p = _checked_policy(as_real(policy, "policy"), None, None)
    values = as_real(q, "q")
    if values.shape != p.shape:
        raise OpoError(f"q has shape {values.shape}: the shape of policy, {p.shape}, is needed")
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        s, a = (int(i) for i in bad[0])
        raise OpoError(f"q: state {s}, action {a} is {float(values[s, a])!r}; a finite number is needed")
    rate = real(eta, "eta")
    if backend == "numpy":
        return reference.exponential_weights(p, np.asarray(values, np.float64), rate)
    out = np.empty(p.shape)
    weight_kernels.exponential_weights(_own(p), _own(np.ascontiguousarray(values, np.float64)), rate, out)
    return out


def rollout(
    mdp: LayeredMDP,
    policy: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    context: Any = None,
    sample_losses: Callable[[Array, Array], Array] | None = None,
    backend: Backend = "numba",
) -> Trajectory:
    """Play one episode.

    Parameters
    ----------
    mdp, policy, backend
        As in `occupancy`.
    rng : numpy.random.Generator
        Three times H uniforms are drawn: for the actions, the next states and the losses.
    context : hashable or ndarray
        Written into the trajectory.
    sample_losses : callable, optional
        From the mean losses (H,) and uniforms (H,) to the observed losses (H,). Default: Bernoulli with that mean.

    Returns
    -------
    Trajectory
    """
    check_backend(backend)
    array = check_policy(mdp, policy)
    if not isinstance(rng, np.random.Generator):
        raise OpoError(f"rng is a {type(rng).__name__}: a numpy.random.Generator is needed")
    if sample_losses is not None and not callable(sample_losses):
        raise OpoError(f"sample_losses is a {type(sample_losses).__name__}: a callable (means, uniforms) is needed")
    u = rng.random((3, mdp.layout.horizon))
    trajectory = play(mdp, array, u[0], u[1], u[2], context, sample_losses, backend)
    return trajectory if sample_losses is None else check_trajectory(mdp.layout, mdp.action_mask, trajectory)


def bernoulli(means: Array, uniforms: Array) -> Array:
    """Losses 0 or 1 with the given means: the default of `rollout` and `simulate`."""
    return (uniforms < means).astype(np.float64)


def play(
    mdp: LayeredMDP,
    policy: Array,
    u_action: Array,
    u_next: Array,
    u_loss: Array,
    context: Any,
    sample_losses: Callable[[Array, Array], Array] | None,
    backend: Backend,
    rows: Array | None = None,
) -> Trajectory:
    """One episode from given uniforms (H each); `policy` is valid, and `rows`, if it is known, what `gather` makes of it."""
    layout, t = mdp.layout, mdp.transitions
    if backend == "numpy":
        states, actions = reference.rollout(mdp, policy, u_action, u_next)
    else:
        states, chosen = np.empty(layout.horizon + 1, np.int64), np.empty(layout.horizon, np.int64)
        rollout_kernel(*t.arguments, t.gather(policy) if rows is None else rows, u_action, u_next, states, chosen)
        actions = (chosen if t.pairs is None else t.pairs[chosen]) % layout.n_actions
    means = mdp.losses[states[:-1], actions]
    return Trajectory(context, states, actions, (sample_losses or bernoulli)(means, u_loss))


def play_in(
    cmdp: Any,
    mdp: LayeredMDP,
    policy: Array,
    uniforms: tuple[Array, Array, Array],
    context: Any,
    backend: Backend,
    rows: Array | None = None,
) -> Trajectory:
    """One episode of an environment from the uniforms of actions, transitions and losses, with the losses that the environment gives."""
    sampler, joint = getattr(cmdp, "sample_losses", None), getattr(cmdp, "joint_losses", None)
    trajectory = play(mdp, policy, *uniforms, context, sampler, backend, rows)
    if joint is not None:
        losses = joint(context, trajectory.states, trajectory.actions, uniforms[2])
        trajectory = Trajectory(context, trajectory.states, trajectory.actions, losses)
    return trajectory if sampler is None and joint is None else check_trajectory(mdp.layout, mdp.action_mask, trajectory)


# -- checks ---------------------------------------------------------------------------------------------------------


def check_backend(backend: str) -> None:
    if not isinstance(backend, str) or backend not in ("numba", "numpy"):
        raise OpoError(f"backend is {shown(backend)}: 'numba' or 'numpy' is needed")


def _check_mdp(mdp: LayeredMDP) -> None:
    if not isinstance(mdp, LayeredMDP):
        raise OpoError(f"mdp is a {type(mdp).__name__}: an opo_fast.LayeredMDP is needed")


def check_policy(mdp: LayeredMDP, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of this model."""
    _check_mdp(mdp)
    return as_policy(mdp.layout, mdp.action_mask, policy)


def as_policy(layout: Layout, action_mask: Array | None, policy: npt.ArrayLike) -> Array:
    """`policy` as a valid contiguous float64 array (n_states, A) of a layout and mask."""
    return _checked_policy(as_real(policy, "policy"), layout, action_mask)


def _policy_rows(mdp: LayeredMDP, policy: npt.ArrayLike) -> tuple[Array, float]:
    """`policy`, one number per row, and the tolerance at which the kernel that reads it is to check it as it goes."""
    _check_mdp(mdp)
    t, array = mdp.transitions, as_real(policy, "policy")
    if t.pairs is None and array.shape == t.layout.shape:
        return _plain(array).reshape(-1), tolerance_of(array.dtype)
    return t.gather(_checked_policy(array, t.layout, t.action_mask)), UNCHECKED


_FAULTS = {
    1: "the probability is {value!r}; a finite number is needed",
    2: "the probability is {value!r}; at least 0 is needed",
    3: "the action is masked and has probability {value!r}; 0 is needed (build the agent with action_mask=env.action_mask)",
}
_ALL = np.empty((0, 0), dtype=np.bool_)


def _checked_policy(array: Array, layout: Layout | None, mask: Array | None) -> Array:
    if layout is not None and array.shape != layout.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) = {layout.shape} is needed")
    if array.ndim != 2 or 0 in array.shape:
        raise OpoError(f"policy has shape {array.shape}: (n_states, n_actions) is needed")
    result = _plain(array)
    fault = weight_kernels.check_policy(result, _ALL if mask is None else _own(mask), tolerance_of(array.dtype))
    if fault:
        pair, code = divmod(int(fault), 8)
        s, a = divmod(pair, array.shape[1])
        layer = f" (layer {layout.layer_of(s)})" if layout is not None else ""
        if code == 4:
            raise OpoError(f"policy: state {s}{layer}: the probabilities sum to {float(result[s].sum())!r}; 1 is needed")
        raise OpoError(f"policy: state {s}{layer}, action {a}: {_FAULTS[code].format(value=float(result[s, a]))}")
    return result


def _plain(array: Array) -> Array:
    """A writable contiguous float64 array of the same content."""
    flags = array.flags
    if array.dtype == FLOAT64 and flags.c_contiguous and flags.writeable:
        return array
    return _own(np.ascontiguousarray(array, dtype=np.float64))


def _own(array: Array) -> Array:
    """A writable array of the same content, since Numba compiles read-only arrays apart."""
    return array if array.flags.writeable else array.copy()
