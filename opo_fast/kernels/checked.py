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
        raise ValueError("policy: one number per row is needed")
    if q.size != _n_rows(model):
        raise ValueError("q, out or following: one number per row is needed")
    if v.size != model.layers[model.block.size]:
        raise ValueError("v: one number per state is needed")
    if _overlap(policy, q):
        raise ValueError("policy overlaps q or following: arrays of their own are needed")
    if _overlap(v, policy) or _overlap(v, q):
        raise ValueError("v overlaps policy, q or following: an array of its own is needed")


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
        raise ValueError("policy: one number per row is needed")
    if out.size != _n_rows(model):
        raise ValueError("out: one number per row is needed")
    if work.size < work_size(model):
        raise ValueError("work: work_size(model) numbers are needed")
    if _overlap(out, policy):
        raise ValueError("out overlaps policy: an array of its own is needed")
    if _overlap(work, policy) or _overlap(work, out):
        raise ValueError("work overlaps policy or out: an array of its own is needed")
    public.occupancy(model, policy, out, work)


@kernel
def chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work):
    """See `opo_fast.kernels.chain_step`."""
    _check(model, policy, following, v)
    if sum_q.size != _n_rows(model):
        raise ValueError("sum_q: one number per row is needed")
    if visits.size != _n_rows(model):
        raise ValueError("visits: one number per row is needed")
    if work.size < work_size(model):
        raise ValueError("work: work_size(model) numbers are needed")
    if _overlap(sum_q, policy) or _overlap(sum_q, following) or _overlap(sum_q, v):
        raise ValueError("sum_q overlaps policy, following or v: an array of its own is needed")
    if _overlap(visits, policy) or _overlap(visits, following) or _overlap(visits, v) or _overlap(visits, sum_q):
        raise ValueError("visits overlaps policy, following, v or sum_q: an array of its own is needed")
    if _overlap(work, policy) or _overlap(work, following) or _overlap(work, v) or _overlap(work, sum_q) or _overlap(work, visits):
        raise ValueError("work overlaps another argument: an array of its own is needed")
    public.chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work)


@brief
def bonus(visits, beta, out):
    """See `opo_fast.kernels.bonus`."""
    if out.size != visits.size:
        raise ValueError("out: as many numbers as visits are needed")
    if _partly(out, visits):
        raise ValueError("out overlaps visits: visits itself or an array of its own is needed")
    weights.bonus(visits, beta, out)


@brief
def exponential_weights(policy, q, eta, out):
    """See `opo_fast.kernels.exponential_weights`."""
    if q.shape != policy.shape:
        raise ValueError("q: the shape of policy is needed")
    if out.shape != policy.shape:
        raise ValueError("out: the shape of policy is needed")
    if _partly(out, policy) or _partly(out, q):
        raise ValueError("out overlaps policy or q: one of these itself or an array of its own is needed")
    weights.exponential_weights(policy, q, eta, out)
