"""E-UC3RL and RM-UCDD against direct implementations of their papers, and the relations between the three chains."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import models, random_mask, random_model, seeded

import opo_fast as of
from opo_fast import reference
from opo_fast.agents import EUC3RL, RMUCDD, euc3rl_parameters, minimum_reachability, rmucdd_parameters
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import ChainRule
from opo_fast.oracles.squared import FiniteSquaredOracle
from opo_fast.runs.simulation import Simulation


def setting(seed=0, sizes=(1, 3, 4), n_actions=3, n_contexts=3, n_candidates=4, form="dense", masked=False):
    """Contexts and classes whose candidates are close to each other, so that the fits move for a while."""
    rng = np.random.default_rng(seed)
    layout = of.Layout(sizes, n_actions)
    mask = random_mask(rng, layout.shape) if masked else None
    common, *own = ([random_model(rng, sizes, n_actions, form, mask=mask) for _ in range(n_contexts)] for _ in range(n_candidates + 1))
    candidates = [[blend(x, y, mask) for x, y in zip(common, each, strict=True)] for each in own]
    env = of.FiniteContexts(candidates[-1])
    losses = of.FiniteLossClass([lambda c, m=m: m[c].losses for m in candidates])
    dynamics = of.FiniteDynamicsClass([lambda c, m=m: m[c].transitions for m in candidates])
    return env, losses, dynamics, mask


def blend(x, y, mask):
    arrays = [0.7 * a + 0.3 * b for a, b in zip(x.transitions.arrays(), y.transitions.arrays(), strict=True)]
    return of.LayeredMDP(x.layout, 0.7 * x.losses + 0.3 * y.losses, arrays, mask)


def play(env, agent, episodes, seed=1):
    """(context, policy) of each episode."""
    run = Simulation(env, agent, episodes, seed)
    played = []
    for t in range(episodes):
        context = run.context(t)
        played.append((context, agent.policy(context)))
        run.step()
    return played


def greedy(losses, arrays, layout, mask=None):
    """The optimum by backward induction with V kept at least 0, from plain arrays; its value too."""
    v = np.zeros(1)
    policy = np.zeros(layout.shape)
    for h in reversed(range(layout.horizon)):
        states = range(layout.offsets[h], layout.offsets[h + 1])
        values = []
        for i, s in enumerate(states):
            ahead = arrays[h][i] @ v if h < layout.horizon - 1 else np.zeros(layout.n_actions)
            q = losses[s] + ahead
            if mask is not None:
                q = np.where(mask[s], q, np.inf)
            best = int(q.argmin())
            policy[s, best] = 1.0
            values.append(max(0.0, q[best]))
        v = np.array(values)
    return policy, v[0]


def by_hand(history, mask, visit, bonus):
    """The replay of both agents: `visit` adds a policy to the counts, `bonus` is subtracted from the losses."""
    layout = history[0].layout
    counts = np.zeros(layout.shape)
    for model in history:
        policy, value = greedy(model.losses - bonus(counts), model.transitions.arrays(), layout, mask)
        counts = counts + visit(model, policy)
    return policy, value


@pytest.mark.parametrize("masked", [False, True])
def test_euc3rl_is_the_replay_of_the_notes(masked):
    env, losses, dynamics, mask = setting(masked=masked)
    agent = EUC3RL(env.layout, losses, dynamics, beta_loss=1.5, beta_dynamics=0.4, action_mask=mask)
    played = play(env, agent, 40)
    horizon = env.layout.horizon

    def bonus(n):
        return np.minimum(1, 0.75 / (1 + n)) + 2 * horizon * np.minimum(1, 0.2 / (1 + n))

    fits = [agent.history[k][:2] for k in range(40)]
    assert len(set(fits)) > 2
    for t in (0, 1, 5, 20, 39):
        context, policy = played[t]
        models = [
            of.LayeredMDP(env.layout, losses.models[i](context), dynamics.models[j](context).arrays(), mask) for i, j in fits[: t + 1]
        ]
        expected, _ = by_hand(models, mask, reference.occupancy, bonus)
        np.testing.assert_array_equal(policy, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_rmucdd_is_the_replay_of_the_notes(masked):
    env, losses, dynamics, mask = setting(seed=1, masked=masked)
    layout, p_min, kappa_loss, kappa_dynamics = env.layout, 0.1, 0.2, 0.05
    agent = RMUCDD(layout, losses, dynamics, p_min=p_min, kappa_loss=kappa_loss, kappa_dynamics=kappa_dynamics, action_mask=mask)
    played = play(env, agent, 40)
    following = np.repeat([3.0, 4.0, 0.0], layout.layer_sizes)[:, None]

    def bonus(n):
        first = np.minimum(1, kappa_loss / (2 * p_min * (1 + n)))
        return first + layout.horizon * np.minimum(2, np.sqrt(following) * kappa_dynamics / (2 * p_min * (1 + n)))

    for t in range(3):
        expected = np.eye(3)[[t] * layout.n_states]
        if mask is not None:
            allowed = [np.flatnonzero(row) for row in mask]
            expected = np.eye(3)[[choices[t % choices.size] for choices in allowed]]
        np.testing.assert_array_equal(played[t][1], expected)
    fits = [agent.history[k][:2] for k in range(37)]
    assert len(set(fits)) > 1
    for t in (3, 4, 10, 39):
        context, policy = played[t]
        models = [of.LayeredMDP(layout, losses.models[i](context), dynamics.models[j](context).arrays(), mask) for i, j in fits[: t - 2]]
        expected, _ = by_hand(models, mask, lambda model, p: p, bonus)
        np.testing.assert_array_equal(policy, expected)


@pytest.mark.parametrize("sizes", [(1, 3, 4), (1, 30, 40)], ids=["packed", "single"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("kind", [EUC3RL, RMUCDD])
def test_kernels_and_reference_agree(kind, form, masked, sizes):
    env, losses, dynamics, mask = setting(seed=2, sizes=sizes, masked=masked, form=form)
    options = {"p_min": 0.2, "kappa_loss": 0.3, "kappa_dynamics": 0.1} if kind is RMUCDD else {"beta_loss": 1.0, "beta_dynamics": 0.5}
    agents = [kind(env.layout, losses, dynamics, action_mask=mask, backend=backend, **options) for backend in ("numba", "numpy")]
    for (_, one), (_, two) in zip(*(play(env, agent, 20) for agent in agents), strict=True):
        np.testing.assert_array_equal(one, two)


class Fixed:
    """A source whose fits are the positions in a list of models."""

    def __init__(self, candidates):
        self.candidates = candidates

    def losses(self, fit, context):
        return self.candidates[fit].row_losses

    def transitions(self, fit, context):
        return self.candidates[fit].transitions


def last_visits(candidates, fits, rule):
    engine = ChainEngine(candidates[0].layout, candidates[0].action_mask, rule, Fixed(candidates), 1 << 26)
    history = History()
    for loss_fit, fit in fits:
        history.append(Fits(loss_fit, fit))
    chain, lane = engine.chain(0, history, len(fits))
    return chain.last[lane :: chain.lanes].copy(), chain.policy(lane).copy(), chain.value(lane)


@pytest.mark.parametrize("sizes", [(1, 3, 4), (1, 30, 40)], ids=["packed", "single"])
@pytest.mark.parametrize("greedy_step", [False, True])
def test_the_bonuses_of_euc3rl_and_opo_coincide_when_all_dynamics_are_equal(sizes, greedy_step):
    rng = np.random.default_rng(3)
    candidates = [random_model(rng, sizes, 3) for _ in range(3)]
    rules = [
        ChainRule(1.2, np.full(len(sizes), 0.6), 2.0 * len(sizes), visits, greedy=greedy_step, eta=0.5)
        for visits in ("latest", "contemporaneous")
    ]
    losses = rng.integers(3, size=25).tolist()
    same = [(i, 1) for i in losses]
    one, two = (last_visits(candidates, same, rule) for rule in rules)
    for x, y in zip(one, two, strict=True):
        np.testing.assert_array_equal(x, y)
    assert one[0].sum() == pytest.approx(24 * len(sizes))
    other = [(i, j) for i, j in zip(losses, rng.integers(3, size=25).tolist(), strict=True)]
    one, two = (last_visits(candidates, other, rule) for rule in rules)
    assert not np.allclose(one[0], two[0])


@pytest.mark.parametrize("kind", [EUC3RL, RMUCDD])
def test_a_replay_equals_an_episode_by_episode_run(kind):
    env, losses, dynamics, _ = setting(seed=4)
    options = {"p_min": 0.2, "kappa_loss": 0.3, "kappa_dynamics": 0.1} if kind is RMUCDD else {"beta_loss": 1.0, "beta_dynamics": 0.5}
    first, second = (kind(env.layout, losses, dynamics, memory=memory, **options) for memory in (1 << 29, 0))
    played = play(env, first, 60)
    for (_, one), (_, two) in zip(played, play(env, second, 60), strict=True):
        np.testing.assert_array_equal(one, two)
    # The chain of a new context is computed from the first step on.
    late = kind(env.layout, losses, dynamics, **options)
    late.restore(first.state())
    for c in range(3):
        np.testing.assert_array_equal(late.policy(c), first.policy(c))
        assert late.value(c) == first.value(c)


def test_value_is_that_of_the_optimistic_optimum():
    env, losses, dynamics, _ = setting(seed=5)
    agent = EUC3RL(env.layout, losses, dynamics, beta_loss=0.2, beta_dynamics=0.05)
    play(env, agent, 25)

    def bonus(n):
        return np.minimum(1, 0.1 / (1 + n)) + 6 * np.minimum(1, 0.025 / (1 + n))

    models = [of.LayeredMDP(env.layout, losses.models[i](1), dynamics.models[j](1)) for i, j in (agent.history[k][:2] for k in range(26))]
    expected_policy, expected = by_hand(models, None, reference.occupancy, bonus)
    np.testing.assert_array_equal(agent.policy(1), expected_policy)
    assert agent.value(1) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < of.solve(models[-1]).v[0]
    past = [by_hand(models[: k + 1], None, reference.occupancy, bonus)[0] for k in range(25)]
    visits = sum(reference.occupancy(model, policy) for model, policy in zip(models, past, strict=False))
    assert agent.saturation(1) == np.mean((1 + visits <= 0.1) & (1 + visits <= 0.025))


def test_saturation_looks_at_each_layers_own_bonus():
    env, losses, dynamics, _ = setting(seed=6)
    agent = RMUCDD(env.layout, losses, dynamics, p_min=0.5, kappa_loss=4.0, kappa_dynamics=8.0)
    play(env, agent, 12)
    counts = np.zeros(env.layout.shape)
    steps = [agent.history[k][:2] for k in range(10)]
    half = np.sqrt([3.0, 4.0, 0.0]) * 4.0
    for k, (i, j) in enumerate(steps):
        saturated = (1 + counts <= 4.0) & (np.where(half > 0, half, 4.0)[np.repeat([0, 1, 2], [1, 3, 4])][:, None] >= 1 + counts)
        n = counts

        def bonus(_, n=n):
            caps = np.repeat(half, [1, 3, 4])[:, None]
            return np.minimum(1, 4.0 / (1 + n)) + 6 * np.minimum(1, caps / (1 + n))

        policy, _ = greedy(losses.models[i](2) - bonus(None), dynamics.models[j](2).arrays(), env.layout)
        if k < 9:
            counts = counts + policy
    assert 0 < saturated.mean() < 1
    assert agent.saturation(2) == pytest.approx(saturated.mean())


def test_parameters_of_euc3rl():
    # T = 1000, H = 4, |S||A| = 30, |F| = 10, |P| = 5, delta = 0.05, d = 5: the formula by hand.
    layout = of.Layout([1, 3, 3, 3], 3)
    beta_loss, beta_dynamics = euc3rl_parameters(layout, 1000, loss_class_size=10, dynamics_class_size=5)
    log_term = math.log(128 * 1000**4 * 4 * 50 / 0.05**2)
    assert beta_loss == pytest.approx(math.sqrt(1000 * 4**6 * 5 * log_term / (30 * math.log(1001))))
    assert beta_dynamics == pytest.approx(beta_loss / math.sqrt(8))
    ten = euc3rl_parameters(layout, 1000, loss_class_size=10, dynamics_class_size=5, eluder=20, bonus_scale=10)
    assert ten[0] == pytest.approx(20 * beta_loss)


def test_parameters_of_rmucdd():
    layout = of.Layout([1, 3, 3, 3], 3)
    kappa_loss, kappa_dynamics = rmucdd_parameters(layout, 1000, p_min=0.1, loss_class_size=10, dynamics_class_size=5)
    per = 0.1 * 1000 / (30 * math.log(1001))
    assert kappa_loss == pytest.approx(math.sqrt(per * 68 * 4 * math.log(2 * 1000**3 * 10 / 0.05)))
    assert kappa_dynamics == pytest.approx(math.sqrt(per * 68 * 4 * math.log(2 * 1000**3 * 5 / 0.05)))


def least_reach(mdp):
    """By enumeration of all deterministic policies."""
    layout = mdp.layout
    allowed = np.ones(layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    choices = [np.flatnonzero(row) for row in allowed]
    least = 1.0
    for actions in itertools.product(*choices):
        policy = np.eye(layout.n_actions)[list(actions)]
        least = min(least, reference.occupancy(mdp, policy).sum(axis=1).min())
    return least


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("masked", [False, True])
def test_minimum_reachability_is_the_least_over_all_policies(form, masked, monkeypatch):
    rng = np.random.default_rng(7)
    for _ in range(3):
        mdp = random_model(rng, (1, 2, 3, 2), 2, form, masked=masked)
        found = minimum_reachability(mdp)
        assert found == pytest.approx(least_reach(mdp), rel=1e-12)
        assert found > 0
        # States are processed in blocks, whose size makes no difference.
        monkeypatch.setattr("opo_fast.agents.rmucdd.BLOCK", 12)
        assert minimum_reachability(mdp) == pytest.approx(found, rel=1e-12)
        monkeypatch.undo()


@given(models(max_horizon=4, max_actions=3), st.data())
def test_no_policy_reaches_a_state_less_often(mdp, data):
    rng = seeded(data.draw)
    allowed = np.ones(mdp.layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    policy = np.where(allowed, rng.exponential(size=allowed.shape), 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    assert minimum_reachability(mdp) <= of.occupancy(mdp, policy).sum(axis=1).min() + 1e-12


def test_minimum_reachability_of_environments():
    env, _, _, _ = setting(seed=8)
    assert minimum_reachability(env) == min(minimum_reachability(mdp) for mdp in env.mdps)
    assert minimum_reachability(env, [1]) == minimum_reachability(env.mdps[1])

    class Endless:
        layout = env.layout
        sample_context = env.sample_context
        mdp = env.mdp

    with pytest.raises(of.OpoError, match="contexts is missing"):
        minimum_reachability(Endless())


def test_a_reachability_of_0_is_warned_about():
    env, losses, dynamics, _ = setting()
    with pytest.warns(UserWarning, match=r"p_min is 0: .* do not hold; 0\.25 is used instead"):
        agent = RMUCDD(env.layout, losses, dynamics, p_min=0.0, episodes=10)
    assert agent.p_min == 0.25
    with pytest.raises(of.OpoError, match=r"p_min is -0\.1"):
        RMUCDD(env.layout, losses, dynamics, p_min=-0.1, episodes=10)


@pytest.mark.parametrize("kind", [EUC3RL, RMUCDD])
def test_missing_parameters_are_named(kind):
    env, losses, dynamics, _ = setting()
    options = {"p_min": 0.2} if kind is RMUCDD else {}
    with pytest.raises(of.OpoError, match="episodes is missing"):
        kind(env.layout, losses, dynamics, **options)
    with pytest.raises(of.OpoError, match="layout is a str"):
        kind("layout", losses, dynamics, episodes=10, **options)


def test_rmucdd_needs_a_least_squares_oracle():
    env, losses, dynamics, _ = setting()

    class LogLossOnly:
        size = 1.0
        oracle = dynamics.oracle

    with pytest.raises(of.OpoError, match="without squared_oracle"):
        RMUCDD(env.layout, losses, LogLossOnly(), p_min=0.2, episodes=10)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("prebuilt", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_squared_oracle_sums_squared_errors(form, prebuilt, masked):
    env, _, dynamics, mask = setting(seed=9, form=form, masked=masked)
    if not prebuilt:
        dynamics = of.FiniteDynamicsClass([lambda c, m=m: m(c).arrays() for m in dynamics.models])
    oracle = dynamics.squared_oracle(env.layout, mask)
    assert isinstance(oracle, FiniteSquaredOracle)
    rng = np.random.default_rng(0)
    expected = np.zeros(4)
    for t in range(20):
        mdp = env.mdp(t % 3)
        trajectory = of.rollout(mdp, mdp.uniform_policy(), rng, context=t % 3)
        oracle.observe(trajectory)
        for i, model in enumerate(dynamics.models):
            arrays = model(t % 3)
            arrays = arrays.arrays() if prebuilt else arrays
            for h in range(2):
                s, a, following = trajectory.states[h], trajectory.actions[h], trajectory.states[h + 1]
                local = s - env.layout.offsets[h]
                full = arrays[h].toarray().reshape(env.layout.layer_sizes[h], 3, -1) if form == "csr" else arrays[h]
                target = np.eye(full.shape[-1])[following - env.layout.offsets[h + 1]]
                expected[i] += ((full[local, a] - target) ** 2).sum()
    np.testing.assert_allclose(oracle.scores, expected, rtol=1e-12)
    assert oracle.fit() == expected.argmin()


def test_impossible_data_do_not_end_a_least_squares_fit():
    layout = of.Layout([1, 2], 1)
    never = of.FiniteDynamicsClass([lambda c: [np.array([[[0.0, 1.0]]])], lambda c: [np.array([[[0.1, 0.9]]])]])
    oracle = never.squared_oracle(layout, None)
    for _ in range(3):
        oracle.observe(of.Trajectory(0, np.array([0, 1, 3]), np.array([0, 0]), np.zeros(2)))
    np.testing.assert_allclose(oracle.scores, [6.0, 3 * (0.81 + 0.81)])
    assert oracle.fit() == 1


def test_opo_without_bonus_on_one_known_model_keeps_the_mirror_descent_bound():
    # OPO paper, term (iii) with exact models: sum of regrets <= sqrt(2 H^4 T log|A|).
    rng = np.random.default_rng(10)
    for sizes, n_actions, episodes in [((1, 3, 3), 3, 300), ((1, 1, 1, 1, 1), 5, 200), ((1,), 8, 500)]:
        mdp = random_model(rng, sizes, n_actions)
        env = of.FiniteContexts([mdp])
        agent = of.OPO(
            mdp.layout,
            of.FiniteLossClass([lambda c, m=mdp: m.losses]),
            of.FiniteDynamicsClass([lambda c, m=mdp: m.transitions]),
            episodes=episodes,
            beta_loss=0.0,
            beta_dynamics=0.0,
        )
        result = of.simulate(env, agent, episodes, seed=0)
        bound = math.sqrt(2 * len(sizes) ** 4 * episodes * math.log(n_actions))
        assert 0 < result.cumulative_regret[-1] <= bound
        uniform = (result.uniform_value - result.optimal_value).sum()
        assert result.cumulative_regret[-1] < uniform
