"""Sampling of a trajectory from given uniforms. A row is an allowed state-action pair."""

from __future__ import annotations

from ._jit import brief

__all__ = ["rollout"]


@brief
def rollout(kind, data, indptr, indices, block, layers, rows, policy, u_action, u_next, states, chosen):
    """Play `policy` (one number per row) from the first state; fills `states` (H + 1, ends with the end state) and `chosen` rows (H).

    Inverse-CDF sampling. If the uniform exceeds the last cumulative sum because of rounding, the last outcome of positive probability is
    taken.
    """
    horizon = block.size
    s = 0
    for h in range(horizon):
        states[h] = s
        r = rows[s]
        total = 0.0
        for i in range(rows[s], rows[s + 1]):
            if policy[i] > 0.0:
                r = i
                total += policy[i]
                if u_action[h] < total:
                    break
        chosen[h] = r
        if h < horizon - 1:
            first = rows[layers[h]]
            n_rows = rows[layers[h + 1]] - first
            i = r - first
            total = 0.0
            position = 0
            if kind == 0:
                for j in range(layers[h + 2] - layers[h + 1]):
                    x = data[block[h] + j * n_rows + i]
                    if x > 0.0:
                        position = j
                        total += x
                        if u_next[h] < total:
                            break
            else:
                for p in range(indptr[block[h] + i], indptr[block[h] + i + 1]):
                    x = data[p]
                    if x > 0.0:
                        position = indices[p]
                        total += x
                        if u_next[h] < total:
                            break
            s = layers[h + 1] + position
    states[horizon] = layers[horizon]
