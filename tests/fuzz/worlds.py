"""Small valid inputs for mutations: environments, trained agents, oracles with data, and their states."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

import opo_fast as of
from opo_fast import agents, oracles
from opo_fast.oracles import TrajectoryLog
from opo_fast.runs.simulation import Simulation


@functools.cache
def finite(sizes: tuple[int, ...] = (1, 3, 2), n_actions: int = 2, n_contexts: int = 3) -> of.envs.Environment:
    return of.envs.make(
        "random-finite", horizon=len(sizes), n_states=max(sizes), n_actions=n_actions, n_contexts=n_contexts, n_losses=2, n_dynamics=2
    )


@functools.cache
def vectors() -> of.envs.Environment:
    """Contexts that are arrays."""
    return of.envs.make("random-linear", horizon=3, n_states=3, n_actions=2, dimension=2, n_contexts=3)


@functools.cache
def bandit() -> of.envs.Environment:
    return of.envs.make("random-finite", horizon=1, n_states=1, n_actions=3, n_contexts=3, n_losses=3, n_dynamics=1)


def features(layout: of.Layout) -> Any:
    rng = np.random.default_rng(5)
    table = rng.random((8, *layout.shape, 2))
    return lambda c: table[int(c) % 8]


def next_features(layout: of.Layout) -> Any:
    rng = np.random.default_rng(6)
    blocks = [rng.random((n, layout.n_actions, m, 2)) for n, _, m in layout.dense_shapes]
    return lambda c: blocks


def oracle_classes(layout: of.Layout) -> dict[str, tuple[Any, Any]]:
    """A class of losses and one of dynamics for each kind of oracle."""
    rng = np.random.default_rng(7)
    bases = [[rng.dirichlet(np.ones(m), size=(n, a)) for n, a, m in layout.dense_shapes] for _ in range(2)]
    loss = oracles.LinearLossClass(features(layout), 2, ridge=0.1)
    flat = oracles.DisjointLinearLossClass(lambda c: np.array([1.0, float(c)]), 2, ridge=0.1)
    dynamics = oracles.TabularDynamicsClass(smoothing=0.5)
    return {
        "tabular": (oracles.TabularLossClass(), dynamics),
        "tabular per context": (oracles.TabularLossClass(per_context=True), oracles.TabularDynamicsClass(per_context=True, smoothing=1.0)),
        "linear": (loss, oracles.SoftmaxDynamicsClass(next_features(layout), 2)),
        "disjoint": (flat, oracles.MixtureDynamicsClass(bases)),
        "doubling": (oracles.scheduled(loss, "doubling"), oracles.scheduled(dynamics, "doubling")),
    }


def make_agent(name: str) -> tuple[of.envs.Environment, Any]:
    """A fresh agent by its name in `AGENTS`."""
    env = bandit() if name in agents.names() and agents.registry.info(name).bandit else finite()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in agents.names():
            return env, agents.make(name, env, episodes=40, seed=0, **({"tuning": "theory"} if name == "opo" else {}))
        if name == "opo single":
            large = finite((1, 30, 30, 30), 3, 2)
            return large, of.OPO(large.layout, large.loss_class, large.dynamics_class, episodes=40, bonus_scale=1e-5, eta_scale=20)
        classes = oracle_classes(env.layout)[name.removeprefix("opo ")]
        return env, of.OPO(env.layout, *classes, eta=0.3, beta_loss=0.5, beta_dynamics=0.1)


AGENTS = [
    "opo", "e-uc3rl", "rm-ucdd", "tabular-opo", "lolipop", "greedy", "epsilon-greedy", "uniform", "falcon", "squarecb",
    "regcb", "uccb", "po-cmab", "opo single",
    *(f"opo {kind}" for kind in ("tabular", "tabular per context", "linear", "disjoint", "doubling")),
]  # fmt: skip


@functools.cache
def trained(name: str, episodes: int = 24) -> tuple[of.envs.Environment, Any]:
    """A trained agent and its environment."""
    env, agent = make_agent(name)
    run = Simulation(env, agent, 40, 3)
    for _ in range(episodes):
        run.step()
    return env, agent


@functools.cache
def run_state(name: str) -> tuple[of.envs.Environment, dict[str, Any]]:
    """The state of an unfinished run, chains included."""
    env, agent = make_agent(name)
    run = Simulation(env, agent, 40, 3)
    for _ in range(24):
        run.step()
    return env, run.state()


@functools.cache
def log() -> TrajectoryLog:
    return TrajectoryLog.collect(finite(), 12, seed=1)
