"""Time-uniform confidence bounds for means and rows: exact inversions, coverage over simulated runs, tabular oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle_worlds import draw_log, random_blocks
from scipy.optimize import brentq
from scipy.special import rel_entr

import opo_fast as of
from opo_fast.oracles import TabularDynamicsClass, TabularLossClass
from opo_fast.oracles.confidence import kl_lower, mean_lower, row_radius, variation_of_kl

RUNS, DELTA = 400, 0.1
MOST = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / RUNS)


def kl(p, q):
    return rel_entr(p, q) + rel_entr(1 - p, 1 - q)


def test_kl_lower_is_the_root():
    rng = np.random.default_rng(0)
    p, c = rng.random(300), 10 ** rng.uniform(-6, 1, 300)
    p[:3], p[3:6] = 1.0, 0.03
    c[3] = 9.0
    for p_i, c_i, q in zip(p, c, kl_lower(p, c), strict=True):
        exponent = brentq(lambda x, p=p_i, c=c_i: kl(p, math.exp(x)) - c, -700.0, math.log(p_i), xtol=1e-13)
        assert q == pytest.approx(math.exp(exponent), rel=1e-7, abs=1e-10)
    assert kl_lower(np.array([1.0]), np.array([0.7]))[0] == pytest.approx(math.exp(-0.7), rel=1e-14)
    assert kl_lower(np.array([0.0]), np.array([0.7]))[0] == 0.0
    # Roots below the least positive number, and near it.
    assert kl_lower(np.array([1e-9, 0.012]), np.array([10.0, 8.8])).max() < 1e-300


def test_the_bound_of_ten_successes_by_hand():
    # Jeffreys' code gives ten ones the probability prod (i + 1/2) / (i + 1) = 0.17619705; kl(1, q) = -log q.
    code = math.prod((i + 0.5) / (i + 1) for i in range(10))
    expected = (0.05 * code) ** 0.1
    assert mean_lower(np.array([10.0]), np.array([10.0]), math.log(20))[0] == pytest.approx(expected, rel=1e-12)
    # The same ten successes for a row with two next states, at half of delta; Dirichlet(1/2, 1/2) is Beta(1/2, 1/2).
    radius = row_radius(np.array([10.0, 0.0]), np.array([0]), np.array([2]), math.log(20))
    assert radius[0] == pytest.approx(1 - (0.025 * code) ** 0.1, rel=1e-12)
    assert row_radius(np.array([3.0]), np.array([0]), np.array([1]), math.log(20))[0] == 0.0


def test_the_bound_by_sets_by_hand():
    # Eight next states with 50 visits each: the bound by sets is the smaller one.
    n, k = 400.0, 8
    expected = math.sqrt((1 + 1 / n) / (2 * n) * (math.log(2 / 0.01) + math.log(2**7 - 1) + 0.5 * math.log(1 + n)))
    found = row_radius(np.full(k, 50.0), np.array([0]), np.array([k]), math.log(100))
    assert found[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_no_row_in_a_kl_ball_is_farther_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    for concentration in (0.05, 0.3, 2.0):
        p = rng.dirichlet(np.full(4, concentration))
        c = 10 ** rng.uniform(-3, 0.5)
        bound = float(variation_of_kl(np.array([p.max()]), np.array([c]))[0])
        assert bound <= math.sqrt(c / 2) + 1e-12
        # In random directions, up to the surface of the ball.
        for target in rng.dirichlet(np.full(4, 0.3), size=50):
            step = 1.0
            while rel_entr(p, (1 - step) * p + step * target).sum() > c:
                step *= 0.98
            assert step * np.abs(target - p).sum() / 2 <= bound + 1e-12


def test_a_deterministic_row_is_known_within_c():
    # KL((1, 0), q) = -log q_1: the distance is 1 - exp(-c), not sqrt(c/2).
    c = np.array([0.3, 0.01, 1e-4])
    np.testing.assert_allclose(variation_of_kl(np.ones(3), c), -np.expm1(-c), rtol=1e-12)
    # With two entries a set has probability p or 1 - p, so the bound is attained.
    p, c = np.array([0.97]), np.array([0.004])
    low = 0.97 - brentq(lambda x: kl(0.97, x) - 0.004, 1e-9, 0.97, xtol=1e-15)
    assert variation_of_kl(p, c)[0] == pytest.approx(low, rel=1e-9)


@pytest.mark.parametrize("kind", ["bernoulli", "constant", "beta"])
def test_means_leave_their_bounds_in_no_more_runs_than_delta(kind):
    """400 runs of six pairs, checked after each of 150 observations."""
    rng = np.random.default_rng(1)
    means = np.array([0.02, 0.1, 0.5, 0.9, 0.97, 0.5])
    shape = RUNS, means.size, 150
    if kind == "bernoulli":
        x = (rng.random(shape) < means[:, None]).astype(float)
    elif kind == "constant":
        x = np.broadcast_to(means[:, None], shape)
    else:
        x = rng.beta(2 * means[:, None], 2 * (1 - means[:, None]), shape)
    n = np.broadcast_to(np.arange(1.0, 151.0), shape)
    bounds = mean_lower(n, x.cumsum(axis=2), math.log(means.size / DELTA))
    left = (bounds > means[:, None]).any(axis=(1, 2))
    assert left.mean() <= MOST
    # The bounds are informative: they reach at least half of the mean.
    assert (bounds[:, 2:, -1].mean(axis=0) > 0.5 * means[2:]).all()


@pytest.mark.parametrize("concentration", [0.1, 1.0, 20.0])
def test_rows_leave_their_balls_in_no_more_runs_than_delta(concentration):
    """400 runs of five rows over four next states, checked after each of 120 visits."""
    rng = np.random.default_rng(2)
    k, visits, n_rows = 4, 120, 5
    p = rng.dirichlet(np.full(k, concentration), size=(RUNS, n_rows))
    x = (rng.random((RUNS, n_rows, visits, 1)) >= p.cumsum(axis=2)[:, :, None, :-1]).sum(axis=3)
    counts = (x[..., None] == np.arange(k)).cumsum(axis=2).astype(float)
    n_all = RUNS * n_rows * visits
    radius = row_radius(counts.ravel(), np.arange(n_all) * k, np.full(n_all, k), math.log(n_rows / DELTA)).reshape(x.shape)
    distance = 0.5 * np.abs(counts / np.arange(1, visits + 1)[:, None] - p[:, :, None]).sum(axis=3)
    assert (distance > radius).any(axis=(1, 2)).mean() <= MOST
    assert radius[..., -1].max() < 0.4


LAYOUT = of.Layout([1, 2, 3], 2)
MASK = np.array([[True, True], [True, True], [True, False], [True, True], [True, True], [False, True]])


def small_world(seed, n, mask=None):
    rng = np.random.default_rng(seed)
    tables, blocks = rng.random((2, *LAYOUT.shape)), random_blocks(rng, LAYOUT, 2)
    log = draw_log(rng, LAYOUT, ["a", "b"], tables, blocks, n)
    return tables, blocks, log


@pytest.mark.parametrize("per_context", [False, True])
def test_the_tables_of_the_oracles_are_these_bounds(per_context):
    _, _, log = small_world(0, 60)
    delta, n_pairs, open_rows = 0.05, 12, 6
    losses, dynamics = (make(per_context=per_context).oracle(LAYOUT) for make in (TabularLossClass, TabularDynamicsClass))
    for oracle in (losses, dynamics):
        oracle.keep_plausible(delta)
    assert (losses.lower(0, "a") == 0).all()
    assert np.array_equal(dynamics.radius(0, "a"), np.repeat([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], 2).reshape(6, 2))
    for t in log:
        for oracle in (losses, dynamics):
            oracle.observe(t)
            oracle.plausible()
    order = list(dict.fromkeys(log.contexts))
    for place, context in enumerate(order if per_context else ["a"], start=1):
        share = place * (place + 1) if per_context else 1
        mine = np.array([c == context or not per_context for c in log.contexts])
        pairs, observed = log.pairs[mine], log.losses[mine]
        version = losses.plausible()[1]
        for pair in range(n_pairs):
            x = observed[pairs == pair]
            expected = mean_lower(np.array([x.size]), np.array([x.sum()]), math.log(n_pairs * share / delta))[0] if x.size else 0.0
            assert losses.lower(version, context).ravel()[pair] == pytest.approx(expected, rel=1e-9)
        version = dynamics.plausible()[1]
        for row in range(open_rows):
            h = 0 if row < 2 else 1
            steps = log.states[mine, h + 1][pairs[:, h] == row] - LAYOUT.offsets[h + 1]
            k = LAYOUT.layer_sizes[h + 1]
            counts = np.bincount(steps, minlength=k).astype(float)
            expected = row_radius(counts, np.array([0]), np.array([k]), math.log(open_rows * share / delta))[0] if steps.size else 1.0
            assert dynamics.radius(version, context).ravel()[row] == pytest.approx(expected, rel=1e-9)
    assert np.isnan(losses.plausible_count(version))


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_the_truth_is_inside_the_sets_of_tabular_oracles(smoothing):
    """25 runs with the oracles themselves; at the end, the radius of every 5th version covers the true row."""
    left = 0
    for seed in range(25):
        tables, blocks, log = small_world(seed, 40)
        losses, dynamics = (
            TabularLossClass(per_context=True).oracle(LAYOUT),
            TabularDynamicsClass(per_context=True, smoothing=smoothing).oracle(LAYOUT),
        )
        asked = []
        for oracle in (losses, dynamics):
            oracle.keep_plausible(DELTA / 2)
        for t in log:
            for oracle in (losses, dynamics):
                oracle.observe(t)
            asked.append((losses.plausible(), dynamics.plausible()))
        outside = False
        for (_, loss_version), (fit, version) in asked[::5]:
            for k, context in enumerate(["a", "b"]):
                outside |= (losses.lower(loss_version, context) > tables[k]).any()
                distances = [
                    0.5 * np.abs(p - block[k]).sum(axis=2) for p, block in zip(dynamics.transitions(fit, context), blocks, strict=True)
                ]
                outside |= (np.concatenate(distances) > dynamics.radius(version, context)[:3] + 1e-12).any()
        left += outside
    assert left <= 5  # of 25: P(more) < 0.04 at DELTA


def test_a_mask_and_a_support_leave_fewer_pairs_to_share_delta():
    rng = np.random.default_rng(0)
    oracle = TabularLossClass().oracle(LAYOUT, MASK)
    assert oracle._n_pairs == 10
    allowed = [np.ones((1, 2, 2), bool), rng.random((2, 2, 3)) < 2]
    allowed[1][0, 0] = [True, False, False]
    dynamics = TabularDynamicsClass(allowed).oracle(LAYOUT, MASK)
    assert dynamics._n_pairs == 4  # of six rows, one masked and one with a single next state
    dynamics.keep_plausible(0.1)
    assert dynamics.radius(0, None)[1, 0] == 0.0
