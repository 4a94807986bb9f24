"""Softmax dynamics against scikit-learn's multinomial logit, SciPy on an independent likelihood, and the rate for a known truth."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from oracle_worlds import draw_log, exponent

import opo_fast as of
from opo_fast.oracles import SoftmaxDynamicsClass, TrajectoryLog

LAYOUT = of.Layout([1, 3, 3], 2)
W = np.array([1.0, -0.5, 0.7])


class World:
    def __init__(self, seed: int, n_contexts: int = 4) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.support = [np.ones((1, 2, 3), bool), rng.random((3, 2, 3)) < 0.7]
        self.support[1][..., 1] = True
        self.base = [rng.normal(size=(*block.shape, 3)) for block in self.support]
        self.slope = [rng.normal(size=(*block.shape, 3)) for block in self.support]
        self.contexts = rng.random(n_contexts).tolist()
        self.blocks = [np.stack([self.truth(c)[h] for c in self.contexts]) for h in range(2)]

    def features(self, context: float) -> list[np.ndarray]:
        return [base + context * slope for base, slope in zip(self.base, self.slope, strict=True)]

    def truth(self, context: float, w: np.ndarray = W) -> list[np.ndarray]:
        logits = [np.where(s, f @ w, -np.inf) for s, f in zip(self.support, self.features(context), strict=True)]
        return [scipy.special.softmax(block, axis=2) for block in logits]

    def log(self, n: int) -> TrajectoryLog:
        return draw_log(self.rng, LAYOUT, self.contexts, np.full((len(self.contexts), *LAYOUT.shape), 0.5), self.blocks, n)

    def oracle(self, ridge: float = 1e-3):
        return SoftmaxDynamicsClass(self.features, 3, self.support, ridge=ridge).oracle(LAYOUT)


@pytest.mark.parametrize(("n", "ridge"), [(1, 0.1), (40, 1e-3), (300, 1e-3), (300, 5.0)])
def test_the_fit_is_the_optimum_that_scipy_finds_on_the_raw_data(n, ridge):
    world = World(n)
    log = world.log(n)
    oracle = world.oracle(ridge)
    oracle.observe_many(log)

    local = log.states[:, :-1] - LAYOUT.offsets[:-1]
    which = np.array([world.contexts.index(c) for c in log.contexts])

    def objective(w):
        parts = [world.truth(c, w) for c in world.contexts]
        blocks = [np.stack([part[h] for part in parts]) for h in range(2)]
        p = [blocks[h][which, local[:, h], log.actions[:, h], local[:, h + 1]] for h in range(2)]
        return (-float(np.log(p).sum()) + ridge / 2 * w @ w) / n

    found = scipy.optimize.minimize(objective, W, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-16, "maxiter": 600})
    np.testing.assert_allclose(oracle.parameters(oracle.fit()), found.x, atol=1e-6)
    fit = oracle.fit()
    assert objective(oracle.parameters(fit)) <= found.fun + 1e-13
    assert oracle.gain(0) == pytest.approx(n * (objective(np.zeros(3)) - objective(oracle.parameters(fit))), rel=1e-9)
    assert oracle.error(fit, log[0]) == pytest.approx(
        float(
            -np.log(
                of.LayeredMDP(LAYOUT, np.zeros(LAYOUT.shape), oracle.transitions(fit, log[0].context)).transitions.along(
                    log[0].states, log[0].actions
                )
            ).sum()
        )
    )


def test_a_multinomial_logit_of_scikit_learn_is_the_same_optimum():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(2)
    layout, k, d, ridge = of.Layout([1, 3], 2), 3, 4, 0.8
    contexts = [rng.normal(size=d - 1) for _ in range(30)]

    def phi(context, action):
        return np.concatenate([context, [float(action)]])

    def features(context):
        block = np.zeros((1, 2, k, k * d))
        for action in range(2):
            for j in range(k):
                block[0, action, j, j * d : (j + 1) * d] = phi(context, action)
        return [block]

    w = rng.normal(size=(k, d))
    blocks = [np.array([[scipy.special.softmax([w @ phi(c, a) for a in range(2)], axis=1)] for c in contexts])]
    log = draw_log(rng, layout, contexts, np.full((30, *layout.shape), 0.5), blocks, 600)
    oracle = SoftmaxDynamicsClass(features, k * d, ridge=ridge).oracle(layout)
    oracle.observe_many(log)
    x = np.array([phi(t.context, t.actions[0]) for t in log])
    other = linear_model.LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cg")
    other.fit(x, log.states[:, 1] - 1)
    np.testing.assert_allclose(oracle.parameters(oracle.fit()).reshape(k, d), other.coef_, atol=1e-6)


def test_structural_zeros_stay_zero_and_other_transitions_never_are():
    world = World(5)
    oracle = world.oracle()
    for n in (0, 50):
        if n:
            oracle.observe_many(world.log(n))
        for block, allowed in zip(oracle.transitions(oracle.fit(), 0.3), world.support, strict=True):
            assert (block[~allowed] == 0).all()
            assert (block[allowed] > 0).all()
    uniform = oracle.transitions(0, 0.3)
    np.testing.assert_allclose(
        uniform[1][world.support[1]], (world.support[1] / world.support[1].sum(axis=2, keepdims=True))[world.support[1]]
    )


def test_one_at_a_time_or_at_once_the_optimum_is_one():
    world = World(6)
    log = world.log(150)
    single, whole = world.oracle(), world.oracle()
    for t in log:
        single.observe(t)
        single.fit()
    whole.observe_many(log)
    np.testing.assert_allclose(single.parameters(single.fit()), whole.parameters(whole.fit()), atol=1e-10)


def test_separable_data_and_large_features_give_finite_fits():
    layout = of.Layout([1, 2], 1)
    for scale in (1.0, 1e3):
        oracle = SoftmaxDynamicsClass(lambda c, scale=scale: [scale * np.array([[[[1.0], [0.0]]]])], 1, ridge=1e-3).oracle(layout)
        log = TrajectoryLog(layout, [0] * 200, np.tile([0, 1], (200, 1)), np.zeros((200, 2), int), np.zeros((200, 2)))
        oracle.observe_many(log)
        block = oracle.transitions(oracle.fit(), 0)[0]
        assert np.isfinite(oracle.parameters(1)).all()
        assert 0.99 < block[0, 0, 0] <= 1.0
        # d/dw of 200 log(1 + exp(-s w)) + ridge w^2 / 2 vanishes.
        w = float(oracle.parameters(1)[0])
        assert 200 * scale * scipy.special.expit(-scale * w) == pytest.approx(1e-3 * w, rel=1e-6)


def test_the_error_in_w_falls_like_one_over_root_n():
    sizes = [100, 1000, 10_000, 100_000]
    errors = np.empty((6, len(sizes)))
    for seed in range(len(errors)):
        world = World(seed)
        log = world.log(sizes[-1])
        oracle = world.oracle()
        for i, (lo, hi) in enumerate(zip([0, *sizes[:-1]], sizes, strict=True)):
            oracle.observe_many(log[lo:hi])
            errors[seed, i] = np.linalg.norm(oracle.parameters(oracle.fit()) - W)
    assert exponent(sizes, errors) == pytest.approx(-0.5, abs=0.08)


def test_wrong_features_are_refused():
    world = World(1)
    log = world.log(2)
    for features, message in (
        (lambda c: world.features(c)[:1], "are 1 arrays: H - 1 = 2"),
        (lambda c: [np.zeros((1, 2, 3, 3)), np.zeros((3, 2, 2, 3))], r"layer 1, have shape \(3, 2, 2, 3\): \(3, 2, 3, 3\) is needed"),
        (lambda c: np.zeros((4, 3)), r"have shape \(4, 3\)"),
        (lambda c: [np.full_like(f, np.inf) for f in world.features(c)], "inf; a finite number"),
    ):
        oracle = SoftmaxDynamicsClass(features, 3, world.support).oracle(LAYOUT)
        with pytest.raises(of.OpoError, match=message):
            oracle.observe_many(log)
        assert (oracle.episodes, oracle.fit()) == (0, 0)
    with pytest.raises(of.OpoError, match=r"ridge is 0\.0: a finite number above 0"):
        SoftmaxDynamicsClass(world.features, 3, ridge=0.0)
