"""Agents and environments for the tests of the episode loop."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from strategies import random_mask, random_transitions

import opo_fast as of


class Fixed:
    """Plays one policy and records all calls."""

    def __init__(self, layout: of.Layout, policy: np.ndarray) -> None:
        self.layout, self._policy = layout, policy
        self.log: list[Any] = []

    def policy(self, context: Any) -> np.ndarray:
        self.log.append(("policy", context))
        return self._policy

    def observe(self, trajectory: of.Trajectory) -> None:
        self.log.append(("observe", trajectory))


def two_contexts(seed: int = 0, sizes: tuple[int, ...] = (1, 3, 2), n_actions: int = 2) -> of.FiniteContexts:
    rng = np.random.default_rng(seed)
    layout = of.Layout(list(sizes), n_actions)
    models = [of.LayeredMDP(layout, rng.random(layout.shape), random_transitions(rng, sizes, n_actions)) for _ in range(2)]
    return of.FiniteContexts(models, [0.7, 0.3], labels=["mild", "severe"], name="two contexts")


def uniform(cmdp: Any) -> np.ndarray:
    return np.full(cmdp.layout.shape, 1 / cmdp.layout.n_actions)


class Many:
    """A contextual MDP with vectors as contexts, whose classes contain the truth; `large` makes the layout too large for packs."""

    def __init__(self, large: bool = False, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        sizes = [1, 30, 30, 30] if large else [1, 3, 2, 3]
        self.layout = of.Layout(sizes, 3)
        self.mask = random_mask(rng, self.layout.shape)
        self._pairs = [[random_transitions(rng, sizes, 3) for _ in range(2)] for _ in range(3)]
        self._tables = rng.random((3, 2, *self.layout.shape))
        self.loss_class = of.FiniteLossClass([lambda c, i=i: self._mix(self._tables[i], c) for i in range(3)])
        self.dynamics_class = of.FiniteDynamicsClass([lambda c, i=i: self._blocks(i, c) for i in range(3)])

    @staticmethod
    def _mix(pair: Any, c: np.ndarray) -> np.ndarray:
        return c[0] * pair[0] + (1 - c[0]) * pair[1]

    def _blocks(self, i: int, c: np.ndarray) -> list[np.ndarray]:
        return [self._mix(pair, c) for pair in zip(*self._pairs[i], strict=True)]

    def sample_context(self, rng: np.random.Generator) -> np.ndarray:
        return np.round(rng.random(1), 1)

    def mdp(self, context: np.ndarray) -> of.LayeredMDP:
        return of.LayeredMDP(self.layout, self._mix(self._tables[1], context), self._blocks(1, context), self.mask)

    def agent(self, kind: type[of.OPO] = of.OPO, **options: Any) -> of.OPO:
        given = {"eta": 0.4, "beta_loss": 0.5, "beta_dynamics": 0.1, "action_mask": self.mask, **options}
        return kind(self.layout, self.loss_class, self.dynamics_class, **given)


def digest(result: of.SimulationResult) -> str:
    state = hashlib.sha256()
    for name in ("value", "optimal_value", "uniform_value", "observed_loss", "saturation", "context_index", "loss_fit", "dynamics_fit"):
        state.update(getattr(result, name).tobytes())
    return state.hexdigest()
