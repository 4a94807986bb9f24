"""Corollaries 4.2 and 4.3 in the paper's setting: the bounds on the oracles' cumulative errors hold over 200 seeds."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_worlds import draw_log, random_blocks

import opo_fast as of
from opo_fast.oracles import FiniteDynamicsOracle, FiniteLossOracle

LAYOUT = of.Layout([1, 2], 2)
CONTEXTS, DELTA = [0, 1, 2], 0.05
H = LAYOUT.horizon


class WorstLoss(FiniteLossOracle):
    """Deliberately biased: gives the candidate with the largest squared error."""

    def fit(self):
        return int(self.scores.argmax())


class WorstDynamics(FiniteDynamicsOracle):
    def fit(self):
        return int(self.scores.argmin())


class World:
    """Four candidates for the losses and four for the dynamics; one of each, by the seed, is the truth."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.losses = rng.random((4, 3, *LAYOUT.shape))
        self.losses[0], self.losses[1] = 0.02, 0.98
        self.blocks = [random_blocks(rng, LAYOUT, 3, concentration=0.5) for _ in range(4)]
        self.true_loss, self.true_dynamics = seed % 4, seed // 4 % 4
        self.loss_class = of.FiniteLossClass([lambda c, k=k: self.losses[k, c] for k in range(4)])
        self.dynamics_class = of.FiniteDynamicsClass([lambda c, k=k: [block[c] for block in self.blocks[k]] for k in range(4)])

    def log(self, n):
        return draw_log(self.rng, LAYOUT, CONTEXTS, self.losses[self.true_loss], self.blocks[self.true_dynamics], n)

    def step_errors(self):
        """E_c E_{uniform, P*} of the sums over h of (f - f*)^2 and of the paper's D_H^2(P*, P), for each candidate."""
        squared, hellinger = np.zeros(4), np.zeros(4)
        for c in CONTEXTS:
            truth = [block[c] for block in self.blocks[self.true_dynamics]]
            mdp = of.LayeredMDP(LAYOUT, self.losses[self.true_loss, c], truth)
            q = of.reference.occupancy(mdp, mdp.uniform_policy())
            for k in range(4):
                squared[k] += float((q * np.square(self.losses[k, c] - self.losses[self.true_loss, c])).sum()) / 3
                distance = np.square(np.sqrt(self.blocks[k][0][c]) - np.sqrt(truth[0])).sum(axis=2)
                hellinger[k] += float((q[:1] * distance).sum()) / 3
        return squared, hellinger


def cumulative_error(oracle, log, step_errors):
    """For t = 1..T the sum over i < t of the expected error of the fit at t under the uniform policy."""
    fits = [oracle.fit()]
    for trajectory in log:
        oracle.observe(trajectory)
        fits.append(oracle.fit())
    return np.arange(len(fits)) * step_errors[fits]


def loss_bound(n):
    return 68 * H * np.log(2 * n**3 * 4 / DELTA)


def dynamics_bound(n):
    return 2 * H * np.log(n * H * 4 / DELTA)


def test_the_cumulative_errors_stay_below_the_bounds_over_200_seeds():
    n, ratios = 150, np.empty((200, 2))
    for seed in range(200):
        world = World(seed)
        log, (squared, hellinger) = world.log(n), world.step_errors()
        losses = cumulative_error(world.loss_class.oracle(LAYOUT, None), log, squared)
        dynamics = cumulative_error(world.dynamics_class.oracle(LAYOUT, None), log, hellinger)
        ratios[seed] = losses.max() / loss_bound(n), dynamics.max() / dynamics_bound(n)
    # Each bound holds with probability 0.95; in 200 seeds they are never reached.
    assert (ratios < 1).all()
    # The bounds are informative: there are errors.
    assert (ratios.max(axis=0) > 0.001).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_biased_oracle_breaks_the_bounds(seed):
    n = 2600
    world = World(seed)
    log, (squared, hellinger) = world.log(n), world.step_errors()
    dynamics = cumulative_error(WorstDynamics(world.dynamics_class, LAYOUT), log, hellinger)
    assert dynamics.max() > dynamics_bound(n)
    if world.true_loss in (0, 1):
        # The smallest error that can violate this bound within n episodes is 0.84 per step.
        losses = cumulative_error(WorstLoss(world.loss_class, LAYOUT), log, squared)
        assert losses.max() > loss_bound(n)
    good = cumulative_error(world.loss_class.oracle(LAYOUT, None), log, squared)
    assert good.max() < loss_bound(n)
