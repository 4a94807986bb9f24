"""Plausible sets of linear losses: the ellipsoid of Abbasi-Yadkori, Pal and Szepesvari in plain NumPy, its minima, its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle_worlds import draw_log, random_blocks

import opo_fast as of
from opo_fast.oracles import DisjointLinearLossClass, LinearLossClass

LAYOUT = of.Layout([1, 2, 2], 2)
DELTA, D = 0.1, 2
CONTEXTS = [np.array([0.2, 0.8]), np.array([0.7, 0.3])]
TABLE = np.random.default_rng(0).random((*LAYOUT.shape, D))


def features(context):
    return TABLE * context


def log_of(seed, n, theta=(0.9, 0.6)):
    rng = np.random.default_rng(seed)
    means = np.array([features(c) @ np.array(theta) for c in CONTEXTS])
    return draw_log(rng, LAYOUT, CONTEXTS, means, random_blocks(rng, LAYOUT, 2), n)


def ellipsoid(phi, losses, ridge, norm, delta):
    """Theorem 2, literally: V, the centre and the radius."""
    v = ridge * np.eye(phi.shape[1]) + phi.T @ phi
    radius = 0.5 * math.sqrt(2 * math.log(math.sqrt(np.linalg.det(v) / ridge ** phi.shape[1]) / delta)) + math.sqrt(ridge) * norm
    return v, np.linalg.solve(v, phi.T @ losses), radius


def least_on_the_boundary(phi, v, centre, radius):
    """By brute force: 20,000 points of the ellipse."""
    angle = np.linspace(0, 2 * np.pi, 20_000)
    points = centre + radius * np.linalg.solve(np.linalg.cholesky(v).T, np.array([np.cos(angle), np.sin(angle)])).T
    return (points @ phi).min()


@pytest.mark.parametrize(("ridge", "norm"), [(0.0, None), (0.5, 2.0), (0.01, 1.5)])
def test_least_losses_are_minima_over_the_ellipsoid(ridge, norm):
    oracle = LinearLossClass(features, D, ridge=ridge, norm=norm).oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    log = log_of(0, 120)
    at = {}
    for n, t in enumerate(log, start=1):
        oracle.observe(t)
        at[n] = oracle.plausible()
    known = norm or math.sqrt(D)
    regular = max(ridge, 0.25 / known**2)
    above_zero = 0
    for n in (1, 5, 40, 120):
        fit, version = at[n]
        phi = np.concatenate([features(t.context)[t.states[:-1], t.actions] for t in log[:n]])
        v, centre, radius = ellipsoid(phi, log.losses[:n].ravel(), regular, known, DELTA)
        for c in CONTEXTS:
            found, fitted = oracle.lower(version, c), oracle.losses(fit, c)
            for pair in np.ndindex(LAYOUT.shape):
                x = features(c)[pair]
                least = least_on_the_boundary(x, v, centre, radius)
                width = x @ centre - least
                # The oracle may use an older matrix, whose determinant is up to a tenth smaller.
                highest = np.clip(least, 0, fitted[pair])
                lowest = np.clip(x @ centre - math.sqrt(1.1) * width, 0, fitted[pair])
                assert lowest - 1e-6 <= found[pair] <= highest + 1e-6
                above_zero += found[pair] > 0
    assert above_zero > 10


def test_disjoint_sets_are_ellipsoids_pair_by_pair():
    oracle = DisjointLinearLossClass(lambda c: c, D, norm=2.0).oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    log = log_of(1, 800)
    at = {}
    for n, t in enumerate(log, start=1):
        oracle.observe(t)
        at[n] = oracle.plausible()
    above_zero = 0
    for n in (20, 800):
        fit, version = at[n]
        c = CONTEXTS[n == 800]
        found, fitted = oracle.lower(version, c).ravel(), oracle.losses(fit, c).ravel()
        for pair in range(10):
            mine = log.pairs[:n] == pair
            phi = np.array([log.contexts[i] for i, _ in np.argwhere(mine)]).reshape(-1, D)
            v, centre, radius = ellipsoid(phi, log.losses[:n][mine], 0.0625, 2.0, DELTA / 10)
            least = least_on_the_boundary(c, v, centre, radius)
            lowest = c @ centre - math.sqrt(1.1) * (c @ centre - least)
            assert np.clip(lowest, 0, fitted[pair]) - 1e-6 <= found[pair] <= np.clip(least, 0, fitted[pair]) + 1e-6
            above_zero += found[pair] > 0
    assert above_zero > 3


def test_the_truth_leaves_in_no_more_runs_than_delta():
    """400 runs of 200 losses, checked after each: the truth is in the ellipsoid of the theorem."""
    runs, n = 400, 200
    rng = np.random.default_rng(3)
    theta = rng.random((runs, D))
    phi = rng.dirichlet(np.ones(D), size=(runs, n))
    means = np.einsum("rnd,rd->rn", phi, theta)
    losses = (rng.random((runs, n)) < means).astype(float)
    norm, ridge = math.sqrt(D), 0.25 / D
    v = ridge * np.eye(D) + np.einsum("rnd,rne->rnde", phi, phi).cumsum(axis=1)
    centre = np.linalg.solve(v, (phi * losses[..., None]).cumsum(axis=1)[..., None])[..., 0]
    radius = 0.5 * np.sqrt(np.log(np.linalg.det(v)) - D * math.log(ridge) - 2 * math.log(DELTA)) + math.sqrt(ridge) * norm
    gap = centre - theta[:, None]
    left = (np.einsum("rnd,rnde,rne->rn", gap, v, gap) > radius**2).any(axis=1)
    assert left.mean() <= DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / runs)
    # The oracle's lower bounds are below the true losses in 40 further runs.
    truth = np.array([features(c) @ np.array([0.9, 0.6]) for c in CONTEXTS])
    for seed in range(40):
        oracle = LinearLossClass(features, D).oracle(LAYOUT)
        oracle.keep_plausible(DELTA)
        for t in log_of(seed, 30):
            oracle.observe(t)
            version = oracle.plausible()[1]
            assert all((oracle.lower(version, c) <= means).all() for c, means in zip(CONTEXTS, truth, strict=True))


def test_the_matrices_kept_grow_with_the_logarithm_of_the_data():
    oracle = LinearLossClass(features, D).oracle(LAYOUT)
    oracle.keep_plausible(DELTA)
    log = log_of(4, 1000)
    for n, t in enumerate(log, start=1):
        oracle.observe(t)
        oracle.plausible()
        # d log(1 + n L^2 / (d lambda)) bounds log det V - log det lambda I; |phi| <= 1.2 and lambda is 1/8.
        assert len(oracle._inverses) <= 1 + D * math.log(1 + 3 * n * 1.44 / (D * 0.125)) / math.log(1.1)
    assert len(oracle._inverses) < 150 < len(oracle._balls)
    with pytest.raises(of.OpoError, match="norm is 0"):
        LinearLossClass(features, D, norm=0.0)
