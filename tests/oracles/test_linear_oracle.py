"""Linear losses against scipy.linalg.lstsq on the whole history, sums by hand, and the rate for a known truth."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from oracle_worlds import draw_log, exponent, numbers, random_blocks

import opo_fast as of
from opo_fast.oracles import DisjointLinearLossClass, LinearLossClass, TrajectoryLog, stationary_features

LAYOUT = of.Layout([1, 3, 3], 2)
THETA = np.array([0.30, 0.45, 0.15, 0.05])


class World:
    """Four features that depend on context, state and action; the true losses are linear in them."""

    def __init__(self, seed: int, n_contexts: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self.contexts = [rng.random(3) for _ in range(n_contexts)]
        self.base = rng.random((*LAYOUT.shape, 4))
        self.losses = np.array([self.features(c) @ THETA for c in self.contexts])
        self.blocks = random_blocks(rng, LAYOUT, n_contexts)
        self.rng = rng

    def features(self, context: np.ndarray) -> np.ndarray:
        scale = np.array([1.0, context[0], context[1], context[2]])
        return self.base * scale

    def log(self, n: int) -> TrajectoryLog:
        return draw_log(self.rng, LAYOUT, self.contexts, self.losses, self.blocks, n)

    def rows(self, log: TrajectoryLog) -> tuple[np.ndarray, np.ndarray]:
        x = np.concatenate([self.features(t.context)[t.states[:-1], t.actions] for t in log])
        return x, log.losses.ravel()


@pytest.mark.parametrize("n", [1, 2, 50, 400])
def test_the_fit_is_that_of_lstsq_on_the_whole_history(n):
    world = World(n)
    log = world.log(n)
    oracle = LinearLossClass(world.features, 4).oracle(LAYOUT)
    oracle.observe_many(log)
    x, y = world.rows(log)
    expected = scipy.linalg.lstsq(x, y)[0]
    theta = oracle.parameters(oracle.fit())
    np.testing.assert_allclose(theta, expected, atol=1e-9)
    assert oracle.residual == pytest.approx(float(np.square(x @ expected - y).sum()), abs=1e-9)
    assert oracle.gain(0) == pytest.approx(float(np.square(y).sum() - np.square(x @ expected - y).sum()), abs=1e-8)
    context = world.contexts[0]
    np.testing.assert_allclose(oracle.losses(oracle.fit(), context), np.clip(world.features(context) @ expected, 0, 1), atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 20), st.integers(0, 3), st.sampled_from([0.0, 1e-3, 2.0]))
def test_least_norm_and_ridge_on_any_data(seed, dimension, n, copies, ridge):
    """Repeated columns do not determine theta: the fit is the solution of least norm, or with a ridge that of the augmented problem."""
    rng = np.random.default_rng(seed)
    layout = of.Layout([1, 2], 2)
    base = rng.normal(size=(*layout.shape, dimension))
    table = np.concatenate([base, *[base[..., rng.integers(dimension, size=1)] for _ in range(copies)]], axis=2)
    width = table.shape[2]
    log = draw_log(rng, layout, [0], rng.random((1, *layout.shape)), random_blocks(rng, layout, 1), n)
    oracle = LinearLossClass(lambda c: table, width, ridge=ridge).oracle(layout)
    oracle.observe_many(log)
    x = np.concatenate([table[t.states[:-1], t.actions] for t in log])
    augmented = np.concatenate([x, np.sqrt(ridge) * np.eye(width)]) if ridge else x
    expected = scipy.linalg.lstsq(augmented, np.concatenate([log.losses.ravel(), np.zeros(len(augmented) - len(x))]), cond=1e-10)[0]
    np.testing.assert_allclose(oracle.parameters(oracle.fit()), expected, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(expected).max()))


def test_ill_conditioned_features_keep_digits_that_normal_equations_lose():
    rng = np.random.default_rng(3)
    layout = of.Layout([1, 4], 3)
    t = np.linspace(0, 1, layout.n_states * layout.n_actions)
    table = (t[:, None] ** np.arange(9)).reshape(*layout.shape, 9)
    log = draw_log(rng, layout, [0], rng.random((1, *layout.shape)), random_blocks(rng, layout, 1), 3000)
    oracle = LinearLossClass(lambda c: table, 9).oracle(layout)
    oracle.observe_many(log)
    x = np.concatenate([table[t.states[:-1], t.actions] for t in log])
    y = log.losses.ravel()
    expected = scipy.linalg.lstsq(x, y)[0]
    theta = oracle.parameters(oracle.fit())
    assert np.linalg.cond(x) > 1e5
    ours = np.abs(theta - expected).max() / np.abs(expected).max()
    normal = np.abs(np.linalg.solve(x.T @ x, x.T @ y) - expected).max() / np.abs(expected).max()
    assert ours < 1e-8
    assert normal > 10 * ours


def test_one_model_for_each_pair():
    world = World(5)
    log = world.log(300)
    features = lambda c: np.array([1.0, c[0], c[1]])  # noqa: E731
    oracle = DisjointLinearLossClass(features, 3).oracle(LAYOUT)
    oracle.observe_many(log)
    theta = oracle.parameters(oracle.fit())
    contexts = np.array([features(t.context) for t in log])
    total = 0.0
    for pair in range(LAYOUT.n_states * LAYOUT.n_actions):
        i, h = np.nonzero(log.pairs == pair)
        expected = scipy.linalg.lstsq(contexts[i], log.losses[i, h])[0]
        np.testing.assert_allclose(theta[pair], expected, atol=1e-9)
        total += float(np.square(log.losses[i, h]).sum() - np.square(contexts[i] @ expected - log.losses[i, h]).sum())
    assert oracle.gain(0) == pytest.approx(total, abs=1e-8)
    assert oracle.gain(oracle.fit()) == pytest.approx(0.0, abs=1e-12)
    c = world.contexts[1]
    np.testing.assert_allclose(oracle.losses(1, c).ravel(), np.clip(theta @ features(c), 0, 1), atol=1e-12)
    assert (oracle.losses(0, c) == 0).all()


def test_batches_leave_no_trace_in_the_bits_and_earlier_fits_stay():
    world = World(8)
    log = world.log(120)
    for make in (
        lambda: LinearLossClass(world.features, 4).oracle(LAYOUT),
        lambda: DisjointLinearLossClass(lambda c: np.array([1.0, *c]), 4, ridge=0.1).oracle(LAYOUT),
    ):
        single, halves, whole = make(), make(), make()
        past = {}
        for t in log:
            single.observe(t)
            fit = single.fit()
            past[fit] = numbers(single, fit, world.contexts[0])
        halves.observe_many(log[:50])
        halves.fit()
        halves.observe_many(log[50:])
        whole.observe_many(log)
        for context in world.contexts:
            first = numbers(single, single.fit(), context)
            assert first.tobytes() == numbers(halves, halves.fit(), context).tobytes() == numbers(whole, whole.fit(), context).tobytes()
        assert all(numbers(single, fit, world.contexts[0]).tobytes() == then.tobytes() for fit, then in past.items())


def test_the_error_in_theta_falls_like_one_over_root_n():
    sizes = [100, 1000, 10_000, 100_000]
    errors = np.empty((6, len(sizes)))
    for seed in range(len(errors)):
        world = World(seed)
        log = world.log(sizes[-1])
        oracle = LinearLossClass(world.features, 4).oracle(LAYOUT)
        for i, (lo, hi) in enumerate(zip([0, *sizes[:-1]], sizes, strict=True)):
            oracle.observe_many(log[lo:hi])
            errors[seed, i] = np.linalg.norm(oracle.parameters(oracle.fit()) - THETA)
    assert exponent(sizes, errors) == pytest.approx(-0.5, abs=0.08)


def test_features_of_the_wrong_size_or_not_finite_are_refused_before_anything_is_added():
    world = World(1)
    log = world.log(3)
    for features, message in (
        (lambda c: np.zeros((7, 2, 3)), r"features at context .* have shape \(7, 2, 3\): \(7, 2, 4\) is needed"),
        (lambda c: np.full((7, 2, 4), np.nan), "entry .* is nan; a finite number is needed"),
        (lambda c: [["a"]], "real numbers are needed"),
    ):
        oracle = LinearLossClass(features, 4).oracle(LAYOUT)
        with pytest.raises(of.OpoError, match=message):
            oracle.observe_many(log)
        with pytest.raises(of.OpoError, match=message):
            oracle.observe(log[0])
        assert oracle.episodes == 0
        assert oracle.fit() == 0
    with pytest.raises(of.OpoError, match="features is a int"):
        LinearLossClass(3, 4).oracle(LAYOUT)
    with pytest.raises(of.OpoError, match="ridge is -1"):
        LinearLossClass(world.features, 4, ridge=-1)


def test_stationary_features_are_those_of_every_layer():
    """A linear class over (S, A, d) features gives the losses that the unrolled model has."""
    rng = np.random.default_rng(0)
    P, phi, theta = rng.dirichlet(np.ones(3), (3, 2)), rng.random((3, 2, 4)) / 4, rng.random(4)
    for start, first in ((1, 1), ([0.2, 0.3, 0.5], None)):
        mdp = of.LayeredMDP.stationary(P, phi @ theta, 4, start)
        features = stationary_features(lambda context: phi, mdp.layout, first)
        np.testing.assert_allclose(features(0) @ theta, mdp.losses, rtol=1e-14)
        assert LinearLossClass(features, 4).oracle(mdp.layout, None).losses(0, 0).shape == mdp.layout.shape
    with pytest.raises(of.OpoError, match=r"features at context 0 have shape \(2, 2, 4\): \(3, 2, \.\.\.\) is needed"):
        stationary_features(lambda context: phi[:2], mdp.layout)(0)
    with pytest.raises(of.OpoError, match=r"layout has layers of \(1, 2, 3\) states"):
        stationary_features(lambda context: phi, of.Layout([1, 2, 3], 2))
