"""The policy chain of one context of a small layout, bit for bit that of a lane of a pack (see `packed`).

In a pack, each lane sums over the next states of a row (or the rows of a next state) one by one. These kernels keep that order, but put
eight rows (or eight next states) of one context into a vector. The transitions are stored twice, each in layers that begin at `block[h]`:
by row (row, next state) in `lines`, and by next state (next state, row) in `columns`. These arrays, `d` and the work arrays `w`, `q` and
`e` have eight more entries than are used, so that a vector can begin at any entry.
"""

from __future__ import annotations

from ._arguments import Rule, Step
from ._jit import brief, inlined, kernel
from ._simd import vfma, vload, vset, vstore
from .chain import optimistic_losses, policy_step
from .forward import weigh

__all__ = ["lay_out_lane", "one_lane_steps", "one_lane_visits"]


@brief
def lay_out_lane(kind, data, indptr, indices, block, layers, rows, own_block, lines, columns):
    """Store a model by row and by next state. Entries that a CSR model does not have are left unchanged."""
    for h in range(block.size - 1):
        first = rows[layers[h]]
        n_rows = rows[layers[h + 1]] - first
        n_next = layers[h + 2] - layers[h + 1]
        begin = own_block[h]
        for i in range(n_rows):
            if kind == 0:
                for j in range(n_next):
                    x = data[block[h] + j * n_rows + i]
                    lines[begin + i * n_next + j] = x
                    columns[begin + j * n_rows + i] = x
            else:
                for p in range(indptr[block[h] + i], indptr[block[h] + i + 1]):
                    j = indices[p]
                    lines[begin + i * n_next + j] = data[p]
                    columns[begin + j * n_rows + i] = data[p]


@inlined
def _visit(block, layers, rows, lines, width, policy, d, w, visits):
    """Add the occupancy of `policy` to `visits`."""
    d[0] = 1.0
    for h in range(block.size):
        first = rows[layers[h]]
        n_rows = rows[layers[h + 1]] - first
        weigh(rows, layers[h], layers[h + 1], width, policy, d, visits, w, -first, 1)
        if h < block.size - 1:
            n_next = layers[h + 2] - layers[h + 1]
            for j in range(0, n_next, 8):
                x = vset(0.0)
                p = block[h] + j
                for i in range(n_rows):
                    x = vfma(vload(lines, p), vset(w[i]), x)
                    p += n_next
                # What it writes beyond the layer is overwritten later.
                vstore(d, layers[h + 1] + j, x)


@inlined
def _expect(begin, n_rows, n_next, columns, v, v0, q):
    """q[i] += E[v(s') | row i of a layer], for all its rows."""
    for i in range(0, n_rows, 8):
        x = vload(q, i)
        p = begin + i
        for j in range(n_next):
            x = vfma(vload(columns, p), vset(v[v0 + j]), x)
            p += n_rows
        vstore(q, i, x)


@kernel
def one_lane_visits(block, layers, rows, lines, width, store, k, count, d, w, visits):
    """Add the occupancies of policies store[k..k+count-1] to `visits`, in this order; `width` as in `chain.chain_steps`."""
    for i in range(k, k + count):
        _visit(block, layers, rows, lines, width, store[i], d, w, visits)


@kernel
def one_lane_steps(
    block, layers, rows, n_steps, k, late, lines, columns, width, losses, visits, store, sum_q, v, d, w, q, e, half_loss, half_dynamics,
    weight, eta,
):  # fmt: skip
    """`n_steps` steps of the chain under one dynamics and one loss; see `chain.chain_steps`.

    With `late`, `visits` lacks the policy before `store[k]`, too.
    """
    rule = Rule(half_loss, half_dynamics, weight, eta)
    line = k
    for step in range(n_steps):
        if step > 0 or late:
            _visit(block, layers, rows, lines, width, store[line - 1], d, w, visits)
        if line + 1 == store.shape[0]:
            for r in range(store.shape[1]):
                store[0, r] = store[line, r]
            line = 0
        now = Step(store[line], store[line + 1], sum_q, v)
        for h in range(block.size - 1, -1, -1):
            lo = layers[h]
            hi = layers[h + 1]
            optimistic_losses(rows[lo], rows[hi], losses, visits, rule, h, q)
            if h < block.size - 1:
                _expect(block[h], rows[hi] - rows[lo], layers[h + 2] - hi, columns, v, hi, q)
            # Without a width, the actions of a state are added one after the other.
            policy_step(rows, lo, hi, 0, eta, now, q, e)
        line += 1
