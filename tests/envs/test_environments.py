"""Environments by name, generators, families and bandits: known values, realizability, learning, refusals."""

import importlib.machinery
import importlib.util
import pickle
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast import agents, envs

EXTRA = {"icu": "icu_sepsis", "gym": "gymnasium", "sklearn": "sklearn", "trial": "lifelines"}
PRACTICAL = {"bonus_scale": 2e-6, "eta_scale": 50}


def build(name, **options):
    extra = envs.info(name).extra
    if extra and importlib.util.find_spec(EXTRA[extra]) is None:
        pytest.skip(f"needs the extra {extra}")
    return envs.make(name, **options)


def learn(e, episodes, seed=0, **setting):
    agent = of.OPO(e.layout, e.loss_class, e.dynamics_class, episodes=episodes, action_mask=e.action_mask, **{**PRACTICAL, **setting})
    return of.simulate(e, agent, episodes=episodes, seed=seed)


def gap_closed(result, share=10):
    tail = slice(result.episodes - result.episodes // share, result.episodes)
    return (result.uniform_value - result.value)[tail].sum() / (result.uniform_value - result.optimal_value)[tail].sum()


# -- every environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", envs.names())
def test_every_environment_keeps_the_protocol(name):
    e = build(name)
    assert isinstance(e, of.ContextualMDP)
    assert len(e.mdps) == len(e.contexts) == len(e.labels) == len(e.probabilities)
    assert e.probabilities.sum() == pytest.approx(1, abs=1e-12)
    rng = np.random.default_rng(0)
    c = e.sample_context(rng)
    m = e.mdp(c)
    assert m.layout == e.layout
    assert e.mdp(c).transitions is m.transitions
    assert (e.loss_models[e.true_loss](c) == m.losses).all()
    for model in e.loss_class.models:
        assert model(c).shape == e.layout.shape
    for model in e.dynamics_class.models:
        other = of.LayeredMDP(e.layout, m.losses, model(c), e.action_mask)
        assert 0 <= of.solve(other).v[0] <= e.layout.horizon
    if len(e.loss_models) > 1:
        assert e.true_loss > 0, "the truth may not be what an agent starts with"
    agent = of.OPO(e.layout, e.loss_class, e.dynamics_class, episodes=3, action_mask=e.action_mask, **PRACTICAL)
    assert of.simulate(e, agent, episodes=3, seed=0).episodes == 3


@pytest.mark.parametrize("name", ["combination-lock", "random-linear", "resource-gathering", "inventory"])
def test_environments_can_be_pickled_and_keep_one_dynamics_one(name):
    e = build(name)
    c = e.contexts[0]
    e.mdp(c)
    copy = pickle.loads(pickle.dumps(e))
    assert (copy.mdp(copy.contexts[0]).losses == e.mdp(c).losses).all()
    assert of.solve(copy.mdp(copy.contexts[0])).v[0] == of.solve(e.mdp(c)).v[0]


def test_names_and_lines():
    assert len(set(envs.names())) == len(envs.names())
    for name in envs.names():
        assert envs.info(name).source in envs.about(name)
        assert "horizon" in envs.info(name).options or envs.info(name).sizes.startswith("1 step")
    with pytest.raises(of.OpoError, match="did you mean 'taxi'"):
        envs.make("taxxi")
    with pytest.raises(of.OpoError, match="has no option 'size'"):
        envs.make("combination-lock", size=3)
    with pytest.raises(of.OpoError, match="attacks is a int: a sequence of probabilities is needed"):
        envs.make("resource-gathering", horizon=3, attacks=3)


def test_describe_is_plain_data():
    d = envs.describe(envs.combination_lock())
    assert (d["layers"], d["n_states"], d["allowed_pairs"], d["n_contexts"], d["storage"]) == ([1, 2, 2, 2, 2, 2], 11, 33, 5, "dense")
    row = d["contexts"][0]
    assert (row["optimum"], row["worst"], row["reachable"]) == (0.5, 1.5, 1.0)
    endless = envs.describe(envs.random_linear(n_contexts=None))
    assert endless["n_contexts"] is None
    assert len(endless["contexts"]) == 5


def test_reachable_share_counts_what_some_policy_reaches(tmp_path):
    P = np.zeros((3, 1, 3))
    P[0, 0, 1] = P[1, 0, 0] = P[2, 0, 2] = 1
    for table in (envs.TabularMDP(P, np.zeros(3)), envs.TabularMDP(P, np.zeros(3)).sparse()):
        d = envs.describe(table.environment(3))
        assert d["contexts"][0]["reachable"] == 3 / 7


def test_files_by_name(tmp_path):
    table = envs.gathering_table()
    table.save(tmp_path / "t.npz")
    e = envs.make(str(tmp_path / "t.npz"), horizon=10)
    assert e.reward_value(of.solve(e.mdp(0)).v[0]) == pytest.approx(0.9, abs=1e-12)
    assert envs.make(str(tmp_path / "t.npz")).steps == 20
    table.layered(10).save(tmp_path / "m.npz")
    m = envs.make(str(tmp_path / "m.npz"))
    assert of.solve(m.mdp(0)).v[0] == pytest.approx(9.1, abs=1e-12)
    with pytest.raises(of.OpoError, match="has its own layers"):
        envs.make(str(tmp_path / "m.npz"), horizon=3)
    (tmp_path / "x.csv").write_text("1")
    with pytest.raises(of.OpoError, match=r"'\.csv'; \.npz or \.tra"):
        envs.make(str(tmp_path / "x.csv"))
    (tmp_path / "x.npz").write_text("1")
    with pytest.raises(of.OpoError, match="is not a model of opo_fast"):
        envs.make(str(tmp_path / "x.npz"))


# -- the combination lock ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_lock_is_opened_with_a_bonus_only(seed):
    e = envs.combination_lock()
    with_bonus, without = learn(e, 1500, seed), learn(e, 1500, seed, bonus_scale=0.0)
    assert with_bonus.cumulative_regret[-1] < 200
    assert without.cumulative_regret[-1] > 700
    assert (without.uniform_value - without.optimal_value).sum() > 700


@pytest.mark.parametrize("name", ["greedy", "uniform"])
def test_greedy_and_uniform_never_open_the_lock(name):
    e = envs.combination_lock()
    result = of.simulate(e, agents.make(name, e, episodes=1500), episodes=1500, seed=0)
    assert result.cumulative_regret[-1] > 700


@given(st.integers(3, 8), st.integers(2, 4), st.integers(1, 4), st.floats(0.05, 0.95), st.integers(0, 100))
def test_values_of_the_lock(horizon, n_actions, n_contexts, cost, seed):
    e = envs.combination_lock(horizon, n_actions, n_contexts, path_cost=cost, seed=seed)
    stay = (1 / n_actions) ** np.arange(1, horizon)
    uniform = 1 - stay[-1] / n_actions + cost / (horizon - 2) * stay[:-1].sum()
    for m in e.mdps:
        assert of.solve(m).v[0] == pytest.approx(cost, abs=1e-12)
        assert of.evaluate(m, m.uniform_policy()).v[0] == pytest.approx(uniform, abs=1e-12)
        never = of.solve(m.with_losses(e.loss_models[0](0)))
        assert never.v[0] == 1.0


# -- random models ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.floats(0, 0.3), st.integers(0, 1000))
def test_the_gap_holds_everywhere(horizon, n_states, n_actions, gap, seed):
    e = envs.random_finite(horizon, n_states, n_actions, 2, n_losses=3, n_dynamics=3, gap=gap, seed=seed)
    for m in e.mdps:
        q = np.sort(of.solve(m).q, axis=1)
        assert n_actions == 1 or (q[:, 1] - q[:, 0]).min() >= gap - 1e-12


@pytest.mark.parametrize("make", [envs.random_finite, envs.random_linear, envs.random_softmax])
def test_sparsity_seeds_and_realizability(make):
    e = make(successors=2, seed=5)
    rows = [row for block in e.mdp(e.contexts[0]).transitions.arrays() for row in block.reshape(-1, block.shape[-1])]
    assert all((row > 0).sum() == 2 for row in rows)
    same, other = make(successors=2, seed=5), make(successors=2, seed=6)
    assert (same.mdp(same.contexts[1]).losses == e.mdp(e.contexts[1]).losses).all()
    assert (other.mdp(other.contexts[1]).losses != e.mdp(e.contexts[1]).losses).any()
    result = learn(e, 200)
    assert result.cumulative_regret[-1] < 0.3 * (result.uniform_value - result.optimal_value).sum()


def test_linear_and_softmax_are_what_they_say():
    e = envs.random_linear(dimension=3, n_contexts=None)
    c = e.sample_context(np.random.default_rng(1))
    truth, dynamics = e.loss_models[e.true_loss], e.dynamics_models[e.true_dynamics]
    assert c.sum() == pytest.approx(1)
    assert e.mdp(c).losses[3, 1] == pytest.approx(sum(c[i] * truth.theta[3, 1, i] for i in range(3)), abs=1e-15)
    P = e.mdp(c).transitions.arrays()[1]
    assert P[2, 1, 0] == pytest.approx(sum(c[i] * dynamics.parts[i][1][2, 1, 0] for i in range(3)), abs=1e-15)
    s = envs.random_softmax(dimension=2, n_contexts=None)
    c = s.sample_context(np.random.default_rng(1))
    w = s.dynamics_models[s.true_dynamics].weights[1][2, 1]
    expected = np.exp(w @ c) / np.exp(w @ c).sum()
    assert np.abs(s.mdp(c).transitions.arrays()[1][2, 1] - expected).max() <= 1e-15


def test_noise_has_the_exact_mean():
    e = envs.random_finite(noise=0.2)
    u = (np.arange(1000) + 0.5) / 1000
    for mean in (0.0, 0.05, 0.5, 0.93, 1.0):
        drawn = e.sample_losses(np.full(1000, mean), u)
        assert drawn.mean() == pytest.approx(mean, abs=1e-12)
        assert 0 <= drawn.min() <= drawn.max() <= 1
        assert np.ptp(drawn) <= 0.4


def test_unknown_contexts_are_refused():
    e = envs.combination_lock()
    for bad in (5, -1, "x", 0.5, [1]):
        with pytest.raises(of.OpoError, match="context"):
            e.mdp(bad)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (envs.combination_lock, {"horizon": 2}, "horizon is 2"),
        (envs.combination_lock, {"path_cost": 1.0}, "path_cost is 1.0"),
        (envs.combination_lock, {"n_actions": 1}, "n_actions is 1"),
        (envs.random_finite, {"successors": 9}, "successors is 9"),
        (envs.random_finite, {"gap": 1.5}, "gap is 1.5"),
        (envs.random_finite, {"seed": -1}, "seed is -1"),
        (envs.combination_lock, {"seed": "x"}, "seed is 'x'"),
        (envs.random_finite, {"noise": 2}, "noise is 2.0"),
        (envs.random_linear, {"dimension": 0}, "dimension is 0"),
        (envs.random_softmax, {"strength": -1}, "strength is -1.0"),
        (envs.resource_gathering, {"attacks": ()}, "at least one"),
        (envs.resource_gathering, {"attacks": (2,)}, "attack is 2.0"),
        (envs.inventory, {"demands": ()}, "at least one is needed"),
        (envs.inventory, {"items": 10}, "too many"),
        (envs.queue_network, {"arrivals": [(0.1, 0.2, 0.3)]}, "has 3 entries"),
        (envs.queue_network, {"service": 1.5}, "service is 1.5"),
        (envs.family, {"tables": [], "horizon": 3}, "at least one is needed"),
    ],
)
def test_bad_options(make, options, words):
    with pytest.raises(of.OpoError, match=words):
        make(**options)


# -- families ---------------------------------------------------------------------------------------------------------


def reward_of(table, horizon):
    return float(table.reward_value(of.solve(table.layered(horizon)).v[0], horizon))


def test_resource_gathering_from_its_definition():
    table = envs.gathering_table()
    assert (table.n_states, int(table.action_mask.sum()), table.P.nnz) == (94, 302, 326)
    for horizon, value in ((10, 0.9), (20, 1.87561), (50, 5.22624883402189), (200, 22.07144159280847)):
        assert reward_of(table, horizon) == pytest.approx(value, abs=1e-9)
    assert of.solve(table.layered(200)).v[0] == pytest.approx(177.92855840719153, abs=1e-9)
    # The published count is taken in the attacked state, one step after the attack, so its 20 steps are 19 here.
    assert reward_of(envs.gathering_table(gold=0, attacked=1), 19) == pytest.approx(0.840472071, abs=1e-9)


def test_resource_gathering_equals_the_published_file(shared):
    z = np.load(shared / "cases" / "resource_gathering.npz")
    group, state = z["row_group"], np.repeat(np.arange(94), np.diff(z["row_group"]))
    Q = np.zeros((302, 94))
    np.add.at(Q, (np.repeat(np.arange(302), np.diff(z["indptr"])), z["indices"]), z["data"])
    for key, ours in (("reward_rew_gold", envs.gathering_table()), ("reward_rew_gem", envs.gathering_table(gold=0, gem=1))):
        table = envs.from_pairs(z[key], Q, state, np.arange(302) - group[state], start=int(z["initial"][0]))
        for horizon in (10, 50):
            assert reward_of(ours, horizon) == pytest.approx(reward_of(table, horizon), abs=1e-12)
    attacks = envs.from_pairs(z["reward_attacks"], Q, state, np.arange(302) - group[state], start=int(z["initial"][0]))
    assert reward_of(attacks, 20) == pytest.approx(0.840472071, abs=1e-9)


def test_a_family_shares_equal_dynamics_and_one_reward_map():
    e = envs.resource_gathering(attacks=(0.1, 0.3), wanted=((1.0, 0.0), (0.0, 2.0)))
    assert e.mdp(0).transitions is e.mdp(1).transitions
    assert e.mdp(0).transitions is not e.mdp(2).transitions
    for c, (attack, gold, gem) in enumerate(((0.1, 1, 0), (0.1, 0, 2), (0.3, 1, 0), (0.3, 0, 2))):
        table = envs.gathering_table(attack, gold, gem, -0.5)
        assert e.reward_value(of.solve(e.mdp(c)).v[0]) == pytest.approx(reward_of(table, 20), abs=1e-9)


def test_families_refuse_tables_that_do_not_fit():
    a, b = envs.gathering_table(), envs.TabularMDP(np.ones((1, 1, 1)), np.zeros(1))
    with pytest.raises(of.OpoError, match=r"tables\[1\] has 1 states"):
        envs.family([a, b], 3)
    free = envs.TabularMDP(np.ones((1, 2, 1)), np.zeros(1))
    masked = envs.TabularMDP(np.ones((1, 2, 1)), np.zeros(1), 0, [[True, False]])
    with pytest.raises(of.OpoError, match="different action masks"):
        envs.family([free, masked], 3)


def test_frozen_lake_is_learned():
    pytest.importorskip("gymnasium")
    result = learn(envs.frozen_lake(), 2000, bonus_scale=2e-8)
    assert gap_closed(result) >= 0.95


def test_taxi_is_learned():
    pytest.importorskip("gymnasium")
    result = learn(envs.taxi(), 400, bonus_scale=2e-8)
    assert gap_closed(result) >= 0.95


def test_taxi_contexts_mix_to_the_known_optimum():
    pytest.importorskip("gymnasium")
    e = envs.taxi()
    values = [float(e.reward_value(of.solve(m).v[0])) for m in e.mdps]
    assert len(values) == 12
    assert e.probabilities @ values == pytest.approx(7.93, abs=1e-9)


def test_taxi_in_the_rain_has_the_known_optimum():
    pytest.importorskip("gymnasium")
    e = envs.taxi(200, rain=(1.0, 0.8))
    values = [float(e.reward_value(of.solve(m).v[0])) for m in e.mdps]
    assert len(values) == 24
    assert e.probabilities[:12] @ values[:12] * 2 == pytest.approx(7.93, abs=1e-9)
    assert e.probabilities[12:] @ values[12:] * 2 == pytest.approx(3.954574516550829, abs=1e-9)


def test_cliff_walking_has_the_known_optima():
    pytest.importorskip("gymnasium")
    found = [float(m) for e in (envs.cliff_walking(20),) for m in (e.reward_value(of.solve(x).v[0]) for x in e.mdps)]
    assert found == pytest.approx([-13, -19.9995630466858], abs=1e-9)


def test_lakes_by_map_and_reward():
    pytest.importorskip("gymnasium")
    e = envs.frozen_lake(6, success_rates=(1 / 3, 0.8), reward_schedules=((1, 0, 0), (2, 0, 0)))
    found = [float(e.reward_value(of.solve(m).v[0])) for m in e.mdps]
    assert found == pytest.approx([3 / 729, 0.8**5, 2 * 3 / 729, 2 * 0.8**5], abs=1e-12)
    maps = envs.frozen_lake(10, success_rates=(1.0,), maps=2, seed=1)
    assert maps.labels == ("success rate 1, map 0", "success rate 1, map 1")


# -- bandits ----------------------------------------------------------------------------------------------------------


def test_arm_rates_of_the_randomised_trial():
    pytest.importorskip("lifelines")
    whole = envs.trial_bandit(None)
    assert whole.mdp(0).losses[0].tolist() == pytest.approx([0.340226, 0.197318, 0.208015, 0.228164], abs=5e-7)
    e = envs.trial_bandit()
    assert e.layout.horizon == 1
    assert e.probabilities.sum() == pytest.approx(1)
    with pytest.raises(of.OpoError, match="'cd496': 797 patients have no value"):
        envs.trial_bandit("cd496")
    with pytest.raises(of.OpoError, match="one of the columns"):
        envs.trial_bandit("height")


def test_a_version_without_the_trial_is_told_from_a_broken_table(monkeypatch, tmp_path):
    """lifelines before 0.30.3 lacks the table; an installer may choose it beside pandas 3."""
    package = importlib.machinery.ModuleSpec("lifelines", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    with pytest.raises(of.OpoError, match=r"this version of lifelines does not contain .*\[trial\]' brings one that does"):
        envs.trial_bandit()
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "ACTG175.csv").write_text("a,b\n1,2\n")
    with pytest.raises(of.OpoError, match="this is not the table ACTG175"):
        envs.trial_bandit()


def test_groups_of_patients_mix_to_the_arm_rates():
    """The mean of the groups' rates, weighted by the patients of a treatment in each group, is the rate of the treatment."""
    pytest.importorskip("lifelines")
    from opo_fast.envs.bandits import _trial

    columns = _trial()
    assert [int((columns["arms"] == a).sum()) for a in range(4)] == [532, 522, 524, 561]
    e = envs.trial_bandit("age", groups=4)
    edges = np.unique(np.quantile(columns["age"], [0.25, 0.5, 0.75]))
    group = np.searchsorted(edges, columns["age"], side="right")
    for a, rate in enumerate((0.340226, 0.197318, 0.208015, 0.228164)):
        mine = group[columns["arms"] == a]
        assert np.mean([e.mdp(int(c)).losses[0, a] for c in mine]) == pytest.approx(rate, abs=5e-7)


@pytest.mark.parametrize(("data", "rows", "actions"), [("iris", 149, 3), ("wine", 178, 3), ("breast_cancer", 569, 2), ("digits", 1797, 10)])
def test_data_sets_as_bandits(data, rows, actions):
    pytest.importorskip("sklearn")
    e = envs.classification_bandit(data, contexts=None)
    assert (len(e.contexts), e.layout.n_actions) == (rows, actions)
    assert all(of.solve(e.mdp(c)).v[0] == 0.1 for c in e.contexts[:5])
    few = envs.classification_bandit(data, contexts=40)
    assert gap_closed(learn(few, 200)) >= 0.99


def test_a_bar_shows_that_a_model_is_being_described(capsys, monkeypatch):
    env = envs.make("random-finite")
    described = [envs.describe(env, progress=progress) for progress in (True, False, None)]
    assert described[0] == described[1] == described[2]
    assert capsys.readouterr().err.count("models and values of random-finite") == 1
    # On a terminal the bar appears by default, after two seconds.
    waits = []

    class AtOnce(threading.Timer):
        def start(self):
            waits.append(self.interval)
            self.interval = 0.0
            super().start()
            super().join()

    monkeypatch.setattr(threading, "Timer", AtOnce)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    envs.describe(env)
    assert waits == [2.0]
    assert "models and values of random-finite" in capsys.readouterr().err
