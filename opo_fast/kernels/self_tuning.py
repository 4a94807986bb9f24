"""Steps of the self-tuning policy chain at one context; `opo_fast.algorithm.self_tuning` has the same in plain NumPy.

A row is an allowed state-action pair.
"""

from __future__ import annotations

from ._arguments import Hedge, Model, Pass, Plausible, Rule, Team
from ._groups import share
from ._jit import inlined, kernel
from ._simd import vload, vmax, vstore
from ._sync import barrier
from .chain import optimistic_losses
from .hedge import hedge_step
from .plausible import expected, least_q
from .transposed_slices import add_occupancy

__all__ = ["self_tuning_steps"]


@inlined
def _raise(x, n, y):
    """y = max(x, y)."""
    full = n // 8 * 8
    for i in range(0, full, 8):
        vstore(y, i, vmax(vload(x, i), vload(y, i)))
    for i in range(full, n):
        y[i] = max(x[i], y[i])


@kernel
def self_tuning_steps(
    kind, data, indptr, indices, block, layers, rows, me, n, gate, n_parts, n_steps, k, keep, chunk, width, with_bonus, losses, visits,
    bonus, plausible, store, sums, last_q, slices, d, w, private, scratch,
):  # fmt: skip
    """`n_steps` steps with the same fits and plausible sets, from policy `store[k]` on: the work of thread `me` of `n`.

    Q is the maximum of 0; of losses - bonus + E[V], if `with_bonus` is set; and of `lower` plus the least E[V] over the plausible
    dynamics (see `plausible.least_q`), if `table` is not empty. With `keep`, each step writes its policy to the next line of `store`, and
    `visits` is used as in `chain_steps`; without it, line k is overwritten, and there must be no bonus. `bonus` is (half_loss,
    half_dynamics, weight), `plausible` is (lower, table, radius, order), `sums` is (regret, v, gap, total, log_actions, excess) of
    `Hedge`, and `slices` is as in `chain_steps`; they are tuples because Numba cannot inline calls with more than thirty arguments, which
    Python compiles differently. `last_q`, if not empty, gets the last step's Q before it is raised to 0. `scratch` has three lines per
    thread for the rows of a chunk, `order` one line per thread for the states of a layer.
    """
    model = Model(kind, data, indptr, indices, block, layers, rows)
    half_loss, half_dynamics, weight = bonus
    lower, table, radius, order = plausible
    work = Pass(n_parts, width, d, w, private)
    own = Plausible(lower, table, radius, order[me])
    regret, v, gap, total, log_actions, excess = sums
    rule = Rule(half_loss, half_dynamics, weight, 0.0)
    q = scratch[3 * me]
    e = scratch[3 * me + 1]
    least = scratch[3 * me + 2]
    for step in range(n_steps):
        at = k + step if keep else k
        if step > 0 and with_bonus:
            add_occupancy(model, slices, Team(me, n, gate), work, store, at - 1, visits)
            barrier(gate, me, n)
        hedge = Hedge(store[at], store[at + 1 if keep else at], regret, v, gap, total, log_actions, excess)
        for h in range(block.size - 1, -1, -1):
            size = layers[h + 1] - layers[h]
            end = layers[h] + share(size, me + 1, n)
            for lo in range(layers[h] + share(size, me, n), end, chunk):
                hi = min(lo + chunk, end)
                r0 = rows[lo]
                r1 = rows[hi]
                if with_bonus:
                    optimistic_losses(r0, r1, losses, visits, rule, h, q)
                    if h < block.size - 1:
                        expected(model, h, r0, r1, v, q)
                if table.shape[0] > 0:
                    x = least if with_bonus else q
                    least_q(model, h, r0, r1, v, own, x, e)
                    if with_bonus:
                        _raise(least, r1 - r0, q)
                elif not with_bonus:
                    for i in range(r1 - r0):
                        q[i] = -1e300
                if last_q.size > 0 and step == n_steps - 1:
                    for r in range(r0, r1):
                        last_q[r] = q[r - r0]
                hedge_step(rows, lo, hi, width, hedge, q, e)
            barrier(gate, me, n)
