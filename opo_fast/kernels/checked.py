"""The public kernels once more, with the sizes of all arrays looked at first: for development.

The functions have the signatures of those in `opo_fast.kernels`, so that ``from opo_fast.kernels import checked as
kernels`` switches a module over. An array of a wrong size is a ValueError that names it; unchecked kernels would read and
write other memory. Numba swallows exceptions inside ``prange``: look at code that runs in parallel with ``parallel=False``.
"""

from __future__ import annotations

from . import public, weights
from ._jit import brief, kernel
from .public import work_size

__all__ = ["bonus", "chain_step", "evaluate", "exponential_weights", "occupancy", "solve", "work_size"]


@brief
def _n_rows(model):
    return model.rows[model.layers[model.block.size]]


@kernel
def _check(model, policy, q, v):
    """Sizes of a policy, of another array with one number per row, and of values."""
    if policy.size != _n_rows(model):
        raise ValueError("policy: one number per row is needed")
    if q.size != _n_rows(model):
        raise ValueError("q, out or following: one number per row is needed")
    if v.size != model.layers[model.block.size]:
        raise ValueError("v: one number per state is needed")


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
    public.chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work)


@brief
def bonus(visits, beta, out):
    """See `opo_fast.kernels.bonus`."""
    if out.size != visits.size:
        raise ValueError("out: as many numbers as visits are needed")
    weights.bonus(visits, beta, out)


@brief
def exponential_weights(policy, q, eta, out):
    """See `opo_fast.kernels.exponential_weights`."""
    if q.shape != policy.shape:
        raise ValueError("q: the shape of policy is needed")
    if out.shape != policy.shape:
        raise ValueError("out: the shape of policy is needed")
    weights.exponential_weights(policy, q, eta, out)
