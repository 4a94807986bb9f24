"""Properties of every model: the paper's identities, order, ranges, and invariance under relabelling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models, models_with_policy, random_mask, random_model, random_policy, seeded

import opo_fast as of

BACKENDS = ("numba", "numpy")


def layer_sums(mdp, values):
    return np.add.reduceat(values.reshape(mdp.layout.n_states, -1).sum(axis=1), mdp.layout.offsets[:-1])


def steps_left(mdp):
    """H - h + 1 for each state, with h counted from 1."""
    sizes = mdp.layout.layer_sizes
    return np.repeat(np.arange(len(sizes), 0, -1), sizes)[:, None]


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=models_with_policy())
def test_occupancy_is_a_distribution_in_every_layer_and_gives_the_value(backend, case):
    mdp, policy = case
    q = of.occupancy(mdp, policy, backend=backend)
    assert (q >= 0).all()
    np.testing.assert_allclose(layer_sums(mdp, q), 1.0, rtol=0, atol=1e-12)
    assert abs((q * mdp.losses).sum() - of.evaluate(mdp, policy, backend=backend).v[0]) <= 1e-12
    if mdp.action_mask is not None:
        assert (q[~mdp.action_mask] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=models_with_policy())
def test_optimum_is_below_every_policy_and_is_reached(backend, case):
    mdp, policy = case
    best = of.solve(mdp, backend=backend)
    assert (best.v <= of.evaluate(mdp, policy, backend=backend).v + 1e-12).all()
    np.testing.assert_allclose(of.evaluate(mdp, best.policy, backend=backend).v, best.v, rtol=0, atol=1e-12)
    assert set(np.unique(best.policy)) <= {0.0, 1.0}


@given(st.data())
@settings(max_examples=15)
def test_optimum_is_the_best_deterministic_policy(data):
    mdp = random_model(seeded(data.draw), data.draw(st.sampled_from([[1, 2, 2], [1, 3], [1, 1, 2, 1]])), 2, "dense")
    choices = itertools.product(range(2), repeat=mdp.layout.n_states)
    values = [of.evaluate(mdp, np.eye(2)[list(choice)]).v[0] for choice in choices]
    assert of.solve(mdp).v[0] == pytest.approx(min(values), abs=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=models_with_policy())
def test_values_lie_within_the_steps_that_are_left(backend, case):
    mdp, policy = case
    for q in (of.evaluate(mdp, policy, backend=backend).q, of.solve(mdp, backend=backend).q):
        assert (q >= 0).all()
        assert (q <= steps_left(mdp) * (1 + 1e-12)).all()


@given(st.data())
def test_relabelling_states_and_actions_relabels_the_answer(data):
    mdp = data.draw(models(forms=["dense", "csr"]))
    rng = seeded(data.draw)
    layout, n_actions = mdp.layout, mdp.layout.n_actions
    within = [rng.permutation(n) for n in layout.layer_sizes]
    states = np.concatenate([layout.offsets[h] + order for h, order in enumerate(within)])
    actions = rng.permutation(n_actions)

    def relabelled(values):
        return values[states][:, actions]

    blocks = []
    for h, block in enumerate(mdp.transitions.arrays()):
        rows = (within[h][:, None] * n_actions + actions).ravel()
        flat = block if block.ndim == 2 else block.reshape(-1, block.shape[2])
        new = flat[rows][:, within[h + 1]]
        blocks.append(new if block.ndim == 2 else new.reshape(len(within[h]), n_actions, -1))
    mask = None if mdp.action_mask is None else relabelled(mdp.action_mask)
    other = of.LayeredMDP(layout, relabelled(mdp.losses), blocks, mask)
    policy = random_policy(rng, mdp)
    close = {"rtol": 0, "atol": 1e-12}
    np.testing.assert_allclose(of.occupancy(other, relabelled(policy)), relabelled(of.occupancy(mdp, policy)), **close)
    np.testing.assert_allclose(of.evaluate(other, relabelled(policy)).q, relabelled(of.evaluate(mdp, policy).q), **close)
    np.testing.assert_allclose(of.solve(other).q, relabelled(of.solve(mdp).q), **close)
    np.testing.assert_array_equal(of.solve(other).policy, relabelled(of.solve(mdp).policy))
    chains = [of.policy_chain([model] * 6, eta=0.7, beta_loss=0.3, beta_dynamics=0.05) for model in (mdp, other)]
    np.testing.assert_allclose(chains[1], relabelled(chains[0]), **close)


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=models_with_policy(), data=st.data())
def test_unreachable_states_have_no_occupancy_and_no_effect(backend, case, data):
    """One more state in a layer, which nothing leads to, with any rows and any losses."""
    mdp, policy = case
    layout = mdp.layout
    if layout.horizon < 3 or mdp.transitions.kind == 1:
        mdp = random_model(np.random.default_rng(0), [1, 3, 4], 2)
        layout, policy = mdp.layout, mdp.uniform_policy()
    rng = seeded(data.draw)
    sizes = list(layout.layer_sizes)
    sizes[1] += 1
    new = int(layout.offsets[2])
    blocks = [np.array(block) for block in mdp.transitions.arrays()]
    blocks[0] = np.concatenate([blocks[0], np.zeros((*blocks[0].shape[:2], 1))], axis=2)
    row = rng.dirichlet(np.ones(sizes[2]), size=(1, layout.n_actions))
    blocks[1] = np.concatenate([blocks[1], row])
    wide = of.LayeredMDP(
        of.Layout(sizes, layout.n_actions),
        np.insert(mdp.losses, new, rng.integers(0, 2, layout.n_actions), axis=0),
        blocks,
        None if mdp.action_mask is None else np.insert(mdp.action_mask, new, True, axis=0),
    )
    wide_policy = np.insert(policy, new, 1.0 / layout.n_actions, axis=0)
    q = of.occupancy(wide, wide_policy, backend=backend)
    assert (q[new] == 0).all()
    np.testing.assert_allclose(np.delete(q, new, axis=0), of.occupancy(mdp, policy, backend=backend), rtol=0, atol=1e-15)
    before, after = of.solve(mdp, backend=backend), of.solve(wide, backend=backend)
    np.testing.assert_allclose(np.delete(after.v, new), before.v, rtol=0, atol=1e-14)


@given(models_with_policy(), st.integers(1, 5))
def test_unroll_repeats_a_stationary_policy(case, n_states):
    rng = np.random.default_rng(n_states)
    mdp = random_model(rng, [1] + [n_states] * 3, 2, "stationary")
    stationary = rng.dirichlet(np.ones(2), size=n_states)
    policy = mdp.unroll(stationary)
    assert (policy[0] == 0.5).all()  # the first layer is not a copy of the states
    for h in range(1, 4):
        np.testing.assert_array_equal(policy[mdp.layout.layer(h)], stationary)
    np.testing.assert_allclose(layer_sums(mdp, of.occupancy(mdp, policy)), 1.0, atol=1e-12)


# -- the chain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@given(data=st.data())
@settings(max_examples=20)
def test_policies_of_a_chain_are_distributions_over_allowed_actions(backend, data):
    mdp = data.draw(models())
    rng = seeded(data.draw)
    history = [mdp.with_losses(rng.random(mdp.layout.shape)) for _ in range(4)]
    eta = 10.0 ** data.draw(st.integers(-2, 6))
    policy = of.policy_chain(history, eta=eta, beta_loss=0.1, beta_dynamics=0.01, backend=backend)
    assert ((policy >= 0) & (policy <= 1)).all()
    np.testing.assert_allclose(policy.sum(axis=1), 1.0, rtol=0, atol=1e-15)
    if mdp.action_mask is not None:
        assert (policy[~mdp.action_mask] == 0).all()


def arms(losses):
    return of.LayeredMDP(of.Layout([1], len(losses)), [losses], [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_pushed_far_down_comes_back(backend):
    """After +800 and then -800 in log weight the policy is exactly uniform again; plain weights would stay at 0."""
    up, down = arms([1.0, 0.0]), arms([0.0, 1.0])
    settings = {"eta": 800.0, "beta_loss": 0.0, "beta_dynamics": 0.0, "backend": backend}
    assert of.policy_chain([up], **settings).tolist() == [[0.0, 1.0]]
    assert of.policy_chain([up, down], **settings).tolist() == [[0.5, 0.5]]
    assert of.policy_chain([up, down, down], **settings).tolist() == [[1.0, 0.0]]
    assert of.policy_chain([up] * 5 + [down] * 5, **settings).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("eta", [1e3, 1e4, 1e5, 1e6, 1e300])
def test_wide_gaps_of_a_chain_give_exactly_0_and_1(backend, eta):
    policy = of.policy_chain([arms([1.0, 0.0, 1.0])], eta=eta, beta_loss=0, beta_dynamics=0, backend=backend)
    assert policy.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [[1], [1, 3, 2], [1, 20, 20, 15]])
@pytest.mark.parametrize("n_actions", [1, 2, 3, 7, 25])
def test_equal_q_keeps_the_policy_uniform_bitwise(backend, sizes, n_actions):
    """Saturated bonuses clip every Q to 0, with and without a mask."""
    rng = np.random.default_rng(n_actions)
    for masked in (False, True):
        mdp = random_model(rng, sizes, n_actions, masked=masked)
        policy = of.policy_chain([mdp] * 3, eta=0.3, beta_loss=1e9, beta_dynamics=1e9, backend=backend)
        assert (policy == mdp.uniform_policy()).all()


@given(st.data())
@settings(max_examples=15)
def test_interleaving_and_asking_twice_change_nothing(data):
    rng = seeded(data.draw)
    shape = [1, 4, 3]
    mask = random_mask(rng, (8, 3))
    one, two = (random_model(rng, shape, 3, mask=mask) for _ in range(2))
    settings = {"eta": 0.5, "beta_loss": 0.2, "beta_dynamics": 0.02}
    first = of.policy_chain([one, two, one], **settings)
    of.policy_chain([two] * 4, **settings)
    assert of.policy_chain([one, two, one], **settings).tobytes() == first.tobytes()
