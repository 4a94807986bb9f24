"""ICU-Sepsis: the published values, and the properties that the environment documents."""

import hashlib
import importlib.util
import pathlib
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import opo_fast as of
from opo_fast import envs
from opo_fast.envs.icu_sepsis import load_icu_data

pytestmark = pytest.mark.skipif(importlib.util.find_spec("icu_sepsis") is None, reason="needs the extra icu")

DEATH, SURVIVAL = 713, 714
KNOWN = {
    5: (0.3553880485, 0.3604824730, 0.4389048374, 0.07126794078669556),
    10: (0.5217658644, 0.5291979622, 0.6363922655, 0.08935652563959245),
    20: (0.6854465445, 0.6919832903, 0.7922164101, 0.10873536120935715),
    50: (0.7754349519, 0.7778090380, 0.8691389033, 0.12346445016972757),
    500: (0.7800709046, 0.7818448903, 0.8751416996, 0.12485830039006768),
}


@pytest.fixture(scope="module")
def data():
    return load_icu_data()


def layered(data, horizon, target, mask, P=None):
    P = data.P if P is None else P
    reached = P[:, [target]].toarray().reshape(716, 25).clip(0, 1)
    losses = 1 - reached if target == SURVIVAL else reached
    return of.LayeredMDP.stationary(P, losses, horizon, data.start, mask)


def test_the_file_is_the_published_one_and_the_package_is_not_imported(data):
    root = pathlib.Path(importlib.util.find_spec("icu_sepsis").submodule_search_locations[0])
    digest = hashlib.sha256((root / "envs/assets/dynamics.npz").read_bytes()).hexdigest()
    assert digest == "36498f924c693c6be7ae18f3ce9e1a8e48d41f80f2cc553b3993b1373c8a9109"
    assert "icu_sepsis" not in sys.modules
    assert data.P.nnz == 1_528_600
    live = data.admissible[:713]
    assert data.admissible.sum() == 2313
    assert data.admissible[713:].all()
    assert (live.sum(axis=1) == 1).sum() == 237
    assert np.flatnonzero(data.start == 0).tolist() == [423, 713, 714, 715]


@pytest.mark.parametrize("horizon", sorted(KNOWN))
def test_known_values(data, horizon):
    uniform, expert, optimum, death = KNOWN[horizon]
    m = layered(data, horizon, SURVIVAL, data.admissible)
    assert horizon - of.solve(m).v[0] == pytest.approx(optimum, abs=1e-9)
    assert horizon - of.evaluate(m, m.uniform_policy()).v[0] == pytest.approx(uniform, abs=1e-9)
    free = layered(data, horizon, SURVIVAL, None)  # the clinicians also gave doses that are not admissible
    assert horizon - of.evaluate(free, free.unroll(data.expert_policy)).v[0] == pytest.approx(expert, abs=1e-9)
    d = layered(data, horizon, DEATH, data.admissible)
    assert of.solve(d).v[0] == pytest.approx(death, abs=1e-12)


def test_mean_lengths_of_an_episode(data):
    """Steps until death or survival, at H = 500, under the uniform, the clinicians' and the best policy."""
    best = layered(data, 500, SURVIVAL, data.admissible)
    live = np.zeros((716, 25))
    live[:713] = 1.0
    m = of.LayeredMDP.stationary(data.P, live, 500, data.start)
    found = [of.evaluate(m, policy).v[0] for policy in (m.uniform_policy(), m.unroll(data.expert_policy), of.solve(best).policy)]
    assert found == pytest.approx([9.4623, 9.2379, 10.9917], abs=5e-5)


def test_without_the_mask_optimum_and_uniform_are_the_same(data):
    m, free = (layered(data, 20, SURVIVAL, mask) for mask in (data.admissible, None))
    assert of.solve(free).v[0] == pytest.approx(of.solve(m).v[0], abs=1e-12)
    assert of.evaluate(free, free.uniform_policy()).v[0] == pytest.approx(of.evaluate(m, m.uniform_policy()).v[0], abs=1e-12)


def test_states_with_one_admissible_action_have_equal_q(data):
    single = np.flatnonzero(data.admissible[:713].sum(axis=1) == 1)
    q = of.solve(layered(data, 10, SURVIVAL, None)).q[1:717][single]
    assert np.abs(q - q[:, :1]).max() <= 1e-13


def test_terminating_at_inadmissible_actions(data):
    P = data.P.tolil()
    for s, a in np.argwhere(~data.admissible):
        P[s * 25 + a] = 0
        P[s * 25 + a, DEATH] = 1
    m = layered(data, 20, DEATH, None, sp.csr_array(P.tocsr()))
    assert of.solve(m).v[0] == pytest.approx(0.1087353612, abs=1e-9)
    assert of.evaluate(m, m.uniform_policy()).v[0] == pytest.approx(0.9916397, abs=1e-7)


def test_severity_groups_of_recipe_a():
    e = envs.icu_sepsis(20, "return")
    assert np.round(e.probabilities, 4).tolist() == [0.1925, 0.2873, 0.3472, 0.1730]
    assert [round(float(e.reward_value(of.solve(m).v[0])), 4) for m in e.mdps] == [0.8268, 0.8066, 0.7824, 0.7495]
    long = envs.icu_sepsis(500, "return", sigmas=())
    uniform = [float(long.reward_value(of.evaluate(m, m.uniform_policy()).v[0])) for m in long.mdps]
    assert [round(v, 4) for v in uniform] == [0.8139, 0.7969, 0.7741, 0.7265]


def test_groups_mix_to_the_whole():
    e = envs.icu_sepsis(10, "return")
    values = [float(e.reward_value(of.solve(m).v[0])) for m in e.mdps]
    assert e.probabilities @ values == pytest.approx(KNOWN[10][2], abs=1e-9)
    e = envs.icu_sepsis(10, "death")
    assert e.probabilities @ [of.solve(m).v[0] for m in e.mdps] == pytest.approx(KNOWN[10][3], abs=1e-9)
    one = envs.icu_sepsis(10, "return", severity=())
    assert one.labels == ("all",)
    assert one.reward_value(of.solve(one.mdp(0)).v[0]) == pytest.approx(KNOWN[10][2], abs=1e-9)


def test_steps_without_survival_add_up_from_survival_within_each_horizon():
    """E[steps without survival within H] = sum over h of (1 - P(survived within h)) for one fixed policy."""
    H = 6
    e, r = envs.icu_sepsis(H, "survival"), envs.icu_sepsis(H, "return")
    policy = e.mdp(2).uniform_policy()
    value = of.evaluate(e.mdp(2), policy).v[0]
    expected = 0.0
    for h in range(1, H + 1):
        m = envs.icu_sepsis(h, "return").mdp(2)
        expected += 1 - (h - of.evaluate(m, m.uniform_policy()).v[0])
    assert value == pytest.approx(expected, abs=1e-12)
    assert r.mdp(2).layout == e.mdp(2).layout


def test_candidates_are_models_of_the_same_layout_and_differ_on_allowed_pairs():
    e = envs.icu_sepsis()
    assert 0 < e.true_loss < len(e.loss_models) - 1
    assert 0 < e.true_dynamics < len(e.dynamics_models) - 1
    assert e.dynamics_models[e.true_dynamics](1) is e.mdp(1).transitions
    truth = e.mdp(0)
    for i, model in enumerate(e.dynamics_models):
        other = truth.with_losses(truth.losses) if i == e.true_dynamics else of.LayeredMDP(e.layout, truth.losses, model(0))
        assert (other.action_mask == e.action_mask).all()
        if i != e.true_dynamics:
            regret = of.evaluate(truth, of.solve(other).policy).v[0] - of.solve(truth).v[0]
            assert regret > 0.01
    for i, model in enumerate(e.loss_models):
        assert i == e.true_loss or np.abs(model(0) - truth.losses)[e.action_mask].max() > 0.1


def test_perturbations_raise_the_least_death_probability_as_published(data):
    """Recipe B of CASES.md: about .115/.128/.150 for sigma .1/.3/.5 at H=20, where the truth has .1087."""
    for sigma, about in ((0.1, 0.115), (0.3, 0.128), (0.5, 0.150)):
        e = envs.icu_sepsis(20, "death", severity=(), sigmas=[sigma] * 4, seed=3)
        found = [
            of.solve(of.LayeredMDP(e.layout, loss(0), model(0))).v[0]
            for model, loss in zip(e.dynamics_models, e.loss_models, strict=True)
            if model.name.startswith("doses missing")
        ]
        assert len(found) == 4
        assert np.mean(found) == pytest.approx(about, abs=0.004)


def test_learns_from_its_trajectories():
    e = envs.icu_sepsis()
    agent = of.OPO(e.layout, e.loss_class, e.dynamics_class, episodes=200, bonus_scale=2e-6, eta_scale=50, action_mask=e.action_mask)
    result = of.simulate(e, agent, episodes=200, seed=0)
    tail = slice(180, 200)
    gap = (result.uniform_value - result.optimal_value)[tail].sum()
    assert (result.uniform_value - result.value)[tail].sum() >= 0.7 * gap


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "mortality"}, "'survival', 'return' or 'death'"),
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": 2.5}, "horizon is 2.5"),
        ({"severity": (7, 5)}, "increasing"),
        ({"severity": (5, 50)}, "no admission has a score in group 2"),
        ({"sigmas": (1.5,)}, "sigma is 1.5"),
        ({"sigmas": (float("nan"),)}, "sigma is nan"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(of.OpoError, match=words):
        envs.icu_sepsis(**options)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(of.OpoError, match=r"\[icu\]"):
        load_icu_data()


def test_wards_are_the_two_options_of_the_package():
    """Recipe C: the same optimum, and the uniform policy's death of .9916397 where inadmissible doses are fatal."""
    e = envs.icu_wards(20, "death", strictness=(0.0, 1.0))
    for m in e.mdps:
        assert of.solve(m).v[0] == pytest.approx(KNOWN[20][3], abs=1e-12)
    assert of.evaluate(e.mdp(1), e.mdp(1).uniform_policy()).v[0] == pytest.approx(0.9916397, abs=1e-7)
    assert e.dynamics_models[e.true_dynamics](1) is e.mdp(1).transitions


@pytest.mark.parametrize(("groups", "death"), [(30, 0.19459), (10, 0.19784)])
def test_aggregated_conditions_of_recipe_d(groups, death):
    e = envs.icu_reduced(20, "death", groups=groups, severity=())
    assert e.layout.layer_sizes == (1,) + (groups + 3,) * 20
    assert of.solve(e.mdp(0)).v[0] == pytest.approx(death, abs=5e-6)


def test_formularies_only_take_doses_away():
    e = envs.icu_formulary(10, "return", wards=3)
    optimum = [float(e.reward_value(of.solve(m).v[0])) for m in e.mdps]
    assert optimum[0] == pytest.approx(KNOWN[10][2], abs=1e-9)
    assert max(optimum[1:]) < optimum[0]


def test_the_table_has_the_published_values():
    table = envs.icu_table("return")
    assert table.reward_value(of.solve(table.layered(10)).v[0], 10) == pytest.approx(KNOWN[10][2], abs=1e-9)
