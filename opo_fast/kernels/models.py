"""Operations on many models with the same layout and mask, one after the other, without going back to Python in between.

A *table* has a line of `TABLE` numbers for each model: kind; address and size of data, row pointers and positions; address of the
blocks; number of parts of a CSR layer; address of the losses. The arrays of the first model show the dtypes, which all share.
"""

from __future__ import annotations

from ._arguments import Model
from ._jit import inlined, kernel
from ._simd import view
from .evaluation import backward_sweep
from .forward import STATES, visit_sweep
from .rollout import rollout
from .scores import path_probabilities

__all__ = ["TABLE", "backward_models", "play_models", "visit_models"]

TABLE = 10


@inlined
def _model(table, i, data, indptr, indices, block, layers, rows):
    """The model of line i of `table`."""
    return Model(
        table[i, 0],
        view(table[i, 1], table[i, 2], data),
        view(table[i, 3], table[i, 4], indptr),
        view(table[i, 5], table[i, 6], indices),
        view(table[i, 7], block.size, block),
        layers,
        rows,
    )


@kernel
def backward_models(
    table, data, indptr, indices, block, losses, layers, rows, me, n, gate, which, width, keep, greedy, policies, tolerance, q, v
):  # fmt: skip
    """`backward_sweep` of each model: the work of thread `me` of `n`.

    Model i uses line which[i] of q and v, and of policies if these have more than one line. Without `keep`, q has a line per thread.
    """
    fault = 0
    count = table.shape[0]
    for i in range(count * me // n, count * (me + 1) // n):
        m = _model(table, i, data, indptr, indices, block, layers, rows)
        at = which[i]
        policy = policies[at if policies.shape[0] > 1 else 0]
        chunk = STATES if m.kind == 1 else v.shape[1]
        fault += backward_sweep(
            m.kind, m.data, m.indptr, m.indices, m.block, m.layers, m.rows, 0, 1, gate, layers[:0], chunk, width, keep,
            greedy, view(table[i, 9], rows[layers[block.size]], losses), policy, tolerance, q[at if keep else me], v[at],
        )  # fmt: skip
    return fault


@kernel
def visit_models(
    table, data, indptr, indices, block, losses, layers, rows, me, n, gate, which, width, policies, tolerance, d, w, private, visits
):  # fmt: skip
    """`visit_sweep` of each model, in the same way; d, w and private have a line per thread."""
    fault = 0
    count = table.shape[0]
    for i in range(count * me // n, count * (me + 1) // n):
        m = _model(table, i, data, indptr, indices, block, layers, rows)
        at = which[i]
        fault += visit_sweep(
            m.kind, m.data, m.indptr, m.indices, m.block, m.layers, m.rows, 0, 1, gate, table[i, 8], width, policies,
            at if policies.shape[0] > 1 else 0, tolerance, d[me], w[me], visits[at], private[me],
        )  # fmt: skip
    return fault


@kernel
def play_models(
    table, data, indptr, indices, block, losses, layers, rows, policies, u_action, u_next, states, chosen, means, along
):  # fmt: skip
    """One episode in each model: `rollout` of its line of `policies`, and the mean losses and probabilities along the path."""
    for i in range(table.shape[0]):
        m = _model(table, i, data, indptr, indices, block, layers, rows)
        rollout(m.kind, m.data, m.indptr, m.indices, m.block, m.layers, m.rows, policies[i], u_action[i], u_next[i], states[i], chosen[i])
        path_probabilities(m.kind, m.data, m.indptr, m.indices, m.block, m.layers, m.rows, chosen[i], states[i], along[i])
        loss = view(table[i, 9], rows[layers[block.size]], losses)
        for h in range(block.size):
            means[i, h] = loss[chosen[i, h]]
