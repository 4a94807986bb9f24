"""The public operations: each validates its arguments and calls a kernel or the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number, as_real
from .._support.threads import run_together
from ..errors import OpoError
from ..kernels import weights as weight_kernels
from ..kernels.evaluation import backward_sweep
from ..kernels.forward import visit_sweep
from ..kernels.rollout import rollout as rollout_kernel
from ..kernels.transposed_slices import add_slices, visit_slices
from . import batches, reference
from .arguments import (
    EXACT,
    NUMBA,
    UNCHECKED,
    Backend,
    as_it_is,
    as_model,
    as_policy,
    check_backend,
    check_policy,
    check_returns,
    checked_policy,
    empty,
    filled,
    is_stationary,
    own_policy_rows,
    policy_rows,
    to_fill,
    values_to_fill,
    writable,
)
from .contextual import Trajectory, check_trajectory, passed
from .distinct import NO_PLAN
from .layered import LayeredMDP
from .reference import Evaluation, Solution
from .scratch import Scratch, borrowed, chunk_of
from .transitions import CSR, DENSE, Transitions
from .updatable import UpdatableMDP

__all__ = [
    "Backend",
    "Scratch",
    "as_policy",
    "bernoulli",
    "bonus",
    "check_backend",
    "check_policy",
    "chunk_of",
    "evaluate",
    "exponential_weights",
    "occupancy",
    "play",
    "rollout",
    "solve",
    "visit_once",
]

Array = npt.NDArray[Any]
Model = LayeredMDP | UpdatableMDP
Models = Model | Sequence[Model]
Returns = Literal["all", "v", "start"]
ALL: Literal["all"] = "all"


def occupancy(mdp: Models, policy: npt.ArrayLike, *, out: Array | None = None, backend: Backend = "numba") -> Array:
    """Occupancy measure q(s, a | policy, P): the probability of reaching s and playing a (paper, section 2.1).

    Parameters
    ----------
    mdp : LayeredMDP or UpdatableMDP, or a sequence of B of them
        All with the same layout and mask.
    policy : array_like, shape (n_states, A) or (B, n_states, A)
        The probabilities of each state, reachable or not, sum to 1 within 1e-8 (float32: 1e-6); masked actions have probability 0.
        For a stationary model also (S, A), the same in every layer. With many policies, many models, or pairs of both, the results
        are those of B calls, bit for bit.
    out : ndarray of float64, optional
        Array to be filled with the result: C-contiguous, of its shape.
    backend : {"numba", "numpy"}

    Returns
    -------
    ndarray, shape (n_states, A) or (B, n_states, A)
        Sums to 1 in every layer. Weights below 1e-280 count as 0.
    """
    if out is None and backend is NUMBA and (found := as_it_is(mdp, policy)) is not None:
        plain_model, rows = found
        t, full = plain_model.transitions, empty(plain_model.layout.shape)
        with borrowed(t) as scratch:
            fault = _occupancy(t, rows, full.reshape(-1), scratch, EXACT)
        if fault:
            check_policy(plain_model, policy)
        return full
    check_backend(backend)
    array = as_real(policy, "policy")
    if batches.is_batch(mdp, array):
        return batches.occupancy(mdp, array, out, backend)
    model = as_model(mdp)
    t = model.transitions
    if backend == "numpy":
        checked = check_policy(model, array)
        return filled(out, "out", reference.occupancy(model, checked), checked)
    with borrowed(t) as scratch:
        rows, tolerance = policy_rows(model, array, scratch.rows)
        full = to_fill(out, "out", t.layout.shape, rows)
        if _occupancy(t, rows, full.reshape(-1)[: t.n_rows], scratch, tolerance):
            check_policy(model, array)
    if t.pairs is not None:
        weight_kernels.expand_rows(t.pairs, full.reshape(-1))
    return full


@overload
def evaluate(
    mdp: Models,
    policy: npt.ArrayLike,
    *,
    returns: Literal["all"] = ...,
    out: tuple[Array, Array] | None = ...,
    backend: Backend = ...,
) -> Evaluation: ...
@overload
def evaluate(
    mdp: Models, policy: npt.ArrayLike, *, returns: Literal["v", "start"], out: Array | None = ..., backend: Backend = ...
) -> Array: ...
def evaluate(
    mdp: Models, policy: npt.ArrayLike, *, returns: Returns = "all", out: Any = None, backend: Backend = "numba"
) -> Evaluation | Array:
    """Q and V of a policy by the Bellman equations (paper, section 2.1).

    Parameters
    ----------
    mdp, policy, backend
        As in `occupancy`.
    returns : {"all", "v", "start"}
        Q and V; only V; or only the value of the start state. What is not returned needs no memory.
    out : optional
        Arrays to be filled with the result: a pair (q, v) of float64 arrays, or one array for V. After an error their content is
        undefined.

    Returns
    -------
    Evaluation, or ndarray
        ``q`` (n_states, A), 0 at masked pairs, and ``v`` (n_states,); ``v[0]`` is V(s_1). For batches, with a leading axis B.
    """
    if out is None and returns is ALL and backend is NUMBA and (found := as_it_is(mdp, policy)) is not None:
        plain_model, rows = found
        shape = plain_model.layout.shape
        values = Evaluation(empty(shape), empty(shape[:1]))
        if _backward(plain_model, rows, EXACT, *values, ALL, greedy=0):
            check_policy(plain_model, policy)
        return values
    check_backend(backend)
    check_returns(returns, out)
    array = as_real(policy, "policy")
    if batches.is_batch(mdp, array):
        return batches.evaluate(mdp, array, returns, out, backend)
    model = as_model(mdp)
    if backend == "numpy":
        checked = check_policy(model, array)
        evaluated: Evaluation | Array = _chosen(reference.evaluate(model, checked), returns, out, checked)
        return evaluated
    t = model.transitions
    with borrowed(t) as scratch:
        if returns != "all" and t.distinct is not None and is_stationary(t, array):
            rows, tolerance = own_policy_rows(t.distinct, array), UNCHECKED
        else:
            rows, tolerance = policy_rows(model, array, scratch.rows)
        q, v = _values(t, returns, out, rows)
        if _backward(model, rows, tolerance, q, v, returns, greedy=0, work=scratch.w):
            check_policy(model, array)
    return v if returns == "v" else _start(t, v) if q is None else Evaluation(q, v)


@overload
def solve(
    mdp: Models, *, returns: Literal["all"] = ..., out: tuple[Array, Array, Array] | None = ..., backend: Backend = ...
) -> Solution: ...
@overload
def solve(mdp: Models, *, returns: Literal["v", "start"], out: Array | None = ..., backend: Backend = ...) -> Array: ...
def solve(mdp: Models, *, returns: Returns = "all", out: Any = None, backend: Backend = "numba") -> Solution | Array:
    """The optimum by backward induction; among equal actions the lowest index is taken.

    Parameters
    ----------
    mdp, returns, out, backend
        As in `evaluate`; `out` is (q, v, policy), or one array for V.

    Returns
    -------
    Solution, or ndarray
        ``q`` (n_states, A), 0 at masked pairs; ``v`` (n_states,); ``policy`` (n_states, A), deterministic. For a sequence of B
        models, with a leading axis B.
    """
    if out is None and returns is ALL and backend is NUMBA and type(mdp) is LayeredMDP and mdp.transitions.pairs is None:
        shape = mdp.layout.shape
        solution = Solution(empty(shape), empty(shape[:1]), empty(shape))
        _backward(mdp, solution.policy.reshape(-1), UNCHECKED, solution.q, solution.v, ALL, greedy=1)
        return solution
    check_backend(backend)
    check_returns(returns, out, 3)
    if batches.is_batch(mdp, None):
        return batches.solve(mdp, returns, out, backend)
    model = as_model(mdp)
    if backend == "numpy":
        solved: Solution | Array = _chosen(reference.solve(model), returns, out)
        return solved
    t = model.transitions
    with borrowed(t) as scratch:
        q, v = _values(t, returns, out)
        if q is None:
            _backward(model, scratch.w, UNCHECKED, q, v, returns, greedy=1, work=scratch.w)
            return v if returns == "v" else _start(t, v)
        policy = to_fill(None if out is None else out[2], "out[2]", t.layout.shape, results=(q, v))
        _backward(model, policy.reshape(-1)[: t.n_rows], UNCHECKED, q, v, returns, greedy=1)
    if t.pairs is not None:
        weight_kernels.expand_rows(t.pairs, policy.reshape(-1))
    return Solution(q, v, policy)


def _chosen(found: Any, returns: str, out: Any, *inputs: Array) -> Any:
    """The part of an `Evaluation` or a `Solution` that `returns` names."""
    if returns == "start":
        return found.v[0]
    if returns == "v":
        return filled(out, "out", found.v, *inputs)
    if out is None:
        return found
    return type(found)(*(filled(part, f"out[{i}]", found[i], *inputs, results=out[:i]) for i, part in enumerate(out)))


def _values(t: Transitions, returns: str, out: Any, *inputs: Array) -> tuple[Array | None, Array]:
    """Arrays for Q, or None if it is not returned, and for V; the start value of a stationary model needs only two layers of V."""
    if returns == "start" and t.distinct is not None:
        return None, np.empty(t.distinct.two_layers)
    return values_to_fill(t.layout.shape, returns, out, *inputs)


def _start(t: Transitions, v: Array) -> Any:
    """The value of the start state."""
    return v[0 if t.distinct is None else t.distinct.first_value]


def _backward(
    mdp: Model, policy: Array, tolerance: float, q: Array | None, v: Array, returns: str, *, greedy: int, work: Array | None = None
) -> bool:
    """Fill Q (n_states, A), or `work` if Q is None, and V; whether `policy`, one number per row (allowed pair), seems to be invalid.

    With `greedy`, `policy` is filled instead.
    """
    t = mdp.transitions
    d, plan = t.distinct, NO_PLAN
    if d is not None:
        own_policy = q is None and policy.size == d.rows[-1]
        plan = d.plan(own_losses=mdp.keeps_losses_once, own_policy=own_policy, start_alone=returns == "start")
    # (The pairs of all layers are not asked for where Q is not kept.)
    rows = work if q is None else q.reshape(-1) if t.pairs is None else q.reshape(-1)[: t.n_rows]
    after = (plan, chunk_of(t, kept=q is not None), t.width, int(q is not None), greedy, mdp.own_row_losses, policy, tolerance, rows, v)
    arguments = t.row_slices.own_arguments if t.kind == CSR and t.row_slices.note(t) else t.own_arguments
    fault = run_together(backward_sweep, arguments, after, t.threads, t.n_transitions)
    if q is not None and t.pairs is not None:
        weight_kernels.expand_rows(t.pairs, q.reshape(-1))
    return fault


def _occupancy(t: Transitions, policy: Array, visits: Array, scratch: Scratch, tolerance: float) -> bool:
    """Fill `visits` with the occupancy of a policy, one number per row; uses the transposed copy of CSR transitions if there is one."""
    if t.kind == DENSE or not t.transposed_slices.note(t):
        visits[...] = 0.0
        return _add_occupancy(t, policy.reshape(1, -1), 0, visits, scratch, tolerance)
    after = (t.parts, t.width, policy, tolerance, scratch.d, visits, scratch.private)
    return run_together(visit_slices, t.transposed_slices.arguments, after, min(t.threads, t.parts), t.n_transitions)


def _add_occupancy(t: Transitions, policies: Array, at: int, visits: Array, scratch: Scratch, tolerance: float) -> bool:
    """Add the occupancy of `policies[at]` to `visits` without a copy of the transitions; whether the policy seems to be invalid."""
    after = (t.parts, t.width, policies, at, tolerance, scratch.d, scratch.w, visits, scratch.private)
    return run_together(visit_sweep, t.arguments, after, t.threads, t.n_transitions)


def visit_once(t: Transitions, policies: Array, at: int, visits: Array, scratch: Scratch) -> None:
    """Add the occupancy of `policies[at]`, one number per row, to `visits`."""
    if t.kind == DENSE or not t.transposed_slices.note(t):
        _add_occupancy(t, policies, at, visits, scratch, UNCHECKED)
        return
    after = (t.parts, t.width, policies, at, scratch.d, scratch.layer, visits, scratch.private)
    run_together(add_slices, t.transposed_slices.arguments, after, min(t.threads, t.parts), t.n_transitions)


def bonus(visits: npt.ArrayLike, beta: float, *, out: Array | None = None, backend: Backend = "numba") -> Array:
    """Exploration bonus min{1, (beta/2) / (1 + visits)} (paper, eq. (2)).

    Parameters
    ----------
    visits : array_like
        Expected numbers of visits, finite and at least 0, of any shape.
    beta : float
        At least 0.
    out : ndarray of float64, optional
        Array to be filled with the result: C-contiguous, of the shape of `visits`; may be `visits` itself.

    Returns
    -------
    ndarray of the shape of `visits`
    """
    check_backend(backend)
    n = np.asarray(as_real(visits, "visits"), dtype=np.float64, order="C")
    # Not a number is neither.
    if n.size and not (n.min() >= 0.0 and n.max() < np.inf):
        bad = np.flatnonzero(~(np.isfinite(n.ravel()) & (n.ravel() >= 0)))
        place = f"[{', '.join(str(i) for i in np.unravel_index(bad[0], n.shape))}]" if n.ndim else ""
        raise OpoError(f"visits{place} is {float(n.ravel()[bad[0]])!r}: a finite number of at least 0 is needed")
    scale = as_number(beta, "beta")
    inputs = () if out is visits else (n,)
    if backend == "numpy":
        return filled(out, "out", np.asarray(reference.bonus(n, scale)), *inputs)
    result = to_fill(out, "out", n.shape, *inputs)
    weight_kernels.bonus(writable(n).reshape(-1), scale, result.reshape(-1))
    return result


def exponential_weights(
    policy: npt.ArrayLike, q: npt.ArrayLike, eta: float, *, out: Array | None = None, backend: Backend = "numba"
) -> Array:
    """The next policy, proportional to policy(a|s) exp(-eta q(s,a)) (Algorithm 1, policy improvement).

    Parameters
    ----------
    policy : array_like, shape (n, A) or (B, n, A)
        The probabilities of each state sum to 1. An action of probability 0 keeps it; to let an action recover after its weight has
        underflowed, keep the sum of Q, as `policy_chain` does.
    q : array_like of the shape of `policy`
        Finite.
    eta : float
        Learning rate, at least 0.
    out : ndarray of float64, optional
        Array to be filled with the result: C-contiguous, of the shape of `policy`; may be `policy` itself.

    Returns
    -------
    ndarray of the shape of `policy`
    """
    check_backend(backend)
    given = as_real(policy, "policy")
    if given.ndim == 3 and 0 not in given.shape:
        p = batches.checked_policies(given, None, None)
    else:
        p = checked_policy(given, None, None)
    values = as_real(q, "q")
    if values.shape != p.shape:
        raise OpoError(f"q has shape {values.shape}: the shape of policy, {p.shape}, is needed")
    if not np.isfinite(values).all():
        *_, s, a = place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        which = "" if len(place) == 2 else f"[{place[0]}]"
        raise OpoError(f"q{which}: state {s}, action {a} is {float(values[place])!r}; a finite number is needed")
    rate, n_actions = as_number(eta, "eta"), p.shape[-1]
    numbers = np.ascontiguousarray(values, np.float64)
    inputs = (numbers,) if out is policy else (p, numbers)
    if backend == "numpy":
        result = reference.exponential_weights(p.reshape(-1, n_actions), numbers.reshape(-1, n_actions), rate)
        return filled(out, "out", result.reshape(p.shape), *inputs)
    full = to_fill(out, "out", p.shape, *inputs)
    weight_kernels.exponential_weights(
        writable(p).reshape(-1, n_actions), writable(numbers).reshape(-1, n_actions), rate, full.reshape(-1, n_actions)
    )
    return full


def rollout(
    mdp: Model,
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
        3 H uniforms are drawn from it: for the actions, the next states and the losses.
    context : hashable or ndarray
        Context of the trajectory.
    sample_losses : callable, optional
        Takes the mean losses (H,) and uniforms (H,) and returns the observed losses (H,). Default: Bernoulli with these means.

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
    mdp: Model,
    policy: Array,
    u_action: Array,
    u_next: Array,
    u_loss: Array,
    context: Any,
    sample_losses: Callable[[Array, Array], Array] | None,
    backend: Backend,
    rows: Array | None = None,
) -> Trajectory:
    """One episode from given uniforms (H each). `policy` is valid; `rows`, if known, is `gather(policy)`."""
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
    """One episode of an environment, from uniforms for actions, transitions and losses; the environment draws the losses."""
    sampler, joint = getattr(cmdp, "sample_losses", None), getattr(cmdp, "joint_losses", None)
    trajectory = play(mdp, policy, *uniforms, context, sampler, backend, rows)
    if joint is not None:
        losses = joint(context, trajectory.states, trajectory.actions, uniforms[2])
        trajectory = Trajectory(context, trajectory.states, trajectory.actions, losses)
    if sampler is None and joint is None:
        return passed(trajectory, mdp.layout, mdp.action_mask)
    return check_trajectory(mdp.layout, mdp.action_mask, trajectory)
