"""The public kernels, which users call from their own compiled code: see `opo_fast.kernels`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._arguments import Lines, Optimism, Rule, Step, Team
from ._jit import KEY, brief, inlined, kernel
from ._simd import vector
from .chain import backup
from .evaluation import backward_sweep
from .forward import STATES, visit_sweep

__all__ = ["VERSION", "ModelArrays", "arrays", "chain_step", "evaluate", "occupancy", "solve", "work_size"]

VERSION = np.zeros(0, [(KEY.replace(" ", "_") or "interpreted", "u1")])
"""An empty array whose dtype identifies the sources of the kernels: functions that take it are compiled again when these change."""
VERSION.flags.writeable = False


class ModelArrays(NamedTuple):
    """A model in the form for compiled code; built by `arrays`.

    Attributes
    ----------
    kind : int
        0 for dense transitions, 1 for CSR.
    data, indptr, indices, block, layers, rows : ndarray
        Layout and transitions, read-only (the *model arguments* of `opo_fast.kernels`). A *row* is a state-action pair that the
        action mask allows. State s has the rows from ``rows[s]`` to ``rows[s + 1] - 1``, and layer h the states from ``layers[h]`` to
        ``layers[h + 1] - 1``.
    losses : ndarray, shape (n_rows,)
        Losses of the rows, read-only.
    width, parts : int
        They determine the order of sums, and depend on the shape alone.
    version : ndarray
        `VERSION`.
    """

    kind: Any
    data: Any
    indptr: Any
    indices: Any
    block: Any
    layers: Any
    rows: Any
    losses: Any
    width: Any
    parts: Any
    version: Any


def arrays(mdp: Any) -> ModelArrays:
    """The arrays of a model. They share its memory, so keep the model as long as they are in use.

    Parameters
    ----------
    mdp : LayeredMDP or UpdatableMDP

    Returns
    -------
    ModelArrays

    Raises
    ------
    ValueError
        `mdp` is not a model, or is an `UpdatableMDP` whose last update failed half-way.
    """
    if not (hasattr(mdp, "transitions") and hasattr(type(mdp), "row_losses")):
        raise ValueError(f"mdp is a {type(mdp).__name__}: an opo_fast.LayeredMDP or opo_fast.UpdatableMDP is needed")
    t = mdp.transitions
    return ModelArrays(*t.arguments, mdp.row_losses, t.width, t.parts, VERSION)


@brief
def _most_rows(model):
    """Number of rows of the largest layer."""
    most = 0
    for h in range(model.block.size):
        most = max(most, model.rows[model.layers[h + 1]] - model.rows[model.layers[h]])
    return most


@brief
def _most_states(model):
    """Number of states of the largest layer."""
    most = 0
    for h in range(model.block.size):
        most = max(most, model.layers[h + 1] - model.layers[h])
    return most


@brief
def work_size(model):
    """Length of the vector `work` for `occupancy` and `chain_step`; each thread needs a separate one."""
    # Occupancies of states and a vector more, beta_dynamics / 2 per layer, parts of a CSR layer; three times the rows of a layer.
    states = model.layers[model.block.size] + 8 + model.block.size
    if model.kind == 1:
        states += model.parts * _most_states(model)
    return states + 3 * _most_rows(model)


@inlined
def _back(model, greedy, policy, q, v):
    """Backward sweep on one thread, with Q of all layers."""
    chunk = STATES if model.kind == 1 else v.size
    backward_sweep(
        model.kind, model.data, model.indptr, model.indices, model.block, model.layers, model.rows, 0, 1, model.layers,
        model.layers[:0], chunk, model.width, 1, greedy, model.losses, policy, -1.0, q, v,
    )  # fmt: skip


@kernel
def evaluate(model, policy, q, v):
    """Q and V of a policy.

    Parameters
    ----------
    model : ModelArrays
    policy : ndarray, shape (n_rows,)
    q : ndarray, shape (n_rows,)
        Filled.
    v : ndarray, shape (n_states,)
        Filled.
    """
    vector(policy)
    vector(q)
    vector(v)
    _back(model, 0, policy, q, v)


@kernel
def solve(model, q, v, policy):
    """The optimum by backward induction.

    Parameters
    ----------
    model : ModelArrays
    q, v, policy : ndarray
        Filled as in `evaluate`; `policy` is 1 at the row with the least Q of each state (the first one on ties), and 0 elsewhere.
    """
    vector(q)
    vector(v)
    vector(policy)
    _back(model, 1, policy, q, v)


@kernel
def _visit(model, policy, visits, work):
    """Add the occupancy of `policy` to `visits`."""
    d_end = model.layers[model.block.size] + 8
    w_end = d_end + _most_rows(model)
    visit_sweep(
        model.kind, model.data, model.indptr, model.indices, model.block, model.layers, model.rows, 0, 1, model.layers, model.parts,
        model.width, policy.reshape((1, policy.size)), 0, -1.0, work[:d_end], work[d_end:w_end], visits, work[w_end:],
    )  # fmt: skip


@kernel
def occupancy(model, policy, out, work):
    """Occupancies of the rows under a policy.

    Parameters
    ----------
    model : ModelArrays
    policy : ndarray, shape (n_rows,)
    out : ndarray, shape (n_rows,)
        Filled.
    work : ndarray, shape (work_size(model),)
        Overwritten.
    """
    vector(policy)
    vector(out)
    vector(work)
    out[:] = 0.0
    _visit(model, policy, out, work)


@kernel
def chain_step(model, eta, beta_loss, beta_dynamics, policy, sum_q, visits, following, v, work):
    """One step of Algorithm 1 at one context, from pi^k to pi^{k+1}.

    Parameters
    ----------
    model : ModelArrays
        f^k and P^k.
    eta, beta_loss, beta_dynamics : float
    policy : ndarray, shape (n_rows,)
        pi^k.
    sum_q : ndarray, shape (n_rows,)
        Sums of Q^1, ..., Q^{k-1}; Q^k is added.
    visits : ndarray, shape (n_rows,)
        Sums of the occupancies of pi^1, ..., pi^{k-1} under P^k; that of pi^k is added.
    following : ndarray, shape (n_rows,)
        Filled with pi^{k+1}; not `policy` itself.
    v : ndarray, shape (n_states,)
        Filled with the values of the step.
    work : ndarray, shape (work_size(model),)
        Overwritten.
    """
    vector(policy)
    vector(sum_q)
    vector(visits)
    vector(following)
    vector(v)
    vector(work)
    horizon = model.block.size
    most = _most_rows(model)
    half_dynamics = work[:horizon]
    half_dynamics[:] = 0.5 * beta_dynamics
    rule = Rule(0.5 * beta_loss, half_dynamics, 2.0 * horizon, eta)
    chunk = STATES if model.kind == 1 else v.size
    lines = Lines(chunk, model.width, work[horizon : horizon + most], work[horizon + most : horizon + 2 * most])
    step = Step(policy, following, sum_q, v)
    backup(model, Team(0, 1, model.layers), Optimism(model.losses, visits, rule), 0, step, lines)
    _visit(model, policy, visits, work)
