"""Parameters and the bound of the theorem, against numbers computed by hand and the paper's formulas in high precision."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast.analysis.theory import PRACTICAL, parameters, regret_bound


def layered(horizon: int, n_states: int, n_actions: int) -> of.Layout:
    """A layout with these sizes, on which alone the formulas depend."""
    return of.Layout([1] if horizon == 1 else [1, n_states - horizon + 1, *[1] * (horizon - 2)], n_actions)


def test_parameters_by_hand():
    # H = T = |S| = 1, |A| = 2, |F||P| chosen so that L = log(128 |F||P| / delta^2) = 10 at delta = 1/2.
    layout, size = of.Layout([1], 2), math.exp(10) / 512
    p = parameters(layout, 1, loss_class_size=size, dynamics_class_size=1, delta=0.5)
    log2 = 0.6931471805599453
    assert p.eta == pytest.approx(math.sqrt(2 * log2), rel=1e-14)
    # |S||A| log(T+1) = 2 log 2; 5184 = 72^2.
    assert p.beta_loss == pytest.approx(72 * math.sqrt(10 / (14 * log2)), rel=1e-13)
    assert p.beta_dynamics == pytest.approx(72 * math.sqrt(10 / (28 * log2)), rel=1e-13)


def test_eta_by_hand():
    # sqrt(2 log 4 / (2^2 * 8)) = sqrt(log(2) / 8)
    p = parameters(layered(2, 5, 4), 8, loss_class_size=3, dynamics_class_size=3)
    assert p.eta == pytest.approx(0.29435250562886867, rel=1e-14)


def test_the_published_size_of_the_betas():
    # H = 5, |S| = 20, |A| = 4, T = 1000, |F||P| = 100, delta = .05: about 6.8e4.
    p = parameters(layered(5, 20, 4), 1000, loss_class_size=10, dynamics_class_size=10, delta=0.05)
    assert 6.75e4 < p.beta_loss < 6.85e4
    # beta_loss / beta_dynamics = sqrt(2 H)
    assert p.beta_loss / p.beta_dynamics == pytest.approx(math.sqrt(10), rel=1e-13)


sizes = st.tuples(
    st.integers(1, 12), st.integers(0, 500), st.integers(1, 30), st.integers(1, 10**9), st.floats(1, 1e12), st.floats(1, 1e12),
    st.floats(1e-9, 0.999),
)  # fmt: skip


def exact(h, s, a, t, f, p, delta):
    """eta, beta_loss, beta_dynamics, and the two sides of the last step of the theorem's proof, to 40 digits."""
    mp.mp.dps = 40
    h, s, a, t, f, p, delta = (mp.mpf(x) for x in (h, s, a, t, f, p, delta))
    log_term, spread = mp.log(128 * t**4 * h * f * p / delta**2), s * a * mp.log(t + 1)
    eta = mp.sqrt(2 * mp.log(a) / (h**2 * t))
    beta_loss = mp.sqrt(5184 * t * h**7 * log_term / (7 * spread))
    beta_dynamics = mp.sqrt(5184 * t * h**6 * log_term / (14 * spread))
    azuma = 2 * h * mp.sqrt(2 * t * mp.log(8 / delta))
    tight = (
        h + h * (h + 1) + 224 * t * h**3 * log_term / beta_loss + 50 * t * h**4 * mp.log(8 * t * h * p / delta) / beta_dynamics
        + 5184 * t * h**7 * mp.log(4 * t * h * p / delta) / min(beta_loss, beta_dynamics)
        + 7 * (beta_loss + 2 * h * beta_dynamics) * spread + mp.sqrt(2 * h**4 * t * mp.log(a)) + azuma
    )  # fmt: skip
    # With the betas put in, the balanced terms are 2 * 72 sqrt(7 h^7 ..) and 3 * 72 sqrt(14 h^8 ..).
    root = 72 * mp.sqrt(t * log_term * spread)
    loose = root * (2 * mp.sqrt(7 * h**7) + 3 * h**4 * mp.sqrt(14)) + mp.sqrt(2 * h**4 * t * mp.log(a)) + 2 * (h + 1) ** 2 + azuma
    return eta, beta_loss, beta_dynamics, tight, loose


@given(sizes)
def test_formulas_in_high_precision(drawn):
    h, more, a, t, f, p, delta = drawn
    s = 1 if h == 1 else h + more
    layout = layered(h, s, a)
    assert layout.n_states == s
    eta, beta_loss, beta_dynamics, tight, loose = exact(h, s, a, t, f, p, delta)
    got = parameters(layout, t, loss_class_size=f, dynamics_class_size=p, delta=delta)
    assert got.eta == pytest.approx(float(eta), rel=1e-13)
    assert got.beta_loss == pytest.approx(float(beta_loss), rel=1e-13)
    assert got.beta_dynamics == pytest.approx(float(beta_dynamics), rel=1e-13)
    bound = regret_bound(layout, t, loss_class_size=f, dynamics_class_size=p, delta=delta)
    assert bound == pytest.approx(float(loose), rel=1e-12)
    assert bound >= float(tight)


@given(sizes, st.floats(0, 10), st.floats(0, 10))
def test_scales_are_factors(drawn, bonus_scale, eta_scale):
    h, more, a, t, f, p, delta = drawn
    layout = layered(h, 1 if h == 1 else h + more, a)
    given_ = {"loss_class_size": f, "dynamics_class_size": p, "delta": delta}
    plain, scaled = parameters(layout, t, **given_), parameters(layout, t, **given_, bonus_scale=bonus_scale, eta_scale=eta_scale)
    assert scaled.eta == pytest.approx(eta_scale * plain.eta, rel=1e-14, abs=1e-300)
    assert scaled.beta_loss == pytest.approx(bonus_scale * plain.beta_loss, rel=1e-14, abs=1e-300)
    assert scaled.beta_dynamics == pytest.approx(bonus_scale * plain.beta_dynamics, rel=1e-14, abs=1e-300)


def test_the_bound_is_vacuous_at_any_practical_number_of_episodes():
    layout, given_ = layered(5, 20, 4), {"loss_class_size": 10, "dynamics_class_size": 10}
    for episodes in (100, 10_000, 10_000_000):
        assert regret_bound(layout, episodes, **given_) > 5 * episodes
    assert regret_bound(layout, 10**17, **given_) < 5 * 10**17


def test_practical_setting():
    assert PRACTICAL == (2e-6, 50.0)


GOOD = {"loss_class_size": 4, "dynamics_class_size": 4, "delta": 0.1}


@pytest.mark.parametrize("function", [parameters, regret_bound])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"episodes": 0}, "episodes is 0"),
        ({"episodes": -1}, "episodes is -1"),
        ({"episodes": 3.0}, r"episodes is 3\.0: a whole number"),
        ({"delta": 0}, r"delta is 0\.0: a finite number strictly between 0 and 1"),
        ({"delta": 1}, r"delta is 1\.0"),
        ({"delta": "0.1"}, "delta is '0.1': a number"),
        ({"loss_class_size": 0}, r"loss_class_size is 0\.0: a finite number of at least 1"),
        ({"dynamics_class_size": 0.5}, r"dynamics_class_size is 0\.5"),
        ({"dynamics_class_size": float("inf")}, "dynamics_class_size is inf"),
    ],
)
def test_bad_inputs(function, change, text):
    options = {"episodes": 10, **GOOD, **change}
    with pytest.raises(of.OpoError, match=text):
        function(of.Layout([1, 2], 2), options.pop("episodes"), **options)


@pytest.mark.parametrize("name", ["bonus_scale", "eta_scale"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), None])
def test_bad_scales(name, value):
    with pytest.raises(of.OpoError, match=f"{name} is"):
        parameters(of.Layout([1, 2], 2), 10, **GOOD, **{name: value})


def test_class_sizes_whose_product_overflows():
    layout = of.Layout([1, 4, 6, 9], n_actions=4)
    one = parameters(layout, 1000, loss_class_size=1e200, dynamics_class_size=1e100)
    other = parameters(layout, 1000, loss_class_size=1e300, dynamics_class_size=1.0)
    assert one == pytest.approx(other, rel=1e-14)
    assert math.isfinite(regret_bound(layout, 1000, loss_class_size=1e200, dynamics_class_size=1e200))
