"""Quantities that a run computes for several episodes at once, or lazily: values, errors of the true model, labels, streams."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import opo_fast as of
from opo_fast.model.streams import Streams
from opo_fast.runs.labels import Labels
from opo_fast.runs.simulation import Simulation
from opo_fast.runs.worlds import BLOCK

LAYOUT = of.Layout([1, 2, 3], 2)


class Changing:
    """A fresh context each episode, whose models may have masks of their own."""

    layout = LAYOUT

    def __init__(self, masks=1):
        self.masks, self.seen = masks, []

    def sample_context(self, rng):
        return rng.random(2)

    def mdp(self, context):
        rng = np.random.default_rng(int(1e6 * context[0]))
        mask = np.ones(LAYOUT.shape, bool)
        mask[1 + int(self.masks * context[1]), 1] = self.masks == 1
        arrays = [rng.dirichlet(np.ones(m), (n, 2)) for n, m in ((1, 2), (2, 3))]
        return of.LayeredMDP(LAYOUT, rng.random(LAYOUT.shape), arrays, action_mask=mask)


class Reuses:
    """An agent that writes all its policies into one array."""

    def __init__(self, cmdp):
        self.cmdp, self.room, self.played, self.held_out = cmdp, np.empty(LAYOUT.shape), [], (0.0, 0.0)

    def policy(self, context):
        mdp = self.cmdp.mdp(context)
        allowed = np.ones(LAYOUT.shape, bool) if mdp.action_mask is None else mdp.action_mask
        weights = np.where(allowed, 1 + context[0] * np.arange(2), 0.0)
        self.room[...] = weights / weights.sum(axis=1, keepdims=True)
        self.played.append((context.copy(), self.room.copy()))
        return self.room

    def observe(self, trajectory):
        self.last = trajectory


@pytest.mark.parametrize("masks", [1, 3])
@pytest.mark.parametrize("episodes", [1, BLOCK, 2 * BLOCK + 3])
def test_values_and_errors_are_those_of_each_episode_alone(masks, episodes):
    cmdp = Changing(masks)
    agent = Reuses(cmdp)
    run = Simulation(cmdp, agent, episodes, seed=3)
    squared, logs = [], []
    for t in range(episodes):
        run.step()
        mdp, told = cmdp.mdp(agent.played[-1][0]), agent.last
        squared.append(float(np.square(mdp.losses[told.states[:-1], told.actions] - told.losses).sum()))
        logs.append(-float(np.log(mdp.transitions.along(told.states, told.actions)).sum()))
        if t % 7 == 0:
            assert np.isfinite(run.columns["value"][: t + 1]).all()
            assert np.isnan(run.columns["value"][t + 1 :]).all()
    result = run.result()
    for t, (context, policy) in enumerate(agent.played):
        mdp = cmdp.mdp(context)
        assert result.value[t] == of.evaluate(mdp, policy).v[0]
        assert result.optimal_value[t] == of.solve(mdp).v[0]
        assert result.uniform_value[t] == of.evaluate(mdp, mdp.uniform_policy()).v[0]
    assert result.true_squared_error.tolist() == squared
    np.testing.assert_allclose(result.true_log_loss, logs, rtol=1e-15)


def test_a_model_that_changes_is_valued_in_its_own_episode():
    mdp = Changing().mdp(np.array([0.25, 0.0]))
    model = of.UpdatableMDP(LAYOUT, mdp.losses, mdp.transitions.arrays())

    class Updated(Changing):
        def mdp(self, context):
            model.update(losses=np.full(LAYOUT.shape, context[0]))
            return model

    agent = Reuses(Changing())
    result = of.simulate(Updated(), agent, 5, progress=False)
    # Three steps of one loss.
    np.testing.assert_allclose(result.value, [3 * context[0] for context, _ in agent.played], rtol=1e-14)


def test_labels_are_made_when_they_are_read():
    made = []

    class Said(Changing):
        def label(self, context):
            made.append(context)
            return f"{context[0]:.3f}"

    result = of.simulate(Said(), Reuses(Changing()), 40, seed=1, progress=False)
    labels = result.settings["labels"]
    assert isinstance(labels, Labels)
    assert len(labels) == 40
    assert not made
    wanted = [f"{context[0]:.3f}" for context in result.contexts]
    assert labels == wanted
    assert wanted == labels
    assert labels[3:5] == wanted[3:5]
    assert len(made) == 40
    for other in (pickle.loads(pickle.dumps(labels)), copy.deepcopy(labels)):
        assert type(other) is list
        assert other == wanted
    assert repr(labels) == repr(wanted)


def test_labels_are_in_the_file_of_a_result(tmp_path):
    result = of.simulate(Changing(), Reuses(Changing()), 3, progress=False)
    result.save(tmp_path / "result.npz")
    assert of.SimulationResult.load(tmp_path / "result.npz").settings["labels"] == list(map(str, result.contexts))


def test_a_generator_that_moves_is_at_the_place_of_a_new_one():
    streams = Streams(5, 3)
    for episode in (0, 7, 1, 2**40):
        moved = streams.moved("contexts", episode)
        moved.integers(3, size=5, dtype=np.int32)
        again, new = streams.moved("contexts", episode), streams.generator("contexts", episode)
        assert again is moved
        assert again.integers(5, size=3, dtype=np.int32).tolist() == new.integers(5, size=3, dtype=np.int32).tolist()
        assert again.random(5).tolist() == new.random(5).tolist()
