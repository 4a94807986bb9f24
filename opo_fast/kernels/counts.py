"""One evaluation and policy step on tables of counts (tabular optimistic policy optimization).

A row is an allowed state-action pair.
"""

from __future__ import annotations

from ._jit import kernel
from ._simd import fma, sexp

__all__ = ["tabular_step"]


@kernel
def tabular_step(block, layers, rows, frequencies, losses, policy, sum_q, v, eta):
    """Q = max{0, losses + frequencies V} backwards with V = <policy, Q>; then `policy` is the softmax of -eta sum_q.

    `frequencies` has layer h as (row, next state) from block[h] on, with zeros for pairs that were never visited.
    """
    for h in range(block.size - 1, -1, -1):
        first = rows[layers[h]]
        n_next = layers[h + 2] - layers[h + 1] if h < block.size - 1 else 0
        for s in range(layers[h], layers[h + 1]):
            value = 0.0
            for r in range(rows[s], rows[s + 1]):
                q = losses[r]
                start = block[h] + (r - first) * n_next
                for j in range(n_next):
                    q = fma(frequencies[start + j], v[layers[h + 1] + j], q)
                q = max(0.0, q)
                value = fma(policy[r], q, value)
                sum_q[r] += q
            v[s] = value
            least = sum_q[rows[s]]
            for r in range(rows[s] + 1, rows[s + 1]):
                least = min(least, sum_q[r])
            total = 0.0
            for r in range(rows[s], rows[s + 1]):
                policy[r] = sexp(eta * (least - sum_q[r]))
                total += policy[r]
            for r in range(rows[s], rows[s + 1]):
                policy[r] /= total
