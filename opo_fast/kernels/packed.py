"""The policy chains of up to eight contexts of one small layout at once; the context is the innermost axis.

Each entry of an array has eight lanes. Lanes never mix, so the bits of a context do not depend on the other contexts. Blocks are stored
as (row, next state, lane), where a row is an allowed state-action pair; `block[h]` is where layer h starts, in entries of eight lanes.
"""

from __future__ import annotations

from ._arguments import Pack, Rule, Step
from ._jit import inlined, kernel
from ._simd import vabove, vadd, vdiv, vexp, vfma, vload, vmax, vmin, vmul, vset, vstore, vsub
from .forward import TINY

__all__ = ["add_visits", "bonus_of", "expectation", "packed_steps", "packed_visits"]


@kernel
def add_visits(pack, policy, d, w, visits):
    """Add the occupancies of one policy per lane to `visits`."""
    block, layers, rows, data = pack
    horizon = block.size
    tiny = vset(TINY)
    vstore(d, 0, vset(1.0))
    for h in range(horizon):
        first = rows[layers[h]]
        n_rows = rows[layers[h + 1]] - first
        for s in range(layers[h], layers[h + 1]):
            x = vload(d, 8 * s)
            for r in range(rows[s], rows[s + 1]):
                y = vabove(vmul(x, vload(policy, 8 * r)), tiny)
                vstore(w, 8 * (r - first), y)
                vstore(visits, 8 * r, vadd(vload(visits, 8 * r), y))
        if h < horizon - 1:
            n_next = layers[h + 2] - layers[h + 1]
            for j in range(n_next):
                x = vset(0.0)
                p = 8 * (block[h] + j)
                for i in range(n_rows):
                    x = vfma(vload(data, p), vload(w, 8 * i), x)
                    p += 8 * n_next
                vstore(d, 8 * (layers[h + 1] + j), x)


@kernel
def packed_visits(block, layers, rows, data, store, k, count, d, w, visits):
    """Add the occupancies of policies store[k..k+count-1] to `visits`, in this order."""
    for i in range(k, k + count):
        add_visits(Pack(block, layers, rows, data), store[i], d, w, visits)


@inlined
def bonus_of(visits, r, half_loss, half_dynamics, weight):
    """The bonus of row r."""
    one = vset(1.0)
    x = vdiv(one, vadd(one, vload(visits, 8 * r)))
    return vfma(weight, vmin(one, vmul(half_dynamics, x)), vmin(one, vmul(half_loss, x)))


@inlined
def expectation(data, p, n_next, v, v0, q):
    """q plus the expectation of the values of the next states v0, v0 + 1, ...; the transitions begin at entry p."""
    for j in range(n_next):
        q = vfma(vload(data, 8 * (p + j)), vload(v, 8 * (v0 + j)), q)
    return q


@inlined
def _deterministic(begin, end, value, s, out):
    """In each lane, set `out` to 1 at the first of rows begin..end-1 where it equals the value of state s, and to 0 elsewhere."""
    for lane in range(8):
        target = value[8 * s + lane]
        found = False
        for r in range(begin, end):
            if not found and out[8 * r + lane] == target:
                out[8 * r + lane] = 1.0
                found = True
            else:
                out[8 * r + lane] = 0.0


@inlined
def _softmax(begin, end, least, eta, sum_q, out):
    """The policy of the rows begin..end-1 of one state, from their sums of Q, whose minimum is `least`."""
    total = vset(0.0)
    for r in range(begin, end):
        x = vexp(vmul(eta, vsub(least, vload(sum_q, 8 * r))))
        total = vadd(total, x)
        vstore(out, 8 * r, x)
    total = vdiv(vset(1.0), total)
    for r in range(begin, end):
        vstore(out, 8 * r, vmul(vload(out, 8 * r), total))


@kernel
def _backup(pack, greedy, losses, visits, rule, step):
    """One optimistic backup of all layers, with the policy step of each state."""
    block, layers, rows, data = pack
    half_loss, weight, eta = vset(rule.half_loss), vset(rule.weight), vset(rule.eta)
    for h in range(block.size - 1, -1, -1):
        half_dynamics = vset(rule.half_dynamics[h])
        n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
        for s in range(layers[h], layers[h + 1]):
            value = vset(0.0)
            least = vset(1e300)
            p = block[h] + (rows[s] - rows[layers[h]]) * n_next
            for r in range(rows[s], rows[s + 1]):
                q = vsub(vload(losses, 8 * r), bonus_of(visits, r, half_loss, half_dynamics, weight))
                q = expectation(data, p, n_next, step.v, layers[h + 1], q)
                p += n_next
                if greedy:
                    vstore(step.following, 8 * r, q)
                else:
                    q = vmax(vset(0.0), q)
                    value = vfma(vload(step.policy, 8 * r), q, value)
                    q = vadd(vload(step.sum_q, 8 * r), q)
                    vstore(step.sum_q, 8 * r, q)
                least = vmin(q, least)
            if greedy:
                vstore(step.v, 8 * s, least)
                _deterministic(rows[s], rows[s + 1], step.v, s, step.following)
                # Raised to 0 only now: unexplored actions would all be alike.
                vstore(step.v, 8 * s, vmax(vset(0.0), least))
            else:
                vstore(step.v, 8 * s, value)
                _softmax(rows[s], rows[s + 1], least, eta, step.sum_q, step.following)


@kernel
def packed_steps(
    block, layers, rows, n_steps, k, greedy, count_actions, data, losses, visits, store, sum_q, v, d, w, half_loss,
    half_dynamics, weight, eta,
):  # fmt: skip
    """`n_steps` steps of the chains of one pack under one dynamics and one loss per lane; see `chain.chain_steps`."""
    pack = Pack(block, layers, rows, data)
    rule = Rule(half_loss, half_dynamics, weight, eta)
    line = k
    for step in range(n_steps):
        if step > 0:
            past = store[line - 1]
            if count_actions:
                for r in range(past.size):
                    visits[r] += past[r]
            else:
                add_visits(pack, past, d, w, visits)
        if line + 1 == store.shape[0]:
            for r in range(store.shape[1]):
                store[0, r] = store[line, r]
            line = 0
        now = Step(store[line], store[line if greedy else line + 1], sum_q, v)
        _backup(pack, greedy, losses, visits, rule, now)
        line += 1
