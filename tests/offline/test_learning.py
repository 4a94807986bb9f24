"""Policies learned from logs: plans, pessimism, Algorithm 1 on a log, and held-out errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from offline_worlds import WORLDS, finite_classes, world

import opo_fast as of
from opo_fast.offline import PessimisticPlan, fit_report, learn_from_logs
from opo_fast.oracles import LinearLossClass, TabularDynamicsClass, TabularLossClass, TrajectoryLog

TABLES = TabularLossClass(per_context=True, unseen=1.0), TabularDynamicsClass(per_context=True)


@pytest.mark.parametrize("name", WORLDS)
def test_a_plan_on_classes_with_the_truth_is_the_optimum(name):
    of_world = world(name)
    learned = learn_from_logs(of_world.layout, *finite_classes(of_world), of_world.draw(300, 0))
    for context, mdp in enumerate(of_world.mdps):
        best = of.solve(mdp)
        assert np.array_equal(learned.policy(context), best.policy)
        assert learned.value(context) == best.v[0]
        assert np.array_equal(learned.model(context).losses, mdp.losses)


@pytest.mark.parametrize("kind", ["finite", "tables"])
@pytest.mark.parametrize("name", WORLDS)
def test_a_pessimistic_value_bounds_the_exact_one(name, kind):
    # At delta = 0.05, 30 logs: more than 6 failures have probability below 1e-3.
    of_world = world(name)
    classes = finite_classes(of_world) if kind == "finite" else TABLES
    failures = 0
    for seed in range(30):
        learned = learn_from_logs(of_world.layout, *classes, of_world.draw(40, seed), "pessimistic")
        bounds = [(learned.value(c), of.evaluate(mdp, learned.policy(c)).v[0], of.solve(mdp).v[0]) for c, mdp in enumerate(of_world.mdps)]
        failures += any(bound < exact - 1e-12 for bound, exact, _ in bounds)
        assert all(bound <= of_world.layout.horizon and exact >= best - 1e-12 for bound, exact, best in bounds)
    assert failures <= 6


def test_pessimism_by_hand():
    # One state, two actions, two candidates that the log cannot tell apart: action 0 costs 0.4 in both, action 1 costs 0.1 or 0.9.
    layout = of.Layout([1], 2)
    F = of.FiniteLossClass([lambda c: np.array([[0.4, 0.1]]), lambda c: np.array([[0.4, 0.9]])])
    P = of.FiniteDynamicsClass([lambda c: []])
    log = TrajectoryLog(layout, [0, 0], [[0], [0]], [[0], [0]], [[0.0], [1.0]])
    plan, careful = (learn_from_logs(layout, F, P, log, method) for method in ("plan", "pessimistic"))
    assert (plan.policy(0).tolist(), plan.value(0)) == ([[0.0, 1.0]], 0.1)
    assert (careful.policy(0).tolist(), careful.value(0)) == ([[1.0, 0.0]], 0.4)
    # After 50 losses of 0 for action 1, which exclude the candidate with 0.9, both plan it.
    more = TrajectoryLog(layout, [0] * 50, [[0]] * 50, [[1]] * 50, [[0.0]] * 50)
    assert learn_from_logs(layout, F, P, more, "pessimistic").policy(0).tolist() == [[0.0, 1.0]]


def test_the_worst_of_the_plausible_dynamics_by_hand():
    # Action 0 leads to the good state (loss 0) under both candidates, action 1 under one of them and to the bad state under the other.
    layout = of.Layout([1, 2], 2)
    F = of.FiniteLossClass([lambda c: np.array([[0.2, 0.0], [0.0, 0.0], [1.0, 1.0]])])
    good, bad = [1.0, 0.0], [0.0, 1.0]
    P = of.FiniteDynamicsClass([lambda c, to=to: [np.array([[good, to]])] for to in (good, bad)])
    log = TrajectoryLog(layout, [0], [[0, 1]], [[0, 0]], [[0.0, 0.0]])
    plan, careful = (learn_from_logs(layout, F, P, log, method) for method in ("plan", "pessimistic"))
    assert (plan.policy(0)[0].tolist(), plan.value(0)) == ([0.0, 1.0], 0.0)
    assert (careful.policy(0)[0].tolist(), careful.value(0)) == ([1.0, 0.0], 0.2)
    assert careful.agent.plan(0).q[0].tolist() == [0.2, 1.0]


def test_classes_without_plausible_sets_are_bounded_by_counts():
    class Means:
        """The mean loss of each pair, 0.5 without data; no plausible set."""

        def __init__(self):
            self.sums, self.counts = np.zeros((1, 2)), np.zeros((1, 2))

        def observe(self, trajectory):
            self.sums[0, trajectory.actions[0]] += trajectory.losses[0]
            self.counts[0, trajectory.actions[0]] += 1

        def fit(self):
            return tuple(np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), 0.5).ravel())

        def losses(self, fit, context):
            return np.reshape(fit, (1, 2))

    layout = of.Layout([1], 2)
    log = TrajectoryLog(layout, [0] * 101, [[0]] * 101, [[0]] * 100 + [[1]], [[0.25]] * 100 + [[0.0]])
    learned = learn_from_logs(layout, Means(), of.FiniteDynamicsClass([lambda c: []]), log, "pessimistic", penalty=0.5)
    assert learned.policy(0).tolist() == [[1.0, 0.0]]
    assert learned.value(0) == pytest.approx(0.25 + 0.5 * math.sqrt(math.log(4 * 2 / 0.05) / (2 * 100)))


def test_parametric_classes_are_bounded_by_their_sets():
    rng = np.random.default_rng(0)
    of_world = world("random")
    layout, features = of_world.layout, rng.random((2, 7, 2, 3))
    F = LinearLossClass(lambda c: features[c] / 3, dimension=3)
    log = of_world.draw(500, 0)
    careful, plan = (learn_from_logs(layout, F, TABLES[1], log, method) for method in ("pessimistic", "plan"))
    for context in range(2):
        assert careful.value(context) > plan.value(context)


def test_algorithm_1_on_a_log_is_the_agent_that_observed_it():
    of_world = world("random")
    classes, log = finite_classes(of_world), of_world.draw(60, 0)
    options = {"episodes": 60, "bonus_scale": 1e-5, "eta_scale": 20}
    learned = learn_from_logs(of_world.layout, *classes, log, "opo", **options)
    agent = of.OPO(of_world.layout, *classes, **options)
    for trajectory in log:
        agent.observe(trajectory)
    assert np.array_equal(learned.policy(1), agent.policy(1))
    assert not np.array_equal(learned.policy(1), of_world.mdps[1].uniform_policy())


def test_only_logged_actions_where_that_is_asked_for():
    of_world = world("masked")
    log = of_world.draw(60, 0)
    learned = learn_from_logs(of_world.layout, *TABLES, log, action_mask=log.logged)
    assert (log.visits[log.visits.sum(axis=1) > 0] == 0).any()
    for context in range(3):
        policy = learned.policy(context)
        assert (policy[~log.logged] == 0).all()
    # The mask of the log is the default.
    assert np.array_equal(learn_from_logs(of_world.layout, *TABLES, log).agent.action_mask, of_world.mdps[0].action_mask)


def test_what_was_learned_is_saved_and_loaded(tmp_path):
    of_world = world("masked")
    log, mask = of_world.draw(60, 0), of_world.mdps[0].action_mask
    learned = learn_from_logs(of_world.layout, *TABLES, log, "pessimistic")
    learned.agent.save(tmp_path / "policy.npz")
    again = PessimisticPlan(of_world.layout, *TABLES, action_mask=mask).load(tmp_path / "policy.npz")
    for context in range(3):
        assert np.array_equal(again.policy(context), learned.policy(context))
        assert again.value(context) == learned.value(context)


def test_refusals():
    of_world = world("random")
    log = of_world.draw(5, 0)
    with pytest.raises(of.OpoError, match="method is 'best': 'plan', 'pessimistic' or 'opo' is needed"):
        learn_from_logs(of_world.layout, *TABLES, log, "best")
    learned = learn_from_logs(of_world.layout, *TABLES, log, "pessimistic")
    with pytest.raises(of.OpoError, match="only learns from a log"):
        learned.agent.observe(log[0])
    with pytest.raises(of.OpoError, match="folds is 6: a whole number from 2 to 5"):
        fit_report(log, TABLES[0], folds=6)


def test_held_out_fits_by_hand():
    # Two folds of two episodes. The classes: the mean of all (0 or 1 in the other fold), and the constant 0.5.
    layout = of.Layout([1], 1)
    log = TrajectoryLog(layout, [0] * 4, [[0]] * 4, [[0]] * 4, [[0.0], [0.0], [0.0], [0.0]])
    half = of.FiniteLossClass([lambda c: np.array([[0.5]])])
    line, constant = fit_report(log, {"table": TabularLossClass(), "half": half}, folds=2)
    assert (line.kind, line.name, line.error, line.constant) == ("losses", "table", 0.0, 0.0)
    assert (constant.name, constant.error, constant.standard_error) == ("half", 0.25, 0.0)


def test_the_truth_fits_held_out_episodes_best():
    of_world = world("random")
    F, P = finite_classes(of_world)
    losses, dynamics = fit_report(of_world.draw(400, 0), {"finite": F}, {"finite": P})
    log = of_world.draw(400, 0)
    means = np.stack([mdp.losses for mdp in of_world.mdps])[np.array(log.contexts)[:, None], log.states[:, :-1], log.actions]
    assert losses.error == pytest.approx(np.square(log.losses - means).mean(), rel=1e-12)
    along = [np.log(of_world.mdps[t.context].transitions.along(t.states, t.actions)).sum() for t in log]
    assert dynamics.error == pytest.approx(-np.mean(along) / 2, rel=1e-12)
    assert losses.error < losses.constant - 3 * losses.standard_error
    assert "squared error" in str(losses)
    assert "log loss" in str(dynamics)
