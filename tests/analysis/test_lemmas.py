"""The lemmas on random instances, against numbers computed by hand, and with one ingredient broken."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import layer_sizes, random_mask, random_model, seeded
from theory_cases import (
    FITTED_BLOCK,
    FITTED_LOSSES,
    HAND,
    HAND_FIT,
    HAND_GIVEN,
    HAND_TRUTH,
    LARGE,
    LOW,
    SMALL,
    TRUE_BLOCK,
    TRUE_LOSSES,
    TRUTH,
    World,
    biased,
    violated,
)

import opo_fast as of
from opo_fast.analysis import history_at, optimistic_steps, oracle_guarantees
from opo_fast.analysis.lemmas import LemmaCheck, lemma_checks, oracle_errors
from opo_fast.analysis.theory import parameters


@st.composite
def instances(draw):
    """A true model, an unrelated history, and parameters."""
    rng, sizes, n_actions = seeded(draw), draw(layer_sizes(max_horizon=4, max_size=5)), draw(st.integers(1, 4))
    mask = random_mask(rng, (sum(sizes), n_actions)) if draw(st.booleans()) else None
    truth, *fits = (
        random_model(rng, sizes, n_actions, draw(st.sampled_from(["dense", "csr"])), mask=mask, density=draw(st.sampled_from([1.0, 0.3])))
        for _ in range(draw(st.integers(2, 4)))
    )
    if draw(st.booleans()):
        fits.append(truth.with_losses(fits[0].losses))
    history = [fits[i] for i in np.sort(rng.integers(len(fits), size=draw(st.integers(1, 25))))]
    scales = st.floats(-2, 4).map(lambda x: 10.0**x)
    return truth, history, {"eta": draw(scales) / 10, "beta_loss": draw(scales), "beta_dynamics": draw(scales)}


@given(instances())
def test_steps_are_those_of_the_reference(drawn):
    _, history, given_ = drawn
    *_, last = optimistic_steps(history, **given_)
    if len(history) > 1:
        np.testing.assert_allclose(last.policy, of.reference.policy_chain(history[:-1], **given_), atol=1e-9)
    visits = sum((of.occupancy(last.model, step.policy) for step in list(optimistic_steps(history, **given_))[:-1]), 0 * last.visits)
    np.testing.assert_allclose(last.visits, visits, atol=1e-12)
    # Q^t is the Q of the step's policy with losses raised by the truncation.
    raised = last.model.losses - last.bonus + last.truncation
    scale = 1 + np.abs(raised).max()
    shifted = of.LayeredMDP(last.model.layout, (raised + scale) / (2 * scale), last.model.transitions)
    expected = 2 * scale * of.evaluate(shifted, last.policy).v[0] - scale * last.model.layout.horizon
    assert last.v[0] == pytest.approx(expected, abs=1e-10 * scale)


@given(instances())
def test_the_lemmas_hold_for_any_fits(drawn):
    truth, history, given_ = drawn
    checks = lemma_checks(truth, optimistic_steps(history, **given_), **given_)
    assert [str(check) for check in checks.values() if not check.holds] == []
    assert checks["value difference"].left.size == len(history)


def sides(check):
    return [*zip(check.left, check.right, strict=True)]


def test_both_sides_by_hand():
    checks = lemma_checks(HAND_TRUTH, optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN), **HAND_GIVEN)
    close, eta = functools.partial(pytest.approx, rel=1e-11, abs=1e-13), HAND_GIVEN["eta"]
    v1, v2 = 159 / 1540, 7 / 120
    q0 = np.array([0.3 + v1 / 2 + v2 / 2, 0.2 + v1])
    # Under the true dynamics the uniform policy plays the six pairs with (.5, .5, .3125, .3125, .1875, .1875); one of the
    # first two has the squared Hellinger distance d and L1 distance 1/2, all but the other one the squared error 0.01.
    d = 2 - math.sqrt(1 / 2) - math.sqrt(3 / 2)
    assert checks["value difference"].left == close([-0.375, q0.mean() - 0.775])
    assert checks["value difference, played"].left[0] == close(-0.60625)
    mirror = checks["online mirror descent"]
    assert mirror.left == close([q0.mean() - q0.min(), 0.3 + v1 - 9 / 110, 0.1 + v2])
    squares = [0.16 + (q0**2).mean(), 0.18 + (15 / 22) ** 2 / 28 + (9 / 110) ** 2 * 27 / 28, 0.02 + (7 / 30) ** 2 / 4]
    assert mirror.right == close(math.log(2) / eta + eta / 2 * np.array(squares))
    assert checks["term iii"].right == close([2 * math.log(2) / eta + 8 * eta])
    # In both steps the tightest pair is the first of the last state, with N = 0 and 1/8.
    assert sides(checks["optimism"]) == [close((-0.1, 22.5)), close((-0.1, 2.5 * 1.00125 + 20))]
    errors = 2 * 2 / 0.4 + 2 * 4 / 0.1 + 7.5 * 0.015 + (90 + 720 + 60) * d / 2
    bonuses = 0.2 + 0.625 * 12 / 55 + 0.375 * 4 / 15
    assert checks["term iv"].right == close([6 + errors])
    assert checks["term i"].right == close([2 + errors + 2 * bonuses])
    assert sides(checks["change of measure"]) == [(0, 0), close((0.125, 3 * 0.1875 + 36 * d / 2))]
    assert sides(checks["change of measure, back"]) == [(0, 0), close((0.1875, 3 * 0.125 + 2808 * d / 2))]
    assert sides(checks["visits where explored"]) == [close((1 / 6, 1))]  # the second step's dynamics are inaccurate
    assert sides(checks["bonus where under-explored"]) == []
    bounds = [10 / (0.1 / (864 * 16)) * d / 2, 6 * math.log(3) * 0.6, 36 * math.log(3) * 0.6]
    for name, left, right in zip(("inaccurate dynamics", "under-explored", "explored"), (bonuses, 0, 0), bounds, strict=True):
        assert sides(checks[f"bonus, {name}"]) == [close((left, right))]
    assert sides(checks["bonus"]) == [close((bonuses, sum(bounds)))]
    second = [0.625 * p / 1.3125 for p in (1 / 28, 27 / 28)], [0.375 * p / 1.1875 for p in (0.75, 0.25)]
    logs = [0.5 + 0.5 / 1.5] * 2 + [0.3125 + x for x in second[0]] + [0.1875 + x for x in second[1]]
    assert sides(checks["logarithmic sums"]) == [close((left, 2 * math.log(3))) for left in logs]


def test_the_right_side_of_optimism_where_the_dynamics_are_wrong():
    first, second = optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN)
    raised = second._replace(q=second.q + np.array([[100, 0], [0, 0], [0, 0]]))
    check = lemma_checks(HAND_TRUTH, [first, raised], **HAND_GIVEN)["optimism"]
    assert not check.holds
    assert check.right[1] == pytest.approx(2.5 * (1 + 0.5 * 0.01) + 20 * (1 + 0.5 / 16), rel=1e-12)


def test_a_masked_action_changes_no_side():
    layout, mask = of.Layout([1, 2], 3), [[True, True, False], [True, False, True], [False, True, True]]
    place = np.array([[0, 1], [0, 2], [1, 2]])

    def wider(losses, block):
        every, rows = np.zeros(layout.shape), np.zeros((1, 3, 2))
        np.put_along_axis(every, place, np.array(losses), axis=1)
        rows[:, :2] = block
        return of.LayeredMDP(layout, every, [rows], mask)

    plain = lemma_checks(HAND_TRUTH, optimistic_steps([HAND_FIT] * 9, **HAND_GIVEN), **HAND_GIVEN)
    truth, fit = wider(TRUE_LOSSES, TRUE_BLOCK), wider(FITTED_LOSSES, FITTED_BLOCK)
    masked = lemma_checks(truth, optimistic_steps([fit] * 9, **HAND_GIVEN), **HAND_GIVEN)
    for name, check in plain.items():
        np.testing.assert_allclose(masked[name].left, check.left, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(masked[name].right, check.right, rtol=1e-12, err_msg=name)


def test_the_events_of_the_bonus_bound_by_hand():
    # Two actions with losses 1 and 1, true dynamics: uniform for ever, so that N grows by 1/2; beta_dynamics / 2 = 2 is gamma'.
    truth, given_ = of.LayeredMDP(of.Layout([1], 2), [[1.0, 1.0]], []), {"eta": 1.0, "beta_loss": 6.0, "beta_dynamics": 4.0}
    checks = lemma_checks(truth, optimistic_steps([truth] * 5, **given_), **given_)
    denominators = [1, 1.5, 2, 2.5, 3]
    assert sides(checks["bonus where under-explored"]) == [pytest.approx((1, half / n)) for n in denominators[:3] for half in (3, 2)]
    assert sides(checks["visits where explored"]) == [pytest.approx((n / 6, n)) for n in denominators[3:]]
    # b = min{1, 3/n} + 2 min{1, 2/n}, and the first episode does not count.
    assert sides(checks["bonus, under-explored"]) == [pytest.approx((3 + 3, 2 * math.log(6) * 14))]
    assert sides(checks["bonus, explored"]) == [pytest.approx((1 + 4 / 2.5 + 1 + 4 / 3, 12 * math.log(6) * 14))]
    assert sides(checks["bonus, inaccurate dynamics"]) == [(0, 0)]


def test_too_small_a_bonus_is_not_optimistic():
    right, small = biased(LOW), {**LARGE, "beta_loss": 1e-3, "beta_dynamics": 1e-3}
    assert violated(LOW, optimistic_steps(right, **LARGE), LARGE) == set()
    assert violated(LOW, optimistic_steps(right, **small), LARGE) == {"optimism", "term iv"}


def test_too_large_a_bonus_costs_more_than_the_bound():
    wrong = {**SMALL, "beta_loss": 1e4, "beta_dynamics": 1e4}
    history = [TRUTH] * 300
    assert violated(TRUTH, optimistic_steps(history, **SMALL), SMALL) == set()
    assert violated(TRUTH, optimistic_steps(history, **wrong), SMALL) == {"bonus, explored", "bonus"}
    # If no pair counts as explored, the bonus is at its cap, and the lemma allows no larger one.
    raised = (step._replace(bonus_loss=step.bonus_loss + 30) for step in optimistic_steps(biased(LOW), **LARGE))
    assert "bonus where under-explored" in violated(LOW, raised, LARGE)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_learning_rate_that_is_too_small_loses_more_than_mirror_descent(share):
    # H = 3, three actions, T = 2000: the bound of term (iii) is sqrt(2 H^4 T log |A|), about 597, at the theory's eta.
    eta = parameters(TRUTH.layout, 2000, loss_class_size=1, dynamics_class_size=1).eta
    given_, history = {"eta": eta, "beta_loss": 1e-2, "beta_dynamics": 1e-2}, [TRUTH] * 2000
    checks = lemma_checks(TRUTH, optimistic_steps(history, **given_), **given_)
    assert all(check.holds for check in checks.values())
    assert checks["term iii"].right[0] == pytest.approx(math.sqrt(2 * 3**4 * 2000 * math.log(3)), rel=1e-12)
    slow = violated(TRUTH, optimistic_steps(history, **{**given_, "eta": share * eta}), given_)
    assert slow == {"online mirror descent", "term iii"}


def test_a_learning_rate_that_is_too_large_loses_more_than_mirror_descent():
    # One state, losses that alternate: an agent that follows the last one is wrong in every episode.
    layout = of.Layout([1], 2)
    models = [of.LayeredMDP(layout, [loss], []) for loss in ([0.5, 0.0], [0.0, 1.0], [1.0, 0.0])]
    truth, history = models[0].with_losses([[0.5, 0.5]]), [models[0], *models[1:] * 200]
    given_ = {"eta": 0.06, "beta_loss": 1e-9, "beta_dynamics": 1e-9}
    assert "online mirror descent" not in violated(truth, optimistic_steps(history, **given_), given_)
    assert "online mirror descent" in violated(truth, optimistic_steps(history, **{**given_, "eta": 50.0}), given_)


def test_visits_that_are_not_those_of_the_fitted_dynamics():
    given_ = {**SMALL, "beta_loss": 4.0, "beta_dynamics": 4.0}
    steps = list(optimistic_steps([TRUTH] * 100, **given_))
    assert violated(TRUTH, steps, given_) == set()
    forgotten = [step._replace(visits=0 * step.visits) for step in steps]
    assert violated(TRUTH, forgotten, given_) == {"change of measure, back", "visits where explored"}
    fourfold = [step._replace(visits=4 * step.visits) for step in steps]
    assert violated(TRUTH, fourfold, given_) == {"change of measure"}


def test_a_value_of_another_policy():
    steps = [step._replace(v=step.q.max(axis=1)) for step in optimistic_steps(biased(TRUTH), **SMALL)]
    assert violated(TRUTH, steps, SMALL) >= {"value difference", "value difference, played"}


@pytest.mark.parametrize(("true_form", "fitted_form"), [(None, None), (sp.csr_array, None), (None, sp.csr_array), (sp.csr_array,) * 2])
def test_errors_of_the_fits_by_hand(true_form, fitted_form):
    blocks = [block if form is None else form(block[0]) for form, block in ((true_form, TRUE_BLOCK), (fitted_form, FITTED_BLOCK))]
    truth, fit = of.LayeredMDP(HAND, TRUE_LOSSES, blocks[:1]), of.LayeredMDP(HAND, FITTED_LOSSES, blocks[1:])
    errors = oracle_errors(truth, optimistic_steps([fit] * 2, **HAND_GIVEN))
    # Every pair but one is 0.1 off, and one of the first two actions leads to (1/4, 3/4) and is said to lead to (1/2, 1/2).
    np.testing.assert_allclose(errors.squared, [0, 0.5 * 0.01 + 0.625 * 0.01 + 0.375 * 0.01], rtol=1e-12)
    np.testing.assert_allclose(errors.hellinger, [0, 0.5 * (2 - math.sqrt(1 / 2) - math.sqrt(3 / 2))], rtol=1e-12)


def test_the_guarantees_by_hand():
    bound = oracle_guarantees(of.Layout([1], 2), 1, loss_class_size=1, dynamics_class_size=1, delta=0.5)
    assert bound == pytest.approx((68 * math.log(4), 2 * math.log(2)), rel=1e-14)
    bound = oracle_guarantees(of.Layout([1, 2], 2), 10, loss_class_size=3, dynamics_class_size=7, delta=0.1)
    assert bound == pytest.approx((136 * math.log(60_000), 4 * math.log(1400)), rel=1e-14)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_oracles_keep_their_guarantees(seed):
    world, given_ = World(seed, contexts=3), {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1}
    agent = world.agent()
    of.simulate(world.env, agent, 150, seed=seed)
    mean = np.zeros((2, 151))
    for context, probability in enumerate(world.env.probabilities):
        steps = optimistic_steps(history_at(agent, context), **given_)
        mean += probability * np.array(oracle_errors(world.env.mdp(context), steps))
    bound = oracle_guarantees(world.layout, 151, loss_class_size=3, dynamics_class_size=3, delta=0.05)
    assert mean[0].max() <= bound.squared
    assert 0 < mean[1].max() <= bound.hellinger


def test_a_biased_oracle_breaks_its_guarantee_and_not_the_lemmas_that_carry_its_errors():
    # It says that every action costs 1 and leads elsewhere, whatever it sees.
    layout = of.Layout([1, 2], 1)
    blocks = [np.array([[[1.0, 0.0]]]), np.array([[[0.0, 1.0]]])]
    truth, fit = of.LayeredMDP(layout, np.zeros((3, 1)), blocks[:1]), of.LayeredMDP(layout, np.ones((3, 1)), blocks[1:])
    given_ = {"eta": 0.3, "beta_loss": 3e3, "beta_dynamics": 3e3}
    steps = list(optimistic_steps([fit] * 3000, **given_))
    errors = oracle_errors(truth, steps)
    bound = oracle_guarantees(layout, 3000, loss_class_size=1, dynamics_class_size=1)
    # One step of two is 1 off in each episode, and the first step's next states are 2 apart.
    np.testing.assert_allclose(errors.squared, 2.0 * np.arange(3000), rtol=1e-12)
    np.testing.assert_allclose(errors.hellinger, 2.0 * np.arange(3000), rtol=1e-12)
    assert errors.squared[-1] > bound.squared
    assert errors.hellinger[-1] > bound.hellinger
    assert violated(truth, steps, given_) == set()


def test_a_check_shows_its_tightest_place():
    check = LemmaCheck("Lemma", np.array([1.0, 2.0]), np.array([3.0, 2.5]))
    assert (check.holds, str(check)) == (True, "holds     2 <= 2.5 (tightest of 2)  Lemma")
    assert check.slack.tolist() == [2.0, 0.5]
    assert str(LemmaCheck("Lemma", np.array([2.0]), np.array([1.0]))).startswith("VIOLATED  2 <= 1")
    assert not LemmaCheck("Lemma", np.array([1.0]), np.array([2.0]), exact=True).holds
    assert str(LemmaCheck("Lemma", np.array([]), np.array([]))) == "holds     nowhere to compare  Lemma"


def test_what_the_lemmas_are_given():
    steps = list(optimistic_steps([HAND_FIT], **HAND_GIVEN))
    for bad, text in [
        (lambda: lemma_checks(3, steps, **SMALL), r"truth is a int: an opo_fast\.LayeredMDP"),
        (lambda: lemma_checks(TRUTH, steps, **SMALL), r"steps\[0\] has .* the layout of truth"),
        (lambda: lemma_checks(HAND_TRUTH, [3], **SMALL), r"steps\[0\] is a int: a Step of optimistic_steps"),
        (lambda: lemma_checks(HAND_TRUTH, [], **SMALL), "steps: at least one is needed"),
        (lambda: lemma_checks(HAND_TRUTH, 3, **SMALL), "steps is a int"),
        (lambda: lemma_checks(HAND_TRUTH, steps, **{**SMALL, "beta_loss": 0}), r"beta_loss is 0\.0: a finite number of at least 1e-280"),
        (lambda: oracle_errors(None, steps), "truth is a NoneType"),
        (lambda: oracle_guarantees(HAND, 0, loss_class_size=1, dynamics_class_size=1), "episodes is 0"),
        (lambda: oracle_guarantees(HAND, 9, loss_class_size=1, dynamics_class_size=0), r"dynamics_class_size is 0\.0"),
        (lambda: oracle_guarantees(HAND, 9, loss_class_size=1, dynamics_class_size=1, delta=1), r"delta is 1\.0"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()


def test_steps_of_another_mask_are_refused():
    """An allowed pair of the truth that the steps' model masks has no estimate to compare."""
    layout = of.Layout([1, 2], 2)
    mask = np.ones(layout.shape, bool)
    mask[1, 1] = False
    losses, blocks = np.full(layout.shape, 0.5), [np.full((1, 2, 2), 0.5)]
    masked, free = of.LayeredMDP(layout, losses, blocks, mask), of.LayeredMDP(layout, losses, blocks)
    given = {"eta": 0.5, "beta_loss": 1.0, "beta_dynamics": 0.1}
    for truth, fit in ((free, masked), (masked, free)):
        with pytest.raises(of.OpoError, match=r"steps\[0\] has another action mask than truth"):
            lemma_checks(truth, optimistic_steps([fit] * 3, **given), **given)
