"""Three environments with a behavior policy, a policy to evaluate and its exact value, and logs drawn with plain NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import opo_fast as of
from opo_fast.oracles import TrajectoryLog


class World(NamedTuple):
    """A contextual MDP with two policies (contexts, n_states, A)."""

    mdps: list[of.LayeredMDP]
    weights: np.ndarray
    behavior: np.ndarray
    policy: np.ndarray

    @property
    def layout(self) -> of.Layout:
        return self.mdps[0].layout

    @property
    def value(self) -> float:
        """The exact value of the policy, averaged over contexts, by a sum over layers in plain NumPy."""
        total = 0.0
        for share, mdp, policy in zip(self.weights, self.mdps, self.policy, strict=True):
            reach = np.ones(1)
            for h in range(self.layout.horizon):
                layer = self.layout.layer(h)
                pairs = reach[:, None] * policy[layer]
                total += share * float((pairs * mdp.losses[layer]).sum())
                if h < self.layout.horizon - 1:
                    reach = np.einsum("sa,sat->t", pairs, mdp.transitions.arrays()[h])
        return total

    def draw(self, n: int, seed: int, *, propensities: bool = True) -> TrajectoryLog:
        """n episodes under the behavior policy, all at once."""
        rng = np.random.default_rng(seed)
        layout = self.layout
        context = rng.choice(len(self.mdps), size=n, p=self.weights)
        states, actions = np.zeros((n, layout.horizon), np.int64), np.zeros((n, layout.horizon), np.int64)
        blocks = [np.stack([mdp.transitions.arrays()[h] for mdp in self.mdps]) for h in range(layout.horizon - 1)]
        for h in range(layout.horizon):
            actions[:, h] = _draw(rng, self.behavior[context, states[:, h]])
            if h < layout.horizon - 1:
                p = blocks[h][context, states[:, h] - layout.offsets[h], actions[:, h]]
                states[:, h + 1] = layout.offsets[h + 1] + _draw(rng, p)
        means = np.stack([mdp.losses for mdp in self.mdps])[context[:, None], states, actions]
        losses = (rng.random(means.shape) < means).astype(np.float64)
        chances = self.behavior[context[:, None], states, actions] if propensities else None
        return TrajectoryLog(layout, context, states, actions, losses, self.mdps[0].action_mask, propensities=chances)


def _draw(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    return np.minimum((rng.random((len(p), 1)) >= np.cumsum(p, axis=1)).sum(axis=1), p.shape[1] - 1)


def world(name: str) -> World:
    """ "bandit" (one state, H = 1), "random" (H = 3), "masked" (H = 5, three contexts, an absorbing state and masks)."""
    rng = np.random.default_rng(7)
    sizes, n_actions, contexts = {"bandit": ([1], 4, 2), "random": ([1, 3, 3], 2, 2), "masked": ([1, 2, 3, 3, 3], 3, 3)}[name]
    layout = of.Layout(sizes, n_actions)
    mask = np.ones(layout.shape, bool)
    if name == "masked":
        for h in range(1, 5):
            mask[layout.offsets[h], 1:] = False  # the first state of each layer is absorbing: it has one action
        mask[2, 2] = False
    mdps = []
    for _ in range(contexts):
        losses = rng.random(layout.shape)
        blocks = [rng.dirichlet(np.ones(k), size=(n, n_actions)) for n, k in pairwise(sizes)]
        if name == "masked":
            for h in range(1, 4):
                blocks[h][0] = np.eye(sizes[h + 1])[0]
            losses[[int(layout.offsets[h]) for h in range(1, 5)]] = 0.0
        mdps.append(of.LayeredMDP(layout, losses, blocks, mask))
    policies = [np.where(mask, rng.dirichlet(np.full(n_actions, 2.0), size=(contexts, layout.n_states)), 0.0) for _ in range(2)]
    behavior, policy = (p / p.sum(axis=2, keepdims=True) for p in policies)
    behavior = 0.7 * behavior + 0.3 * mask / mask.sum(axis=1, keepdims=True)
    return World(mdps, rng.dirichlet(np.full(contexts, 5.0)), behavior, policy)


WORLDS = ("bandit", "random", "masked")


def finite_classes(of_world: World, n: int = 4) -> tuple[Any, Any]:
    """Classes of n candidates each; the truth is the second."""
    rng = np.random.default_rng(8)
    layout = of_world.layout

    def models() -> tuple[list[Any], list[Any]]:
        losses = [rng.random(layout.shape) for _ in of_world.mdps]
        sizes = list(pairwise(layout.layer_sizes))
        blocks = [[rng.dirichlet(np.ones(k), size=(m, layout.n_actions)) for m, k in sizes] for _ in of_world.mdps]
        return losses, blocks

    listed = [models() for _ in range(n)]
    listed[1] = [mdp.losses for mdp in of_world.mdps], [mdp.transitions.arrays() for mdp in of_world.mdps]
    losses = of.FiniteLossClass([lambda c, m=m: m[0][c] for m in listed])
    return losses, of.FiniteDynamicsClass([lambda c, m=m: m[1][c] for m in listed])
