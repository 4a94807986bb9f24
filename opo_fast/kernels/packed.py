"""The policy chain of up to eight contexts of one small layout at once: the context is the innermost axis.

Each array holds eight lanes per entry; lanes never mix, so the bits of a context do not depend on its neighbours. A
block is stored (row, next state, lane); `block[h]` is where layer h starts, counted in entries of eight lanes.
"""

from __future__ import annotations

from ._jit import kernel
from ._simd import vabove, vadd, vdiv, vexp, vfma, vload, vmax, vmin, vmul, vset, vstore, vsub
from .occupancy import TINY

__all__ = ["packed_steps", "packed_visits"]


@kernel
def _visit(block, layers, rows, data, policy, d, w, visits):
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
        _visit(block, layers, rows, data, store[i], d, w, visits)


@kernel
def _backup(
    block, layers, rows, greedy, data, losses, visits, policy, out, sum_q, v, half_loss, half_dynamics, weight, eta
):  # fmt: skip
    horizon = block.size
    one = vset(1.0)
    zero = vset(0.0)
    half_loss8 = vset(half_loss)
    weight8 = vset(weight)
    eta8 = vset(eta)
    for h in range(horizon - 1, -1, -1):
        half_dynamics8 = vset(half_dynamics[h])
        n_next = layers[h + 2] - layers[h + 1] if h < horizon - 1 else 0
        for s in range(layers[h], layers[h + 1]):
            value = zero
            least = vset(1e300)
            p = 8 * (block[h] + (rows[s] - rows[layers[h]]) * n_next)
            for r in range(rows[s], rows[s + 1]):
                x = vdiv(one, vadd(one, vload(visits, 8 * r)))
                b = vfma(weight8, vmin(one, vmul(half_dynamics8, x)), vmin(one, vmul(half_loss8, x)))
                q = vsub(vload(losses, 8 * r), b)
                for j in range(n_next):
                    q = vfma(vload(data, p), vload(v, 8 * (layers[h + 1] + j)), q)
                    p += 8
                q = vmax(zero, q)
                if greedy:
                    vstore(out, 8 * r, q)
                    least = vmin(q, least)
                else:
                    value = vfma(vload(policy, 8 * r), q, value)
                    q = vadd(vload(sum_q, 8 * r), q)
                    vstore(sum_q, 8 * r, q)
                    least = vmin(q, least)
            if greedy:
                vstore(v, 8 * s, least)
                for lane in range(8):
                    target = v[8 * s + lane]
                    found = False
                    for r in range(rows[s], rows[s + 1]):
                        if not found and out[8 * r + lane] == target:
                            out[8 * r + lane] = 1.0
                            found = True
                        else:
                            out[8 * r + lane] = 0.0
                continue
            vstore(v, 8 * s, value)
            total = zero
            for r in range(rows[s], rows[s + 1]):
                x = vexp(vmul(eta8, vsub(least, vload(sum_q, 8 * r))))
                total = vadd(total, x)
                vstore(out, 8 * r, x)
            total = vdiv(one, total)
            for r in range(rows[s], rows[s + 1]):
                vstore(out, 8 * r, vmul(vload(out, 8 * r), total))


@kernel
def packed_steps(
    block, layers, rows, n_steps, k, greedy, count_actions, data, losses, visits, store, sum_q, v, d, w, half_loss,
    half_dynamics, weight, eta,
):  # fmt: skip
    """`n_steps` steps of the chains of one pack under one dynamics and one loss per lane; see `chain.chain_steps`."""
    for step in range(n_steps):
        if step > 0:
            past = store[k + step - 1]
            if count_actions:
                for r in range(past.size):
                    visits[r] += past[r]
            else:
                _visit(block, layers, rows, data, past, d, w, visits)
        policy = store[k + step]
        out = policy if greedy else store[k + step + 1]
        _backup(
            block, layers, rows, greedy, data, losses, visits, policy, out, sum_q, v, half_loss, half_dynamics, weight,
            eta,
        )  # fmt: skip
