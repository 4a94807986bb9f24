"""The public operations on many policies, many models, or pairs of both, in one kernel call.

A row is an allowed state-action pair; a line is one policy's or model's part of a 2-D array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import instance, tolerance_of
from .._support.threads import run_together
from ..errors import OpoError
from ..kernels import many, many_csr, models
from ..kernels import weights as weight_kernels
from . import reference
from .arguments import UNCHECKED, Backend, as_model, checked_policy, plain, to_fill, values_to_fill
from .layered import LayeredMDP
from .layout import Layout, aligned
from .reference import Evaluation, Solution
from .transitions import CSR, Transitions
from .updatable import UpdatableMDP

__all__ = ["checked_policies", "evaluate", "is_batch", "model_table", "occupancy", "solve"]

Array = npt.NDArray[Any]

_WORTH = 1 << 16
"""Multiplications that are worth one more thread."""


def is_batch(mdp: Any, policy: Array | None) -> bool:
    """Whether these are many models, or many policies for one model."""
    return isinstance(mdp, (list, tuple)) or (policy is not None and policy.ndim == 3)


def occupancy(mdp: Any, policy: Array, out: Any, backend: Backend) -> Array:
    """See `operations.occupancy`."""
    mdps = _models(mdp)
    t, policies, tolerance = _policies(mdps, policy, backend)
    count = max(len(mdps), len(policies))
    full = to_fill(out, "out", (count, *t.layout.shape), policies)
    if backend == "numpy":
        for i in range(count):
            full[i] = reference.occupancy(_one(mdps, i), t.scatter(_one(policies, i)))
        return full
    lines = full.reshape(count, -1)
    if len(mdps) > 1 or count == 1:
        lines[...] = 0.0
        fault = _visit_models(mdps, policies, tolerance, lines)
    else:
        fault = _visit_policies(t, policies, tolerance, lines)
    if fault:
        checked_policies(policy, t.layout, t.action_mask)
    _expand(t, lines)
    return full


def evaluate(mdp: Any, policy: Array, returns: str, out: Any, backend: Backend) -> Evaluation | Array:
    """See `operations.evaluate`."""
    mdps = _models(mdp)
    t, policies, tolerance = _policies(mdps, policy, backend)
    count = max(len(mdps), len(policies))
    q, v = values_to_fill((count, *t.layout.shape), returns, out, policies)
    if backend == "numpy":
        for i in range(count):
            found = reference.evaluate(_one(mdps, i), t.scatter(_one(policies, i)))
            v[i] = found.v
            if q is not None:
                q[i] = found.q
        return _result(q, v, returns)
    lines = None if q is None else q.reshape(count, -1)
    if len(mdps) > 1 or count == 1:
        fault = _back_models(mdps, policies, tolerance, lines, v, greedy=0)
    else:
        fault = _back_policies(mdps[0], policies, tolerance, lines, v)
    if fault:
        checked_policies(policy, t.layout, t.action_mask)
    _expand(t, lines)
    return _result(q, v, returns)


def solve(mdp: Any, returns: str, out: Any, backend: Backend) -> Solution | Array:
    """See `operations.solve`."""
    mdps = _models(mdp)
    t, count = mdps[0].transitions, len(mdps)
    q, v = values_to_fill((count, *t.layout.shape), returns, out)
    policy = None if q is None else to_fill(None if out is None else out[2], "out[2]", q.shape, results=(q, v))
    if backend == "numpy":
        for i, one in enumerate(mdps):
            found = reference.solve(one)
            v[i] = found.v
            if q is not None and policy is not None:
                q[i], policy[i] = found.q, found.policy
    else:
        lines = None if q is None else q.reshape(count, -1)
        chosen = np.empty((1, 1)) if policy is None else policy.reshape(count, -1)
        _back_models(mdps, chosen, UNCHECKED, lines, v, greedy=1)
        _expand(t, lines)
        _expand(t, None if policy is None else chosen)
    if q is None or policy is None:
        return v if returns == "v" else v[:, 0].copy()
    return Solution(q, v, policy)


# -- arguments and results -------------------------------------------------------------------------------------------------


def _models(mdp: Any) -> list[LayeredMDP | UpdatableMDP]:
    """The models of a call, which must have the same layout and mask."""
    mdps = list(mdp) if isinstance(mdp, list | tuple) else [mdp]
    if not mdps:
        raise OpoError("mdp is empty: at least one model is needed")
    for i, one in enumerate(mdps):
        instance(one, f"mdp[{i}]" if isinstance(mdp, list | tuple) else "mdp", LayeredMDP, UpdatableMDP)
        as_model(one)
        if one.layout is not mdps[0].layout and one.layout != mdps[0].layout:
            raise OpoError(f"mdp[{i}] has another layout than mdp[0]: {one.layout!r} instead of {mdps[0].layout!r}")
        mine, first = one.action_mask, mdps[0].action_mask
        if mine is not first and (mine is None or first is None or not np.array_equal(mine, first)):
            raise OpoError(f"mdp[{i}] has another action mask than mdp[0]")
    return mdps


def _one(items: Any, i: int) -> Any:
    return items[i if len(items) > 1 else 0]


def checked_policies(policy: Array, layout: Layout | None, mask: Array | None) -> Array:
    """`policy`, (n, A) or (B, n, A), as valid contiguous float64 policies (B or 1, n, A)."""
    if policy.ndim == 2:
        return checked_policy(policy, layout, mask)[None]
    for i, one in enumerate(policy):
        try:
            checked_policy(one, layout, mask)
        except OpoError as error:
            raise OpoError(str(error).replace("policy", f"policy[{i}]", 1)) from None
    return plain(policy)


def _policies(mdps: Sequence[Any], policy: Array, backend: Backend) -> tuple[Transitions, Array, float]:
    """The first model's transitions; the policies (B or 1, n_rows); and the tolerance with which the kernel must check them."""
    t = mdps[0].transitions
    if policy.ndim not in (2, 3) or policy.shape[-2:] != t.layout.shape or policy.shape[0] == 0:
        many = f"(B, {t.layout.n_states}, {t.layout.n_actions}) for B of at least 1"
        raise OpoError(f"policy has shape {policy.shape}: {t.layout.shape}, or {many}, is needed")
    count = 1 if policy.ndim == 2 else len(policy)
    if len(mdps) > 1 and count not in (1, len(mdps)):
        raise OpoError(f"policy has shape {policy.shape}: one policy, or one for each of the {len(mdps)} models, is needed")
    if t.pairs is None and backend == "numba":
        return t, plain(policy).reshape(count, -1), tolerance_of(policy.dtype)
    rows = checked_policies(policy, t.layout, t.action_mask).reshape(count, -1)
    return t, rows if t.pairs is None else np.take(rows, t.pairs, axis=1), UNCHECKED


def _result(q: Array | None, v: Array, returns: str) -> Evaluation | Array:
    if q is not None:
        return Evaluation(q, v)
    return v if returns == "v" else v[:, 0].copy()


def _expand(t: Transitions, lines: Array | None) -> None:
    if t.pairs is not None and lines is not None:
        for line in lines:
            weight_kernels.expand_rows(t.pairs, line)


# -- many policies, one model ----------------------------------------------------------------------------------------------


def _threads(groups: int, work: int) -> int:
    return min(groups, max(1, work // _WORTH), 64)


def _back_policies(mdp: Any, policies: Array, tolerance: float, lines: Array | None, v: Array) -> bool:
    t, count = mdp.transitions, len(policies)
    most, work = max(t.layout.layer_sizes), count * t.n_transitions
    stride = 0 if lines is None else lines.shape[1]
    if t.kind == CSR:
        wide = many_csr.WIDE
        threads = _threads(-(-count // wide), work)
        # Few rows stay in the first-level cache; but Q is written faster in long pieces.
        chunk = 8 * max(1, (8 if lines is None else 64) // t.layout.n_actions)
        q = np.empty(0) if lines is None else lines.reshape(-1)
        near = aligned(threads * 2 * wide * (most + chunk * t.layout.n_actions))
        after: tuple[Any, ...] = (most, chunk, t.width, stride, mdp.row_losses, policies, tolerance, q, v.reshape(-1), near)
        return run_together(many_csr.evaluate_csr, t.arguments, after, threads, work)
    groups = -(-count // many.NARROW)
    threads = _threads(groups, work)
    # At least eight states, and otherwise as many as have their rows in the second-level cache.
    chunk = max(8, (1 << 14) // (t.layout.n_actions * most) // 8 * 8)
    rows = min(chunk, most) * t.layout.n_actions + 8
    q = aligned(threads * many.NARROW * rows) if lines is None else lines.reshape(-1)
    panel, packed = aligned(threads * rows * most), aligned(groups * many.NARROW * most)
    after = (chunk, t.width, stride, mdp.row_losses, policies, tolerance, q, v, panel, packed, aligned(64 * threads))
    return run_together(many.evaluate_dense, t.arguments, after, threads, work)


def _visit_policies(t: Transitions, policies: Array, tolerance: float, lines: Array) -> bool:
    count, most = len(policies), max(t.layout.layer_sizes)
    work = count * t.n_transitions
    if t.kind == CSR:
        lanes = many_csr.LANES
        threads = _threads(-(-count // lanes), work)
        slices = t.transposed_slices.arrays(t, count)
        d, w = aligned(threads * 2 * lanes * most), aligned(threads * lanes * t.most_rows)
        # Sums are computed apart only where there are several parts, and no copy in slices.
        private = aligned(threads * lanes * most if t.parts > 1 and slices[0].size == 0 else 0)
        after: tuple[Any, ...] = (*slices, t.parts, t.width, lines.shape[1], policies, tolerance, d, w, private, lines.reshape(-1))
        return run_together(many_csr.occupancy_csr, t.arguments, after, threads, work)
    threads = _threads(-(-count // many.PANEL), work)
    width = -(-(t.most_rows + 8) // 8) * 8
    d = np.empty((threads * many.PANEL, t.layout.n_states + 8))
    after = (t.width, policies, tolerance, d, aligned(threads * many.PANEL * width), aligned(threads * 64 * many.PANEL), lines)
    return run_together(many.occupancy_dense, t.arguments, after, threads, work)


# -- many models -----------------------------------------------------------------------------------------------------------


def model_table(mdps: Sequence[Any]) -> tuple[Any, ...]:
    """The table of the models (see `kernels.models`), arrays that show their dtypes, and what they have in common."""
    t = mdps[0].transitions
    table = np.array([one.transitions.places + one.loss_place for one in mdps], np.int64)
    return table, t.data, t.indptr, t.indices, t.block, mdps[0].row_losses, t.layout.offsets, t.rows


def _back_models(mdps: Sequence[Any], policies: Array, tolerance: float, lines: Array | None, v: Array, *, greedy: int) -> bool:
    """Backward sweeps of all models, in groups of equal dtype."""
    fault = False
    for which in _by_dtype(mdps):
        some = [mdps[i] for i in which]
        t, work = some[0].transitions, sum(one.transitions.n_transitions for one in some)
        threads = _threads(len(some), work)
        keep = lines is not None
        q = np.empty((threads, max(256 * t.layout.n_actions, t.most_rows))) if lines is None else lines
        after = (np.array(which), t.width, int(keep), greedy, policies, tolerance, q, v)
        fault |= run_together(models.backward_models, model_table(some), after, threads, work)
    return fault


def _visit_models(mdps: Sequence[Any], policies: Array, tolerance: float, lines: Array) -> bool:
    fault = False
    for which in _by_dtype(mdps):
        some = [mdps[i] for i in which]
        t, work = some[0].transitions, sum(one.transitions.n_transitions for one in some)
        threads = _threads(len(some), work)
        parts = max(one.transitions.parts for one in some)
        d = np.empty((threads, t.layout.n_states + 8))
        w = np.empty((threads, max(t.most_rows, 256 * t.layout.n_actions)))
        private = np.empty((threads, parts * max(t.layout.layer_sizes)))
        after = (np.array(which), t.width, policies, tolerance, d, w, private, lines)
        fault |= run_together(models.visit_models, model_table(some), after, threads, work)
    return fault


def _by_dtype(mdps: Sequence[Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(mdps):
        groups.setdefault(one.transitions.dtype, []).append(i)
    return list(groups.values())
