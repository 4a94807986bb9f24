"""The worlds on which `self_tuning.py` measures self-tuning OPO: name, a function of the seed that makes it, and number of episodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import opo_fast as of
from opo_fast import envs
from opo_fast.oracles import LinearLossClass, MixtureDynamicsClass, SoftmaxDynamicsClass, TabularDynamicsClass

SMALL_GAPS = 2e-8
"""Factor on the betas for worlds in which actions differ by little; 2e-6 in the others."""


def _finite(seed: int, **options: Any) -> envs.Environment:
    return envs.make("random-finite", seed=seed, **options)


def _lock(seed: int, **options: Any) -> envs.Environment:
    return envs.make("combination-lock", seed=seed, **options)


FINITE: dict[str, tuple[Callable[[int], Any], int, float]] = {
    "lock H4": (lambda s: _lock(s, horizon=4), 1000, 2e-6),
    "lock H6": (lambda s: _lock(s), 1000, 2e-6),
    "lock H8, A4, 12 dynamics": (lambda s: _lock(s, horizon=8, n_actions=4, n_dynamics=12), 1000, 2e-6),
    "lock H15, 12 dynamics": (lambda s: _lock(s, horizon=15, n_actions=3, n_dynamics=12), 1000, 2e-6),
    "random H5": (lambda s: _finite(7 + s, n_contexts=10, n_losses=20, n_dynamics=20), 1000, 2e-6),
    "random H5, gap .05": (lambda s: _finite(17 + s, horizon=5, n_contexts=5, n_losses=20, n_dynamics=20, gap=0.05), 1000, 2e-6),
    "random H20, 8 states": (lambda s: _finite(27 + s, horizon=20, n_states=8, n_contexts=5), 500, 2e-6),
    "frozen-lake H20": (lambda s: envs.make("frozen-lake"), 1000, SMALL_GAPS),
    "cliff H20": (lambda s: envs.make("cliff-walking"), 500, SMALL_GAPS),
    "icu-reduced": (lambda s: envs.make("icu-reduced"), 500, SMALL_GAPS),
    "icu-sepsis": (lambda s: envs.make("icu-sepsis"), 150, 2e-6),
}
"""Worlds of finite classes: maker, episodes, and the factor on the betas that was chosen by hand. The first ten are those of the report."""


class World:
    """A contextual MDP whose truth is in two parametric classes.

    Contexts are 8 points of the simplex of dimension d. Losses are <table(s, a) * c, theta> with theta and the table in [0, 1]^d.
    """

    def __init__(self, horizon: int, seed: int, n_states: int = 4, n_actions: int = 3, d: int = 4) -> None:
        self.rng = np.random.default_rng(seed)
        self.layout = of.Layout([1] + [n_states] * (horizon - 1), n_actions)
        self.d, self.contexts = d, list(self.rng.dirichlet(np.ones(d), 8))
        table, self.theta = self.rng.random((*self.layout.shape, d)), self.rng.random(d)
        self.loss_class = LinearLossClass(lambda c: table * c, d)
        self.losses: Callable[[Any], Any] = lambda c: (table * c) @ self.theta
        self.dynamics_class: Any = None
        self.dynamics: Callable[[Any], Any] = lambda c: None

    def rows(self) -> list[np.ndarray]:
        """Random transitions."""
        return [self.rng.dirichlet(np.ones(m), (n, self.layout.n_actions)) for n, m in pairwise(self.layout.layer_sizes)]

    def environment(self) -> envs.Environment:
        """The truth; agents learn with `loss_class` and `dynamics_class` of the world."""
        return envs.Environment(self.layout, [self.losses], [self.dynamics], contexts=self.contexts, name="parametric")


def tabular(horizon: int, seed: int) -> World:
    """One table of transitions for all contexts."""
    world = World(horizon, seed)
    rows = world.rows()
    world.dynamics_class, world.dynamics = TabularDynamicsClass(), lambda c: rows
    return world


def softmax(horizon: int, seed: int) -> World:
    """P proportional to exp <psi(s, a, s') * c, w> with standard normal psi and w of length 4 sqrt(d)."""
    world = World(horizon, seed)
    sizes = list(pairwise(world.layout.layer_sizes))
    psi = [world.rng.standard_normal((n, world.layout.n_actions, m, world.d)) for n, m in sizes]
    w = 4 * world.rng.standard_normal(world.d)

    def dynamics(c: Any) -> list[np.ndarray]:
        weights = [np.exp((block * c) @ w) for block in psi]
        return [block / block.sum(axis=-1, keepdims=True) for block in weights]

    world.dynamics_class = SoftmaxDynamicsClass(lambda c: [block * c for block in psi], world.d)
    world.dynamics = dynamics
    return world


def mixture(horizon: int, seed: int) -> World:
    """Five known dynamics with weights that are linear in the context."""
    world = World(horizon, seed)
    bases, weights = [world.rows() for _ in range(5)], world.rng.dirichlet(np.full(5, 0.3), world.d)
    world.dynamics_class = MixtureDynamicsClass(bases, groups=world.d, memberships=lambda c: c)
    world.dynamics = lambda c: [np.tensordot(c @ weights, np.stack(blocks), axes=1) for blocks in zip(*bases, strict=True)]
    return world


PARAMETRIC: dict[str, Callable[[int], World]] = {
    f"{name} H{horizon}": (lambda seed, make=make, horizon=horizon: make(horizon, seed))
    for name, make in {"linear, tabular": tabular, "linear, softmax": softmax, "linear, mixture": mixture}.items()
    for horizon in (5, 20)
}
