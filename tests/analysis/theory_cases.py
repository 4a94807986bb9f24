"""Small cases for the tests of the theory: one whose terms were computed by hand, and random ones."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from strategies import random_mask, random_model, random_transitions

import opo_fast as of
from opo_fast.analysis.lemmas import lemma_checks

HAND = of.Layout([1, 2], 2)
TRUE_LOSSES, FITTED_LOSSES = [[0.6, 0.4], [0.8, 0.4], [0.1, 0.6]], [[0.5, 0.4], [0.9, 0.3], [0.2, 0.5]]
TRUE_BLOCK, FITTED_BLOCK = np.array([[[0.25, 0.75], [1.0, 0.0]]]), np.array([[[0.5, 0.5], [1.0, 0.0]]])
HAND_TRUTH, HAND_FIT = of.LayeredMDP(HAND, TRUE_LOSSES, [TRUE_BLOCK]), of.LayeredMDP(HAND, FITTED_LOSSES, [FITTED_BLOCK])
# The first bonus is 0.1 + 2 H 0.05 = 0.3 everywhere; with this eta a gap of 0.6 in Q is a factor of 27, one of 0.2 a factor of 3.
HAND_GIVEN = {"eta": math.log(27) / 0.6, "beta_loss": 0.2, "beta_dynamics": 0.1}


def hand_run(episodes):
    env = of.FiniteContexts([HAND_TRUTH])
    classes = of.FiniteLossClass([lambda c: np.array(FITTED_LOSSES)]), of.FiniteDynamicsClass([lambda c: [FITTED_BLOCK]])
    agent = of.OPO(HAND, *classes, **HAND_GIVEN)
    return env, agent, of.simulate(env, agent, episodes)


class World:
    """Contexts with their own losses and dynamics; three candidates in each class, the truth in the middle."""

    def __init__(self, seed: int, *, masked: bool = False, sparse: bool = False, contexts: int = 2):
        rng, sizes, n_actions = np.random.default_rng(seed), (1, 3, 4, 2), 3
        self.layout = of.Layout(sizes, n_actions)
        self.mask = random_mask(rng, self.layout.shape) if masked else None

        def near(base):
            losses = 0.9 * base.losses + 0.1 * rng.random(self.layout.shape)
            blocks = [0.9 * x + 0.1 * y for x, y in zip(base.transitions.arrays(), random_transitions(rng, sizes, n_actions), strict=True)]
            form = [sp.csr_array(block.reshape(-1, block.shape[-1])) for block in blocks] if sparse else blocks
            return of.LayeredMDP(self.layout, losses, form, self.mask)

        bases = [random_model(rng, sizes, n_actions) for _ in range(contexts)]
        models = [[near(base) for base in bases] for _ in range(3)]
        self.env = of.FiniteContexts(models[1], rng.dirichlet(np.full(contexts, 3.0)))
        self.losses = of.FiniteLossClass([lambda c, i=i: models[i][c].losses for i in range(3)])
        self.dynamics = of.FiniteDynamicsClass([lambda c, i=i: models[i][c].transitions for i in range(3)])

    def agent(self, **options):
        given = {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1, **options}
        return of.OPO(self.layout, self.losses, self.dynamics, action_mask=self.mask, **given)


def biased(truth, by=0.4):
    return [truth.with_losses(np.minimum(1.0, truth.losses + by))] * 50


def violated(truth, steps, given_):
    return {name for name, check in lemma_checks(truth, steps, **given_).items() if not check.holds}


LARGE = {"eta": 0.3, "beta_loss": 400.0, "beta_dynamics": 400.0}
SMALL = {"eta": 0.3, "beta_loss": 1.0, "beta_dynamics": 1.0}
TRUTH = random_model(np.random.default_rng(5), [1, 3, 3], 3)
LOW = TRUTH.with_losses(0.5 * TRUTH.losses)
