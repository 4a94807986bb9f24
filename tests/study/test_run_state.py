"""A run can be stopped between episodes and continued in another process with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import opo_fast as of
from opo_fast import envs
from opo_fast.runs.simulation import Simulation
from opo_fast.study import checkpoint

COLUMNS = ("value", "optimal_value", "uniform_value", "observed_loss", "saturation", "context_index", "loss_fit", "dynamics_fit")


def lock():
    return envs.make("combination-lock", horizon=4)


def agent(env, episodes):
    return of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=episodes, bonus_scale=2e-6, eta_scale=50.0)


def run(env, episodes, seed, stops=(), folder=None):
    simulation = Simulation(env, agent(env, episodes), episodes, seed)
    for stop in (*stops, episodes):
        while simulation.episode < stop:
            simulation.step()
        if stop < episodes:
            checkpoint.write(folder, "x", simulation.episode, simulation.state())
            simulation = Simulation(env, agent(env, episodes), episodes, seed)
            state, messages = checkpoint.latest(folder, "x")
            assert not messages
            simulation.restore(state)
    return simulation.result()


@pytest.mark.parametrize("stops", [(1,), (7, 8, 60), (119,)])
def test_a_restored_run_has_the_same_bits(tmp_path, stops):
    whole = run(lock(), 120, 3)
    parts = run(lock(), 120, 3, stops, tmp_path)
    for name in COLUMNS:
        assert getattr(whole, name).tobytes() == getattr(parts, name).tobytes(), name
    assert whole.contexts == parts.contexts
    assert whole.settings["labels"] == parts.settings["labels"]


def test_endless_contexts_keep_their_numbers(tmp_path):
    env = envs.make("random-linear", n_contexts=None)
    whole = run(env, 40, 1)
    parts = run(env, 40, 1, (17,), tmp_path)
    for name in COLUMNS:
        assert getattr(whole, name).tobytes() == getattr(parts, name).tobytes(), name
    assert len(whole.contexts) == len(parts.contexts)
    assert all(np.array_equal(a, b) for a, b in zip(whole.contexts, parts.contexts, strict=True))


def test_a_state_of_another_run_is_refused():
    env = lock()
    state = Simulation(env, agent(env, 10), 10, 0).state()
    with pytest.raises(of.OpoError, match=r"seed 0: 1, as of this run"):
        Simulation(env, agent(env, 10), 10, 1).restore(state)
    with pytest.raises(of.OpoError, match=r"whose rule\.\w+ is"):
        Simulation(env, agent(env, 11), 11, 0).restore(state)


def test_an_agent_without_state_is_named():
    class Plain:
        def policy(self, context):
            raise NotImplementedError

        def observe(self, trajectory):
            raise NotImplementedError

    with pytest.raises(of.OpoError, match=r"agent is a Plain without state\(\) and restore"):
        Simulation(lock(), Plain(), 3).state()
