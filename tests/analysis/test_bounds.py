"""The paper's bounds, each against the formula of its statement written out for one small case."""

from __future__ import annotations

from math import log, sqrt

import pytest

import opo_fast as of
from opo_fast.analysis import (
    adahedge_bound,
    bounds,
    informative_from,
    literature_rates,
    lower_bound,
    oracle_guarantees,
    parameters,
    regret_bound,
)

# H = 2, |S| = 4, |A| = 3, T = 100, |F| = 5, |P| = 7, delta = 1/10, and betas that are not the theorem's.
LAYOUT = of.Layout([1, 3], 3)
SIZES = {"loss_class_size": 5, "dynamics_class_size": 7, "delta": 0.1}
BOTH = log(128 * 100**4 * 2 * 5 * 7 / 0.1**2)
BONUSES = 5184 * 100 * 2**7 * log(4 * 100 * 2 * 7 / 0.1) / 6.0 + 7 * (8.0 + 2 * 2 * 6.0) * 4 * 3 * log(101)
ERRORS = 112 * 100 * 2**3 * BOTH / 8.0 + 25 * 100 * 2**4 * log(8 * 100 * 2 * 7 / 0.1) / 6.0


@pytest.fixture
def found():
    return bounds(LAYOUT, 100, **SIZES, eta=0.25, beta_loss=8.0, beta_dynamics=6.0)


def test_the_oracles(found):
    assert found.squared == pytest.approx(68 * 2 * log(2 * 100**3 * 5 / (0.1 / 8)), rel=1e-13)
    assert found.hellinger == pytest.approx(2 * 2 * log(100 * 2 * 7 / (0.1 / 8)), rel=1e-13)


def test_the_three_bonus_sums(found):
    gamma = 6.0 / (864 * 2**4)
    assert found.bonus_case_1 == pytest.approx((2 + 2 * 2**2) / gamma * 100 * 2 * 2 * log(4 * 100 * 2 * 7 / 0.1), rel=1e-13)
    assert found.bonus_case_2 == pytest.approx((8.0 + 2 * 2 * 6.0) * 4 * 3 * log(101), rel=1e-13)
    assert found.bonus_case_3 == pytest.approx(6 * found.bonus_case_2, rel=1e-13)
    # The lemma rounds H + 2 H^2 up to 3 H^2.
    assert found.bonus_lemma == pytest.approx(BONUSES, rel=1e-13)
    assert found.bonus_sum <= BONUSES
    assert found.bonus_sum == pytest.approx(found.bonus_case_1 + found.bonus_case_2 + found.bonus_case_3, rel=1e-13)


def test_the_terms(found):
    assert found.term_i == pytest.approx(2 + ERRORS + 2 * found.bonus_sum, rel=1e-13)
    assert found.term_iv == pytest.approx(2 * 3 + ERRORS, rel=1e-13)
    assert found.term_iii == pytest.approx(2 * log(3) / 0.25 + 0.25 / 2 * 100 * 2**3, rel=1e-13)


def test_the_theorem(found):
    first = 2 + 6 + 2 * ERRORS + BONUSES + found.term_iii
    assert found.expected == pytest.approx(first, rel=1e-13)
    top = 5184 * 100 * 2**7 * BOTH
    pairs = 4 * 3 * log(101)
    balanced = top / 8 + 7 * 8 * pairs + top / 6 + 14 * 6 * 2 * pairs + top / 6 + found.term_iii + 2 * 9
    assert found.expected_balanced == pytest.approx(balanced, rel=1e-13)
    assert found.regret - found.expected_balanced == pytest.approx(2 * 2 * sqrt(2 * 100 * log(8 / 0.1)), rel=1e-9)
    assert found.expected < found.expected_balanced
    # Term (i) of the lemmas has the bonus sum twice.
    assert found.expected_from_lemmas == pytest.approx(2 + 6 + 2 * ERRORS + 2 * found.bonus_sum + found.term_iii, rel=1e-13)
    azuma = 2 * 2 * sqrt(2 * 100 * log(8 / 0.1))
    assert found.regret_tight - found.expected == pytest.approx(azuma, rel=1e-9)
    assert found.regret_from_lemmas - found.expected_from_lemmas == pytest.approx(azuma, rel=1e-9)
    assert found.trivial == 200


def test_smaller_thresholds_make_a_larger_bound():
    # gamma' = 1 and gamma = 1/10^4, below 1 / (432 H^4) = 1/6912.
    given = {"eta": 0.25, "beta_loss": 8.0, "beta_dynamics": 6.0, "gamma": 1e-4, "gamma_visits": 1.0}
    found = bounds(LAYOUT, 100, **SIZES, **given)
    dynamics, spread = log(4 * 100 * 2 * 7 / 0.1), (8.0 + 2 * 2 * 6.0) * 4 * 3 * log(101)
    assert found.bonus_case_1 == pytest.approx((2 + 2 * 2**2) / 1e-4 * 100 * 2 * 2 * dynamics, rel=1e-13)
    assert found.bonus_lemma == pytest.approx(6 * 100 * 2**3 * dynamics / 1e-4 + 7 * spread, rel=1e-13)
    assert found.expected == pytest.approx(2 + 6 + 2 * ERRORS + found.bonus_lemma + found.term_iii, rel=1e-13)
    pairs, top = 4 * 3 * log(101), 5184 * 100 * 2**7 * BOTH
    rest = top / 8 + 7 * 8 * pairs + top / 6 + 14 * 6 * 2 * pairs + found.term_iii + 2 * 9
    assert found.expected_balanced == pytest.approx(rest + 6 * 100 * 2**3 * BOTH / 1e-4, rel=1e-13)


def test_what_the_fits_and_the_contexts_add(found):
    assert found.fit_errors == pytest.approx(ERRORS, rel=1e-13)
    assert found.azuma == pytest.approx(2 * 2 * sqrt(2 * 100 * log(8 / 0.1)), rel=1e-13)
    # 8 / delta is too large for a float.
    sizes = {**SIZES, "delta": 1e-320}
    assert bounds(LAYOUT, 100, **sizes).azuma == pytest.approx(4 * sqrt(200 * (log(8) + 320 * log(10))), rel=1e-4)
    assert bounds(LAYOUT, 100, **sizes).regret < float("inf")


def test_the_corollaries_on_the_oracles_are_the_guarantees_at_an_eighth_of_delta(found):
    assert (found.squared, found.hellinger) == pytest.approx(oracle_guarantees(LAYOUT, 100, **{**SIZES, "delta": 0.1 / 8}), rel=1e-13)


def test_the_sum_of_the_lemmas_is_on_neither_side_of_the_theorem():
    layout, small = of.Layout([1, 4, 4, 4, 4], 4), {"loss_class_size": 10, "dynamics_class_size": 10}
    few, many = bounds(layout, 1000, **small), bounds(layout, 1000, loss_class_size=10, dynamics_class_size=1e50)
    assert few.regret_tight < few.regret_from_lemmas < few.regret
    assert many.regret_tight < many.regret < many.regret_from_lemmas


def test_a_single_action_has_nothing_to_lose():
    layout = of.Layout([1, 3], 1)
    assert bounds(layout, 100, **SIZES, eta=0.0).term_iii == bounds(layout, 100, **SIZES).term_iii == 0.0


def test_adahedge_in_the_place_of_mirror_descent(found):
    tuned = bounds(LAYOUT, 100, **SIZES, eta=0.25, beta_loss=8.0, beta_dynamics=6.0, term_iii=12.5)
    assert tuned.term_iii == 12.5
    for name in ("expected", "expected_from_lemmas", "expected_balanced", "regret", "regret_tight", "regret_from_lemmas"):
        assert getattr(found, name) - getattr(tuned, name) == pytest.approx(found.term_iii - 12.5, rel=1e-6)
    assert (tuned.term_i, tuned.term_iv, tuned.bonus_sum) == (found.term_i, found.term_iv, found.bonus_sum)
    with pytest.raises(of.OpoError, match="term_iii is -1"):
        bounds(LAYOUT, 100, **SIZES, term_iii=-1.0)


def test_the_theorems_own_parameters():
    sizes = {"loss_class_size": 10, "dynamics_class_size": 10}
    layout = of.Layout([1, 4, 4, 4, 4], 4)
    found, p = bounds(layout, 1000, **sizes), parameters(layout, 1000, **sizes)
    assert found.term_iii == pytest.approx(sqrt(2 * 5**4 * 1000 * log(4)), rel=1e-12)
    assert found == bounds(layout, 1000, **sizes, eta=p.eta, beta_loss=p.beta_loss, beta_dynamics=p.beta_dynamics)
    assert found.regret == pytest.approx(regret_bound(layout, 1000, **sizes), rel=1e-12)
    assert 0.4 < found.regret_tight / found.regret < 0.5
    assert found.regret > 1e4 * found.trivial, "at practical T the bound says nothing"


def test_the_number_of_episodes_from_which_a_bound_is_informative():
    layout, sizes = of.Layout([1, 4, 4, 4, 4], 4), {"loss_class_size": 10, "dynamics_class_size": 10}
    start = informative_from(layout, **sizes)
    assert 1e15 < start < 1e17
    before, after = bounds(layout, int(start / 1.01), **sizes), bounds(layout, int(start * 1.01), **sizes)
    assert before.regret_tight > before.trivial
    assert after.regret_tight < after.trivial
    assert informative_from(layout, **sizes, statement="regret") > informative_from(layout, **sizes, statement="regret_from_lemmas") > start
    # 68 H log(2 T^3 |F| 8 / delta) < H T first at T = 2,111 = 68 log(3200 T^3).
    assert informative_from(layout, **sizes, statement="squared") == pytest.approx(68 * log(3200 * 2111**3), abs=3)
    with pytest.raises(of.OpoError, match="statement is 'trivial': one of squared"):
        informative_from(layout, **sizes, statement="trivial")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gamma": 1.0}, "gamma is"),
        ({"gamma_visits": 4.0}, "gamma_visits is"),
        ({"eta": 0.0}, "eta is"),
        ({"beta_loss": 1e-320}, "beta_loss is 1e-320: a finite number of at least 1e-280"),
        ({"gamma_visits": 1e-320}, "gamma_visits is 1e-320: a finite number of at least 5e-281"),
        ({"gamma": 1e-320}, "gamma is 1e-320: a finite number of at least 1e-300"),
        ({"gamma_visits": "x"}, "gamma_visits is 'x': a number"),
    ],
)
def test_thresholds_that_the_lemmas_do_not_allow(given, named):
    with pytest.raises(of.OpoError, match=named):
        bounds(LAYOUT, 100, **SIZES, **{"beta_loss": 8.0, "beta_dynamics": 6.0, **given})


def test_rates_of_the_literature():
    rates = literature_rates(LAYOUT, 100, **SIZES, p_min=0.5, eluder=3)
    logs = log(5 * 7 / 0.1)
    assert rates["rm-ucdd"] == pytest.approx(sqrt(0.5**-2 * 2**2 * 4**3 * 3 * 100 * logs), rel=1e-13)
    assert rates["e-uc3rl"] == pytest.approx(sqrt(3 * 2**6 * 4 * 3 * 100 * logs), rel=1e-13)
    assert rates["lolipop"] == pytest.approx(sqrt(2**7 * 4**4 * 3**3 * 100 * logs), rel=1e-13)
    assert rates["opo"] == pytest.approx(sqrt(2**8 * 4 * 3 * 100 * logs), rel=1e-13)
    # Every state is reached for certain.
    assert literature_rates(LAYOUT, 100, **SIZES, p_min=1)["rm-ucdd"] == pytest.approx(rates["rm-ucdd"] / 2, rel=1e-13)
    for p_min in (0.0, 1.5):
        with pytest.raises(of.OpoError, match=f"p_min is {p_min}: a finite number from 1e-280 to 1"):
            literature_rates(LAYOUT, 100, **SIZES, p_min=p_min)
    assert lower_bound(LAYOUT, 100, loss_class_size=20, dynamics_class_size=7) == pytest.approx(sqrt(100 * 2 * 4 * 3 * log(5) / log(3)))


def test_the_term_of_adahedge_by_hand():
    """2 Delta_T in each of two layers, losses in [0, 2], three actions.

    From x <= sqrt(a) + b where x^2 <= a + b x: Delta_T <= sqrt(2^2 100 log 3 / 4 + 0.001^2) + 2 (2/3 log 3 + 1), and the root of a
    sum is at most the sum of roots.
    """
    exact = 2 * 2 * (sqrt(100 * log(3) + 0.001**2) + 2 * (2 / 3 * log(3) + 1))
    found = adahedge_bound(LAYOUT, 100)
    assert found == pytest.approx(4 * (sqrt(100 * log(3)) + 4 / 3 * log(3) + 2) + 0.004, rel=1e-13)
    assert exact <= found <= exact + 0.004
