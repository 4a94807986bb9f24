"""The public kernels with checks of the sizes and the overlap of all arrays, for development.

The functions have the signatures of those in `opo_fast.kernels`, so ``from opo_fast.kernels import checked as kernels`` is enough to
switch a module over. If an array has a wrong size, or if an array that is filled overlaps another argument, they raise a ValueError that
names it; the unchecked kernels would access other memory or compute wrong numbers. Numba loses exceptions that are raised inside
``prange``, so check parallel code with ``parallel=False``. A row is an allowed state-action pair.
"""

from __future__ import annotations

from . import public, weights
from ._jit import brief, kernel
from .public import work_size

__all__ = ["bonus", "chain_step", "evaluate", "exponential_weights", "occupancy", "solve", "work_size"]


@brief
def _n_rows(model):
    return model.rows[model.layers[model.block.size]]


@brief
def _overlap(a, b):
    """Whether two contiguous arrays have memory in common."""
    first, second = a.ctypes.data, b.ctypes.data
    return first < second + b.size * b.itemsize and second < first + a.size * a.itemsize and a.size * b.size > 0


@brief
def _partly(a, b):
    """Whether two contiguous arrays overlap, but do not begin at the same place."""
    return _overlap(a, b) and a.ctypes.data != b.ctypes.data


@kernel
def _check(model, policy, q, v):
    """Check a policy, another array with one number per row, and values."""
    if policy.size != _n_rows(model):
        raise ValueError("policy must have one number per row")
    if q.size != _n_rows(model):
        raise ValueError("q, out or following must have one number per row")
    if v.size != model.layers[model.block.size]:
        raise ValueError("v must have one number per state")
    if _overlap(policy, q):
        raise ValueError("policy overlaps q or following: pass separate arrays")
    if _overlap(v, policy) or _overlap(v, q):
        raise ValueError("v overlaps policy, q or following: pass a separate array")


@kernel
def evaluate(model, policy, q, v):
    """See `opo_fast.kernels.evaluate`."""
    _check(model, policy, q, v)
    public.evaluate(model, policy, q, v)


@kernel
def solve(model, q, v, policy):
    """See `opo_fast.kernels.solve`."""
    _check(model, policy, q, v)
    public.solve(model, q, v, policy)


@kernel
def occupancy(model, policy, out, work):
    """See `opo_fast.kernels.occupancy`."""
    if policy.size != _n_rows(model):
        raise ValueError("policy must have one number per row")
    if out.size != _n_rows(model):
        raise ValueError("out must have one number per row")
    if work.size < work_size(model):
        raise ValueError("work must have work_size(model) numbers")
    if _overlap(out, policy):
        raise ValueError("out overlaps policy: pass a separate array")
    if _overlap(work, policy) or _overlap(work, out):
        raise ValueError("work overlaps policy or out: pass a separate array")
    public.occupancy(model, policy, out, work)


@kernel
def chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work):
    """See `opo_fast.kernels.chain_step`."""
    _check(model, policy, following, v)
    if sum_q.size != _n_rows(model):
        raise ValueError("sum_q must have one number per row")
    if visits.size != _n_rows(model):
        raise ValueError("visits must have one number per row")
    if work.size < work_size(model):
        raise ValueError("work must have work_size(model) numbers")
    if _overlap(sum_q, policy) or _overlap(sum_q, following) or _overlap(sum_q, v):
        raise ValueError("sum_q overlaps policy, following or v: pass a separate array")
    if _overlap(visits, policy) or _overlap(visits, following) or _overlap(visits, v) or _overlap(visits, sum_q):
        raise ValueError("visits overlaps policy, following, v or sum_q: pass a separate array")
    if _overlap(work, policy) or _overlap(work, following) or _overlap(work, v) or _overlap(work, sum_q) or _overlap(work, visits):
        raise ValueError("work overlaps another argument: pass a separate array")
    public.chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work)


@brief
def bonus(visits, beta, out):
    """See `opo_fast.kernels.bonus`."""
    if out.size != visits.size:
        raise ValueError("out must have as many numbers as visits")
    if _partly(out, visits):
        raise ValueError("out overlaps visits: pass visits itself or a separate array")
    weights.bonus(visits, beta, out)


@brief
def exponential_weights(policy, q, eta, out):
    """See `opo_fast.kernels.exponential_weights`."""
    if q.shape != policy.shape:
        raise ValueError("q must have the shape of policy")
    if out.shape != policy.shape:
        raise ValueError("out must have the shape of policy")
    if _partly(out, policy) or _partly(out, q):
        raise ValueError("out overlaps policy or q: pass one of these itself or a separate array")
    weights.exponential_weights(policy, q, eta, out)
