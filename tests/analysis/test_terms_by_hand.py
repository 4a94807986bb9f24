"""The terms of the regret, against numbers computed by hand and the identities of the proof."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from theory_cases import (
    HAND,
    HAND_FIT,
    HAND_GIVEN,
    World,
    hand_run,
)

import opo_fast as of
from opo_fast.analysis import history_at, optimistic_steps, regret_decomposition
from opo_fast.runs.simulation import Simulation


def test_the_first_two_steps_by_hand():
    first, second = optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN)
    np.testing.assert_allclose(first.bonus, 0.3, rtol=1e-14)
    np.testing.assert_allclose(first.q, [[0.4, 0.4], [0.6, 0.0], [0.0, 0.2]], atol=1e-15)
    np.testing.assert_allclose(first.v, [0.4, 0.3, 0.1], rtol=1e-14)
    np.testing.assert_allclose(first.truncation, [[0, 0], [0, 0], [0.1, 0]], atol=1e-15)
    np.testing.assert_allclose(second.policy, [[1 / 2, 1 / 2], [1 / 28, 27 / 28], [3 / 4, 1 / 4]], rtol=1e-13)
    np.testing.assert_allclose(second.visits, [[0.5, 0.5], [0.375, 0.375], [0.125, 0.125]], rtol=1e-14)
    np.testing.assert_allclose(second.bonus, [[0.2, 0.2], [12 / 55, 12 / 55], [4 / 15, 4 / 15]], rtol=1e-14)
    np.testing.assert_allclose(second.q[1:], [[15 / 22, 9 / 110], [0, 7 / 30]], rtol=1e-13)
    np.testing.assert_allclose(second.v[1:], [159 / 1540, 7 / 120], rtol=1e-13)
    np.testing.assert_allclose(second.ahead[0], [159 / 3080 + 7 / 240, 159 / 1540], rtol=1e-13)
    np.testing.assert_allclose(second.truncation, [[0, 0], [0, 0], [1 / 15, 0]], atol=1e-15)


def test_the_terms_of_two_episodes_by_hand():
    terms = regret_decomposition(*hand_run(2))
    # Episode 1: V = 1.00625 of the uniform policy, 0.775 of the best one (first action, then second and first), V^1 = 0.4.
    first = {"regret": 0.23125, "term_i": 0.60625, "term_ii": -0.375, "term_iii": 0.15, "term_iv": -0.525}
    assert {name: getattr(terms, name)[0] for name in first} == pytest.approx(first, rel=1e-13)
    played, optimal = ([float(part[0]) for part in errors] for errors in (terms.played, terms.optimal))
    assert played == pytest.approx([0.05, -0.025, 0.6, 0.01875], rel=1e-12)
    # Along the best policy: 0.1 + 0.25 (0.1) + 0.75 (-0.1), (0.15 - 0.2), twice 0.3, 0.75 (0.1).
    assert optimal == pytest.approx([0.05, -0.05, 0.6, 0.075], rel=1e-12)
    v1, v2 = 159 / 1540, 7 / 120
    q0 = np.array([0.3 + v1 / 2 + v2 / 2, 0.2 + v1])
    value = (0.6 + 0.25 * 29 / 70 + 0.75 * 0.225 + 0.4 + 29 / 70) / 2
    second = {
        "regret": value - 0.775,
        "term_i": value - q0.mean(),
        "term_ii": q0.mean() - 0.775,
        "term_iii": (q0[1] - q0[0]) / 2 + 0.25 * (v1 - 9 / 110) + 0.75 * v2,
        "term_iv": q0[0] - 0.6 - 0.25 * v1 - 0.75 * v2 + 0.25 * (9 / 110 - 0.4) + 0.75 * (0 - 0.1),
    }
    assert {name: getattr(terms, name)[1] for name in second} == pytest.approx(second, rel=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_terms_sum_to_the_regret_of_every_episode(masked, sparse):
    world = World(3, masked=masked, sparse=sparse)
    agent = world.agent()
    run = of.simulate(world.env, agent, 60, seed=1)
    assert len(run.contexts) == 2
    assert len(set(zip(run.loss_fit, run.dynamics_fit, strict=True))) > 1
    terms = regret_decomposition(world.env, agent, run)
    np.testing.assert_allclose(terms.regret, run.regret, atol=1e-10)
    np.testing.assert_allclose(terms.term_i + terms.term_iii + terms.term_iv, run.regret, atol=1e-10)
    np.testing.assert_allclose(terms.term_iii + terms.term_iv, terms.term_ii, atol=1e-10)
    np.testing.assert_allclose(terms.played.total, terms.term_i, atol=1e-10)
    np.testing.assert_allclose(terms.optimal.total, -terms.term_iv, atol=1e-10)
    assert min(np.abs(column).max() for column in (*terms[:5], *terms.played, *terms.optimal)) > 1e-3


def test_the_optimistic_value_is_that_of_the_agent():
    # V^t = V^{pi^t} - term (i) is the value in the agent's chain after episode t.
    world = World(4)
    agent, values, optimistic, contexts = world.agent(), [], [], []
    run = Simulation(world.env, agent, 40)
    for t in range(40):
        contexts.append(run.context(t))
        run.step()
        optimistic.append(agent.value(contexts[-1]))
        values.append(run.columns["value"][t])
    terms = regret_decomposition(world.env, agent, contexts)
    np.testing.assert_allclose(np.array(values) - terms.term_i, optimistic, atol=1e-12)
    for whole, part in zip(terms[:5], regret_decomposition(world.env, agent, contexts[:25])[:5], strict=True):
        np.testing.assert_array_equal(whole[:25], part)


def test_parts_of_a_bandit():
    # One state: under pi* term (iv) is f^t(a*) - l(a*) - b, or -l(a*) if max{0, .} truncates.
    layout, true, fitted = of.Layout([1], 2), np.array([[0.3, 0.8]]), np.array([[0.5, 0.6]])
    env = of.FiniteContexts([of.LayeredMDP(layout, true, [])])
    classes = of.FiniteLossClass([lambda c: fitted]), of.FiniteDynamicsClass([lambda c: []])
    agent = of.OPO(layout, *classes, eta=0.5, beta_loss=0.4, beta_dynamics=0.1)
    terms = regret_decomposition(env, agent, of.simulate(env, agent, 30))
    p = 1 - terms.regret / 0.5  # of the better action
    np.testing.assert_allclose(terms.played.loss, -0.2 * p + 0.2 * (1 - p), atol=1e-14)
    np.testing.assert_array_equal(terms.played.dynamics, 0)
    visits = np.concatenate([[0], np.cumsum(p)[:-1]])
    np.testing.assert_allclose(terms.optimal.bonus, (0.2 + 2 * 0.05) / (1 + visits), rtol=1e-12)
    np.testing.assert_allclose(terms.term_iv, np.maximum(0.5 - terms.optimal.bonus, 0) - 0.3, atol=1e-14)


def test_runs_and_agents_that_are_refused():
    env, agent, run = hand_run(4)
    for bad, text in [
        (lambda: regret_decomposition(env, agent, of.simulate(env, hand_run(1)[1], 5)), "run ends at episode 6, but .* only observed 4"),
        (lambda: regret_decomposition(env, World(1).agent(), [0]), "run ends at episode 1, but .* only observed 0"),
        (lambda: regret_decomposition(env, "opo", run), "agent is a str, whose terms are undefined: opo, e-uc3rl"),
        (lambda: regret_decomposition(3, agent, run), "cmdp is a int without mdp"),
        (lambda: regret_decomposition(env, agent, 3), "run is a int"),
        (lambda: regret_decomposition(env, agent, []), "run: at least one is needed"),
        (lambda: history_at(agent, 0, 6), "episodes is 6: a whole number from 1 to 5"),
        (lambda: optimistic_steps([HAND_FIT, 3], **HAND_GIVEN), r"history\[1\] is a int"),
        (lambda: optimistic_steps([HAND_FIT], **{**HAND_GIVEN, "eta": -1}), "eta is -1"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()
    oracles = copy.deepcopy(agent.loss_oracle), copy.deepcopy(agent.dynamics_oracle)
    other = of.OPO(HAND, *oracles, eta=0.1, beta_loss=0.2, beta_dynamics=0.1)
    of.simulate(env, other, 4)
    with pytest.raises(of.OpoError, match=r"the regret of episode 2 is .* the agent that played the run"):
        regret_decomposition(env, other, run)
    run.contexts = []
    with pytest.raises(of.OpoError, match="run kept no contexts"):
        regret_decomposition(env, agent, run)
