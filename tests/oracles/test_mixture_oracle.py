"""Mixture weights against closed forms and SciPy's SLSQP, their certificates, and the rate for a known truth."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given, settings
from oracle_worlds import draw_log, exponent, numbers, random_blocks

import opo_fast as of
from opo_fast.oracles import MixtureDynamicsClass, TrajectoryLog, mixture_weights

LAYOUT = of.Layout([1, 3, 3], 2)
WEIGHTS = np.array([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4]])


def mixed(bases, weights):
    return [sum(w * base[h] for w, base in zip(weights, bases, strict=True)) for h in range(2)]


def slsqp(z, counts, shape):
    total = counts.sum()
    groups = [slice(i * shape[1], (i + 1) * shape[1]) for i in range(shape[0])]
    return scipy.optimize.minimize(
        lambda x: -float(counts @ np.log(np.maximum(z @ x, 1e-300))) / total,
        np.full(shape[0] * shape[1], 1 / shape[1]),
        jac=lambda x: -(z.T @ (counts / np.maximum(z @ x, 1e-300))) / total,
        bounds=[(0, 1)] * (shape[0] * shape[1]),
        constraints=[{"type": "eq", "fun": lambda x, g=g: x[g].sum() - 1} for g in groups],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 1), (1, 3), (2, 6), (3, 4), (5, 2)]), st.integers(1, 60), st.booleans())
def test_weights_are_certified_and_no_other_solver_does_better(seed, shape, n, sparse):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(shape[1], 0.3), size=n)
    if sparse:
        p = np.where(rng.random(p.shape) < 0.4, 0.0, p)
        p[~p.any(axis=1)] = 1.0
    z = (rng.dirichlet(np.full(shape[0], 0.5), size=n)[:, :, None] * p[:, None, :]).reshape(n, -1)
    counts = rng.integers(1, 1000, size=n).astype(float)
    weights, gap = mixture_weights(z, counts, np.full(shape, 1 / shape[1]))
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-14)
    assert gap <= 1e-9 * counts.sum()
    other = slsqp(z, counts, shape)
    value = float(counts @ np.log(z @ weights.ravel())) / counts.sum()
    assert -other.fun <= value + gap / counts.sum() + 1e-12
    if not sparse and n > 50 and len(np.unique(z, axis=0)) == n:
        # A unique optimum: the weights agree too.
        np.testing.assert_allclose(weights.ravel(), other.x, atol=1e-6)


def test_bases_that_exclude_each_other_give_frequencies():
    layout = of.Layout([1, 3], 1)
    bases = [[np.eye(3)[j].reshape(1, 1, 3)] for j in range(3)]
    follow = np.repeat([0, 1, 2], [7, 2, 1])
    log = TrajectoryLog(layout, [0] * 10, np.stack([np.zeros(10, int), 1 + follow], axis=1), np.zeros((10, 2), int), np.zeros((10, 2)))
    oracle = MixtureDynamicsClass(bases).oracle(layout)
    oracle.observe_many(log)
    np.testing.assert_allclose(oracle.parameters(oracle.fit()), [[0.7, 0.2, 0.1]], atol=1e-12)
    entropy = -float(7 * np.log(0.7) + 2 * np.log(0.2) + np.log(0.1))
    assert oracle.gain(0) == pytest.approx(10 * np.log(3) - entropy)
    assert oracle.gap(1) < 1e-10


def world(seed, groups=2):
    rng = np.random.default_rng(seed)
    bases = [random_blocks(rng, LAYOUT) for _ in range(3)]
    blocks = [np.stack([mixed(bases, WEIGHTS[c])[h] for c in range(2)]) for h in range(2)]
    return rng, bases, blocks


def test_weights_that_depend_on_the_context_are_recovered_at_the_rate_of_one_over_root_n():
    sizes = [100, 1000, 10_000, 100_000]
    errors = np.empty((6, len(sizes)))
    for seed in range(len(errors)):
        rng, bases, blocks = world(seed)
        log = draw_log(rng, LAYOUT, [0, 1], np.full((2, *LAYOUT.shape), 0.5), blocks, sizes[-1])
        oracle = MixtureDynamicsClass(bases, groups=2).oracle(LAYOUT)
        for i, (lo, hi) in enumerate(zip([0, *sizes[:-1]], sizes, strict=True)):
            oracle.observe_many(log[lo:hi])
            errors[seed, i] = np.linalg.norm(oracle.parameters(oracle.fit()) - WEIGHTS)
    assert exponent(sizes, errors) == pytest.approx(-0.5, abs=0.08)


def test_soft_memberships_callable_and_sparse_bases_agree_with_the_plain_form():
    rng, bases, _ = world(3)
    memberships = lambda c: np.array([c, 1 - c])  # noqa: E731
    contexts = [0.0, 0.3, 1.0]
    blocks = [np.stack([mixed(bases, memberships(c) @ WEIGHTS)[h] for c in contexts]) for h in range(2)]
    log = draw_log(rng, LAYOUT, contexts, np.full((3, *LAYOUT.shape), 0.5), blocks, 400)
    fits = []
    for form in (
        bases,
        [lambda c, base=base: base for base in bases],
        [[sp.csr_array(block.reshape(-1, 3)) for block in base] for base in bases],
        [of.LayeredMDP(LAYOUT, np.zeros(LAYOUT.shape), base) for base in bases],
    ):
        oracle = MixtureDynamicsClass(form, 2, memberships).oracle(LAYOUT)
        oracle.observe_many(log)
        fits.append(oracle.parameters(oracle.fit()))
        expected = np.concatenate([block.ravel() for block in mixed(bases, memberships(0.3) @ fits[-1])])
        np.testing.assert_allclose(numbers(oracle, 1, 0.3), expected, atol=1e-14)
    for other in fits[1:]:
        np.testing.assert_allclose(other, fits[0], atol=1e-10)


def test_one_at_a_time_or_at_once_and_a_base_that_comes_back_from_zero():
    layout = of.Layout([1, 2], 1)
    bases = [[np.array([[[1.0, 0.0]]])], [np.array([[[0.0, 1.0]]])]]
    oracle = MixtureDynamicsClass(bases).oracle(layout)
    path = [of.Trajectory(0, np.array([0, 1 + j, 3]), np.zeros(2, int), np.zeros(2)) for j in (0, 1)]
    for expected, j in (([1.0, 0.0], 0), ([0.5, 0.5], 1), ([2 / 3, 1 / 3], 0)):
        oracle.observe(path[j])
        np.testing.assert_allclose(oracle.parameters(oracle.fit())[0], expected, atol=1e-12)


def test_what_no_base_explains_is_refused_by_name():
    layout = of.Layout([1, 2], 1)
    oracle = MixtureDynamicsClass([lambda c: [np.array([[[1.0, 0.0]]])]]).oracle(layout)
    with pytest.raises(
        of.OpoError, match="context 'x' the transition of layer 0 from state 0 under action 0 to state 2 has probability 0 under every base"
    ):
        oracle.observe(of.Trajectory("x", np.array([0, 2, 3]), np.zeros(2, int), np.zeros(2)))
    assert (oracle.episodes, oracle.fit()) == (0, 0)
    groups = MixtureDynamicsClass([[np.array([[[0.5, 0.5]]])]], groups=2).oracle(layout)
    with pytest.raises(of.OpoError, match="context is 2: a whole number from 0 to 1"):
        groups.transitions(0, 2)
    with pytest.raises(of.OpoError, match=r"memberships at context 0 sums to 0.5; 1 is needed"):
        MixtureDynamicsClass([[np.array([[[0.5, 0.5]]])]], 1, lambda c: [0.5]).oracle(layout).transitions(0, 0)
    with pytest.raises(of.OpoError, match="bases: at least one is needed"):
        MixtureDynamicsClass([])
