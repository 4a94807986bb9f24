"""Plausible sets of softmax and mixture dynamics: radii against models drawn from the ellipsoid, and against the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle_worlds import draw_log, numbers, random_blocks
from scipy.linalg import null_space

import opo_fast as of
from opo_fast.oracles import MixtureDynamicsClass, SoftmaxDynamicsClass

LAYOUT = of.Layout([1, 3, 4], 2)
DELTA, D = 0.05, 3
CONTEXTS = [np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])]
RNG = np.random.default_rng(0)
PSI = [RNG.normal(size=(*shape, D)) for shape in ((1, 2, 3), (3, 2, 4))]
BASES = [random_blocks(RNG, LAYOUT, concentration=0.4) for _ in range(3)]
NO_LOSSES = np.zeros((2, *LAYOUT.shape))


def softmax_blocks(w, context):
    blocks = [np.exp(np.einsum("hasd,d->has", psi * context, w)) for psi in PSI]
    return [block / block.sum(axis=2, keepdims=True) for block in blocks]


def mixture_blocks(weights, context):
    """Two groups, with the memberships (c_0, 1 - c_0)."""
    w = context[0] * weights[0] + (1 - context[0]) * weights[1]
    return [sum(x * base[h] for x, base in zip(w, BASES, strict=True)) for h in range(2)]


def softmax_class():
    return SoftmaxDynamicsClass(lambda c: [psi * c for psi in PSI], D)


def mixture_class():
    return MixtureDynamicsClass(BASES, 2, lambda c: [c[0], 1 - c[0]])


def draw(blocks_of, seed, n, parameters):
    rng = np.random.default_rng(seed)
    both = [np.stack(blocks) for blocks in zip(*(blocks_of(parameters, c) for c in CONTEXTS), strict=True)]
    return draw_log(rng, LAYOUT, CONTEXTS, NO_LOSSES, both, n)


def distances(blocks, others):
    """Total variation of the rows out of the first two layers, shape (4, A)."""
    return np.concatenate([0.5 * np.abs(a - b).sum(axis=2) for a, b in zip(blocks, others, strict=True)])


def numeric_hessian(function, x, step=1e-4):
    n, eye = x.size, step * np.eye(x.size)
    result = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            a, b = eye[i], eye[j]
            result[i, j] = (function(x + a + b) - function(x + a - b) - function(x - a + b) + function(x - a - b)) / (4 * step**2)
    return result


@pytest.mark.parametrize("n", [3, 30, 400])
def test_no_softmax_in_the_ellipsoid_is_farther_than_the_radius(n):
    truth = np.array([1.0, -0.5, 0.8])
    log = draw(softmax_blocks, 1, n, truth)
    oracle = softmax_class().oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    oracle.observe_many(log)
    fit, version = oracle.plausible()
    best = oracle.parameters(fit)

    def cost(w):
        # The penalised negative log-likelihood, from the blocks alone.
        total, blocks = 0.0005 * float(w @ w), [softmax_blocks(w, c) for c in CONTEXTS]
        for t in log:
            here = blocks[0 if np.array_equal(t.context, CONTEXTS[0]) else 1]
            local = t.states - LAYOUT.offsets
            total -= sum(math.log(here[h][local[h], t.actions[h], local[h + 1]]) for h in range(2))
        return total

    hessian = numeric_hessian(cost, best)
    radius = math.log(1 / DELTA) + D / 2 * math.log(2 * n)
    u = RNG.normal(size=(D, 300))
    points = best[:, None] + math.sqrt(2 * radius) * np.linalg.solve(np.linalg.cholesky(hessian).T, u / np.linalg.norm(u, axis=0))
    for c in CONTEXTS:
        fitted, most = softmax_blocks(best, c), np.zeros((4, 2))
        for w in points.T:
            most = np.maximum(most, distances(softmax_blocks(w, c), fitted))
        found = oracle.radius(version, c)
        assert (most <= found[:4] + 1e-6).all()
        assert (found[4:] == 0).all()
        if n == 400:  # and is not much larger than the largest distance
            assert (found[:4] < 2.5 * most).all()


@pytest.mark.parametrize("n", [0, 20, 1000])
def test_no_mixture_in_the_set_is_farther_than_the_radius(n):
    oracle = mixture_class().oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    if n:
        log = draw(mixture_blocks, 2, n, np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]))
        oracle.observe_many(log)
    fit, version = oracle.plausible()
    best = oracle.parameters(fit)
    basis = np.kron(np.eye(2), null_space(np.ones((1, 3))))
    hessian = np.zeros((6, 6))
    for t in log if n else []:
        local = t.states - LAYOUT.offsets
        for h in range(2):
            p = np.array([base[h][local[h], t.actions[h], local[h + 1]] for base in BASES])
            z = np.concatenate([t.context[0] * p, (1 - t.context[0]) * p])
            hessian += np.outer(z, z) / (z @ best.ravel()) ** 2
    hessian = basis.T @ hessian @ basis
    radius = math.log(1 / DELTA) + 4 / 2 * math.log(max(2 * n, 1))
    weights = np.concatenate(
        [RNG.dirichlet(np.full(3, 0.7), size=(3000, 2)), best + 0.1 * (RNG.dirichlet(np.ones(3), size=(3000, 2)) - best)]
    )
    gaps = (weights - best).reshape(-1, 6) @ basis
    inside = np.einsum("nd,de,ne->n", gaps, hessian, gaps) <= 2 * radius
    assert inside.sum() > 100
    for c in CONTEXTS:
        fitted, found = mixture_blocks(best, c), oracle.radius(version, c)
        most = np.max([distances(mixture_blocks(w, c), fitted) for w in weights[inside]], axis=0)
        assert (most <= found[:4] + 1e-9).all()
        assert (found[4:] == 0).all()
        if n in (0, 1000):
            assert (found[:4] < 3 * most).all()


def test_one_base_is_known():
    oracle = MixtureDynamicsClass(BASES[:1]).oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    oracle.observe_many(draw(mixture_blocks, 2, 5, np.array([[1.0, 0, 0], [1.0, 0, 0]])))
    assert oracle.radius(oracle.plausible()[1], CONTEXTS[0]).max() < 1e-12


@pytest.mark.parametrize("name", ["softmax", "mixture"])
def test_the_truth_is_within_the_radius(name):
    """Forty runs, checked after 5, 10, ..., 160 episodes. The sets are approximations, but the truth was never outside."""
    make, blocks_of = (softmax_class, softmax_blocks) if name == "softmax" else (mixture_class, mixture_blocks)
    outside = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.normal(size=D) if name == "softmax" else rng.dirichlet(np.full(3, 0.5), size=2)
        log = draw(blocks_of, seed, 160, truth)
        oracle = make().oracle(LAYOUT)
        oracle.keep_plausible(DELTA)
        left, seen = False, 0
        for n in (5, 10, 20, 40, 80, 160):
            oracle.observe_many(log[seen:n])
            seen = n
            fit, version = oracle.plausible()
            for c in CONTEXTS:
                fitted = oracle.transitions(fit, c)
                left |= (distances(blocks_of(truth, c), fitted) > oracle.radius(version, c)[:4] + 1e-12).any()
        assert numbers(oracle, fit, CONTEXTS[0]).size == 6 + 24
        outside += left
    assert outside / 40 <= DELTA
