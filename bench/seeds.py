"""Eight seeds of one setting: side by side in one call, and one after the other."""

from __future__ import annotations

import itertools

import numpy as np
from problems import rng

import opo_fast as of
from opo_fast import envs

SEEDS = 8


class FreshContexts:
    """A fresh context in [0, 1] each episode; one function gives all candidates, each between two random models."""

    name = "fresh contexts"

    def __init__(self, sizes, n_actions, candidates):
        generator = rng()
        self.layout = of.Layout(sizes, n_actions)
        self._losses = generator.random((2, candidates, *self.layout.shape))
        self._arrays = [generator.dirichlet(np.ones(b), (2, candidates, a, n_actions)) for a, b in itertools.pairwise(sizes)]
        self.loss_class = of.FiniteLossClass.from_function(lambda c: self._between(self._losses, c), candidates)
        self.dynamics_class = of.FiniteDynamicsClass.from_function(lambda c: [self._between(p, c) for p in self._arrays], candidates)

    def _between(self, ends, context, which=slice(None)):
        return (1 - context) * ends[0, which] + context * ends[1, which]

    def sample_context(self, generator):
        return float(generator.random())

    def mdp(self, context):
        return of.LayeredMDP(self.layout, self._between(self._losses, context, -1), [self._between(p, context, -1) for p in self._arrays])


WORLDS = {
    "5 contexts, H=5, 4 states, 3 actions": lambda: envs.make("random-finite", horizon=5, n_states=4, n_losses=10, n_dynamics=10, seed=1),
    "combination lock, H=5, 3 actions": lambda: envs.make("combination-lock", horizon=5, n_actions=3, n_dynamics=10, seed=1),
    "fresh contexts, H=4, 3 states, 3 actions": lambda: FreshContexts([1, 3, 3, 3], 3, 10),
}


def together(world, episodes):
    env = WORLDS[world]()

    def make(seed):
        return of.OPO(env.layout, env.loss_class, env.dynamics_class)

    return lambda: of.simulate_many(env, make, episodes, SEEDS, progress=False)


def in_turn(world, episodes):
    env = WORLDS[world]()

    def run():
        for seed in range(SEEDS):
            of.simulate(env, of.OPO(env.layout, env.loss_class, env.dynamics_class), episodes, seed, progress=False)

    return run


def rows(work, episodes=400):
    """A row for each world, made by `work`."""
    for world in WORLDS:
        yield work(
            f"8 seeds side by side, T={episodes}, {world}, 10+10 candidates",
            "episodes",
            lambda world=world: (together(world, episodes), float(SEEDS * episodes)),
            {"one after the other": lambda world=world: (in_turn(world, episodes), float(SEEDS * episodes))},
            2.5,
            rounds=3,
        )
