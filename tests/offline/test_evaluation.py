"""Off-policy estimates: two steps by hand, known equalities, coverage of the intervals, and logs that do not support the policy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from offline_worlds import WORLDS, finite_classes, world
from scipy import stats

import opo_fast as of
from opo_fast.offline import OffPolicyWarning, evaluate_policy, importance
from opo_fast.oracles import TabularDynamicsClass, TabularLossClass, TrajectoryLog

TWO = of.Layout([1, 2], 2)
LOG = {  # two episodes of two steps
    "contexts": [0, 0],
    "states": [[0, 1], [0, 2]],
    "actions": [[0, 1], [1, 0]],
    "losses": [[0.5, 1.0], [0.0, 0.25]],
    "propensities": [[0.5, 0.25], [0.5, 0.5]],
}
POLICY = np.array([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]])
# w of episode 0: 0.75 / 0.5 = 3/2, then 3/2 * 0.5 / 0.25 = 3; of episode 1: 0.25 / 0.5 = 1/2, then 1/2 * 1 / 0.5 = 1.


def quiet(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffPolicyWarning)
        return evaluate_policy(*arguments, **options)


def test_two_steps_by_hand():
    log = TrajectoryLog(TWO, **LOG)
    found = quiet(log, POLICY, estimators=["pdis", "snpdis"], tolerance=1.0, resamples=50)
    assert found["pdis"].value == pytest.approx((1.5 * 0.5 + 3 * 1.0 + 0.5 * 0.0 + 1 * 0.25) / 2)
    assert found["snpdis"].value == pytest.approx((1.5 * 0.5 + 0.5 * 0.0) / 2 + (3 * 1.0 + 1 * 0.25) / 4)
    assert found.effective_sample_size == pytest.approx([2**2 / (1.5**2 + 0.5**2), 4**2 / (3**2 + 1)])
    assert found["pdis"].standard_error == pytest.approx(np.std([3.75, 0.25], ddof=1) / math.sqrt(2))
    assert found.logged_value == pytest.approx((1.5 + 0.25) / 2)
    weights = importance.step_weights(np.array([[0.75, 0.5], [0.25, 1.0]]), log.propensities)
    q, v = np.array([[0.2, 0.4], [0.6, 0.1]]), np.array([[0.3, 0.5], [0.3, 0.7]])
    first = 0.3 + 1.5 * (0.5 - 0.2 + 0.5) + 3 * (1.0 - 0.4)
    second = 0.3 + 0.5 * (0.0 - 0.6 + 0.7) + 1 * (0.25 - 0.1)
    assert importance.doubly_robust(weights, log.losses, q, v) == pytest.approx([first, second])


@pytest.mark.filterwarnings("ignore:the importance weights rest on few episodes")
def test_an_action_that_was_not_logged_by_hand():
    # In state 1 only action 1 is in the log: the policy leaves it with probability 0.75 * 0.5.
    log = TrajectoryLog(TWO, **LOG)
    with pytest.warns(OffPolicyWarning, match=r"does not support this policy: with probability 0\.375 .* from 0\.8125 to 1\.1875"):
        found = evaluate_policy(log, POLICY, resamples=20)
    assert found.left == pytest.approx(0.375)
    low = 0.75 * (0.5 + 0.5 * 1.0) + 0.25 * (0.0 + 0.25)
    assert found.bounds == pytest.approx((low, low + 0.375))
    assert not found.supported
    assert all(math.isnan(found[name].value) and math.isnan(found[name].low) for name in ("dm", "pdis", "snpdis", "dr"))
    assert "not supported by the log" in str(found)
    # Estimates with a function class extrapolate, and say so.
    classes = {"loss_class": TabularLossClass(), "dynamics_class": TabularDynamicsClass()}
    found = quiet(log, POLICY, estimators=["dm", "pdis"], **classes, refits=2)
    assert found["dm"].value == pytest.approx(low)
    assert not found["dm"].supported
    assert "extrapolated by the class" in str(found["dm"])
    assert math.isnan(found["pdis"].value)


def test_few_episodes_carry_the_weight():
    of_world = world("masked")
    with pytest.warns(OffPolicyWarning, match=r"few episodes: the effective sample size is \d+\.\d of 40 at step"):
        evaluate_policy(of_world.draw(40, 0), lambda c: of_world.policy[c], tolerance=1.0, resamples=20)


@pytest.mark.parametrize("name", WORLDS)
def test_the_logged_policy_costs_what_was_logged(name):
    # With frequencies as propensities, and those same frequencies as the policy, every weight is 1.
    of_world = world(name)
    log = of_world.draw(600, 1, propensities=False)
    contexts, layout = np.array(log.contexts), log.layout
    counts = np.zeros((len(of_world.mdps), *layout.shape))
    np.add.at(counts, (contexts[:, None], log.states[:, :-1], log.actions), 1.0)
    totals = counts.sum(axis=2, keepdims=True)
    first = np.eye(layout.n_actions)[0]
    frequencies = np.where(totals > 0, counts / np.maximum(totals, 1), first)
    found = quiet(log, lambda c: frequencies[c], resamples=20)
    assert found.propensities == "estimated"
    for key in ("dm", "pdis", "snpdis"):
        assert found[key].value == pytest.approx(found.logged_value, rel=1e-12)
    assert found.left == 0


@pytest.mark.parametrize("name", WORLDS)
def test_fitted_q_on_tables_is_the_direct_method(name):
    # Duan, Jia and Wang (ICML 2020), Theorem 1.
    of_world = world(name)
    log = of_world.draw(2000, 2)
    found = quiet(log, lambda c: of_world.policy[c], estimators=["dm", "fqe"], resamples=40, refits=0)
    assert found.left == 0
    assert found["fqe"].value == pytest.approx(found["dm"].value, rel=1e-12)
    classes = {"loss_class": TabularLossClass(per_context=True), "dynamics_class": TabularDynamicsClass(per_context=True)}
    again = quiet(log, lambda c: of_world.policy[c], estimators=["dm"], **classes, refits=0)
    assert again["dm"].value == pytest.approx(found["dm"].value, rel=1e-12)


def test_resamples_of_tables_are_tables_of_resamples():
    of_world = world("random")
    log = of_world.draw(300, 5)
    classes = {"loss_class": TabularLossClass(per_context=True), "dynamics_class": TabularDynamicsClass(per_context=True)}
    options = {"estimators": ["dm"], "resamples": 25, "refits": 25}
    tables, refits = (quiet(log, lambda c: of_world.policy[c], **options, **extra) for extra in ({}, classes))
    for attribute in ("value", "standard_error", "low", "high"):
        assert getattr(tables["dm"], attribute) == pytest.approx(getattr(refits["dm"], attribute), rel=1e-9)


def test_resamples_of_finite_classes_are_fits_of_resamples():
    of_world = world("random")
    log = of_world.draw(8, 5)
    F, P = finite_classes(of_world)

    class Opaque:
        def __init__(self, inner):
            self.inner, self.size = inner, inner.size

        def oracle(self, layout, action_mask):
            return self.inner.oracle(layout, action_mask)

    found = [
        quiet(log, lambda c: of_world.policy[c], estimators=["dm"], loss_class=f, dynamics_class=p, refits=30, tolerance=1.0)["dm"]
        for f, p in ((F, P), (Opaque(F), Opaque(P)))
    ]
    assert found[0] == found[1]
    assert found[0].standard_error > 0


@pytest.mark.parametrize("name", WORLDS)
def test_intervals_hold_the_exact_value_as_often_as_they_say(name):
    # bench/interval_coverage.py does this on 500 seeds.
    of_world, seeds = world(name), 40
    held = dict.fromkeys(("dm", "pdis", "snpdis", "dr"), 0)
    for seed in range(seeds):
        log = of_world.draw(1000, seed)
        found = quiet(log, lambda c: of_world.policy[c], resamples=300, seed=seed)
        for key in held:
            held[key] += found[key].low <= of_world.value <= found[key].high
    assert min(held.values()) >= stats.binom.ppf(0.0005, seeds, 0.95), held


def test_classes_with_the_truth_are_sharper():
    of_world = world("masked")
    F, P = finite_classes(of_world)
    found = quiet(of_world.draw(400, 0), lambda c: of_world.policy[c], loss_class=F, dynamics_class=P)
    assert found["dm"].value == pytest.approx(of_world.value, abs=0.02)  # contexts are counted in the log
    assert found["dm"].standard_error < 0.5 * found["pdis"].standard_error


def test_propensities_come_from_the_log_a_policy_or_counts():
    of_world = world("random")
    with_them, without = of_world.draw(400, 0), of_world.draw(400, 0, propensities=False)

    def value(log, **options):
        return quiet(log, lambda c: of_world.policy[c], estimators=["pdis"], resamples=5, **options)

    assert value(with_them).propensities == "logged"
    given = value(without, behavior=lambda c: of_world.behavior[c])
    assert (given.propensities, given["pdis"].value) == ("given", pytest.approx(value(with_them)["pdis"].value, rel=1e-12))
    # (n(s, a) + smoothing) / (n(s) + smoothing A), here in one state: counts 3 and 1.
    log = TrajectoryLog(of.Layout([1], 2), [0] * 4, [[0]] * 4, [[0], [0], [0], [1]], [[1.0], [0.0], [1.0], [1.0]])
    for smoothing, first, second in ((0.0, 3 / 4, 1 / 4), (1.0, 4 / 6, 2 / 6)):
        expected = (0.5 / first * 2 + 0.5 / second * 1) / 4
        assert quiet(log, [[0.5, 0.5]], smoothing=smoothing, resamples=5)["pdis"].value == pytest.approx(expected)


def test_contexts_that_share_a_group_share_their_tables():
    layout = of.Layout([1], 2)
    log = TrajectoryLog(layout, [0, 0, 1, 1], [[0]] * 4, [[0], [0], [1], [1]], [[0.0], [1.0], [1.0], [1.0]])
    apart = quiet(log, [[0.5, 0.5]], groups=lambda c: c, resamples=5)
    together = quiet(log, [[0.5, 0.5]], groups=lambda c: "all", resamples=5)
    assert (apart.left, together.left) == (0.5, 0.0)
    assert together["dm"].value == pytest.approx(0.5 * 0.5 + 0.5 * 1.0)
    assert quiet(log, [[0.5, 0.5]], resamples=5).left == 0.0  # four episodes of two contexts: one group


def test_the_same_seed_the_same_bits():
    of_world = world("masked")
    log = of_world.draw(300, 0)
    first, second = (quiet(log, lambda c: of_world.policy[c], resamples=50, tolerance=1.0) for _ in range(2))
    assert first.estimates == second.estimates
    assert quiet(log, lambda c: of_world.policy[c], resamples=50, tolerance=1.0, seed=1).estimates != first.estimates


def test_what_is_wrong_is_named():
    log = TrajectoryLog(TWO, **LOG, action_mask=[[True, True], [True, True], [True, False]])
    for options, message in (
        ({"policy": np.full((3, 2), 0.5)}, r"policy at context 0: policy: state 2 \(layer 1\), action 1: the action is masked"),
        ({"estimators": ["ips"]}, r"estimators\[0\] is 'ips': 'dm', 'pdis', 'snpdis', 'dr' or 'fqe' is needed"),
        ({"loss_class": TabularLossClass()}, "dynamics_class is missing"),
        (
            {"behavior": np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])},
            "behavior: the logged action of trajectory 1, step 0 has probability 0",
        ),
        ({"folds": 0}, "folds is 0"),
        ({"level": 1.0}, "level is 1"),
    ):
        with pytest.raises(of.OpoError, match=message):
            quiet(log, options.pop("policy", POLICY), **options)
    with pytest.raises(of.OpoError, match="log is a list"):
        evaluate_policy([], POLICY)
