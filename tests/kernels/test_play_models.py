"""Episodes of several models in one call, against a rollout of each model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import opo_fast as of
from opo_fast.kernels.models import play_models
from opo_fast.model import reference


@pytest.mark.parametrize("sparse", [False, True])
def test_each_model_plays_its_own_policy_with_its_own_uniforms(sparse):
    from scipy.sparse import csr_array

    rng = np.random.default_rng(5)
    sizes, n_actions, count = [1, 4, 3, 5], 3, 6
    layout = of.Layout(sizes, n_actions)
    mdps = []
    for _ in range(count):
        arrays = [rng.dirichlet(np.full(b, 0.3), (a, n_actions)) for a, b in itertools.pairwise(sizes)]
        given = [csr_array(p.reshape(-1, p.shape[2])) for p in arrays] if sparse else arrays
        mdps.append(of.LayeredMDP(layout, rng.random(layout.shape), given))
    policies = rng.dirichlet(np.ones(n_actions), (count, layout.n_states))
    u_action, u_next = rng.random((2, count, layout.horizon))
    states, chosen = np.empty((count, layout.horizon + 1), np.int64), np.empty((count, layout.horizon), np.int64)
    means, along = np.empty((count, layout.horizon)), np.empty((count, layout.horizon - 1))
    t = mdps[0].transitions
    table = np.array([mdp.transitions.places + mdp.loss_place for mdp in mdps], np.int64)
    common = t.data, t.indptr, t.indices, t.block, mdps[0].row_losses, layout.offsets, t.rows
    play_models(table, *common, policies.reshape(count, -1), u_action, u_next, states, chosen, means, along)
    for i, mdp in enumerate(mdps):
        path, actions = reference.rollout(mdp, policies[i], u_action[i], u_next[i])
        np.testing.assert_array_equal(states[i], path)
        np.testing.assert_array_equal(chosen[i] % n_actions, actions)
        np.testing.assert_array_equal(means[i], mdp.losses[path[:-1], actions])
        found = []
        for h, p in enumerate(mdp.transitions.arrays()):
            dense = np.asarray(p.todense()).reshape(sizes[h], n_actions, -1) if sparse else p
            found.append(dense[path[h] - layout.offsets[h], actions[h], path[h + 1] - layout.offsets[h + 1]])
        np.testing.assert_array_equal(along[i], found)
