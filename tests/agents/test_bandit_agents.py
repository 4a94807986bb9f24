"""Contextual bandits: special cases of the paper's algorithms, inverse gap weighting, and optimism over the plausible part of a class."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast import agents, envs, reference
from opo_fast.agents import FALCON, LOLIPOP, POCMAB, RMUCDD, UCCB, RegCB, SquareCB, inverse_gap_weights
from opo_fast.agents.bandits import NO_DYNAMICS
from opo_fast.agents.lolipop import _weights
from opo_fast.oracles.linear import DisjointLinearLossClass, LinearLossClass
from opo_fast.runs.simulation import Simulation

LAYOUT = of.Layout([1], 4)


def bandit(seed=0, n_contexts=3, n_candidates=6, n_actions=4, mask=None):
    """A finite class of losses; the truth is the last candidate."""
    rng = np.random.default_rng(seed)
    tables = rng.uniform(0.2, 0.9, size=(n_candidates, n_contexts, 1, n_actions))
    tables = 0.5 * tables + 0.5 * tables[:1]
    layout = of.Layout([1], n_actions)
    env = of.FiniteContexts([of.LayeredMDP(layout, table, [], mask) for table in tables[-1]])
    return env, of.FiniteLossClass([lambda c, t=t: t[c] for t in tables]), tables


def play(env, agent, episodes, seed=1):
    run = Simulation(env, agent, episodes, seed)
    played = []
    for t in range(episodes):
        context = run.context(t)
        played.append((context, agent.policy(context)[0]))
        run.step()
    return played


def uccb_by_hand(fits, tables, context, beta, *, capped):
    """Xu and Zeevi's counterfactual replay, with the cap of RM-UCDD's bonus or without."""
    n = np.ones(tables.shape[-1])
    for fit in fits:
        bonus = beta / n
        index = tables[fit, context, 0] - np.minimum(1.0, bonus) if capped else tables[fit, context, 0] - bonus
        chosen = int(index.argmin())
        n[chosen] += 1
    return chosen


def test_rmucdd_with_one_state_and_p_min_1_is_uccb():
    env, losses, tables = bandit()
    assert tables.min() > 0.1
    # With beta below 1 the cap has no effect, and this is UCCB as published.
    for beta, capped in [(0.1, False), (3.0, True)]:
        agents = [
            UCCB(env.layout, losses, beta=beta),
            RMUCDD(env.layout, losses, NO_DYNAMICS, p_min=1.0, kappa_loss=2 * beta, kappa_dynamics=0.0),
        ]
        played, also = (play(env, agent, 120) for agent in agents)
        for t, ((context, policy), (_, other)) in enumerate(zip(played, also, strict=True)):
            np.testing.assert_array_equal(policy, other)
            if t < 4:
                assert policy.argmax() == t
            else:
                fits = [agents[0].history[k][0] for k in range(t - 3)]
                assert policy.argmax() == uccb_by_hand(fits, tables, context, beta, capped=capped)
        assert len(set(fits)) > 1


def test_beta_of_uccb():
    _, losses, _ = bandit()
    agent = UCCB(LAYOUT, losses, episodes=1000, delta=0.1, bonus_scale=0.5)
    assert agent.beta == pytest.approx(0.5 * math.sqrt(17 * 1000 * math.log(2 * 6 * 1000**3 / 0.1) / 4))


def test_pocmab_is_opo_with_the_bonus_of_losses_alone():
    env, losses, tables = bandit(2)
    agent = POCMAB(env.layout, losses, eta=0.7, beta_loss=5.0)
    played = play(env, agent, 60)
    fits = [agent.history[k][0] for k in range(59)]
    assert len(set(fits)) > 1
    for t in (0, 1, 7, 59):
        context, policy = played[t]
        expected, n = np.full(4, 0.25), np.zeros(4)
        for fit in fits[:t]:
            b = np.minimum(1.0, 2.5 / (1 + n))
            n = n + expected
            expected = reference.exponential_weights(expected[None], np.maximum(0.0, tables[fit, context] - b), 0.7)[0]
        np.testing.assert_allclose(policy, expected, atol=1e-13)


def test_inverse_gap_weights_of_a_worked_example():
    # gamma = 10, A = 4: 1/(4 + 10 * 0.1), 1/(4 + 10 * 0.6), 1/(4 + 0) for a tie with the best, which gets the rest.
    found = inverse_gap_weights(np.array([0.3, 0.2, 0.8, 0.2]), 10.0)
    np.testing.assert_allclose(found, [1 / 5, 1 - 1 / 5 - 1 / 10 - 1 / 4, 1 / 10, 1 / 4], rtol=1e-15)
    np.testing.assert_array_equal(inverse_gap_weights(np.array([0.3, 0.2]), 0.0), [0.5, 0.5])
    masked = inverse_gap_weights(np.array([0.3, 0.0, 0.5]), 10.0, np.array([True, False, True]))
    np.testing.assert_allclose(masked, [1 - 1 / 4, 0.0, 1 / 4])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1e6))
def test_inverse_gap_weights_are_probabilities_that_fall_with_the_loss(losses, gamma):
    array = np.array(losses)
    for weights in (inverse_gap_weights(array, gamma), _weights(gamma * (array - array.min()))):
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        order = np.argsort(array, kind="stable")
        assert (np.diff(weights[order][1:]) <= 1e-15).all()
        assert weights[array.argmin()] >= weights.max() - 1e-15


def test_lolipop_with_one_state_is_inverse_gap_weighting():
    env, losses, tables = bandit(3)
    agent = LOLIPOP(env.layout, losses, NO_DYNAMICS, eta_scale=30.0)
    run = Simulation(env, agent, 31, 0)
    for t in range(31):
        context = run.context(t)
        cover = agent.cover(context)
        np.testing.assert_array_equal(cover.actions, [[0], [1], [2], [3]])
        fit = agent.before[0].fits[0]
        gaps = tables[fit, context, 0] - tables[fit, context, 0].min()
        # Normalised by lambda, where SquareCB and FALCON give the rest to the best: lambda solves sum 1/(lambda + gap) = 1.
        inverse = 1.0 / cover.probabilities
        np.testing.assert_allclose(inverse - inverse.min(), agent.eta * gaps, atol=1e-9)
        assert 0 < inverse.min() <= 4 + 1e-12
        if t == 0:
            np.testing.assert_allclose(cover.probabilities, 0.25)
        run.step()
    # Epochs of 1, 2, 4, 8 and 16 rounds, each with one fit of losses and one of dynamics.
    assert (agent.epoch, agent.oracle_calls) == (6, 10)


def test_squarecb_weights_the_newest_fit():
    env, losses, tables = bandit(4)
    agent = SquareCB(env.layout, losses, schedule=(10.0, 0.5))
    run = Simulation(env, agent, 50, 0)
    for t in range(50):
        context = run.context(t)
        expected = inverse_gap_weights(tables[losses_fit(agent), context, 0], 10.0 * math.sqrt(t + 1))
        np.testing.assert_array_equal(agent.policy(context)[0], expected)
        run.step()
    theory = SquareCB(env.layout, losses, episodes=1000, delta=0.1, eta_scale=2.0)
    assert theory.gamma == pytest.approx(2 * math.sqrt(4 * 1000 / (2 * math.log(6) + math.log(20))))


def losses_fit(agent):
    return int(agent.loss_oracle.scores.argmin())


def test_falcon_fits_at_the_ends_of_epochs():
    env, losses, tables = bandit(5)
    agent = FALCON(env.layout, losses, delta=0.1, eta_scale=3.0)
    run = Simulation(env, agent, 40, 0)
    fit, seen = 0, set()
    for t in range(40):
        context = run.context(t)
        if t in (2, 4, 8, 16, 32):
            fit = losses_fit(agent)
            seen.add(fit)
        n = max(2**k for k in range(6) if 2**k <= max(t, 1))
        gamma = 0.0 if t < 2 else 0.1 * math.sqrt(4 * n / math.log(6 * n / 0.1))
        assert agent.gamma == pytest.approx(gamma)
        np.testing.assert_allclose(agent.policy(context)[0], inverse_gap_weights(tables[fit, context, 0], gamma), rtol=1e-12)
        run.step()
    assert len(seen) > 1


def test_regcb_plays_the_least_bound_of_what_the_data_leave():
    env, losses, tables = bandit(6)
    agent = RegCB(env.layout, losses, delta=0.1, bonus_scale=0.4)
    assert agent.allowed_excess == pytest.approx(0.2 * math.log(6 / 0.1))
    run = Simulation(env, agent, 80, 0)
    sizes = set()
    for t in range(80):
        context = run.context(t)
        scores = agent.loss_oracle.scores
        left = [i for i in range(6) if scores[i] <= scores.min() + agent.allowed_excess]
        sizes.add(len(left))
        bounds = np.min([tables[i, context, 0] for i in left], axis=0)
        np.testing.assert_array_equal(agent.lower_bound(context), bounds)
        assert agent.policy(context)[0].argmax() == bounds.argmin()
        assert agent.value(context) == bounds.min()
        run.step()
    assert len(sizes) > 2


def test_regcb_is_optimistic_with_the_radius_of_its_theory():
    # At delta = 0.05 a run may miss the optimum with probability 0.05: more than 7 of 40 has probability 0.0004.
    missed = 0
    for seed in range(40):
        env, losses, tables = bandit(seed)
        agent = RegCB(env.layout, losses)
        run = Simulation(env, agent, 60, seed)
        above = []
        for t in range(60):
            context = run.context(t)
            above.append(agent.value(context) > tables[-1, context].min() + 1e-12)
            run.step()
        missed += any(above)
    assert missed <= 7


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("disjoint", [False, True])
def test_lower_bounds_of_linear_classes_are_those_of_the_ellipsoid(disjoint, ridge):
    rng = np.random.default_rng(0)
    features = {c: rng.uniform(0, 0.4, size=(3,) if disjoint else (1, 4, 3)) for c in range(5)}
    kind = DisjointLinearLossClass if disjoint else LinearLossClass
    oracle = kind(features.__getitem__, 3, ridge=ridge).oracle(LAYOUT)
    data = [(c, a, float(rng.random())) for c, a in zip(rng.integers(5, size=60).tolist(), rng.integers(4, size=60).tolist(), strict=True)]
    for c, a, loss in data:
        oracle.observe(of.Trajectory(c, np.array([0, 1]), np.array([a]), np.array([loss])))
    oracle.fit()
    radius = 0.05
    found = oracle.lower_bound(2, radius)[0]
    for action in range(4):
        mine = [(c, a, y) for c, a, y in data if a == action or not disjoint]
        rows = np.array([features[c] if disjoint else features[c][0, a] for c, a, _ in mine])
        gram = rows.T @ rows + ridge * np.eye(3)
        theta = np.linalg.solve(gram, rows.T @ np.array([y for *_, y in mine]))
        phi = features[2] if disjoint else features[2][0, action]
        # The least of <phi, theta'> over (theta' - theta)' G (theta' - theta) <= radius, by Lagrange.
        expected = phi @ theta - math.sqrt(radius * phi @ np.linalg.solve(gram, phi))
        assert found[action] == pytest.approx(min(1.0, max(0.0, expected)), abs=1e-9)
    assert found.min() > 0
    np.testing.assert_allclose(oracle.lower_bound(2, 0.0), oracle.losses(oracle.fit(), 2), atol=1e-9)


def test_directions_without_data_are_left_open():
    features = {c: np.eye(2)[None, [c, c, c, c]] for c in range(2)}
    oracle = LinearLossClass(features.__getitem__, 2).oracle(LAYOUT)
    np.testing.assert_array_equal(oracle.lower_bound(0, 1.0), np.zeros((1, 4)))
    for _ in range(50):
        oracle.observe(of.Trajectory(0, np.array([0, 1]), np.array([0]), np.array([0.75])))
    np.testing.assert_allclose(oracle.lower_bound(0, 0.5), 0.75 - math.sqrt(0.5 / 50))
    np.testing.assert_array_equal(oracle.lower_bound(1, 0.5), np.zeros((1, 4)))


def linear_bandit(n_contexts=6, noise_seed=0):
    """Losses <phi(c, a), theta> with a gap of at least 0.1 in every context."""
    rng = np.random.default_rng(noise_seed)
    theta, tables = rng.uniform(0.1, 0.6, size=3), []
    while len(tables) < n_contexts:
        phi = rng.dirichlet(np.ones(3), size=4)
        first, second = np.sort(phi @ theta)[:2]
        if second - first > 0.1:
            tables.append(phi[None])
    env = of.FiniteContexts([of.LayeredMDP(LAYOUT, phi @ theta, []) for phi in tables])
    return env, LinearLossClass(lambda c: tables[c], 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (POCMAB, {"bonus_scale": 1e-8, "eta_scale": 50.0}),
        (UCCB, {"bonus_scale": 1e-3}),
        (SquareCB, {"eta_scale": 20.0}),
        (FALCON, {"eta_scale": 300.0}),
        (RegCB, {"bonus_scale": 0.1}),
    ],
)
def test_the_best_arm_of_a_linear_bandit_is_reached(kind, options):
    env, losses = linear_bandit()
    if kind in (POCMAB, UCCB, SquareCB):
        options = {**options, "episodes": 3000}
    agent = kind(env.layout, losses, **options)
    result = of.simulate(env, agent, 3000, seed=0)
    for context in range(6):
        assert agent.policy(context)[0].argmax() == env.mdp(context).losses[0].argmin()
    assert result.gap_closed(slice(-300, None)) > 0.85


@pytest.mark.parametrize("kind", [POCMAB, UCCB, SquareCB, FALCON, RegCB])
def test_masked_arms_are_never_played(kind):
    mask = np.array([[True, False, True, True]])
    env, losses, _ = bandit(7, mask=mask)
    options = {"episodes": 60} if kind in (POCMAB, UCCB, SquareCB) else {}
    agent = kind(env.layout, losses, action_mask=mask, **options)
    assert all(policy[1] == 0 and policy.sum() == pytest.approx(1.0) for _, policy in play(env, agent, 60))


@pytest.mark.parametrize("kind", [POCMAB, UCCB, SquareCB, FALCON, RegCB])
def test_more_than_one_state_is_refused(kind):
    _, losses, _ = bandit()
    options = {"episodes": 10} if kind in (POCMAB, UCCB, SquareCB) else {}
    with pytest.raises(of.OpoError, match=r"Layout\(\[1\], n_actions\), that of a bandit"):
        kind(of.Layout([1, 2], 4), losses, **options)


def test_what_is_missing_is_named():
    _, losses, _ = bandit()
    for kind in (UCCB, SquareCB):
        with pytest.raises(of.OpoError, match="episodes is missing"):
            kind(LAYOUT, losses)

    class Plain:
        size = 2.0

        def observe(self, trajectory): ...

        def fit(self):
            return 0

        def losses(self, fit, context):
            return np.zeros((1, 4))

    with pytest.raises(of.OpoError, match="lower_bound"):
        RegCB(LAYOUT, Plain())


@pytest.mark.parametrize("name", ["po-cmab", "uccb", "squarecb", "falcon", "regcb"])
def test_the_best_treatment_of_actg175_is_reached(name):
    pytest.importorskip("lifelines")
    env = envs.make("trial", by=None)
    # The event rates of the four randomised arms of ACTG175.
    np.testing.assert_allclose(env.mdp(0).losses, [[0.340226, 0.197318, 0.208015, 0.228164]], atol=5e-7)
    # Arms 1 and 2 differ by 0.011: a large learning rate would settle on one before the fits have settled.
    agent = agents.make(name, env, episodes=2000, eta_scale=50.0 if name == "po-cmab" else None)
    result = of.simulate(env, agent, 2000, seed=0)
    assert agent.policy(0)[0].argmax() == 1
    assert result.gap_closed(slice(-200, None)) > 0.7
