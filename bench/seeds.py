"""Rows of `work.py` for eight seeds of one setting: in one call, compared with one run after the other."""

from __future__ import annotations

import itertools

import numpy as np
from problems import rng

import opo_fast as of
from opo_fast import envs

SEEDS = 8


class FreshContexts:
    """A fresh context in [0, 1] in each episode; one function gives all candidates, each an interpolation between two random models."""

    name = "fresh contexts"

    def __init__(self, sizes: list[int], n_actions: int, candidates: int) -> None:
        generator = rng()
        self.layout = of.Layout(sizes, n_actions)
        x, y = generator.random((2, candidates, *self.layout.shape))
        self._losses, self._arrays = (x, y - x), []
        for n, n_next in itertools.pairwise(sizes):
            x, y = (generator.dirichlet(np.ones(n_next), (candidates, n, n_actions)) for _ in range(2))
            self._arrays.append((x, y - x))
        self.loss_class = of.FiniteLossClass.from_function(self.losses, candidates)
        self.dynamics_class = of.FiniteDynamicsClass.from_function(self.arrays, candidates)

    def losses(self, context: float) -> np.ndarray:
        return self._losses[0] + context * self._losses[1]

    def arrays(self, context: float) -> list[np.ndarray]:
        return [x + context * slope for x, slope in self._arrays]

    def sample_context(self, generator: np.random.Generator) -> float:
        return float(generator.random())

    def truth(self, context: float) -> tuple[np.ndarray, list[np.ndarray]]:
        losses = self._losses[0][-1] + context * self._losses[1][-1]
        return losses, [x[-1] + context * slope[-1] for x, slope in self._arrays]

    def mdp(self, context: float) -> of.LayeredMDP:
        return of.LayeredMDP(self.layout, *self.truth(context))


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
    """One row for each world; `work` makes it."""
    for world in WORLDS:
        yield work(
            f"8 seeds side by side, T={episodes}, {world}, 10+10 candidates",
            "episodes",
            lambda world=world: (together(world, episodes), float(SEEDS * episodes)),
            {"one after the other": lambda world=world: (in_turn(world, episodes), float(SEEDS * episodes))},
            2.5,
            rounds=3,
        )
