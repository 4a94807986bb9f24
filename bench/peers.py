"""Alternatives in JAX, on the CPU and compiled, and in Storm. The extra `bench` installs both."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def jax():
    """JAX with numbers of 64 bits."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    return jax


def timed(function, *arguments):
    """A call of a compiled function that waits for its result."""
    compiled = jax().jit(function)
    placed = [jax().device_put(np.ascontiguousarray(array)) for array in arguments]
    return (lambda: jax().block_until_ready(compiled(*placed))), 1.0


def by_layers(layout, policy):
    """Policies (..., H - 1, S, A) of the layers after the first, and that of the start state (..., A)."""
    shape = (*policy.shape[:-2], layout.horizon - 1, layout.layer_sizes[-1], layout.n_actions)
    return policy[..., 1:, :].reshape(shape), policy[..., 0, :]


def evaluate_many(mdp, turned, losses, policies):
    """Values of many policies under one dense model: a product (B, S) times (S, S A) per layer."""
    scan, np_ = jax().lax.scan, jax().numpy
    later, start = by_layers(mdp.layout, policies)

    def run(turned, losses, later, start):
        def back(v, now):
            q = (v @ turned).reshape(v.shape[0], *losses.shape) + losses
            return (now * q).sum(axis=2), None

        v, _ = scan(back, np_.zeros((later.shape[1], losses.shape[0])), later, reverse=True)
        return (start * ((v @ turned)[:, : losses.shape[1]] + losses[0])).sum(axis=1)

    return timed(run, turned, losses, np.moveaxis(later, 0, 1), start)


def occupancy_many(mdp, P, policies):
    """Occupancies of many policies under one dense model."""
    scan = jax().lax.scan
    later, start = by_layers(mdp.layout, policies)

    def run(P, later, start):
        def forward(reach, now):
            w = reach[:, :, None] * now
            return w.reshape(w.shape[0], -1) @ P, w

        _, w = scan(forward, start @ P[: start.shape[1]], later)
        return start, w

    return timed(run, P, np.moveaxis(later, 0, 1), start)


def induction(mdp, P, losses, policy=None):
    """Values under a policy, or the least ones, of a stationary model, dense (S A, S) or with equally padded sparse rows."""
    scan, np_ = jax().lax.scan, jax().numpy
    later, start = by_layers(mdp.layout, mdp.uniform_policy() if policy is None else policy)

    def run(P, losses, later, start):
        def expected(v):
            x = (P[0] * v[P[1]]).sum(axis=1) if isinstance(P, tuple) else P @ v
            return x.reshape(losses.shape) + losses

        def back(v, now):
            q = expected(v)
            return (q.min(axis=1) if policy is None else (now * q).sum(axis=1)), None

        v, _ = scan(back, np_.zeros(losses.shape[0]), later, reverse=True)
        q = expected(v)[0]
        return q.min() if policy is None else (start * q).sum()

    if isinstance(P, np.ndarray):
        return timed(run, P, losses, later, start)
    data, indices = padded(P)
    return timed(lambda data, indices, *rest: run((data, indices), *rest), data, indices, losses, later, start)


def occupancy(mdp, P, policy):
    """The occupancy of a policy under a stationary model, dense (S A, S), or sparse with a transpose that is computed in advance."""
    scan = jax().lax.scan
    later, start = by_layers(mdp.layout, policy)

    def run(P, first, later, start):
        def forward(reach, now):
            w = (reach[:, None] * now).reshape(-1)
            return (P[0] * w[P[1]]).sum(axis=1) if isinstance(P, tuple) else w @ P, w

        _, w = scan(forward, start @ first, later)
        return start, w

    if isinstance(P, np.ndarray):
        return timed(run, P, P[: start.size], later, start)
    data, indices = padded(P.T.tocsr())
    first = P[: start.size].toarray()
    return timed(lambda data, indices, *rest: run((data, indices), *rest), data, indices, first, later, start)


def padded(P):
    """Probabilities and next states of CSR rows, padded to the longest one."""
    lengths = np.diff(P.indptr)
    inside = np.arange(lengths.max()) < lengths[:, None]
    data, indices = np.zeros(inside.shape), np.zeros(inside.shape, np.int32)
    data[inside], indices[inside] = P.data, P.indices
    return data, indices


def models_together(blocks, losses, policy, layout):
    """Values of one policy under many small models, whose blocks (B, S_h A, S_{h+1}) are stacked by layers."""

    def run(losses, policy, *blocks):
        v = jax().numpy.zeros((losses.shape[0], layout.layer_sizes[-1]))
        for h in range(layout.horizon - 1, -1, -1):
            q = losses[:, layout.layer(h)]
            if h < layout.horizon - 1:
                q = q + (blocks[h] @ v[:, :, None]).reshape(q.shape)
            v = (policy[layout.layer(h)] * q).sum(axis=2)
        return v

    return timed(run, losses, policy, *blocks)


def storm_induction(P, losses, horizon):
    """Storm's least expected total loss of `horizon` steps, by its sparse engine."""
    import stormpy
    from stormpy import datastructures, models

    (n_states, n_actions), builder = losses.shape, datastructures.SparseMatrixBuilder
    matrix = builder(
        rows=P.shape[0], columns=n_states, entries=P.nnz, force_dimensions=True, has_custom_row_grouping=True, row_groups=n_states
    )
    starts, indices, data = P.indptr.tolist(), P.indices.tolist(), P.data.tolist()
    for row in range(P.shape[0]):
        if row % n_actions == 0:
            matrix.new_row_group(row)
        for p in range(starts[row], starts[row + 1]):
            matrix.add_next_value(row, indices[p], data[p])
    labels = models.StateLabeling(n_states)
    labels.add_label("init")
    labels.add_label_to_state("init", 0)
    rewards = {"loss": models.SparseRewardModel(optional_state_action_reward_vector=losses.ravel().tolist())}
    parts = models.SparseModelComponents(transition_matrix=matrix.build(), state_labeling=labels, reward_models=rewards)
    mdp = models.SparseMdp(parts)
    asked = stormpy.parse_properties(f'R{{"loss"}}min=? [ C<={horizon} ]')[0].get_raw_formula()
    return (lambda: stormpy.model_checking(mdp, asked, only_initial_states=False)), 1.0
